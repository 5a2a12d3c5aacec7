"""SAGPool against its equations, dense and graph by graph, and against PyG's SAGPooling."""

import math

import pytest
import torch
from contract import (
    CHANNELS,
    Graphs,
    close,
    compare,
    compare_with_pyg,
    drawn,
    pack,
    pooler,
    ragged,
    ring,
    sample_batch,
)
from hypothesis import assume, given
from reference_sample import sample
from torch import Tensor
from torch_geometric.nn import GCNConv, SAGPooling

from gtpool.ops.sample import round_scores
from gtpool.pool.sagpool import SAGPool


def dense_layer(pool: SAGPool, graphs: Graphs, attn: Tensor | None):
    """Compute the layer graph by graph with n x n matrices: features, scores and kept nodes."""
    xs, scores, kepts = [], [], []
    for graph in range(int(graphs.batch.max()) + 1):
        nodes = (graphs.batch == graph).nonzero().flatten()
        first, n = int(nodes[0]), len(nodes)
        adjacency = torch.eye(n, dtype=torch.double)
        for source, target in graphs.edge_index.T.tolist():
            if graphs.batch[source] == graph and source != target:
                adjacency[target - first, source - first] += 1
        root = adjacency.sum(1).pow(-0.5).diag()
        seen = (graphs.x if attn is None else attn)[nodes]
        raw = root @ adjacency @ root @ seen @ pool.theta[:, None] + pool.bias
        z = raw[:, 0].tanh()
        by = raw[:, 0] if pool.sampler == "topk" else z
        kept = sample(pool.sampler, round_scores(by), [n], pool.ratio, order=pool.order)
        xs.append(torch.diag(z[kept]) @ graphs.x[nodes[kept]])
        scores.append(z[kept])
        kepts += nodes[kept].tolist()
    return torch.cat(xs), torch.cat(scores), kepts


@pytest.mark.parametrize(
    ("sampler", "order", "with_attn"),
    [("topk", "index", True), ("rws", "score", False), ("rwsv", "index", True)],
)
def test_layer_equals_dense_layer(sampler, order, with_attn):
    pool = made(sampler=sampler, order=order)

    @drawn
    @given(ragged())
    def check(graphs):
        attn = graphs.x.roll(1, 1).requires_grad_() if with_attn else None
        asking = [graphs.x.requires_grad_(), pool.theta, pool.bias]
        asking += [] if attn is None else [attn]
        out = pool(*graphs, attn)
        x, score, kept = dense_layer(pool, graphs, attn)
        assert out.perm.tolist() == kept
        compare((out.x, out.score), (x, score), asking)

    check()


def test_layer_equals_that_of_pyg_with_its_sign_set_to_one():
    ours, theirs = made(), pyg_twin(made(), sign=1)
    assert ours.state_dict().keys() == {"theta", "bias"}  # so nothing of PyG's is left out

    @drawn
    @given(ragged())
    def check(graphs):
        everything = made(ratio=1.0)(*graphs).score.atanh().sort()[0]
        assume((everything.diff() > 1e-9).all())
        compare_with_pyg(
            ours, theirs, graphs, [ours.theta, ours.bias], [theirs.gnn.lin.weight, theirs.gnn.bias]
        )

    check()


def test_no_weight_decides_whether_the_best_or_the_worst_stay():
    graphs, ours = sample_batch(), made()
    best, flipped = ours(*graphs), pyg_twin(ours, sign=-1)
    if flipped is None:
        pytest.skip("this PyG has no weight of random sign")
    score = made(ratio=1.0)(*graphs).score
    kept = set(flipped(*graphs)[4].tolist())
    for graph, n in enumerate(graphs.batch.bincount().tolist()):
        nodes = (graphs.batch == graph).nonzero().flatten()
        ranked = nodes[score[nodes].argsort()].tolist()
        many = (n + 1) // 2
        assert kept & set(ranked) == set(ranked[:many])  # the worst
        assert set(best.perm[best.batch == graph].tolist()) == set(ranked[n - many :])

    flipped(*graphs)[0].sin().sum().backward()
    assert flipped.select.weight.grad.abs().max() < 1e-12  # and it can never learn to turn
    best.x.sin().sum().backward()
    assert all(parameter.grad.abs().min() > 1e-6 for parameter in ours.parameters())


def test_top_k_tells_nodes_apart_where_tanh_no_longer_does():
    graphs = pack([(40, ring(40))], seed=0, dtype=torch.float32)
    pool = made(ratio=0.25).float()
    small, large = pool(*graphs), pool(graphs.x * 1000, *graphs[1:])
    assert small.score.unique().numel() == 10
    assert large.score.unique().tolist() == [1]
    assert large.perm.tolist() == small.perm.tolist() != list(range(10))


def test_a_self_loop_counts_once_listed_or_not():
    plain, looped = (
        made(ratio=1.0)(*pack([(3, edges)], seed=0))
        for edges in (ring(3), [*ring(3), (0, 0), (2, 2), (2, 2)])
    )
    assert torch.equal(plain.score, looped.score)


def test_an_edge_counts_for_its_target():
    none, edge = (made(ratio=1.0)(*pack([(3, e)], seed=0)).score for e in ([], [(0, 1)]))
    assert (none != edge).tolist() == [False, True, False]


def test_neighbours_that_share_all_others_tie_and_the_first_stays():
    complete = [(i, j) for i in range(5) for j in range(5) if i != j]
    out = made()(*pack([(5, complete)], seed=0))
    assert out.perm.tolist() == [0, 1, 2]
    close(out.score, out.score[:1].expand(3))


def test_bf16_counts_the_edges_of_a_large_hub():
    star = pack([(1001, [(leaf, 0) for leaf in range(1, 1001)])], seed=0)
    star = star._replace(x=torch.ones_like(star.x))
    pool = made(ratio=1.0)
    torch.nn.init.constant_(pool.theta, 2**-8)
    torch.nn.init.zeros_(pool.bias)
    exact = math.tanh((1000 / math.sqrt(1001) + 1 / 1001) * CHANNELS * 2**-8)
    assert pool(*star).score[0].item() == pytest.approx(exact, abs=1e-12)
    short = pool.bfloat16()(*star._replace(x=star.x.bfloat16()))
    assert short.x.dtype == torch.bfloat16
    assert short.score[0].item() == pytest.approx(exact, rel=1e-5)


def test_act_is_a_name_or_a_callable():
    graphs = sample_batch()
    named, called = (made(act=act)(*graphs) for act in ("sigmoid", torch.sigmoid))
    assert torch.equal(named.x, called.x)
    close(named.score.logit(), made()(*graphs).score.atanh())


def made(*, ratio: float = 0.5, **options) -> SAGPool:
    """Make a layer whose parameters are always the same, the bias too."""
    pool = pooler(lambda width, share: SAGPool(width, share, **options), ratio)
    torch.nn.init.constant_(pool.bias, 0.1)
    return pool


def pyg_twin(pool: SAGPool, sign: float) -> SAGPooling | None:
    """Make PyG's layer with the same weights; None if it has no weight of random sign."""
    twin = SAGPooling(CHANNELS, pool.ratio, GNN=GCNConv).double()
    with torch.no_grad():
        twin.gnn.lin.weight.copy_(pool.theta)
        twin.gnn.bias.copy_(pool.bias)
        if hasattr(twin, "select") and hasattr(twin.select, "weight"):
            twin.select.weight.fill_(sign)
        elif sign < 0:
            return None
    return twin
