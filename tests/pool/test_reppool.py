"""The layer against its equations with n x n matrices and loops, and what it is for."""

from functools import partial
from itertools import chain

import pytest
import torch
from contract import (
    CHANNELS,
    Graphs,
    compare,
    drawn,
    graph_of,
    kept_of,
    nodes_of,
    pack,
    pooler,
    ragged,
    ring,
)
from hypothesis import given
from hypothesis import strategies as st
from reference_sample import sample

from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import round_scores
from gtpool.pool.reppool import RepPool

RATIOS = (0.25, 0.5, 0.8, 1.0, 2)


def naive(pool: RepPool, graphs: Graphs, weight) -> tuple:
    """Compute the layer graph by graph: features, edges, weights, kept nodes and scores."""
    outs, nodes_before, kept_before = [], 0, 0
    for number, nodes in enumerate(nodes_of(graphs)):
        inside = graphs.batch[graphs.edge_index[0]] == number
        edges = (graphs.edge_index[:, inside] - nodes_before).T.tolist()
        found = of_one_graph(pool, graphs.x[nodes], edges, weight[inside])
        x, pairs, coarse, kept, score = found
        pairs = [(kept_before + i, kept_before + j) for i, j in pairs]
        outs.append((x, pairs, coarse, [nodes_before + node for node in kept], score))
        nodes_before, kept_before = nodes_before + len(nodes), kept_before + len(kept)
    x, pairs, coarse, kept, score = zip(*outs, strict=True)
    return torch.cat(x), [*chain(*pairs)], torch.cat(coarse), [*chain(*kept)], torch.cat(score)


def of_one_graph(pool: RepPool, x, edges, weight):
    n, A = len(x), x.new_zeros(len(x), len(x))
    for (i, j), value in zip(edges, weight, strict=True):
        if i != j:
            A = A.index_put((torch.tensor(i), torch.tensor(j)), value, accumulate=True)
    own = [
        torch.sigmoid(pool.importance.weight[0] @ x[i] + pool.importance.bias[0]) for i in range(n)
    ]
    raw = [
        sum(A[j, i] * own[j] / A[j].sum() for j in range(n) if A[j, i] > 0)
        if A[:, i].any()
        else own[i]
        for i in range(n)
    ]
    s = torch.stack(raw)
    s = s / s.max()
    hops = hops_between(n, edges)
    kept = chosen(pool, s, hops)
    B = x.new_zeros(n, len(kept))
    for i in range(n):
        near = [c for c, j in enumerate(kept) if hops[i][j] <= 2 and hops[i][j] < n]
        logits = [
            (x[i] @ pool.likeness.weight.T @ x[kept[c]]) * (pool.far + (hops[i][kept[c]] <= 1))
            for c in near
        ]
        if near:
            share = torch.stack(logits).softmax(0)
            B = B.index_put((torch.tensor(i), torch.tensor(near)), share)
    pooled = B.T @ (s[:, None] * x)
    linked = torch.eye(n) + torch.zeros(n, n).index_put(
        tuple(torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T), torch.tensor(1.0)
    )
    joined = (B > 0).float().T @ linked @ (B > 0).float()
    pairs = [(i, j) for i, j in joined.nonzero().tolist() if i != j]
    coarse = B.T @ (A + torch.eye(n)) @ B
    weights = [coarse[i, j] for i, j in pairs]
    return pooled, pairs, torch.stack(weights) if weights else x.new_zeros(0), kept, s[kept]


def hops_between(n: int, edges) -> list[list[int]]:
    """Count the hops of all pairs by Floyd and Warshall, n where there is no path."""
    hops = [[0 if i == j else n for j in range(n)] for i in range(n)]
    for i, j in edges:
        if i != j:
            hops[i][j] = hops[j][i] = 1
    for k in range(n):
        for i in range(n):
            for j in range(n):
                hops[i][j] = min(hops[i][j], hops[i][k] + hops[k][j])
    return hops


def chosen(pool: RepPool, s, hops) -> list[int]:
    n, height = len(s), round_scores(s).tolist()
    if pool.sampler == "topk":
        kept = []
        while len(kept) < kept_of(n, pool.ratio):
            value = [
                -1 if i in kept else height[i] * min([hops[i][j] for j in kept], default=n)
                for i in range(n)
            ]
            kept.append(value.index(max(value)))
        return sorted(kept)
    to_higher = [
        min((hops[i][j] for j in range(n) if height[j] > height[i] and hops[i][j] < n), default=0)
        for i in range(n)
    ]
    r = [hop / max(to_higher) if hop else 1.0 for hop in to_higher]
    value = s.detach() * torch.tensor(r, dtype=s.dtype)
    return sample(pool.sampler, round_scores(value), [n], pool.ratio, order=pool.order)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weighted": True},
        {"far": 0.0},
        {"sampler": "rws"},
        {"sampler": "rwsv", "order": "score", "weighted": True},
    ],
    ids=str,
)
def test_the_layer_and_its_gradients_equal_the_naive_twin(options):
    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs, ratio):
        pool = pooler(partial(RepPool, **options), ratio)
        asking = [graphs.x.requires_grad_(), *pool.parameters()]
        weight = torch.ones(graphs.edge_index.size(1), dtype=torch.double)
        if pool.weighted:
            weight = torch.rand(len(weight), dtype=torch.double).requires_grad_()
            graphs = graphs._replace(edge_attr=weight)
            asking.append(weight)
        out = pool(*graphs)
        x, pairs, coarse, kept, score = naive(pool, graphs, weight)
        assert out.perm.tolist() == kept
        assert out.edge_index.T.tolist() == [list(pair) for pair in pairs]
        assert out.batch.tolist() == graphs.batch[kept].tolist()
        compare((out.x, out.edge_attr[:, 0], out.score), (x, coarse, score), asking)

    check()


def test_kept_nodes_lie_apart_where_top_k_of_the_importance_takes_neighbours():
    two_hubs = [(0, leaf) for leaf in (2, 3, 4, 5)] + [(1, leaf) for leaf in (3, 4, 5, 6)]
    path = [(6, 7), (7, 8), (8, 9), (9, 10)]
    both = [*two_hubs, *path]
    graphs = graph_of(11, both + [(j, i) for i, j in both])
    pool = pooler(RepPool, 2)
    score = pool.step(graphs.x, as_packed(graphs))[0].score
    assert sorted(score.topk(2).indices.tolist()) == [0, 1]
    assert pool(*graphs).perm.tolist() != [0, 1]
    assert max(pool(*graphs).perm.tolist()) > 7


def as_packed(graphs: Graphs):
    return PackedGraph.of(graphs.edge_index, graphs.batch)


def test_nodes_far_from_all_kept_ones_are_left_out_and_the_others_shared_out():
    path = [(i, i + 1) for i in range(9)]
    graphs = graph_of(10, path + [(j, i) for i, j in path])
    pool = pooler(RepPool, 1)
    graphs.x.requires_grad_()
    out = pool(*graphs)
    (kept,) = out.perm.tolist()
    out.x.sum().backward()
    heard = graphs.x.grad.abs().sum(1) > 1e-12
    assert heard[max(kept - 1, 0) : kept + 2].all()


@pytest.mark.parametrize("sampler", ["topk", "rws", "rwsv"])
def test_every_sampler_keeps_its_share_and_trains(sampler):
    pool = pooler(partial(RepPool, sampler=sampler), 0.5)
    out = pool(*pack([(9, ring(9)), (4, ring(4))], seed=0))
    assert out.batch.bincount().tolist() == [5, 2]
    (out.x.sin().sum() + out.edge_attr.sum()).backward()
    assert all(part.grad.any() for part in pool.parameters())


@pytest.mark.parametrize("far", [-0.1, float("inf"), float("nan")])
def test_a_wrong_factor_is_refused(far):
    with pytest.raises(ValueError, match="far must be a finite number of at least 0"):
        RepPool(CHANNELS, far=far)


def test_negative_weights_are_refused():
    graphs = graph_of(3, ring(3))
    weight = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0])[: graphs.edge_index.size(1)]
    with pytest.raises(ValueError, match=r"edge 1 has weight -1\.0"):
        pooler(partial(RepPool, weighted=True), 0.5)(*graphs._replace(edge_attr=weight))
