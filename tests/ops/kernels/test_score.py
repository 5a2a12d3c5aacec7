"""The Triton scores against the equations, edge by edge; in Triton's interpreter without a GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops.attention import attend
from gtpool.ops.kernels.score import node_scores, packed_scores
from gtpool.padded_batch import PaddedCSR, PaddedLayout
from gtpool.pool.gtpool import GTPool

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
RUNS = [[[1, 5, 0, 7]], [[1, 0, 6], [4, 0, 2], [0, 1, 0]]]


def rows_of(runs, padding=2):
    """Lay out runs, each a list of sizes; the longest has so many rows of padding."""
    capacity = max(map(sum, runs)) + padding
    size = torch.tensor(runs)
    start = size.cumsum(1) - size + capacity * torch.arange(len(runs))[:, None]
    batch = torch.full((len(runs) * capacity,), size.numel())
    for graph, (at, nodes) in enumerate(zip(start.flatten(), size.flatten(), strict=True)):
        batch[at : at + nodes] = graph
    return PaddedLayout(start.flatten(), size.flatten(), batch)


def edges_of(rows, degree):
    """Draw edges inside each graph, loops and repeated ones among them, sorted by target."""
    parts = []
    for start, size in zip(rows.start.tolist(), rows.size.tolist(), strict=True):
        parts.append(start + torch.randint(max(size, 1), (2, degree * size)))
    edges = torch.cat(parts, 1)
    return edges[:, edges[1].argsort(stable=True)]


def links_of(edges, origin, place):
    """Give the links of a level; what a score does not need is left empty."""
    count, none = place.numel(), edges.new_zeros(0)
    begin = torch.searchsorted(edges[1], torch.arange(count))
    end = torch.searchsorted(edges[1], torch.arange(count), right=True)
    source = torch.cat([edges[0], edges.new_full((4,), -1)])
    sink = torch.cat([edges[1], edges.new_full((4,), -1)])
    return PaddedCSR(source, sink, begin, end, none, none, none, origin, place)


def batch_of(runs, heads, channels, *, degree=3, dropped=False, dtype=torch.float32):
    """Draw one level of a batch: its layout, edges and all that a score is made of."""
    torch.manual_seed(len(runs) + heads)
    below = rows_of(runs)
    edges = edges_of(below, degree)
    rows, padding = below, below.batch == below.start.numel()
    origin = torch.arange(padding.numel()).masked_fill(padding, -1)
    place = origin.clone()
    if dropped:
        halves = [[-(-nodes // 2) for nodes in sizes] for sizes in runs]
        rows = rows_of(halves, padding=1)
        padding = rows.batch == rows.start.numel()
        graph = rows.batch.clamp(max=rows.start.numel() - 1)
        step = torch.arange(padding.numel()) - rows.start[graph]
        origin = (below.start[graph] + 2 * step).masked_fill(padding, -1)  # every second node stays
        place = torch.full_like(below.batch, -1)
        place[origin[~padding]] = torch.arange(padding.numel())[~padding]
    parts = torch.randn(4, padding.numel(), heads, channels).to(dtype)
    lse = torch.randn(padding.numel(), heads) + 2
    parts[:, padding], lse[padding] = NAN, NAN
    thetas = torch.randn(2, len(runs), heads, channels)
    return rows, links_of(edges, origin, place), parts, lse, thetas


def scores(rows, csr, parts, lse, thetas, lam, scale):
    on = [value.to(DEVICE) for value in (*parts, lse, *thetas)]
    csr, rows = (type(value)(*(part.to(DEVICE) for part in value)) for value in (csr, rows))
    return node_scores(*on, lam, csr, rows, scale).cpu()


def naive_scores(rows, csr, parts, lse, thetas, lam, scale):
    """Follow equations (5)-(7) row by row in float64."""
    q, k, v, out = parts.double()
    theta_global, theta_local = thetas.double()
    runs = theta_global.size(0)
    wanted = torch.zeros(rows.batch.numel(), dtype=torch.float64)
    edges = list(zip(csr.source.tolist(), csr.sink.tolist(), strict=True))
    for row, node in enumerate(csr.origin.tolist()):
        if node < 0:
            continue
        run = row // (rows.batch.numel() // runs)
        near = [csr.place[j].item() for j, i in edges if i == node and j not in (i, -1)]
        near = [row, *(there for there in near if there >= 0)]
        weight = ((q[row] * k[near]).sum(-1) * scale - lse[row].double()).exp()
        local = (weight * (v[near] * theta_local[run]).sum(-1)).sum(0).tanh()
        far = (out[row] * theta_global[run]).sum(-1).tanh()
        wanted[row] = (lam * far + (1 - lam) * local).sum()
    return wanted


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize(
    ("heads", "degree", "dropped"), [(1, 0, False), (1, 20, True), (2, 3, True)]
)
def test_equals_the_equations(runs, heads, dropped, degree):
    batch = batch_of(runs, heads, 12, degree=degree, dropped=dropped)
    found = scores(*batch, 0.3, 0.2)
    assert (found.shape, found.dtype) == (batch[0].batch.shape, torch.float32)
    torch.testing.assert_close(found.double(), naive_scores(*batch, 0.3, 0.2), **CLOSE)


@pytest.mark.parametrize(("lam", "channels"), [(0.0, 24), (1.0, 8)])
def test_equals_either_part_alone(lam, channels):
    batch = batch_of(RUNS[1], 1, channels)
    found = scores(*batch, lam, 0.2)
    torch.testing.assert_close(found.double(), naive_scores(*batch, lam, 0.2), **CLOSE)


def test_half_precision_is_summed_in_float32():
    batch = batch_of(RUNS[1], 2, 16, dtype=torch.bfloat16)
    found = scores(*batch, 0.5, 0.2)
    torch.testing.assert_close(found.double(), naive_scores(*batch, 0.5, 0.2), **CLOSE)


def test_strides_do_not_matter():
    rows, csr, parts, lse, thetas = batch_of(RUNS[0], 2, 8)
    strided = parts.transpose(1, 2).contiguous().transpose(1, 2)
    assert not strided.is_contiguous()
    found = scores(rows, csr, strided, lse, thetas, 0.5, 0.2)
    torch.testing.assert_close(found, scores(rows, csr, parts, lse, thetas, 0.5, 0.2))


@pytest.mark.parametrize("heads", [1, 2])
def test_equals_the_scores_of_the_layer(heads):
    rows, csr, _, _, _ = batch_of([[4, 9, 6]], heads, 8)
    real = rows.batch < rows.start.numel()
    x, batch = torch.randn(int(real.sum()), 8 * heads), rows.batch[real]
    edges = torch.stack([csr.source, csr.sink])[:, csr.source >= 0]
    layer = GTPool(8 * heads, heads=heads, lam=0.4, act="tanh")
    ptr = torch.tensor([0, *rows.size]).cumsum(0)
    with torch.no_grad():
        maps = (layer.query, layer.key, layer.value)
        q, k, v = (linear(x).unflatten(1, (heads, -1)) for linear in maps)
        out, lse = attend(q, k, v, ptr)
        *parts, lse = (spread(part, real) for part in (q, k, v, out, lse))
        thetas = torch.stack([layer.theta_global, layer.theta_local])[:, None]
        found = scores(rows, csr, torch.stack(parts), lse, thetas, 0.4, 8**-0.5)
        wanted = layer.scores(x, edges, batch).score
    torch.testing.assert_close(found[real], wanted, **CLOSE)


def spread(part, real):
    """Put the rows of a batch where they are real; the others are NaN."""
    whole = part.new_full((real.numel(), *part.shape[1:]), NAN)
    whole[real] = part
    return whole


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("channels", [4, 20])
@pytest.mark.parametrize("edges", [0, 90])
def test_scores_of_a_packed_batch_equal_those_of_the_layer(heads, channels, edges):
    torch.manual_seed(0)
    nodes = 40
    ptr = torch.tensor([0, 1, 17, 40])
    size = ptr.diff()
    batch = torch.repeat_interleave(size)
    graph = torch.randint(3, (edges,))
    ends = ptr[graph] + (torch.rand(2, edges) * size[graph]).long()  # loops and repeats among them
    pool = GTPool(heads * channels, heads=heads)
    x = torch.randn(nodes, heads * channels)
    wanted = pool.scores(x, ends, batch).score.detach()
    q, k, v = (part(x).unflatten(1, (heads, -1)) for part in (pool.query, pool.key, pool.value))
    out, lse = attend(q, k, v, ptr)
    theta = torch.stack([pool.theta_local, pool.theta_global], 1).detach()
    parts = [part.detach().contiguous().to(DEVICE) for part in (q, k, v, out, lse, theta)]
    found = packed_scores(*parts, pool.lam, ends.to(DEVICE), channels**-0.5)
    torch.testing.assert_close(found.cpu(), wanted, **CLOSE)
