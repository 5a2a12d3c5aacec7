"""Noise by key: its law, and the same in both forms of a batch."""

import math

import pytest
import torch

from gtpool.ops.dropout import GumbelNoise, gumbel_by_number, gumbel_by_row
from gtpool.ops.packed import PackedRows
from gtpool.ops.padded import PaddedRows
from gtpool.ops.padded_ops import torch_ops
from gtpool.ops.segment import layout_from_sizes
from gtpool.padded_batch import PaddedLayout

KEYS = torch.tensor([3, -4, 5])
CPU = torch.device("cpu")
EULER = 0.5772156649015329


def test_noise_is_gumbel_s():
    number = torch.arange(100_000)
    for noise in (
        gumbel_by_row(100_000, KEYS[:1]),
        gumbel_by_number(number, torch.full_like(number, 100_000)),
    ):
        assert noise.isfinite().all()
        assert noise.mean().item() == pytest.approx(EULER, abs=0.02)
        assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.04)
        for value in (-1.0, 0.0, 1.0, 3.0):
            below = (noise <= value).double().mean().item()
            assert below == pytest.approx(math.exp(-math.exp(-value)), abs=0.006)
        assert (noise[1:] * noise[:-1]).mean().item() == pytest.approx(EULER**2, abs=0.03)


def test_graphs_of_other_sizes_have_other_noise():
    number = torch.arange(50)
    one, other = (gumbel_by_number(number, torch.full_like(number, size)) for size in (50, 51))
    assert not torch.isclose(one, other).any()


def test_runs_side_by_side_draw_what_they_draw_alone_and_room_changes_nothing():
    alone = torch.stack([gumbel_by_row(7, key) for key in KEYS.split(1)])
    assert torch.equal(gumbel_by_row(21, KEYS).view(3, 7), alone)
    assert torch.equal(gumbel_by_row(60, KEYS).view(3, 20)[:, :7], alone)


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_of_fixed_capacity_has_the_noise_of_its_runs(training):
    sizes = torch.tensor([[3, 0, 5], [4, 1, 2]])
    start = sizes.cumsum(1) - sizes + torch.tensor([[0], [10]])
    batch = torch.full((2, 10), 6)
    for run, graphs in enumerate(sizes):
        batch[run, : graphs.sum()] = torch.repeat_interleave(graphs) + 3 * run
    rows = PaddedLayout(start.flatten(), sizes.flatten(), batch.flatten())
    noise = GumbelNoise().train(training)
    noise.key = KEYS[:2]
    found = noise(PaddedRows(rows, 2, torch_ops(), 5), KEYS).view(2, 10)
    for run, graphs in enumerate(sizes):
        layer = GumbelNoise().train(training)
        layer.key = KEYS[run : run + 1]
        wanted = layer(PackedRows(layout_from_sizes(graphs, CPU)), KEYS)
        assert torch.equal(found[run, : graphs.sum()], wanted)
