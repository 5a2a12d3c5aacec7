"""The Triton sums over neighbours against dense matrices; interpreted where no GPU is."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops import padded_torch
from gtpool.ops.kernels.aggregate import gcn_sum, gin_sum, root_degrees, root_out_degrees
from gtpool.ops.kernels.structure import node_colours
from gtpool.padded_batch import PaddedCSR

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
# Runs, rows of each at level 0 with three of padding, edges of each.
CASES = {"one run": (1, 18, 60), "three runs": (3, 9, 16), "dense": (1, 12, 300), "none": (2, 6, 0)}
SUMS = [
    *((case, 0.0, torch.float64) for case in CASES),
    ("three runs", 0.5, torch.float32),
    ("three runs", 0.5, torch.bfloat16),
]
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def linked(case, *, dropped=0.0, seed=0):
    """Give links with loops and repeated edges, and A[i, j], the edges j -> i at the level."""
    runs, nodes, edges = CASES[case]
    draw = torch.Generator().manual_seed(seed)
    real = nodes - 3  # the rest is padding
    first = nodes * torch.arange(runs).view(-1, 1, 1)
    ends = torch.randint(real, (runs, 2, edges), generator=draw)
    ends[:, 1, : edges // 3] = 0  # one row has many neighbours
    ends = ends + first
    stays = torch.rand(runs, real, generator=draw) >= dropped
    origin, place = levels(stays, nodes)
    source, sink, begin, end = by_row(ends[:, 0], ends[:, 1], runs, nodes)
    target, _, out_begin, out_end = by_row(ends[:, 1], ends[:, 0], runs, nodes)
    csr = PaddedCSR(source, sink, begin, end, target, out_begin, out_end, origin, place)

    count = origin.numel()
    adjacency = torch.zeros(count + 1, count + 1, dtype=torch.double)  # -1 is the last row
    far, near = (place[ends[:, side].flatten()] for side in (0, 1))
    adjacency.index_put_((near, far), torch.ones(far.numel(), dtype=torch.double), accumulate=True)
    return PaddedCSR(*(part.to(DEVICE) for part in csr)), adjacency[:-1, :-1].to(DEVICE)


def levels(stays, nodes):
    """Number the rows that stay; each run of the next level has two rows of padding."""
    runs, real = stays.shape
    width = int(stays.sum(1).max()) + 2
    place = torch.full((runs, nodes), -1)
    origin = torch.full((runs, width), -1)
    for run in range(runs):
        kept = stays[run].nonzero().view(-1)
        place[run, kept] = torch.arange(kept.numel()) + run * width
        origin[run, : kept.numel()] = kept + run * nodes
    assert real < nodes
    return origin.flatten(), place.flatten()


def by_row(far, near, runs, nodes):
    """Sort each run's edges by one end: both ends, and where the edges of each row lie."""
    edges, spare = far.size(1), 4
    order = near.argsort(dim=1, stable=True)
    both = torch.full((2, runs, edges + spare), -1)
    both[0, :, :edges], both[1, :, :edges] = far.gather(1, order), near.gather(1, order)
    first = (edges + spare) * torch.arange(runs).repeat_interleave(nodes)
    count = torch.bincount(near.flatten(), minlength=runs * nodes)
    before = count.view(runs, nodes).cumsum(1).flatten() - count
    return both[0].flatten(), both[1].flatten(), first + before, first + before + count


def features(csr, width, dtype):
    """Draw rows, NaN on padding, which counts for nothing."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(csr.origin.numel(), width, generator=draw, dtype=torch.double)
    x = x.to(DEVICE, dtype)
    x[csr.origin < 0] = torch.nan
    return x


def without_loops(adjacency):
    return adjacency - adjacency.diagonal().diag()


def gcn_matrix(scale, adjacency):
    real = torch.eye(len(adjacency), dtype=torch.double, device=DEVICE)
    return scale[:, None] * (without_loops(adjacency) + real) * scale


def gin_matrix(csr, adjacency):
    return adjacency + (csr.origin >= 0).double().diag()


@pytest.mark.parametrize("dropped", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_root_degrees_count_other_nodes_and_the_node_itself(case, dropped):
    csr, adjacency = linked(case, dropped=dropped)
    found = root_degrees(csr)
    expected = (1 + without_loops(adjacency).sum(1)).rsqrt() * (csr.origin >= 0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected.float())


@pytest.mark.parametrize("case", CASES)
def test_root_out_degrees_count_all_edges_that_leave(case):
    csr, adjacency = linked(case, dropped=0.5)
    expected = (1 + adjacency.sum(0)).rsqrt() * (csr.origin >= 0)
    torch.testing.assert_close(root_out_degrees(csr), expected.float())


@pytest.mark.parametrize(("case", "dropped", "dtype"), SUMS)
def test_gcn_multiplies_by_the_normalised_matrix(case, dropped, dtype):
    csr, adjacency = linked(case, dropped=dropped)
    scale = root_degrees(csr)
    assert_multiplies(
        lambda x: gcn_sum(x, scale, csr), gcn_matrix(scale.double(), adjacency), csr, 10, dtype
    )


@pytest.mark.parametrize(("case", "dropped", "dtype"), SUMS)
def test_gin_adds_all_edges(case, dropped, dtype):
    csr, adjacency = linked(case, dropped=dropped)
    assert_multiplies(lambda x: gin_sum(x, csr), gin_matrix(csr, adjacency), csr, 10, dtype)


@pytest.mark.parametrize("width", [1, 130, 300])
def test_any_width(width):
    csr, adjacency = linked("three runs", dropped=0.3)
    matrix = gin_matrix(csr, adjacency)
    assert_multiplies(lambda x: gin_sum(x, csr), matrix, csr, width, torch.float32)


def assert_multiplies(function, matrix, csr, width, dtype):
    """Compare values and gradients with a matrix product; ``matrix`` is 0 on padding."""
    x = features(csr, width, dtype).requires_grad_()
    out = function(x)
    expected = matrix @ x.detach().double().nan_to_num()
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, **CLOSE[dtype])
    d_out = features(csr, width, dtype)
    (d_x,) = torch.autograd.grad(out, x, d_out)
    expected = matrix.T @ d_out.double().nan_to_num()
    assert d_x.dtype == dtype
    torch.testing.assert_close(d_x.double(), expected, **CLOSE[dtype])


def test_a_gradient_need_not_be_contiguous():
    csr, adjacency = linked("one run")
    x = features(csr, 10, torch.double).requires_grad_()
    (d_x,) = torch.autograd.grad(gin_sum(x, csr).sum(), x)
    ones = (csr.origin >= 0).double()[:, None].expand(-1, 10)
    torch.testing.assert_close(d_x, gin_matrix(csr, adjacency).T @ ones)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("edges", [5_000, 200_000])
def test_large_graphs_on_a_gpu(monkeypatch, edges, dtype):
    monkeypatch.setitem(CASES, "large", (2, 1_200, edges))
    csr, adjacency = linked("large", dropped=0.2)
    scale = root_degrees(csr)
    torch.testing.assert_close(
        scale.double(),
        (1 + without_loops(adjacency).sum(1)).rsqrt() * (csr.origin >= 0),
        rtol=1e-6,
        atol=1e-6,
    )
    matrix = gcn_matrix(scale.double(), adjacency)
    assert_multiplies(lambda x: gcn_sum(x, scale, csr), matrix, csr, 128, dtype)


@pytest.mark.parametrize("dropped", [0.0, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_colours_are_those_of_plain_pytorch(case, dropped):
    csr, _ = linked(case, dropped=dropped)
    real = csr.origin >= 0
    score = torch.randn(real.numel(), generator=torch.Generator().manual_seed(1)).round(decimals=1)
    score[::5] = -0.0
    score = score.to(DEVICE).masked_fill(~real, torch.nan)
    expected = padded_torch.node_colours(score.masked_fill(~real, 7.0), csr)
    found = node_colours(score, csr)
    assert found.dtype == torch.long
    assert found[real].tolist() == expected[real].tolist()
    if case != "none":
        assert found[real].unique().numel() > 1
