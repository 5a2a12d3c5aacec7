"""The layer against its equations with n × n matrices; its laws are in test_contract.py."""

import copy

import pytest
import torch
from contract import (
    CHANNELS,
    Graphs,
    close,
    drawn,
    matrices,
    odd_batches,
    pack,
    pooler,
    ragged,
    ring,
    sample_batch,
)
from hypothesis import assume, given
from torch import Tensor

from gtpool.pool.structpool import StructPool

CLUSTERS = 3


def layer(dtype: torch.dtype = torch.float64, **options) -> StructPool:
    return pooler(lambda width, clusters: StructPool(width, clusters, **options), CLUSTERS, dtype)


def dense_layer(
    pool: StructPool, graphs: Graphs, *, guarded: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the layer graph by graph: features, matrices and shares."""
    weight = weights_of(pool, graphs)
    sizes = matrices(graphs.edge_index, weight.abs(), graphs.batch)
    xs, coarse, shares = [], [], []
    for number, A in enumerate(matrices(graphs.edge_index, weight, graphs.batch)):
        x, eye = graphs.x[graphs.batch == number], torch.eye(len(A), dtype=torch.double)
        degree = 1 + sizes[number].sum(0)
        U = x
        for linear in pool.unary:  # row i of the transpose has the nodes with an edge to i
            U = (((A + eye).T @ U @ linear.weight.T + linear.bias) / degree[:, None]).tanh()
        W = (x @ x.T) * (1 - eye)
        W = torch.stack([normed(row, node, x, guarded) for node, row in enumerate(W)])
        Q = U
        for _ in range(pool.steps):
            Q = U + W @ (Q.exp() / Q.exp().sum(1, keepdim=True))
        L = Q.exp() / Q.exp().sum(1, keepdim=True)
        xs.append(L.T @ x)
        coarse.append(L.T @ A @ L)
        shares.append(L)
    return torch.cat(xs), torch.stack(coarse), torch.cat(shares)


def weights_of(pool: StructPool, graphs: Graphs) -> Tensor:
    if not pool.weighted:
        return torch.ones(graphs.edge_index.size(1), dtype=torch.double)
    return graphs.edge_attr if graphs.edge_attr.dim() == 1 else graphs.edge_attr[:, 0]


def normed(row: Tensor, node: int, x: Tensor, guarded: bool) -> Tensor:
    least = x[node].norm() * x.norm(dim=1).sum() / 100
    if guarded and row.sum().abs() < least:
        return row * row.sum() / least**2
    return row / row.sum()


def compare_with_dense(pool: StructPool, graphs: Graphs, *, guarded: bool = True) -> None:
    asking = [graphs.x.requires_grad_(), *pool.parameters()]
    out = pool(*graphs)
    coarse = torch.stack(matrices(out.edge_index, out.edge_attr, out.batch))
    results = (out.x, coarse, out.assign), dense_layer(pool, graphs, guarded=guarded)
    ours, theirs = (
        [*parts, *torch.autograd.grad(sum(part.sin().sum() for part in parts), asking)]
        for parts in results
    )
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"weighted": True}, {"steps": 1}], ids=str)
def test_layer_equals_dense_layer(options):
    @drawn
    @given(ragged())
    def check(graphs):
        assume(graphs.edge_attr is not None or not options.get("weighted"))
        compare_with_dense(layer(**options), graphs)

    check()


def test_layer_equals_dense_layer_on_odd_and_on_large_graphs():
    for _, graphs in odd_batches():
        compare_with_dense(layer(), graphs)
    compare_with_dense(layer(), pack([(n, ring(n)) for n in (3, 130, 40, 100, 1, 260)], seed=0))


def test_division_by_row_sums_is_untouched_where_features_are_positive():
    graphs = pack([(n, ring(n)) for n in (3, 12, 40)], seed=0)
    compare_with_dense(layer(), graphs._replace(x=graphs.x.abs()), guarded=False)


def test_rows_that_cancel_draw_no_node_where_plain_division_gives_nan():
    lone = pack([(1, [])], seed=0)
    pair = pack([(2, [(0, 1), (1, 0)])], seed=0)
    unlike = pair._replace(x=torch.eye(CHANNELS, dtype=torch.double)[:2])
    empty = pair._replace(x=torch.zeros(2, CHANNELS, dtype=torch.double))
    pool = layer()
    for graphs in (lone, unlike, empty):
        assert dense_layer(pool, graphs, guarded=False)[2].isnan().all()
        graphs.x.requires_grad_()
        out = pool(*graphs)
        pool.steps = 0  # what each node leans to by itself
        close(out.assign, pool(*graphs).assign)
        pool.steps = 5
        out.x.square().sum().backward()
        assert graphs.x.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-30, 1e-20, 1e-19, 1e-10, 1e-5, 1e15])
def test_features_of_any_size_give_numbers(size):
    graphs = pack([(n, ring(n)) for n in (1, 3, 12)], seed=0)
    x = (size * graphs.x).float().requires_grad_()
    out = layer(torch.float32)(*graphs._replace(x=x))
    assert out.x.isfinite().all()
    (out.x / size if size > 1 else out.x).sum().backward()
    assert x.grad.isfinite().all()


def test_features_whose_products_overflow_are_refused():
    graphs = pack([(3, ring(3))], seed=0)
    with pytest.raises(ValueError, match=r"x\[0, 0\] is .* overflow in float32"):
        layer(torch.float32)(*graphs._replace(x=torch.full((3, CHANNELS), 1e19)))


def test_row_sums_near_zero_neither_explode_nor_tip():
    x = torch.randn(3, CHANNELS, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    graphs, shares = pack([(3, ring(3))], seed=0), []
    for side in (-1e-12, 1e-12):  # the first node is at right angles to the others, but for this
        last = x[2] - x[0] * ((x[1] + x[2]) @ x[0] / (x[0] @ x[0]) + side)
        tipped = torch.stack([x[0], x[1], last]).requires_grad_()
        out = layer()(*graphs._replace(x=tipped))
        out.x.square().sum().backward()
        assert tipped.grad.isfinite().all()
        shares.append(out.assign)
    torch.testing.assert_close(*shares, rtol=0, atol=1e-6)


def test_features_and_edges_are_all_shared_out_and_layers_stack():
    graphs = sample_batch()
    first = layer()(*graphs)
    second = layer(weighted=True)(first.x, first.edge_index, first.edge_attr, first.batch)
    for out in (first, second):
        close(out.x.sum(0), graphs.x.sum(0))
        assert out.edge_attr.sum().item() == pytest.approx(graphs.edge_index.size(1))
        assert out.loss is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_short_floats_add_up_long_graphs(dtype):
    graphs = pack([(400, [(i, 0) for i in range(1, 400)]), (3, ring(3)), (1, [])], seed=0)
    x = graphs.x.abs().bfloat16()
    pool = layer(torch.bfloat16)
    out = copy.deepcopy(pool).to(dtype)(*graphs._replace(x=x.to(dtype)))
    exact = pool.double()(*graphs._replace(x=x.double()))
    off = 0.02 if dtype == torch.bfloat16 else 1e-4
    for mine, its in ((out.x, exact.x), (out.edge_attr, exact.edge_attr)):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), its, rtol=off, atol=off)


def test_a_graph_needs_no_matrix_of_all_its_pairs():
    nodes = 100_000  # 40 GB of pairs
    x = torch.randn(nodes, CHANNELS, generator=torch.Generator().manual_seed(0))
    out = layer(torch.float32, steps=1)(x, torch.arange(nodes).repeat(2, 1))
    torch.testing.assert_close(out.x.sum(0), x.sum(0), rtol=1e-3, atol=0.1)
