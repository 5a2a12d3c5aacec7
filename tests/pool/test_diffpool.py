"""The layer against its equations with n × n matrices, and against PyG's."""

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
from torch_geometric.nn import GCNConv, dense_diff_pool
from torch_geometric.utils import to_dense_adj, to_dense_batch

from gtpool.pool.diffpool import DiffPool


def dense_layer(pool: DiffPool, graphs: Graphs, weight: Tensor):
    """Compute the layer graph by graph: features, matrices, shares and losses."""
    xs, coarse, shares, losses = [], [], [], []
    for number, A in enumerate(matrices(graphs.edge_index, weight, graphs.batch)):
        x, n = graphs.x[graphs.batch == number], len(A)
        with_loops = A.T + torch.eye(n)
        scale = with_loops.sum(1).rsqrt().diag()
        logits = scale @ with_loops @ scale @ x @ pool.linear.weight.T + pool.bias
        S = logits.exp() / logits.exp().sum(1, keepdim=True)  # (6)
        xs.append(S.T @ x)  # (3)
        coarse.append(S.T @ A @ S)  # (4)
        shares.append(S)
        link = (A - S @ S.T).square().sum().sqrt() / n**2
        losses.append(link + sum(-(row * row.log()).sum() for row in S) / n)
    return torch.cat(xs), torch.stack(coarse), torch.cat(shares), torch.stack(losses)


def made(width: int, clusters: int, **options) -> DiffPool:
    pool = DiffPool(width, clusters, **options)
    torch.nn.init.normal_(pool.bias)
    return pool


@pytest.mark.parametrize("weighted", [False, True])
def test_layer_equals_dense_layer(weighted):
    equals_dense_on_drawn_graphs(made, dense_layer, weighted=weighted)


@pytest.mark.parametrize("clusters", [1, 12])
def test_layer_equals_dense_layer_on_uneven_graphs(clusters):
    graphs = pack([(n, ring(n)) for n in (3, 130, 40, 1)], seed=0)
    equals_dense(made, dense_layer, graphs, clusters)


CHORDS = [(0, 3), (3, 0), (2, 5), (5, 2)]


def logits_of(pool: DiffPool, graphs: Graphs) -> Tensor:
    """Give what PyG's convolution makes, for graphs without loops."""
    conv = GCNConv(CHANNELS, pool.clusters).double()
    conv.lin.weight, conv.bias = pool.linear.weight, pool.bias
    return conv(graphs.x, graphs.edge_index)


@pytest.mark.parametrize("nodes", [6, 25])
def test_one_graph_equals_pyg(nodes):
    graphs = graph_of(nodes, ring(nodes) + CHORDS)
    pool = pooler(DiffPool, 4)
    asking = [graphs.x.requires_grad_(), *pool.parameters()]
    out = pool(*graphs)
    ours = out.x, out.edge_attr.view(4, 4), out.loss.squeeze()
    x, adjacency, link, entropy = dense_diff_pool(
        graphs.x, to_dense_adj(graphs.edge_index)[0].double(), logits_of(pool, graphs)
    )
    compare(ours, (x[0], adjacency[0], link + entropy), asking)


def test_loss_of_a_graph_is_its_own_where_pyg_changes_it_with_the_padding():
    small, large = (6, ring(6) + CHORDS), (30, ring(30))
    pool = pooler(DiffPool, 4)
    alone, batch = graph_of(*small), pack([small, large], seed=0)
    close(pool(*batch).loss[:1], pool(*alone).loss)

    def pyg(most: int) -> Tensor:
        x, mask = to_dense_batch(alone.x, max_num_nodes=most)
        adjacency = to_dense_adj(alone.edge_index, max_num_nodes=most).double()
        logits, _ = to_dense_batch(logits_of(pool, alone), max_num_nodes=most)
        return torch.stack(dense_diff_pool(x, adjacency, logits, mask)[2:])

    close(pyg(6).sum(), pool(*alone).loss[0])
    close(pyg(12) * torch.tensor([4, 2]), pyg(6))  # the same graph, a quarter and half of the loss


def test_link_loss_is_zero_with_no_gradient_where_clusters_are_the_graph():
    # One cluster: S S^T is all ones, as is A of a complete graph with loops.
    everything = [(i, j) for i in range(3) for j in range(3)]
    graphs = graph_of(3, everything)
    pool = pooler(DiffPool, 1)
    graphs.x.requires_grad_()
    loss = pool(*graphs).loss
    assert loss.item() == pytest.approx(0, abs=1e-15)
    loss.sum().backward()
    assert not graphs.x.grad.any()


def test_repeated_edges_add_up_in_the_link_loss():
    once, twice = graph_of(3, ring(3)), graph_of(3, ring(3) * 2)
    pool = pooler(lambda width, count: DiffPool(width, count, weighted=True), 2)
    heavy = once._replace(edge_attr=torch.full((6, 1), 2.0, dtype=torch.double))
    light = twice._replace(edge_attr=torch.ones(12, 1, dtype=torch.double))
    close(pool(*heavy).loss, pool(*light).loss)


def test_shares_far_apart_keep_the_entropy_and_its_gradient_finite():
    graphs = graph_of(6, ring(6))
    pool = pooler(DiffPool, 4, torch.float32)
    x = (1e4 * graphs.x).float().requires_grad_()
    out = pool(x, graphs.edge_index)
    assert (out.assign == 0).any()
    out.loss.sum().backward()
    assert out.loss.isfinite().all()
    assert x.grad.isfinite().all()


def test_an_edge_between_clusters_points_as_its_edges_do():
    graphs = graph_of(2, [(0, 1)])
    pool = DiffPool(CHANNELS, 2).double()
    with torch.no_grad():  # node 0 goes to cluster 0, and node 1, whose feature counts more, to 1
        pool.linear.weight.zero_()
        pool.linear.weight[:, 0] = torch.tensor([-90.0, 90.0])
    x = torch.zeros_like(graphs.x)
    x[:, 0] = torch.tensor([-1.0, 9.0])
    out = pool(x, graphs.edge_index)
    close(out.assign, torch.eye(2, dtype=torch.double))
    close(out.edge_attr.view(2, 2), torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.double))


def test_bf16_gives_the_loss_of_float64():
    graphs = pack([(n, ring(n)) for n in (400, 5)], seed=0, dtype=torch.bfloat16)
    pool = pooler(DiffPool, 4, torch.bfloat16)
    short = pool(*graphs)
    full = pool.double()(graphs.x.double(), *graphs[1:])
    torch.testing.assert_close(short.loss.double(), full.loss, rtol=2e-2, atol=0)
    torch.testing.assert_close(short.edge_attr.double(), full.edge_attr, rtol=4e-2, atol=1e-1)
