"""The layer against the paper's basis, written out as matrices graph by graph."""

import copy
import pickle

import pytest
import torch
from contract import (
    CHANNELS,
    Graphs,
    close,
    complete_graphs,
    drawn,
    nodes_of,
    pack,
    ragged,
    ring,
    sample_batch,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gtpool.graph import CoarseningStep, NodeMerge
from gtpool.ops.coarsening import build_chain
from gtpool.ops.segment import layout_from_batch
from gtpool.pool.haarpool import HaarPool

ODD = {
    "one node": (1, []),
    "one node with a loop": (1, [(0, 0)]),
    "no edges": (7, []),
    "isolated nodes": (6, [(0, 1), (1, 0)]),
    "nothing but loops": (3, [(0, 0), (1, 1), (2, 2)]),
    "repeated edges": (4, [(0, 1), (0, 1), (1, 0), (1, 2), (1, 2), (2, 3), (2, 2)]),
    "two halves": (9, [(0, 2), (2, 4), (4, 6), (6, 8), (1, 3), (3, 5), (5, 7)]),
}


def local_clusters(chain: tuple[CoarseningStep, ...], graph: int) -> list[list[int]]:
    """Say for one graph in which cluster each node is, step by step, numbered inside the graph."""
    clusters = []
    for step in chain:
        inside = (step.level.batch[step.cluster] == graph).nonzero().flatten()
        first = int(step.level.ptr[graph])
        clusters.append([int(step.cluster[node]) - first for node in inside])
    return clusters


def naive_basis(clusters: list[list[int]]) -> list[Tensor]:
    """Write out the basis of each level, one column a vector, the lowest level first."""
    basis = torch.ones(1, 1, dtype=torch.double)  # of the one node at the top
    bases = [basis]
    for cluster in reversed(clusters):
        nodes, above = len(cluster), basis.size(1)
        children = [[v for v in range(nodes) if cluster[v] == p] for p in range(above)]
        columns = []
        for ell in range(above):
            column = torch.zeros(nodes, dtype=torch.double)
            for p in range(above):
                for v in children[p]:
                    column[v] = basis[p, ell] / len(children[p]) ** 0.5
            columns.append(column)
        for ell in range(above):
            k = len(children[ell])
            for j in range(1, k):
                column = torch.zeros(nodes, dtype=torch.double)
                column[children[ell][j - 1]] = 1
                for i in range(j + 1, k + 1):
                    column[children[ell][i - 1]] = -1 / (k - j)
                columns.append(((k - j) / (k - j + 1)) ** 0.5 * column)
        basis = torch.stack(columns, 1)
        bases.insert(0, basis)
    return bases


def naive(graphs: Graphs, chain: tuple[CoarseningStep, ...], at: int) -> Tensor:
    """Pool features of level ``at`` of the chain: Phi^T X, graph by graph."""
    pooled = []
    for graph in range(int(graphs.batch.max()) + 1):
        basis = naive_basis(local_clusters(chain, graph))[at]
        kept = int(chain[at].level.sizes[graph])
        pooled.append(basis[:, :kept].T @ graphs.x[graphs.batch == graph])
    return torch.cat(pooled)


@drawn
@given(ragged(), st.integers(1, 4))
def test_every_step_gives_the_papers_coefficients_and_gradients(graphs, steps):
    pool = HaarPool(CHANNELS)
    chain = build_chain(graphs.edge_index, layout_from_batch(graphs.batch), steps)
    for at in range(steps):
        ours, twin = (graphs.x.clone().requires_grad_() for _ in range(2))
        out = pool(ours, graphs.edge_index, None, graphs.batch, chain=chain[at:])
        expected = naive(graphs._replace(x=twin), chain, at)
        close(out.x, expected)
        weight = torch.linspace(-1, 2, expected.numel(), dtype=torch.double).view_as(expected)
        grads = [
            torch.autograd.grad((x * weight).sum(), of)[0]
            for x, of in ((out.x, ours), (expected, twin))
        ]
        close(*grads)
        assert isinstance(out, NodeMerge)
        assert out.loss is None
        assert torch.equal(out.assign, chain[at].cluster)
        assert torch.equal(out.batch, chain[at].level.batch)
        assert torch.equal(out.edge_attr, chain[at].edge_attr.double())
        graphs = Graphs(out.x, out.edge_index, out.edge_attr, out.batch)


@drawn
@given(ragged(), st.integers(1, 4))
def test_the_basis_is_orthonormal(graphs, steps):
    chain = build_chain(graphs.edge_index, layout_from_batch(graphs.batch), steps)
    for graph in range(int(graphs.batch.max()) + 1):
        for basis in naive_basis(local_clusters(chain, graph)):
            close(basis.T @ basis, torch.eye(basis.size(1), dtype=torch.double))


def test_a_path_of_four_pooled_by_hand():
    x = torch.tensor([[1.0], [3.0], [5.0], [11.0]], dtype=torch.double)
    level = layout_from_batch(torch.zeros(4, dtype=torch.long))
    edges = torch.zeros(2, 0, dtype=torch.long)
    weight = torch.zeros(0, 1)
    two, one = (layout_from_batch(torch.zeros(n, dtype=torch.long)) for n in (2, 1))
    chain = (
        CoarseningStep(torch.tensor([0, 1, 1, 1]), edges, weight, two),
        CoarseningStep(torch.tensor([0, 0]), edges, weight, one),
    )
    pool = HaarPool(1)
    # Z = (1, 19/√3): their sum over √2, then their difference over √2
    low, high = 1.0, 19 / 3**0.5
    pooled = pool(x, edges, chain=chain).x
    close(pooled.flatten(), torch.tensor([low + high, low - high], dtype=torch.double) / 2**0.5)
    close(pool(x, edges, level=level, chain=chain).x, pooled)
    # The same if the chain ends at two nodes: its top gets a basis of its own.
    close(pool(x, edges, chain=chain[:1]).x, pooled)
    last = pool(pooled, edges, chain=chain[1:]).x
    close(last.flatten(), pooled.sum(0) / 2**0.5)


def test_without_a_chain_the_layer_builds_one():
    graphs = sample_batch()
    pool = HaarPool(CHANNELS, steps=2)
    chain = build_chain(graphs.edge_index, layout_from_batch(graphs.batch), 2)
    ours, given_one = pool(*graphs), pool(*graphs, chain=chain)
    assert torch.equal(ours.x, given_one.x)
    assert torch.equal(ours.assign, given_one.assign)
    assert ours.batch.bincount().tolist() == [5, 4, 7]
    assert HaarPool(CHANNELS, steps=1)(*graphs).batch.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ODD)
def test_odd_graphs_give_finite_numbers_of_the_right_size(name):
    graphs = pack([ODD[name]], seed=0)
    graphs.x.requires_grad_()
    out = HaarPool(CHANNELS)(*graphs)
    n = graphs.x.size(0)
    assert out.x.shape == (n // 2 + 1 if n > 2 else 1, CHANNELS)
    out.x.square().sum().backward()
    assert out.x.isfinite().all()
    assert graphs.x.grad.isfinite().all()
    assert graphs.x.grad.any()


def test_a_batch_gives_what_its_graphs_give_bit_for_bit():
    graphs = pack([*ODD.values(), (40, ring(40)), (33, ring(33))], seed=1)
    batches = [graphs, sample_batch(), sample_batch(torch.float32), complete_graphs(torch.float64)]
    for batch in batches:
        pool = HaarPool(batch.x.size(1))
        out = pool(*batch)
        for number, nodes in enumerate(nodes_of(batch)):
            inside = batch.batch[batch.edge_index[0]] == number
            alone = pool(batch.x[nodes], batch.edge_index[:, inside] - nodes[0])
            here = out.batch == number
            first = int(here.nonzero()[0])
            assert torch.equal(out.assign[nodes] - first, alone.assign)
            assert torch.equal(out.x[here], alone.x)
            kept = out.batch[out.edge_index[0]] == number
            assert torch.equal(out.edge_index[:, kept] - first, alone.edge_index)
            assert torch.equal(out.edge_attr[kept], alone.edge_attr)


def test_the_whole_chain_keeps_all_energy_of_what_is_constant_on_clusters():
    graphs = sample_batch()
    chain = build_chain(graphs.edge_index, layout_from_batch(graphs.batch), 3)
    clusters = torch.randn(int(chain[0].level.ptr[-1]), CHANNELS, dtype=torch.double)
    x = clusters[chain[0].cluster]
    pooled = HaarPool(CHANNELS)(x, graphs.edge_index, None, graphs.batch, chain=chain).x
    close(pooled.square().sum(), x.square().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_stay_and_counts_are_right(dtype):
    graphs = pack([(n, ring(n)) for n in (257, 3, 1)], seed=0, dtype=dtype)
    out = HaarPool(CHANNELS)(*graphs)
    assert out.batch.bincount().tolist() == [129, 2, 1]
    assert out.x.dtype == out.edge_attr.dtype == dtype
    exact = HaarPool(CHANNELS)(graphs.x.double(), *graphs[1:]).x
    torch.testing.assert_close(out.x.double(), exact, rtol=1e-2, atol=1e-2)


def test_compiled_it_gives_what_eager_gives():
    graphs = sample_batch()
    torch.compiler.reset()
    runs = []
    for pool in (HaarPool(CHANNELS), torch.compile(HaarPool(CHANNELS), backend="aot_eager")):
        x = graphs.x.clone().requires_grad_()
        out = pool(x, *graphs[1:])
        (out.x * torch.linspace(-1, 2, out.x.numel()).view_as(out.x)).sum().backward()
        runs.append((*out[:5], x.grad))
    for plain, compiled in zip(*runs, strict=True):
        close(plain, compiled)


def test_it_has_no_parameters_and_copies_are_alike():
    pool, graphs = HaarPool(CHANNELS, steps=4), sample_batch()
    pool.reset_parameters()
    assert not list(pool.parameters())
    assert not pool.state_dict()
    assert repr(pool) == "HaarPool(8, steps=4)"
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):  # noqa: S301
        assert torch.equal(twin(*graphs).x, pool(*graphs).x)


def test_what_does_not_fit_is_refused():
    graphs = sample_batch()
    chain = build_chain(graphs.edge_index, layout_from_batch(graphs.batch), 2)
    pool = HaarPool(CHANNELS)
    with pytest.raises(ValueError, match="from 16 nodes of 3 graphs, but x has 28 nodes of 3"):
        pool(*graphs, chain=chain[1:])
    with pytest.raises(ValueError, match="from 28 nodes of 3 graphs, but x has 28 nodes of 1"):
        pool(graphs.x, graphs.edge_index, chain=chain)
    with pytest.raises(ValueError, match="no steps left"):
        pool(*graphs, chain=())
    with pytest.raises(ValueError, match="x must be a float tensor"):
        HaarPool(CHANNELS + 1)(*graphs)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="steps must be an int of at least 1"):
            HaarPool(CHANNELS, steps=wrong)
