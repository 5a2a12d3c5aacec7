import pytest
import torch
from torch import nn

from gtpool.model.classifier import Classifier
from gtpool.ops.dropout import Dropout, drop_by_key, next_key, set_keys
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.train.epoch import epoch_seed

KEY = torch.tensor([12345])


def classifier():
    spec = ModelSpec(width=8, pool_options={"dropout": 0.1})
    return Classifier(spec, ShapeSpec(outputs=2, node_width=3))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_dropped_is_right_and_the_mean_is_kept(p):
    kept = drop_by_key(torch.ones(2000, 500), p, KEY)
    assert (kept == 0).double().mean().item() == pytest.approx(p, abs=2e-3)
    assert kept.double().mean().item() == pytest.approx(1, abs=2e-2)
    assert kept.unique().tolist() == pytest.approx([0, 1 / (1 - p)])


def test_rows_columns_and_neighbours_are_dropped_independently():
    mask = (drop_by_key(torch.ones(1000, 64), 0.5, KEY) > 0).double()
    for shares in (mask.mean(0), mask.mean(1)):
        assert (shares - 0.5).abs().max() < 0.35
    centred = (mask - 0.5) * 2
    for moved in (centred.roll(1, 0), centred.roll(1, 1)):
        assert (centred * moved).mean().abs() < 0.02


def test_the_same_key_gives_the_same_mask_and_another_key_another():
    x = torch.ones(40, 50)
    assert torch.equal(drop_by_key(x, 0.5, KEY), drop_by_key(x, 0.5, KEY.clone()))
    others = [KEY + 1, KEY - 1, -KEY, next_key(KEY, 0), KEY * 2**20]
    masks = [drop_by_key(x, 0.5, key) > 0 for key in (KEY, *others)]
    for at, one in enumerate(masks):
        for other in masks[:at]:
            assert (one == other).double().mean().item() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("rows", [1, 7])
def test_runs_side_by_side_draw_what_they_draw_alone(rows):
    keys, x = torch.tensor([3, -4, 5]), torch.randn(3 * rows, 6)
    stacked = drop_by_key(x, 0.4, keys)
    parts = zip(x.split(rows), keys.split(1), strict=True)
    alone = [drop_by_key(part, 0.4, key) for part, key in parts]
    assert torch.equal(stacked, torch.cat(alone))


def test_padding_behind_a_run_changes_none_of_its_masks():
    x = torch.ones(10, 6)
    longer = drop_by_key(torch.ones(2, 15, 6).flatten(0, 1), 0.5, torch.tensor([8, 9]))
    both = drop_by_key(torch.cat([x, x]), 0.5, torch.tensor([8, 9]))
    assert torch.equal(longer.view(2, 15, 6)[:, :10], both.view(2, 10, 6))


def test_layers_steps_and_runs_have_keys_of_their_own():
    random = torch.Generator().manual_seed(0)
    seeds = torch.tensor([epoch_seed(random) for _ in range(4)])
    layers = []
    for step in range(50):
        model = classifier()
        set_keys(model, next_key(seeds, step))
        layers += [part.key for part in model.modules() if isinstance(part, Dropout)]
    assert len(layers) == 50 * (3 + 2)
    keys = torch.cat(layers)
    assert keys.unique().numel() == keys.numel()


def test_a_step_may_be_a_number_on_the_device():
    keys = torch.tensor([5, 6])
    assert torch.equal(next_key(keys, torch.tensor([3])), next_key(keys, 3))


def test_without_a_key_it_is_torch_s_own():
    x, layer = torch.randn(30, 20), Dropout(0.3)
    torch.manual_seed(0)
    found = layer(x)
    torch.manual_seed(0)
    assert torch.equal(found, nn.Dropout(0.3)(x))


@pytest.mark.parametrize("key", [None, KEY])
def test_nothing_is_dropped_in_evaluation_or_at_share_0(key):
    x, layer = torch.randn(30, 20), Dropout(0.3)
    layer.key = key
    assert layer.eval()(x) is x
    layer = Dropout(0.0)
    layer.key = key
    assert layer(x) is x


def test_all_is_dropped_at_share_1():
    x = torch.randn(5, 4)
    assert not drop_by_key(x, 1.0, KEY).any()


def test_the_gradient_is_the_mask():
    x = torch.randn(30, 20, requires_grad=True)
    drop_by_key(x, 0.3, KEY).sum().backward()
    assert torch.equal(x.grad, drop_by_key(torch.ones(30, 20), 0.3, KEY))


def test_keys_are_taken_away_again():
    model = classifier()
    set_keys(model, KEY)
    set_keys(model, None)
    layers = [part for part in model.modules() if isinstance(part, Dropout)]
    assert len(layers) == 5
    assert all(layer.key is None for layer in layers)


def test_a_model_saves_no_keys():
    model = classifier()
    before = list(model.state_dict())
    set_keys(model, KEY)
    assert list(model.state_dict()) == before
    assert not any("key" in name.rsplit(".", 1)[-1] for name in before)


def test_the_share_is_shown():
    assert repr(Dropout(0.3)) == "Dropout(p=0.3)"
