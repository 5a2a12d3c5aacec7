"""The Triton sums along bonds against the same in plain PyTorch; interpreted where no GPU is."""

import pytest
import torch
from drawn import BONDS, bonded
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.ops import padded_torch

pytest.importorskip("triton", reason="Triton is not installed: there are no kernels to test")

from gtpool.ops.kernels import bonds, padded_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
# Runs, level, floats; a GPU has the kernels for short ones.
CASES = [(1, 0, torch.float32), (3, 1, torch.float32), (2, 1, torch.bfloat16)]
if DEVICE == "cpu":
    CASES += [(2, 0, torch.float64)]
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def graphs(count=12, largest=7, edges=14, seed=0):
    """Draw graphs with loops and repeated edges, one end of a third of them the same node."""
    random = torch.Generator().manual_seed(seed)
    drawn = []
    for number in range(count):
        nodes = 1 + number % largest
        ends = torch.randint(nodes, (2, edges if number % 4 else 0), generator=random)
        ends[1, : edges // 3] = 0
        drawn.append(Data(torch.ones(nodes, 1), ends, y=torch.tensor([0])))
    return bonded(GraphDataset.from_pyg(drawn))


def batch_of(data, runs, places, extra=3):
    """Gather graphs into each run, some places empty, with padding behind."""
    random = torch.Generator().manual_seed(1)
    index = torch.randint(-1, len(data), (runs, places), generator=random)
    stock = DeviceDataset.of(data.to(DEVICE), edge_categories=BONDS)
    need = stock.capacity(index, (0.6,))
    nodes = tuple(rows + extra for rows in need.nodes)
    capacity = need._replace(nodes=nodes, edges=need.edges + extra)
    return stock.gather(index.to(DEVICE), capacity, (0.6,))


def links_at(batch, level):
    """Give the links of a level, some of whose rows were dropped by a score."""
    if level == 0:
        return batch.csr
    score = torch.linspace(-1, 1, batch.csr.origin.numel(), device=DEVICE).sin()
    parts = (score, batch.levels[0], batch.levels[1])
    chosen = padded_torch.sample(*parts, sampler="topk", order="index", longest=8)
    return padded_torch.induced_csr(batch.csr, chosen)


def normal(*shape, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64).to(DEVICE, dtype)


def assert_alike(csr, bonds, runs, width, dtype, close=None):
    """Compare sums and gradients; what stands on padding is NaN, which counts for nothing."""
    real = (csr.origin >= 0).unsqueeze(1)
    high = torch.promote_types(dtype, torch.float32)
    x, sent = (normal(csr.origin.numel(), width, seed=seed, dtype=dtype) for seed in (0, 1))
    table = normal(runs, sum(BONDS) + 1, width, seed=2, dtype=high)
    scale = padded_torch.root_out_degrees(csr, table.double())
    results = []
    for by, empty in ((padded_torch, 0.0), (padded_triton, torch.nan)):
        exact = torch.float64 if by is padded_torch else dtype
        leaf = torch.where(real, x, empty).to(exact).requires_grad_()
        tables = table.to(torch.promote_types(exact, high)).requires_grad_()
        out = by.bond_sum(leaf, tables, scale.to(tables.dtype), csr, bonds)
        grads = torch.autograd.grad(out, (leaf, tables), torch.where(real, sent, empty).to(out))
        results.append((out, *grads))
    wanted, found = results
    assert [part.dtype for part in found] == [high, dtype, high]
    for want, got in zip(wanted, found, strict=True):
        torch.testing.assert_close(got.double(), want, **(close or CLOSE[dtype]))


@pytest.mark.parametrize(("runs", "level", "dtype"), CASES)
def test_sums_along_bonds_and_their_gradients_are_the_plain_ones(runs, level, dtype):
    batch = batch_of(graphs(), runs, 2)
    assert_alike(links_at(batch, level), batch.edge_types, runs, 10, dtype)


@pytest.mark.parametrize("width", [1, 130])
def test_any_width(width):
    batch = batch_of(graphs(), 1, 3)
    assert_alike(links_at(batch, 1), batch.edge_types, 1, width, torch.float32)


def test_tables_are_summed_over_several_parts_of_the_edges(monkeypatch):
    monkeypatch.setattr(bonds, "_CHUNK", 32)
    batch = batch_of(graphs(), 2, 6)
    assert batch.csr.source.numel() // 2 > 32
    assert_alike(batch.csr, batch.edge_types, 2, 10, torch.float32)


def test_graphs_without_edges_have_their_own_part_alone():
    batch = batch_of(graphs(edges=0), 2, 3)
    assert_alike(batch.csr, batch.edge_types, 2, 10, torch.float32)


def test_a_table_too_large_for_a_kernel_is_summed_all_the_same(monkeypatch):
    monkeypatch.setattr(bonds, "KINDS", 3)
    batch = batch_of(graphs(), 2, 3)
    x, table = normal(batch.x.size(0), 4), normal(2, sum(BONDS) + 1, 4)
    scale = padded_torch.root_out_degrees(batch.csr, x)
    found, wanted = (
        by.bond_sum(x, table, scale, batch.csr, batch.edge_types)
        for by in (padded_triton, padded_torch)
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("level", [0, 1])
def test_degrees_count_the_edges_that_leave(level):
    batch = batch_of(graphs(), 3, 5)
    csr = links_at(batch, level)
    wanted = padded_torch.root_out_degrees(csr, batch.x)
    torch.testing.assert_close(padded_triton.root_out_degrees(csr, batch.x), wanted)


@pytest.mark.parametrize("by", [padded_torch, padded_triton])
def test_a_run_gone_wrong_shows_and_leaves_the_others_alone(by):
    batch = batch_of(graphs(edges=6), 3, 2)
    size = (batch.x.size(0), 10)
    other = torch.arange(size[0], device=DEVICE) // (size[0] // 3) != 1
    results = []
    for wrong in (False, True):
        x, table = normal(*size, dtype=torch.float32), normal(3, 6, 10, dtype=torch.float32)
        if wrong:
            x[~other], table[1] = torch.nan, torch.nan
        x.requires_grad_()
        table.requires_grad_()
        scale = by.root_out_degrees(batch.csr, x)
        out = by.bond_sum(x, table, scale, batch.csr, batch.edge_types)
        d_x, d_table = torch.autograd.grad(out.sum(), (x, table))
        assert out[~other & (batch.csr.origin >= 0)].isnan().all() == wrong
        results.append((out[other], d_x[other], d_table[[0, 2]]))
    torch.testing.assert_close(*results)


def test_bonds_are_brought_alike(monkeypatch):
    data = graphs()
    stock = DeviceDataset.of(data.to(DEVICE), edge_categories=BONDS)
    index = torch.tensor([[3, -1, 5], [2, 7, 1]])
    capacity = stock.capacity(index, ())
    results = []
    for by in (padded_torch, padded_triton):
        monkeypatch.setattr(DeviceDataset, "ops", property(lambda _, by=by: by))
        batch = stock.gather(index.to(DEVICE), capacity, ())
        results.append(batch.edge_types)
    for wanted, found in zip(*results, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.gpu
def test_many_bonds_on_a_gpu():
    close = {"rtol": 1e-4, "atol": 1e-4}  # a table's gradient is a sum over thousands of bonds
    batch = batch_of(graphs(count=300, largest=40, edges=90), 10, 128)
    for level in (0, 1):
        assert_alike(links_at(batch, level), batch.edge_types, 10, 128, torch.float32, close)
