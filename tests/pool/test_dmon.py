"""The layer against its equations with n x n matrices and loops, and what its loss is for."""

import math

import pytest
import torch
from both_forms import train_both_forms
from cluster_equations import equals_dense, equals_dense_on_drawn_graphs
from contract import (
    CHANNELS,
    Graphs,
    graph_of,
    matrices,
    pack,
    pooler,
    ring,
)
from torch import Tensor
from torch_geometric.nn import DMoNPooling
from torch_geometric.utils import to_dense_adj

from gtpool.pool.dmon import DMoN

TRIANGLES = [*ring(3), *((i + 3, j + 3) for i, j in ring(3)), (2, 3), (3, 2)]


def naive_layer(pool: DMoN, graphs: Graphs, weight: Tensor):
    """Compute the layer graph by graph and entry by entry."""
    xs, coarse, shares, losses = [], [], [], []
    for number, A in enumerate(matrices(graphs.edge_index, weight, graphs.batch)):
        x, C = graphs.x[graphs.batch == number], pool.clusters
        n, logits = len(x), x @ pool.linear.weight.T + pool.linear.bias
        S = logits.exp() / logits.exp().sum(1, keepdim=True)
        degree = [(A[i].sum() + A[:, i].sum()) / 2 for i in range(n)]
        edges, quality = A.sum(), torch.zeros((), dtype=torch.double)
        for i in range(n):
            for j in range(n):
                if edges > 0:
                    excess = A[i, j] - degree[i] * degree[j] / edges
                    quality = quality + excess * (S[i] @ S[j]) / edges
        size = S.sum(0)
        losses.append(math.sqrt(C) / n * size.square().sum().sqrt() - 1 - quality)
        xs.append(torch.nn.functional.selu((S / size).T @ x))
        coarse.append(normalised((S.T @ A @ S) * (1 - torch.eye(C, dtype=torch.double))))
        shares.append(S)
    return torch.cat(xs), torch.stack(coarse), torch.cat(shares), torch.stack(losses)


def normalised(A: Tensor) -> Tensor:
    degree = (A.sum(0) + A.sum(1)) / 2
    rows = []
    for i in range(len(A)):
        for j in range(len(A)):
            linked = degree[i] > 0 and degree[j] > 0
            rows.append(A[i, j] / (degree[i] * degree[j]).sqrt() if linked else 0 * A[i, j])
    return torch.stack(rows).view_as(A)


@pytest.mark.parametrize("weighted", [False, True])
def test_layer_and_gradients_equal_the_naive_twin(weighted):
    equals_dense_on_drawn_graphs(DMoN, naive_layer, weighted=weighted)


def test_layer_equals_the_naive_twin_on_uneven_graphs():
    graphs = pack([(n, ring(n)) for n in (3, 30, 12, 1)], seed=0)
    equals_dense(DMoN, naive_layer, graphs, 6)


def test_losses_and_edges_of_one_graph_equal_pyg():
    graphs, pool = graph_of(6, TRIANGLES), pooler(DMoN, 3)
    theirs = DMoNPooling(CHANNELS, 3).double().eval()
    theirs.mlp.lins[0].load_state_dict(pool.linear.state_dict())
    adjacency = to_dense_adj(graphs.edge_index).double()
    assign, _, coarse, spectral, _, cluster = theirs(graphs.x, adjacency)
    out = pool(*graphs)
    torch.testing.assert_close(out.assign, assign[0])
    torch.testing.assert_close(out.loss[0], spectral + cluster)
    torch.testing.assert_close(out.edge_attr.view(3, 3), coarse[0])


def test_two_triangles_by_hand():
    pool, x = DMoN(6, 2).double(), torch.eye(6, dtype=torch.double)
    with torch.no_grad():
        pool.linear.weight.copy_(100 * torch.tensor([[1.0] * 3 + [0] * 3, [0] * 3 + [1.0] * 3]))
    out = pool(x, torch.tensor(TRIANGLES).T)
    # 12 of 14 edge ends lie inside, half of which a random graph would have; sizes are equal.
    assert out.loss.item() == pytest.approx(-(12 / 14 - 1 / 2))
    assert out.edge_attr.flatten().tolist() == pytest.approx([0, 1, 1, 0])


def test_one_cluster_for_all_nodes_costs_what_the_paper_says():
    pool = DMoN(CHANNELS, 4).double()
    with torch.no_grad():
        pool.linear.weight.zero_()
        pool.linear.bias.copy_(torch.tensor([200.0, 0, 0, 0]))
    out = pool(*graph_of(6, TRIANGLES))
    assert out.loss.item() == pytest.approx(math.sqrt(4) - 1)  # all edges inside: no modularity
    assert out.x.isfinite().all()


def test_training_on_the_loss_alone_finds_the_triangles():
    torch.manual_seed(0)
    pool, x = DMoN(6, 2), torch.eye(6)
    optimiser = torch.optim.Adam(pool.parameters(), lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        pool(x, torch.tensor(TRIANGLES).T).loss.sum().backward()
        optimiser.step()
    found = pool(x, torch.tensor(TRIANGLES).T).assign.argmax(1).tolist()
    assert found[:3] == [found[0]] * 3
    assert found[3:] == [1 - found[0]] * 3


def test_clusters_that_nearly_vanish_keep_gradients_finite():
    graphs, pool = graph_of(6, ring(6)), pooler(DMoN, 4, torch.float32)
    x = graphs.x.float().requires_grad_()
    for shift in (20, 60, 86, 120):
        with torch.no_grad():
            pool.linear.bias[0] = -shift
        out = pool(x, graphs.edge_index)
        total = out.x.sin().sum() + out.edge_attr.sin().sum() + out.loss.sum()
        (gradient,) = torch.autograd.grad(total, x)
        assert gradient.isfinite().all()
        assert gradient.abs().max() < 1e3


def test_both_forms_train_alike():
    eager, captured = train_both_forms(pool="dmon")
    assert eager == pytest.approx(captured, rel=1e-4)
    assert eager[1] < eager[0]
