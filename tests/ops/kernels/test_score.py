"""The Triton scores against the equations, edge by edge; in Triton's interpreter without a GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from drawn import wider

from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.sources import load
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble
from gtpool.ops import padded_torch
from gtpool.ops.attention import attend
from gtpool.ops.kernels import padded_triton
from gtpool.ops.kernels.score import node_scores, packed_scores
from gtpool.padded_batch import PaddedCSR, PaddedLayout
from gtpool.pool.gtpool import GTPool
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of

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
    """Give the links of a level."""
    leaving = edges[:, edges[0].argsort(stable=True)]
    node, padding = torch.arange(place.numel()), edges.new_full((2, 4), -1)
    spans = [
        torch.searchsorted(near.contiguous(), node, right=right)
        for near in (edges[1], leaving[0])
        for right in (False, True)
    ]
    (source, sink), (_, target) = (torch.cat([ends, padding], 1) for ends in (edges, leaving))
    return PaddedCSR(source, sink, *spans[:2], target, *spans[2:], origin, place)


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
    return node_scores(*on, lam, csr, rows, scale)[0].cpu()


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


def chosen_of(rows, sizes):
    """Keep some rows of each graph of a layout with these sizes."""
    after = rows_of([[-(-3 * nodes // 4) for nodes in graphs] for graphs in sizes], padding=3)
    score = torch.randn(rows.batch.numel())
    return padded_torch.sample(score, rows, after, sampler="topk", order="index", longest=7)


def gated(by, dtype, rows, csr, chosen, qkv, thetas, lam, sent, *, act=torch.tanh):
    """Give the gated rows, and the gradients of qkv and of both vectors.

    Where there are kernels, padding is NaN.
    """
    empty = NAN if by is padded_triton and act is torch.tanh else 0.0
    device = "cpu" if by is padded_torch else DEVICE
    rows, csr, chosen = (
        type(part)(*(one.to(device) for one in part)) for part in (rows, csr, chosen)
    )
    real = (rows.batch < rows.start.numel()).view(-1, 1, 1, 1)
    there = (chosen.kept >= 0).view(-1, 1, 1)
    qkv, thetas, sent = (part.to(device, dtype) for part in (qkv, thetas, sent))
    qkv = torch.where(real, qkv, empty).requires_grad_()
    far, near = leaves = [theta.requires_grad_() for theta in thetas.unbind(0)]
    out, lse = by.attend(qkv, rows, 7)
    score, out = by.scores(qkv, out, lse, far, near, lam, csr, rows, act)
    pooled = by.gated_rows(out, score, chosen)
    grads = torch.autograd.grad(pooled, [qkv, *leaves], torch.where(there, sent, empty))
    return [part.detach().cpu().double() for part in (pooled, *grads)]


def gated_case(runs, heads, channels, **options):
    """Draw a level of a batch, the rows that are kept and what is sent back to them."""
    rows, csr, _, _, thetas = batch_of(runs, heads, channels, **options)
    sizes = rows.size.view(len(runs), -1).tolist()
    chosen = chosen_of(rows, sizes)
    qkv = torch.randn(rows.batch.numel(), 3, heads, channels)
    return rows, csr, chosen, qkv, thetas, torch.randn(chosen.kept.numel(), heads, channels)


@pytest.mark.usefixtures("unwritten_is_nan")
@pytest.mark.parametrize("lam", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    ("runs", "heads", "channels", "degree", "dropped"),
    [
        (RUNS[0], 1, 12, 3, False),
        (RUNS[1], 4, 5, 3, True),
        (RUNS[1], 1, 16, 20, True),
        (RUNS[1], 2, 130, 0, False),
        ([[0, 0], [0, 3]], 1, 8, 2, False),
        ([[0, 0]], 1, 8, 0, False),
    ],
)
def test_gradients_of_gated_rows_are_the_plain_ones(runs, heads, channels, degree, dropped, lam):
    *case, sent = gated_case(runs, heads, channels, degree=degree, dropped=dropped)
    wanted = gated(padded_torch, torch.float64, *case, lam, sent)
    found = gated(padded_triton, torch.float32, *case, lam, sent)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_gradients_of_all_scores_are_the_plain_ones():
    rows, csr, _, _, thetas = batch_of(RUNS[1], 2, 12, dropped=True)
    qkv, sent = torch.randn(rows.batch.numel(), 3, 2, 12), torch.randn(rows.batch.numel())
    results = []
    for by, dtype, device in (
        (padded_torch, torch.float64, "cpu"),
        (padded_triton, torch.float32, DEVICE),
    ):
        there, edges = (type(part)(*(one.to(device) for one in part)) for part in (rows, csr))
        leaf = qkv.to(device, dtype).requires_grad_()
        score, _ = by.scores(
            leaf, *by.attend(leaf, there, 7), *thetas.to(device, dtype), 0.4, edges, there
        )
        (grad,) = torch.autograd.grad(score, leaf, sent.to(score))
        results.append(grad.cpu().double())
    torch.testing.assert_close(*results, **CLOSE)


@pytest.mark.usefixtures("unwritten_is_nan")
def test_two_backward_passes_are_equal():
    *case, sent = gated_case([[9, 6, 0], [5, 1, 7]], 2, 20, degree=6)
    passes = [gated(padded_triton, torch.float32, *case, 0.4, sent) for _ in range(2)]
    assert all(map(torch.equal, *passes))


def test_other_activations_have_gradients_too():
    *case, sent = gated_case(RUNS[1], 1, 12)
    wanted = gated(padded_torch, torch.float64, *case, 0.4, sent, act=torch.sigmoid)
    found = gated(padded_triton, torch.float32, *case, 0.4, sent, act=torch.sigmoid)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


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


@pytest.mark.parametrize(
    ("levels", "options"),
    [(2, {}), (1, {"heads": 2, "lam": 0.0}), (1, {"lam": 1.0}), (1, {"learn_score": False})],
)
def test_a_gated_network_learns_the_same_by_kernels(levels, options):
    data = load("MUTAG")
    spec = ModelSpec(width=8, levels=levels, ratio=0.75, pool_options={"gate": "tanh", **options})
    index, models = data.sizes.argsort()[:8].view(2, 4), []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(Classifier(spec, shape_of(data)))
    index[1, 3:] = -1
    stock = DeviceDataset.of(data.to(DEVICE))
    capacity = wider(stock.capacity(index, models[0].ratios), 5)
    batch = stock.gather(index.to(DEVICE), capacity, models[0].ratios)
    stack = ModelEnsemble(models, int(data.sizes.max())).to(DEVICE).train()
    key, results = torch.tensor([5, 6], device=DEVICE), []
    for stack.ops in (padded_torch, padded_triton):
        logits = stack(batch, key)[index.flatten() >= 0]
        (grad,) = torch.autograd.grad(logits.square().sum(), stack.theta)
        results.append((logits.detach(), grad))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)
