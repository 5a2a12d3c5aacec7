"""Gathering by Triton kernels, against the same in plain PyTorch."""

from dataclasses import replace

import pytest
import torch

from gtpool.data.sources import load
from gtpool.ops import padded_segment, padded_torch
from gtpool.padded_batch import Capacity

pytest.importorskip("triton", reason="Triton is not installed: there are no kernels to test")

from gtpool.data.device_dataset import DeviceDataset
from gtpool.ops.kernels import layout, padded_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("ratios", [(), (0.5,), (0.3, 0.3), (4, 4)])
def test_graphs_are_laid_out_alike(runs, ratios):
    torch.manual_seed(0)
    counts = torch.randint(1, 12, (40,), device=DEVICE)
    index = torch.randint(-1, 40, (runs, 9), device=DEVICE)
    got = layout.gather_layout(index, counts, ratios, 128)
    for part, wanted in zip(
        got, padded_segment.gather_layout(index, counts, ratios, 128), strict=True
    ):
        assert torch.equal(part, wanted)


def test_many_places_are_laid_out_too():
    counts = torch.randint(1, 3, (10,), device=DEVICE)
    index = torch.randint(0, 10, (1, 3000), device=DEVICE)
    assert layout.gather_layout(index, counts, (), 8192).batch.max() == 3000


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_batch_is_the_same_by_kernels(runs, directed, monkeypatch):
    data = load("MUTAG").to(DEVICE)
    if directed:
        ends = data.edge_index.clone()
        ends[0, ::3] = ends[1, ::3]
        data = replace(data, edge_index=ends)
    stock = DeviceDataset.of(data)
    assert (stock.leaving is stock.entering) != directed
    torch.manual_seed(1)
    index = torch.randint(-1, 188, (runs, 5))
    capacity = Capacity(5, (192, 128, 64), 448)
    where = index.to(DEVICE)
    monkeypatch.setattr(DeviceDataset, "ops", property(lambda _: padded_torch))
    wanted = stock.gather(where, capacity, (0.5, 0.5))
    monkeypatch.setattr(DeviceDataset, "ops", property(lambda _: padded_triton))
    got = stock.gather(where, capacity, (0.5, 0.5))
    assert torch.equal(got.x, wanted.x)
    assert torch.equal(got.y, wanted.y)
    for one, other in zip((got.csr, *got.levels), (wanted.csr, *wanted.levels), strict=True):
        assert all(map(torch.equal, one, other))


def test_edges_follow_their_nodes_alike():
    torch.manual_seed(0)
    outer, inner = torch.randint(-1, 50, (50,)), torch.randint(-1, 50, (70,))
    got = layout.compose(outer.to(DEVICE), inner.to(DEVICE))
    assert torch.equal(got.cpu(), padded_segment.compose(outer, inner))
