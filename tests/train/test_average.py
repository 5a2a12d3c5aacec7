import pytest
import torch
from torch import nn

from gtpool.data.sources import load
from gtpool.data.split import stratified_folds
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.epoch import WeightAverage, averaged
from gtpool.train.fit import fit
from gtpool.train.loss import Loss


def naive(values, decay):
    average = values[0]
    for step, value in enumerate(values[1:], 1):
        now = min(decay, (1 + step) / (10 + step))
        average = now * average + (1 - now) * value
    return average


def test_the_average_is_that_of_the_formula_for_each_run():
    values = torch.randn(60, 2, 3, dtype=torch.float64)
    average = WeightAverage({"w": values[0]}, 0.8, runs=2)
    for value in values[1:]:
        average.update({"w": value})
    torch.testing.assert_close(average.state["w"], naive(list(values), 0.8))


def test_a_run_that_takes_no_step_keeps_its_average():
    start = torch.zeros(2, 1)
    average = WeightAverage({"w": start}, 0.9, runs=2)
    average.update({"w": start + 1}, torch.tensor([True, False]))
    assert average.state["w"][0] > 0
    assert average.state["w"][1] == 0
    assert average.count.tolist() == [1, 0]


def test_weights_are_exchanged_inside_the_block_alone():
    model = nn.Linear(2, 2)
    average = WeightAverage(model.state_dict(), 0.9)
    first = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    average.update(model.state_dict())
    with averaged(model.state_dict(), average):
        assert (model.weight < first + 1).all()
    torch.testing.assert_close(model.weight.detach(), first + 1)


def test_averaged_weights_are_validated_and_saved():
    data = load("MUTAG")
    split = stratified_folds(data.y)[0]
    found = {}
    for ema in (0.0, 0.99):
        torch.manual_seed(0)
        model = Classifier(ModelSpec(width=8, levels=1, norm="batch"), shape_of(data))
        spec = TrainSpec(epochs=2, warmup=0, lr=1e-2, ema=ema)
        *epochs, last = fit(model, data, split, spec, seed=0)
        loss = Loss(data, [split.train], weigh=False)
        graphs = data.take(split.valid, model.ratios)
        model.eval()
        measured = loss(model.classify(graphs), graphs.y).item()
        best = min((*epochs, last), key=lambda epoch: epoch.valid_loss)
        assert measured == pytest.approx(best.valid_loss)
        found[ema] = last
    assert found[0.0].train_loss == found[0.99].train_loss  # the steps are the same
    assert found[0.0].valid_loss != found[0.99].valid_loss


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
def test_a_decay_that_averages_nothing_is_refused(decay):
    with pytest.raises(ValueError, match=r"train\.ema"):
        WeightAverage({"w": torch.ones(1)}, decay)


def test_smoothing_moves_mass_to_all_classes_in_training_only():
    data = load("MUTAG")
    logits, y = torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1])
    plain, smooth = (
        Loss(data, [torch.arange(9)], weigh=False, smoothing=part) for part in (0.0, 0.2)
    )
    target = torch.nn.functional.one_hot(y, 2) * 0.8 + 0.1
    wanted = -(target * logits.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(smooth(logits, y, training=True).squeeze(0), wanted)
    torch.testing.assert_close(smooth(logits, y), plain(logits, y))
    with pytest.raises(ValueError, match="label_smoothing"):
        Loss(data, [torch.arange(9)], weigh=False, smoothing=1.0)
