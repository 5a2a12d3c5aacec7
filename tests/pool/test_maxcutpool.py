"""The layer against its equations with n x n matrices and loops, and what its loss is for."""

from functools import partial

import pytest
import torch
from both_forms import train_both_forms
from contract import CHANNELS, Graphs, drawn, graph_of, kept_of, matrices, pack, ragged, ring
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from gtpool.ops.packed import PackedGraph
from gtpool.pool.maxcutpool import MaxCutPool

small = partial(MaxCutPool, conv_channels=(5, 4, 4), mlp_channels=(3,))


def made(make=small, ratio=0.5, **options) -> MaxCutPool:
    torch.manual_seed(0)
    return make(CHANNELS, ratio, **options).double()


def run(pool: MaxCutPool, graphs: Graphs):
    """Give the six of the layer, and the loss."""
    loss = pool.select(graphs.x, PackedGraph.of(graphs.edge_index, graphs.batch)).loss
    return pool(graphs.x, graphs.edge_index, None, graphs.batch), loss


def naive(pool: MaxCutPool, graphs: Graphs):
    """Compute score and loss graph by graph, with the matrices of the paper."""
    scores, losses = [], []
    weight = graphs.x.new_ones(graphs.edge_index.size(1))
    for number, A in enumerate(matrices(graphs.edge_index, weight, graphs.batch)):
        n, degree = len(A), (A.sum(0) + A.sum(1)) / 2
        L = torch.eye(n, dtype=torch.double)
        for i in range(n):
            for j in range(n):
                if A[i, j] > 0:
                    L[i, j] -= A[i, j] / (degree[i] * degree[j]).sqrt()
        P = torch.eye(n, dtype=torch.double) - pool.delta * L
        h = graphs.x[graphs.batch == number] @ pool.entry.weight.T + pool.entry.bias
        for conv in pool.convs:
            h = (P.T @ h @ conv.weight.T + conv.bias).tanh()
        *hidden, last = pool.mlp
        for layer in hidden:
            h = (h @ layer.weight.T + layer.bias).clamp(min=0)
        z = (h @ last.weight.T + last.bias)[:, 0].tanh()
        alike = sum((A[i, j] * z[i] * z[j] for i in range(n) for j in range(n)), 0 * z.sum())
        losses.append(alike / A.sum() if A.any() else 0 * alike)
        scores.append(z)
    return scores, torch.stack(losses)


@drawn
@given(ragged(), st.sampled_from([0.3, 0.5, 1.0]))
def test_scores_features_loss_and_gradients_equal_the_naive_twin(graphs, ratio):
    pool = made(ratio=ratio)
    asking = [graphs.x.requires_grad_(), *pool.parameters()]
    (x, _, _, _, perm, score), loss = run(pool, graphs)
    scores, their_loss = naive(pool, graphs)
    flat, kept = torch.cat(scores), []
    for number, z in enumerate(scores):
        ranked = z.detach().sort(descending=True).values
        assume((ranked.diff().abs() > 1e-6).all())
        nodes = (graphs.batch == number).nonzero()[:, 0]
        kept += sorted(nodes[z.topk(kept_of(len(z), ratio)).indices].tolist())
    assert perm.tolist() == kept
    compare((x, score, loss), (graphs.x[kept] * flat[kept, None], flat[kept], their_loss), asking)


def compare(ours: tuple, theirs: tuple, asking: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        pair = (
            torch.autograd.grad(part.sin().sum(), asking, retain_graph=True, materialize_grads=True)
            for part in (one, other)
        )
        for first, second in zip(*pair, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-8, atol=1e-9)


def test_a_graph_without_edges_has_no_loss():
    _, loss = run(made(), pack([(4, []), (3, ring(3))], seed=0))
    assert loss[0] == 0
    assert loss[1] != 0


@pytest.mark.parametrize("sampler", ["topk", "rws", "rwsv"])
def test_every_sampler_keeps_its_share_and_trains(sampler):
    pool, graphs = made(sampler=sampler), pack([(9, ring(9)), (4, ring(4))], seed=0)
    (x, _, _, batch, _, _), loss = run(pool, graphs)
    assert batch.bincount().tolist() == [5, 2]
    (x.sin().sum() + loss.sum()).backward()
    assert all(part.grad.any() for part in pool.parameters())


def test_training_on_the_loss_alone_keeps_one_side_of_an_even_ring():
    torch.manual_seed(0)
    pool, edges = MaxCutPool(6, 0.5), torch.tensor(ring(6)).T
    graph = PackedGraph.of(edges, torch.zeros(6, dtype=torch.long))
    optimiser = torch.optim.Adam(pool.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss = pool.select(torch.eye(6), graph).loss
        loss.sum().backward()
        optimiser.step()
    assert loss.item() < -0.9
    assert pool(torch.eye(6), edges).perm.tolist() in ([0, 2, 4], [1, 3, 5])


def test_closest_joins_the_parts_of_the_kept_nodes_as_the_paper_does():
    graphs = graph_of(6, ring(6))
    induced, closest = (made(connect=connect)(*graphs) for connect in ("induced", "closest"))
    assert torch.equal(induced.perm, closest.perm)
    assert closest.edge_index.size(1) > induced.edge_index.size(1)


@pytest.mark.parametrize("options", [{"connect": "closest"}, {}])
def test_both_forms_train_alike(options):
    eager, captured = train_both_forms(pool="maxcutpool", **options)
    assert eager == pytest.approx(captured, rel=1e-4)
    assert eager[1] < eager[0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"conv_channels": ()}, "conv_channels must name at least one width"),
        ({"conv_channels": (4, 0)}, "each of conv_channels must be an int of at least 1, got 0"),
        ({"mlp_channels": (1.5,)}, "each of mlp_channels must be an int of at least 1, got 1.5"),
    ],
)
def test_wrong_widths_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        MaxCutPool(CHANNELS, **options)
