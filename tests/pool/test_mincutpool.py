"""The layer against its equations with n × n matrices, and against PyG's."""

import math

import pytest
import torch
from cluster_equations import equals_dense, equals_dense_on_drawn_graphs
from contract import (
    CHANNELS,
    Graphs,
    close,
    compare,
    graph_of,
    matrices,
    pack,
    pooler,
    ring,
)
from torch import Tensor
from torch_geometric.nn import dense_mincut_pool
from torch_geometric.utils import to_dense_adj

from gtpool.pool.mincutpool import MinCutPool


def normalised(A: Tensor) -> Tensor:
    """Divide each entry by the roots of both degrees, where there are any."""
    degree = (A.sum(0) + A.sum(1)) / 2
    out = torch.zeros_like(A)
    for i in range(len(A)):
        for j in range(len(A)):
            if degree[i] > 0 and degree[j] > 0:
                out[i, j] = A[i, j] / (degree[i] * degree[j]).sqrt()
    return out


def dense_layer(pool: MinCutPool, graphs: Graphs, weight: Tensor):
    """Compute the layer graph by graph: features, matrices, shares and losses."""
    xs, coarse, shares, losses = [], [], [], []
    for number, raw in enumerate(matrices(graphs.edge_index, weight, graphs.batch)):
        x = graphs.x[graphs.batch == number]
        hidden = (x @ pool.hidden.weight.T + pool.hidden.bias).clamp(min=0)
        logits = hidden @ pool.out.weight.T + pool.out.bias
        S = logits.exp() / logits.exp().sum(1, keepdim=True)
        A = normalised(raw)
        D = ((A.sum(0) + A.sum(1)) / 2).diag()
        inside, volume = (S.T @ A @ S).trace(), (S.T @ D @ S).trace()
        cut = -inside / volume if volume > 0 else torch.zeros_like(volume)
        gram, C = S.T @ S, pool.clusters
        eye = torch.eye(C, dtype=torch.double)
        apart = gram / gram.square().sum().sqrt() - eye / math.sqrt(C)
        xs.append(S.T @ x)
        coarse.append(normalised((S.T @ A @ S) * (1 - eye)))
        shares.append(S)
        losses.append(cut + (apart.norm() if C > 1 else 0))  # 0 is right, its gradient too
    return torch.cat(xs), torch.stack(coarse), torch.cat(shares), torch.stack(losses)


@pytest.mark.parametrize("weighted", [False, True])
def test_layer_equals_dense_layer(weighted):
    equals_dense_on_drawn_graphs(MinCutPool, dense_layer, weighted=weighted)


@pytest.mark.parametrize("clusters", [1, 12])
def test_layer_equals_dense_layer_on_uneven_graphs(clusters):
    graphs = pack([(n, ring(n)) for n in (3, 60, 20, 1)], seed=0)
    equals_dense(MinCutPool, dense_layer, graphs, clusters)


CHORDS = [(0, 3), (3, 0), (2, 5), (5, 2)]


def pyg(pool: MinCutPool, x: Tensor, edge_index: Tensor) -> tuple[Tensor, ...]:
    """Give what PyG makes of one graph: features, matrix, cut and orthogonality."""
    adjacency = to_dense_adj(edge_index, max_num_nodes=len(x))[0].to(x.dtype)
    logits = pool.out(pool.hidden(x).relu())
    pooled, coarse, cut, apart = dense_mincut_pool(x, normalised(adjacency), logits)
    return pooled[0], coarse[0], cut, apart


@pytest.mark.parametrize("nodes", [6, 25])
def test_one_graph_equals_pyg(nodes):
    graphs = graph_of(nodes, ring(nodes) + CHORDS)
    pool = pooler(MinCutPool, 4)
    asking = [graphs.x.requires_grad_(), *pool.parameters()]
    out = pool(*graphs)
    x, coarse, cut, apart = pyg(pool, graphs.x, graphs.edge_index)
    compare((out.x, out.edge_attr.view(4, 4), out.loss[0]), (x, coarse, cut + apart), asking)


def test_a_graph_without_edges_has_no_cut_where_pyg_has_nan():
    graphs = graph_of(4, [])
    pool = pooler(MinCutPool, 3)
    x, _, cut, apart = pyg(pool, graphs.x, graphs.edge_index)
    assert cut.isnan()
    out = pool(*graphs)
    close(out.x, x)
    close(out.loss[0], apart)
    assert not out.edge_attr.any()


def test_clusters_without_edges_to_others_have_gradients_where_pyg_has_nan():
    pool, x, edge_index = two_triangles()
    edge_index = edge_index[:, :-2]  # without the bridge
    with torch.no_grad():
        pool.out.weight.mul_(10)  # to shares of exactly 0 and 1
    x.requires_grad_()
    ours, theirs = pool(x, edge_index).edge_attr, pyg(pool, x, edge_index)[1]
    assert ours.tolist() == theirs.reshape(4, 1).tolist() == [[0]] * 4
    assert torch.autograd.grad(ours.sum(), x)[0].isfinite().all()
    assert torch.autograd.grad(theirs.sum(), x)[0].isnan().any()


def two_triangles() -> tuple[MinCutPool, Tensor, Tensor]:
    """Give two triangles joined by one edge, and a layer that puts each into a cluster."""
    edges = [*ring(3), *((i + 3, j + 3) for i, j in ring(3)), (2, 3), (3, 2)]
    pool = MinCutPool(CHANNELS, 2, hidden_channels=2).double()
    with torch.no_grad():
        for part in (pool.hidden, pool.out):
            part.weight.zero_()
            part.bias.zero_()
        pool.hidden.weight[:, :2] = torch.eye(2)
        pool.out.weight.copy_(100 * torch.eye(2))
    x = torch.zeros(6, CHANNELS, dtype=torch.double)
    x[:3, 0] = x[3:, 1] = 1
    return pool, x, torch.tensor(edges).T


def test_two_triangles_by_hand():
    pool, x, edge_index = two_triangles()
    out = pool(x, edge_index)
    close(out.assign, torch.eye(2, dtype=torch.double).repeat_interleave(3, 0))
    # Degrees 2, 2, 3 | 3, 2, 2: edges inside a triangle weigh 1/2, 1/√6, 1/√6, the bridge 1/3.
    inside, bridge = 2 * (1 / 2 + 2 / math.sqrt(6)), 1 / 3
    assert out.loss.item() == pytest.approx(-inside / (inside + bridge))  # balanced: no second part
    assert out.edge_attr.flatten().tolist() == pytest.approx([0, 1, 1, 0])
    close(out.x[:, :2], 3 * torch.eye(2, dtype=torch.double))


def test_loss_falls_from_an_even_mix_to_the_minimum_cut():
    pool, x, edge_index = two_triangles()
    best = pool(x, edge_index).loss.item()
    with torch.no_grad():
        pool.out.weight.zero_()
    even = pool(x, edge_index).loss.item()
    # Where all nodes are alike the cut is -1 and S^T S is all equal: √(2 - √2) away from even.
    assert even == pytest.approx(-1 + math.sqrt(2 - math.sqrt(2)))
    assert best < even


def test_training_on_the_loss_alone_finds_the_triangles():
    _, _, edge_index = two_triangles()
    torch.manual_seed(0)
    pool, x = MinCutPool(6, 2), torch.eye(6)
    optimiser = torch.optim.Adam(pool.parameters(), lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        pool(x, edge_index).loss.sum().backward()
        optimiser.step()
    found = pool(x, edge_index).assign.argmax(1).tolist()
    assert found[:3] == [found[0]] * 3
    assert found[3:] == [1 - found[0]] * 3


def test_one_direction_of_an_edge_is_half_of_both():
    one, both = graph_of(4, [(0, 1), (1, 2), (2, 3)]), graph_of(4, [(0, 1), (1, 2), (2, 3)])
    both = both._replace(edge_index=torch.cat([both.edge_index, both.edge_index.flip(0)], 1))
    pool = pooler(MinCutPool, 3)
    directed, symmetric = pool(*one), pool(*both)
    close(directed.loss, symmetric.loss)
    matrix = directed.edge_attr.view(3, 3)
    close((matrix + matrix.T) / 2, symmetric.edge_attr.view(3, 3))


def test_clusters_that_nearly_vanish_keep_gradients_finite():
    graphs = graph_of(6, ring(6))
    pool = pooler(MinCutPool, 4, torch.float32)
    x = graphs.x.float().requires_grad_()
    for shift in (60, 80, 86):
        with torch.no_grad():
            pool.out.bias[0] = -shift
        out = pool(x, graphs.edge_index)
        assert 0 < out.assign[:, 0].max() < 1e-25
        (gradient,) = torch.autograd.grad(out.edge_attr.sin().sum() + out.loss.sum(), x)
        assert gradient.isfinite().all()
        assert gradient.abs().max() < 1e3


def test_bf16_gives_the_loss_of_float64():
    graphs = pack([(n, ring(n)) for n in (400, 5)], seed=0, dtype=torch.bfloat16)
    pool = pooler(MinCutPool, 4, torch.bfloat16)
    short = pool(*graphs)
    full = pool.double()(graphs.x.double(), *graphs[1:])
    torch.testing.assert_close(short.loss.double(), full.loss, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(short.edge_attr.double(), full.edge_attr, rtol=4e-2, atol=1e-2)
