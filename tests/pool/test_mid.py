"""MID against its equations, dense and node by node, and what its three parts are for."""

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, kept_of, pack, pooler, ragged, ring
from hypothesis import given
from torch import Tensor
from torch_geometric.nn import SAGPooling, TopKPooling

from gtpool.graph import NodeDrop
from gtpool.ops.sample import round_scores
from gtpool.pool.mid import MIDPool


def make(**options):
    return lambda width, ratio: MIDPool(width, ratio, **options)


def dense_scores(pool: MIDPool, x: Tensor, edges: list[tuple[int, int]]) -> Tensor:
    """Score the nodes of one graph, [n, h]."""
    if pool.scorer == "projection":
        columns = [x @ p / p.square().sum().sqrt() for p in pool.criteria.weight]
        return torch.stack(columns, 1)
    n = x.size(0)
    adjacency = torch.eye(n, dtype=torch.double)
    for source, target in edges:
        if source != target:
            adjacency[target, source] += 1
    degree = adjacency.sum(1)
    normed = adjacency / (degree[:, None] * degree[None, :]).sqrt()
    return normed @ x @ pool.criteria.lin.weight.T + pool.criteria.bias


def dense_layer(pool: MIDPool, graphs: Graphs, attn: Tensor | None) -> tuple[Tensor, ...]:
    """Compute the layer graph by graph and node by node: features, scores and kept nodes."""
    xs, ranks, kepts = [], [], []
    seen = graphs.x if attn is None else attn
    for graph in range(int(graphs.batch.max()) + 1):
        nodes = (graphs.batch == graph).nonzero().flatten().tolist()
        inside = [(s, t) for s, t in graphs.edge_index.T.tolist() if s in nodes]
        scores = dense_scores(pool, seen[nodes], [(s - nodes[0], t - nodes[0]) for s, t in inside])
        rank = [sum(abs(s) if pool.flip else s for s in scores[i]) for i in range(len(nodes))]
        settled = [float(round_scores(r)) for r in rank]
        best = sorted(range(len(nodes)), key=lambda i: (-settled[i], i))
        for i in sorted(best[: kept_of(len(nodes), pool.ratio)]):
            copies = [graphs.x[nodes[i]] * s.tanh() for s in scores[i]]
            if pool.project is None:
                xs.append(torch.stack(copies).mean(0))
            else:
                xs.append(pool.project.weight @ torch.cat(copies))
            ranks.append(rank[i])
            kepts.append(nodes[i])
    return torch.stack(xs), torch.stack(ranks), torch.tensor(kepts)


@pytest.mark.parametrize(
    ("options", "ratio", "with_attn"),
    [
        ({}, 0.5, False),
        ({"merge": "mean", "scores": 3}, 0.25, True),
        ({"scores": 1}, 0.8, False),
        ({"flip": False}, 2, True),
        ({"scorer": "projection"}, 0.5, True),
        ({"scorer": "projection", "merge": "mean", "flip": False}, 0.5, False),
    ],
    ids=str,
)
def test_layer_equals_dense_layer(options, ratio, with_attn):
    @drawn
    @given(ragged())
    def check(graphs):
        pool = pooler(make(dropscore=0.0, **options), ratio)
        attn = graphs.x.roll(1, 1).requires_grad_() if with_attn else None
        asking = [graphs.x.requires_grad_(), *pool.parameters()]
        asking += [] if attn is None else [attn]
        out = pool(*graphs, attn)
        x, rank, kept = dense_layer(pool, graphs, attn)
        assert out.perm.tolist() == kept.tolist()
        results = (out.x, out.score), (x, rank)
        gradients = [
            torch.autograd.grad(x.sin().sum() + rank.cos().sum(), asking) for x, rank in results
        ]
        ours, theirs = ([*results[i], *gradients[i]] for i in range(2))
        for mine, its in zip(ours, theirs, strict=True):
            close(mine, its)

    check()


def one_score(x: list[float], **options) -> NodeDrop:
    """Pool nodes by one score, their first feature."""
    pool = MIDPool(2, scorer="projection", scores=1, dropscore=0.0, **options).double()
    with torch.no_grad():
        pool.criteria.weight.copy_(torch.tensor([[3.0, 0.0]]))  # divided by its length
    nodes = torch.stack([torch.tensor(x).double(), torch.ones(len(x)).double()], 1)
    return pool(nodes, torch.empty(2, 0, dtype=torch.long))


def test_flipscore_keeps_nodes_at_both_ends():
    x = [-3.0, -1.0, 0.0, 0.5, 1.5, 2.0]
    flipped, plain = one_score(x), one_score(x, flip=False)
    assert flipped.perm.tolist() == [0, 4, 5]
    assert plain.perm.tolist() == [3, 4, 5]
    assert flipped.score.tolist() == [3.0, 1.5, 2.0]
    # The features keep the sign: what is flipped is the rank.
    close(flipped.x[:, 1], torch.tensor([-3.0, 1.5, 2.0]).double().tanh())


def test_several_scores_each_have_their_say():
    # Node 0 is high by the first score, node 1 by the second, node 2 a little by both.
    pool = MIDPool(2, 1, scorer="projection", scores=2, merge="mean", dropscore=0.0)
    with torch.no_grad():
        pool.criteria.weight.copy_(torch.eye(2))
    x = torch.tensor([[2.0, 0.0], [0.0, -2.5], [1.0, 1.0]])
    out = pool(x, torch.empty(2, 0, dtype=torch.long))
    assert out.perm.tolist() == [1]
    assert out.score.tolist() == [2.5]


@pytest.mark.parametrize("scorer", ["gcn", "projection"])
def test_without_its_three_parts_it_is_the_pooler_it_extends(scorer):
    # ratio·n is whole and the features are random: PyG counts and ranks right here.
    graphs = pack([(8, ring(8)), (6, ring(6))], seed=0)
    pool = pooler(make(scorer=scorer, scores=1, flip=False, dropscore=0.0), 0.5)
    with torch.no_grad():
        if scorer == "gcn":
            theirs = SAGPooling(CHANNELS, GNN=type(pool.criteria)).double()
            theirs.gnn.load_state_dict(pool.criteria.state_dict())
            theirs.select.weight.fill_(1.0)
        else:
            theirs = TopKPooling(CHANNELS).double()
            theirs.select.weight.copy_(pool.criteria.weight)
        ours, other = pool(*graphs), theirs(*graphs)
    by_number = other[4].argsort()
    assert ours.perm.tolist() == other[4][by_number].tolist()
    close(ours.x, other[0][by_number])
    close(ours.score.tanh(), other[5][by_number])


def large(nodes: int = 4000) -> Graphs:
    return pack([(nodes, []), (nodes, [])], seed=1)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_dropscore_passes_over_its_share_of_the_best_in_training(share):
    graphs = large()
    pool = pooler(make(dropscore=share), 0.5)
    best = set(pool.eval()(*graphs).perm.tolist())
    torch.manual_seed(1)
    kept = set(pool.train()(*graphs).perm.tolist())
    assert len(kept) == len(best)
    # Half of the nodes stay and more than half are left, so those passed over are gone.
    assert 1 - len(best & kept) / len(best) == pytest.approx(share, abs=0.03)


def test_dropscore_passes_over_nodes_of_low_score_too():
    # By the plain sum half the scores are negative: a score set to 0 would stand in the middle.
    graphs = large()
    pool = pooler(make(dropscore=0.3, flip=False), 0.8)
    best = set(pool.eval()(*graphs).perm.tolist())
    torch.manual_seed(1)
    kept = pool.train()(*graphs)
    # 70 % are left for 80 % of the places: all of them stay, and 10 % come back by index.
    assert kept.batch.bincount().tolist() == [3200, 3200]
    lost = set(range(8000)) - set(kept.perm.tolist())
    assert len(lost & best) / len(lost) == pytest.approx(0.8, abs=0.03)


def test_dropscore_never_acts_in_eval():
    graphs = large(50)
    pool = pooler(make(dropscore=1.0), 0.5).eval()
    plain = pooler(make(dropscore=0.0), 0.5)
    state = torch.get_rng_state()
    outs = [pool(*graphs), pool(*graphs), plain(*graphs)]
    assert torch.equal(torch.get_rng_state(), state)
    for out in outs[1:]:
        for one, other in zip(outs[0], out, strict=True):
            assert one is other is None or torch.equal(one, other)


def test_dropscore_draws_anew_and_the_seed_decides():
    graphs = large(50)
    pool = pooler(make(dropscore=0.3), 0.5)
    torch.manual_seed(3)
    first, second = (pool(*graphs).perm.tolist() for _ in range(2))
    torch.manual_seed(3)
    assert first != second
    assert [pool(*graphs).perm.tolist() for _ in range(2)] == [first, second]


def test_dropscore_changes_who_stays_and_not_what_a_node_becomes():
    graphs = large(50)
    pool = pooler(make(dropscore=0.5), 0.5)
    trained = pool(*graphs)
    pool.eval()
    pool.ratio = 1.0
    everyone = pool(*graphs)
    close(trained.x, everyone.x[trained.perm])
    close(trained.score, everyone.score[trained.perm])


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_as_many_nodes_stay_where_dropscore_leaves_too_few(share):
    graphs = pack([(9, ring(9)), (1, []), (4, [])], seed=0)
    pool = pooler(make(dropscore=share), 0.5)
    for _ in range(5):
        out = pool(*graphs)
        assert out.batch.tolist() == [0] * 5 + [1] + [2] * 2
        assert out.x.isfinite().all()
        assert out.score.isfinite().all()


def test_training_reaches_every_parameter_under_dropscore():
    graphs = large(50)
    for scorer in ("gcn", "projection"):
        pool = pooler(make(scorer=scorer, dropscore=0.2), 0.5)
        pool(*graphs).x.square().sum().backward()
        for name, parameter in pool.named_parameters():
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scorer": "gat"}, "unknown scorer 'gat'; choose one of 'gcn', 'projection'"),
        ({"merge": "cat"}, "unknown merge 'cat'; choose one of 'linear', 'mean'"),
        ({"scores": 0}, "scores must be an int of at least 1, got 0"),
        ({"dropscore": 1.5}, "dropscore must lie between 0 and 1, got 1.5"),
    ],
)
def test_a_wrong_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        MIDPool(CHANNELS, **options)
