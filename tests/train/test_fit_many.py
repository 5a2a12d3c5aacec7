"""Runs side by side against the loop over ``fit``."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from drawn import molecules
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.encodings import with_encodings
from gtpool.data.sources import load
from gtpool.data.split import Split, random_split, stratified_folds
from gtpool.data.synthetic import long_range
from gtpool.model import METHODS
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train import captured
from gtpool.train import fit_many as fit_many_module
from gtpool.train.epoch import Outcome, TrainingError
from gtpool.train.fit import fit, predict
from gtpool.train.fit_many import fit_many

SPEC = TrainSpec(epochs=3, batch_size=32, warmup=2, lr=1e-2, patience=None)
SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def mutag():
    """Half of MUTAG, in float64."""
    data = GraphDataset.from_pyg(load("MUTAG").to_pyg()[::2])
    return replace(data, x=data.x.double())


def rings(targets, width=2, seed=0):
    """Rings of 3 to 8 nodes with continuous features, far from 0, and the given targets."""
    random = torch.Generator().manual_seed(seed)
    graphs = []
    for number, y in enumerate(targets):
        nodes = 3 + number % 6
        ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
        x = 50 + 7 * torch.randn(nodes, width, generator=random, dtype=torch.float64)
        graphs.append(Data(x, torch.cat([ring, ring.flip(0)], 1), y=y))
    return GraphDataset.from_pyg(graphs)


def networks(data, runs=3, **options):
    models = []
    for seed in range(runs):
        torch.manual_seed(seed)
        spec = ModelSpec(**{"width": 8, "levels": 2, **options})
        models.append(Classifier(spec, shape_of(data)).double())
    return models


def drain(epochs):
    seen = []
    while True:
        try:
            seen.append(next(epochs))
        except StopIteration as end:
            return seen, end.value


def beside(models, data, splits, spec, **options):
    seeds = SEEDS[: len(models)]
    return drain(fit_many(models, data, splits, [spec] * len(models), seeds=seeds, **options))


def assert_like_fit(data, splits, spec, *, scaled=False, **options):
    """Train side by side and one after the other, and compare all that came of it."""
    together, alone = (networks(data, len(splits), **options) for _ in range(2))
    _, outcomes = beside(together, data, splits, spec, standardize=scaled)
    for seed, (found, model, one, split) in enumerate(
        zip(outcomes, together, alone, splits, strict=True)
    ):
        own = data.standardized(split.train) if scaled else data
        _, wanted = drain(fit(one, own, split, spec, seed=SEEDS[seed]))
        assert len(found.epochs) == len(wanted.epochs)
        for epoch, expected in zip(found.epochs, wanted.epochs, strict=True):
            assert epoch[:5] == pytest.approx(expected[:5], rel=1e-9, abs=1e-9, nan_ok=True)
        assert found.best.number == wanted.best.number
        assert found.other_rules == pytest.approx(wanted.other_rules, rel=1e-9, nan_ok=True)
        assert found.state.keys() == wanted.state.keys()
        for name, part in model.state_dict().items():
            assert torch.equal(found.state[name], part)
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(part, wanted.state[name], rtol=1e-7, atol=1e-9)
    return outcomes


MODELS = {
    "the paper's": {},
    "dropout in the pools": {"pool_options": {"dropout": 0.3}},
    "gate": {"pool_options": {"gate": "tanh", "heads": 2}},
    "gin": {"conv": "gin", "levels": 1},
    "flat": {"pool": "none", "levels": 1, "convs_per_level": 2},
    "mincutpool": {"pool": "mincutpool"},
    "diffpool": {"pool": "diffpool"},
    "structpool": {"pool": "structpool"},
    "set2set": METHODS["set2set"].model,
    "sortpool": METHODS["sortpool"].model,
    "gmt": METHODS["gmt"].model,
    "gine": {"conv": "gine", "residual": True},
    "dmpnn": {"conv": "dmpnn", "pool": "none"},
    "blocks": {
        "conv": "gine",
        "norm": "layer",
        "residual": True,
        "block_dropout": 0.2,
        "ffn": True,
        "virtual_node": True,
    },
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_runs_side_by_side_are_runs_alone(options, mutag):
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], SPEC, **options)


def test_averaged_weights_and_smoothed_labels_are_those_of_runs_alone(mutag):
    spec = replace(SPEC, ema=0.9, label_smoothing=0.1)
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], spec, conv="gin", levels=1)
    graphs = rings([torch.tensor([[1e3 + number]]) for number in range(24)])
    assert_like_fit(graphs, [random_split(24)] * 2, replace(SPEC, ema=0.9), scaled=True)


def test_runs_of_different_rates_train_side_by_side(mutag):
    rates = ((1e-3, 1e-4), (3e-2, 0.0), (1e-4, 5e-2))
    specs = [replace(SPEC, lr=lr, weight_decay=decay) for lr, decay in rates]
    splits = stratified_folds(mutag.y)[:3]
    together, alone = (networks(mutag, 3) for _ in range(2))
    _, outcomes = drain(fit_many(together, mutag, splits, specs, seeds=SEEDS))
    for run, (outcome, one) in enumerate(zip(outcomes, alone, strict=True)):
        _, wanted = drain(fit(one, mutag, splits[run], specs[run], seed=SEEDS[run]))
        for name, part in outcome.state.items():
            torch.testing.assert_close(part, wanted.state[name], rtol=1e-7, atol=1e-9)
        assert outcome.best.number == wanted.best.number


@pytest.mark.parametrize(
    "options", [{"read_input": True}, {"norm": "batch", "pool": "none"}, {"pool": "diffpool"}]
)
def test_molecules_with_their_bonds_are_trained_side_by_side(options):
    data = molecules(60)
    splits = stratified_folds(data.y, folds=4)[:3]
    spec = replace(SPEC, batch_size=16, select="metric")
    outcomes = assert_like_fit(data, splits, spec, conv="ogb-gcn", **options)
    assert all(outcome.state["levels.0.0.conv.root"].any() for outcome in outcomes)


@pytest.mark.parametrize("metric", ["mcc", "pr_auc", "log_loss"])
def test_any_metric_chooses_the_epoch_of_runs_side_by_side(mutag, metric):
    splits = stratified_folds(mutag.y, folds=4)[:3]
    assert_like_fit(mutag, splits, replace(SPEC, select="metric", metric=metric))


@pytest.mark.parametrize("coded", [False, True])
def test_encodings_are_scaled_by_each_run_s_training_part(coded):
    data = with_encodings(molecules(60) if coded else load("MUTAG"), ("rwse:5", "cycles"))
    data = replace(data, x=data.x.double())
    splits = stratified_folds(data.y, folds=4)[:3]
    conv = "ogb-gcn" if coded else "gcn"
    assert_like_fit(data, splits, replace(SPEC, batch_size=16), scaled=True, conv=conv)


def test_runs_end_when_they_are_tired_and_leave_the_others_the_room(mutag, monkeypatch):
    kept = []
    keep = captured.CapturedTrainer.select
    monkeypatch.setattr(
        captured.CapturedTrainer,
        "select",
        lambda self, runs: (kept.append(list(runs)), keep(self, runs)),
    )
    monkeypatch.setattr(fit_many_module, "_SHRINK", 1.0)
    spec = replace(SPEC, epochs=25, patience=1, lr=3e-2)
    folds = stratified_folds(mutag.y)[:3]
    outcomes = assert_like_fit(mutag, folds, spec, pool_options={"dropout": 0.1})
    lengths = [len(outcome.epochs) for outcome in outcomes]
    assert len(set(lengths)) > 1
    assert max(lengths) < 25
    assert [len(runs) for runs in kept] == list(range(3 - 1, 3 - len(set(lengths)), -1))
    assert any(outcome.best.number > 1 for outcome in outcomes)


def test_a_run_is_told_of_while_it_goes(mutag):
    spec = replace(SPEC, epochs=25, patience=1, lr=3e-2)
    seen, outcomes = beside(networks(mutag), mutag, stratified_folds(mutag.y)[:3], spec)
    for run, outcome in enumerate(outcomes):
        heard = [epochs[run] for epochs in seen if run in epochs]
        assert heard == outcome.epochs
        assert [epoch.number for epoch in heard] == list(range(1, len(heard) + 1))


def test_all_in_one_program_to_the_end_gives_the_same(mutag, monkeypatch):
    monkeypatch.setattr(fit_many_module, "_SHRINK", 0.0)
    spec = replace(SPEC, epochs=12, patience=1, lr=3e-2)
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], spec)


def test_classes_are_weighed_by_each_run_s_training_part(mutag):
    spec = replace(SPEC, class_weights=True)
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], spec)


def test_the_metric_may_choose_the_epoch(mutag):
    spec = replace(SPEC, select="metric", epochs=6)
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], spec)


NAN = math.nan
ANSWERS = [[1.0, NAN], [0.0, 1.0], [NAN, 0.0], [1.0, 0.0], [0.0, 1.0], [NAN, NAN], [1.0, 1.0]]


@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("select", ["loss", "metric"])
def test_missing_answers_do_not_count(weigh, select):
    data = rings([torch.tensor([ANSWERS[n % 7]], dtype=torch.float64) for n in range(60)])
    assert data.schema.task == "binary"
    splits = [random_split(60, (0.6, 0.2, 0.2), seed) for seed in range(3)]
    spec = replace(SPEC, batch_size=8, class_weights=weigh, select=select)
    assert_like_fit(data, splits, spec, scaled=True)


def test_a_regression_is_learned_in_the_units_of_each_run():
    random = torch.Generator().manual_seed(1)
    targets = 300 + 40 * torch.randn(50, 1, 2, generator=random, dtype=torch.float64)
    targets[3, 0, 1] = NAN
    data = rings(list(targets))
    assert data.schema.task == "regression"
    splits = [random_split(50, (0.6, 0.2, 0.2), seed) for seed in range(3)]
    outcomes = assert_like_fit(data, splits, replace(SPEC, batch_size=8), scaled=True)
    shifts = [outcome.state["shift"] for outcome in outcomes]
    assert not torch.equal(shifts[0], shifts[1])


@pytest.mark.parametrize("scaled", [False, True])
def test_features_are_scaled_by_each_run_s_training_part(scaled):
    data = rings([torch.tensor([n % 2]) for n in range(40)])
    splits = stratified_folds(data.y, folds=5)[:3]
    assert_like_fit(data, splits, replace(SPEC, batch_size=8), scaled=scaled)


def test_features_that_are_no_measurements_are_not_scaled(mutag):
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], replace(SPEC, epochs=2), scaled=True)


def split_of(order, train, valid, test):
    ends = (0, train, train + valid, train + valid + test)
    parts = (order[begin:end] for begin, end in pairwise(ends))
    return Split(*parts, "by hand", order.numel())


def test_runs_may_have_different_numbers_of_batches(mutag):
    order = torch.randperm(94, generator=torch.Generator().manual_seed(0))
    splits = [split_of(order.roll(7 * n), size, 10, 20 - n) for n, size in enumerate((10, 17, 60))]
    assert_like_fit(mutag, splits, replace(SPEC, batch_size=16))


@pytest.mark.parametrize("trains", [(17, 17, 17), (17, 32, 33), (5, 16, 49)])
def test_a_last_batch_of_one_graph_joins_the_one_before(trains, mutag):
    order = torch.randperm(94, generator=torch.Generator().manual_seed(0))
    splits = [split_of(order.roll(7 * n), size, 10, 20) for n, size in enumerate(trains)]
    assert_like_fit(mutag, splits, replace(SPEC, batch_size=16))


def test_a_batch_that_does_not_fit_is_trained_on_as_it_is(mutag, monkeypatch):
    small = captured.Capacity.rounded(33, (64,) * 3, 64)
    monkeypatch.setattr(captured, "_capacity", lambda *_: small)
    assert_like_fit(mutag, stratified_folds(mutag.y)[:3], replace(SPEC, epochs=2))


def test_directed_graphs_of_one_node_and_more():
    data = long_range(40)
    data = replace(data, x=data.x.double())
    assert_like_fit(data, stratified_folds(data.y, folds=4)[:3], replace(SPEC, batch_size=8))


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(),
    reason="torch with CUDA looks for the GPU that this test pretends to have",
)
def test_graphs_on_a_cpu_are_trained_there_even_beside_a_gpu(mutag, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert_like_fit(mutag, stratified_folds(mutag.y)[:2], replace(SPEC, epochs=1))


def test_one_run_alone(mutag):
    assert_like_fit(mutag, stratified_folds(mutag.y)[:1], SPEC)


def test_the_models_are_left_with_the_chosen_weights(mutag):
    models, folds = networks(mutag), stratified_folds(mutag.y)[:3]
    _, outcomes = beside(models, mutag, folds, replace(SPEC, epochs=12, lr=5e-2))
    assert any(outcome.best.number < 12 for outcome in outcomes)
    for model, fold, outcome in zip(models, folds, outcomes, strict=True):
        logits = predict(model, mutag, fold.test)
        hits = (logits.argmax(1) == mutag.y[fold.test]).double().mean().item()
        assert hits == outcome.best.test_metric


# Failures


def test_a_run_gone_wrong_fails_alone(mutag):
    models, alone = networks(mutag), networks(mutag)
    with torch.no_grad():
        models[1].head[0].weight.fill_(NAN)
    folds = stratified_folds(mutag.y)[:3]
    seen, outcomes = beside(models, mutag, folds, SPEC)
    assert all(epochs.keys() == {0, 2} for epochs in seen)
    assert isinstance(outcomes[1], TrainingError)
    assert "of epoch 1 is nan; lower the learning rate (now 0.01)" in str(outcomes[1])
    for run in (0, 2):
        _, wanted = drain(fit(alone[run], mutag, folds[run], SPEC, seed=SEEDS[run]))
        assert outcomes[run].best[:5] == pytest.approx(wanted.best[:5], rel=1e-9)


@pytest.mark.parametrize("name", ["the paper's", "gin", "mincutpool", "gmt", "blocks"])
def test_weights_that_are_no_numbers_do_not_spread(name, mutag):
    models = networks(mutag, **MODELS[name])
    with torch.no_grad():
        for part in models[0].parameters():
            part.fill_(NAN)
    _, outcomes = beside(models, mutag, stratified_folds(mutag.y)[:3], SPEC)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [TrainingError, Outcome, Outcome]
    assert all(part.isfinite().all() for part in outcomes[1].state.values())


def test_where_all_go_wrong_training_ends(mutag):
    models = networks(mutag)
    for model in models:
        model.head[0].weight.data.fill_(NAN)
    _, outcomes = beside(models, mutag, stratified_folds(mutag.y)[:3], SPEC)
    assert all(isinstance(outcome, TrainingError) for outcome in outcomes)


def test_a_split_in_which_the_metric_is_undefined_is_a_failure_of_that_run_alone():
    data = rings([torch.tensor([[float(n % 2)]], dtype=torch.float64) for n in range(24)])
    even, odd = torch.arange(0, 24, 2), torch.arange(1, 24, 2)
    mixed = Split(torch.arange(12), torch.arange(12, 18), torch.arange(18, 24), "mixed", 24)
    uneven = Split(odd, even[:6], even[6:], "uneven", 24)
    spec = replace(SPEC, select="metric", batch_size=8)
    seen, outcomes = beside(networks(data), data, [mixed, uneven, mixed], spec)
    assert [type(outcome) for outcome in outcomes] == [Outcome, TrainingError, Outcome]
    assert "validation part (6 graphs)" in str(outcomes[1])
    assert all(epochs.keys() == {0, 2} for epochs in seen)


def test_no_epochs_is_an_error(mutag):
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        beside(networks(mutag), mutag, stratified_folds(mutag.y)[:3], replace(SPEC, epochs=0))


def test_a_network_without_a_static_form_is_refused(mutag):
    models = networks(mutag, pool="asap")
    with pytest.raises(ValueError, match="pool 'asap' has no static form"):
        beside(models, mutag, stratified_folds(mutag.y)[:3], SPEC)


def test_training_leaves_the_callers_random_numbers_alone(mutag):
    torch.manual_seed(3)
    expected = torch.rand(4)
    models = networks(mutag)
    torch.manual_seed(3)
    beside(models, mutag, stratified_folds(mutag.y)[:3], replace(SPEC, epochs=1))
    assert torch.equal(torch.rand(4), expected)


def test_a_test_graph_that_overflows_does_not_fail_the_run(mutag):
    split = stratified_folds(mutag.y)[0]
    x = mutag.x.clone()
    x[mutag.node_ptr[split.test[0]]] = 1e308
    data = replace(mutag, x=x)
    _, (outcome,) = drain(fit_many(networks(data, 1), data, [split], [SPEC], seeds=[0]))
    assert isinstance(outcome, Outcome)
    assert math.isfinite(outcome.best.valid_loss)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"conv": "gin"},
        {"norm": "batch"},
        {
            "norm": "batch",
            "residual": True,
            "block_dropout": 0.1,
            "ffn": True,
            "virtual_node": True,
        },
        *({"readout": readout} for readout in ("set2set", "sortpool", "gmt")),
    ],
    ids=str,
)
def test_short_floats_train_every_norm_and_read_out(options):
    data = load("MUTAG")
    models = [model.float() for model in networks(data, **options)]
    spec = replace(SPEC, epochs=2, precision="bf16")
    _, outcomes = drain(
        fit_many(models, data, stratified_folds(data.y)[:3], [spec] * 3, seeds=SEEDS)
    )
    assert all(math.isfinite(outcome.best.valid_loss) for outcome in outcomes)


def test_tf32_is_asked_for_in_each_step_alone(mutag, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    spec = replace(SPEC, epochs=1, precision="tf32")
    splits = [random_split(20, (0.6, 0.2, 0.2), seed) for seed in range(3)]
    drain(fit_many(networks(mutag), mutag, splits, [spec] * 3, seeds=SEEDS))
    assert asked[:2] == ["high", "highest"]
    assert asked.count("high") == asked.count("highest") == len(asked) / 2


@pytest.mark.parametrize("conv", ["ogb-gcn", "gine", "dmpnn"])
def test_short_floats_train_bonds(conv):
    data = molecules(30)
    models = [model.float() for model in networks(data, conv=conv)]
    spec = replace(SPEC, epochs=2, batch_size=8, precision="bf16")
    splits = [random_split(30, (0.6, 0.2, 0.2), seed) for seed in range(3)]
    _, outcomes = drain(fit_many(models, data, splits, [spec] * 3, seeds=SEEDS))
    assert all(math.isfinite(outcome.best.valid_loss) for outcome in outcomes)


def test_one_graph_a_batch_is_enough(mutag):
    splits = [random_split(20, (0.6, 0.2, 0.2), seed) for seed in range(3)]
    _, found = beside(networks(mutag), mutag, splits, replace(SPEC, epochs=2, batch_size=1))
    assert all(math.isfinite(outcome.best.valid_loss) for outcome in found)


def test_a_recipe_that_differs_in_more_than_its_rates_is_refused(mutag):
    specs = [SPEC, replace(SPEC, lr=1e-4), replace(SPEC, clip=0.5)]
    training = fit_many(networks(mutag), mutag, stratified_folds(mutag.y)[:3], specs, seeds=SEEDS)
    with pytest.raises(ValueError, match="lr and weight_decay"):
        next(training)


def test_models_are_left_ready_to_predict(mutag):
    models = networks(mutag)
    beside(models, mutag, stratified_folds(mutag.y)[:3], replace(SPEC, epochs=1))
    assert not any(model.training for model in models)


def test_a_channel_without_deviation_leaves_a_gate_something_to_learn():
    """Padding is far from real rows there, and a batch norm made it as large as 1e5."""
    options = {"conv": "gin", "convs_per_level": 2, "norm": "batch", "readout": "mean", "width": 64}
    spec = ModelSpec(**options, dropout=0.3, pool_options={"gate": "tanh", "heads": 4})
    data = load("MUTAG")
    split = stratified_folds(data.y, 10, 0)[0]
    models = []
    for seed in (42, 43):
        torch.manual_seed(seed)
        models.append(Classifier(spec, shape_of(data)))
    recipe = TrainSpec(epochs=2, warmup=1, batch_size=64)
    epochs = list(fit_many(models, data, [split] * 2, [recipe] * 2, seeds=[42, 43]))
    assert all(len(heard) == 2 for heard in epochs)
