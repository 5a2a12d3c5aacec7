"""Edges of the pooled graph, against loops over nodes and pairs; batches, numbering, gradients."""

from collections import Counter, deque
from functools import partial
from inspect import signature

import pytest
import torch
from contract import (
    CHANNELS,
    LAWS,
    RATIOS,
    Graphs,
    close,
    drawn,
    graph_of,
    ragged,
    refuses,
    resting,
    sample_batch,
)
from hypothesis import given
from hypothesis import strategies as st

from gtpool import GTPool
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import why_spec_not_captured
from gtpool.ops.connect import REACH
from gtpool.ops.sample import round_scores
from gtpool.pool import POOLS
from gtpool.pool.topkpool import TopKPool
from gtpool.spec import ModelSpec, ShapeSpec

ABLE = [name for name, pool in POOLS.items() if "connect" in signature(pool).parameters]
CHANGED = {
    f"{name}-{connect}": partial(POOLS[name], connect=connect)
    for name in ABLE
    for connect in ("khop:2", "closest")
}
cases = pytest.mark.parametrize("case", CHANGED)
LAWFUL = {"gtpool-v", "topkpool", "mid"}
"""One pooler of each way to score; the edges and the numbering are tested with all."""
ORDERLY = ("batch", "gradients", "odd graphs", "copies", "layout", "edge features")


def listed(graphs):
    """List the edges as (source, target, features)."""
    pairs, attr = graphs[1].T.tolist(), graphs[2]
    features = [()] * len(pairs) if attr is None else attr[:, None].flatten(1).tolist()
    return [(*pair, *part) for pair, part in zip(pairs, features, strict=True)]


def khop_naive(graphs, kept):
    """Join each pair of kept nodes that an edge or a third node joins."""
    edges = listed(graphs)
    joined = {edge[:2] for edge in edges}
    blank = [0.0] * (len(edges[0]) - 2 if edges else 0)
    found = [edge for edge in edges if edge[0] in kept and edge[1] in kept]
    for one in kept:
        for other in kept:
            via = any((one, k) in joined and (k, other) in joined for k in range(len(graphs.x)))
            if one != other and via and (one, other) not in joined:
                found.append((one, other, *blank))
    return Counter(found)


def hops_from(node, edges):
    """Count the hops from a node to each node that it reaches, by breadth-first search."""
    hops, queue = {node: 0}, deque([node])
    while queue:
        at = queue.popleft()
        for one, other, *_ in edges:
            for near, far in ((one, other), (other, one)):
                if near == at and far not in hops:
                    hops[far] = hops[at] + 1
                    queue.append(far)
    return hops


def closest_naive(graphs, kept, score):
    """Give each node to the kept node fewest hops away; of several, to that of highest score."""
    edges = listed(graphs)
    owner = {}
    for node in range(len(graphs.x)):
        hops = hops_from(node, edges)
        near = [(hops[k], -score[k], k) for k in kept if hops.get(k, REACH + 1) <= REACH]
        owner[node] = min(near)[2] if near else None
    found = []
    for source, target, *attr in edges:
        one, other = owner[source], owner[target]
        loop = one == other and not (source in kept and target in kept)
        if one is not None and other is not None and not loop:
            found.append((one, other, *attr))
    return Counter(found)


@cases
def test_edges_equal_those_of_loops_over_nodes(case):
    make, (name, connect) = CHANGED[case], case.rsplit("-", 1)

    @drawn
    @given(ragged(), st.sampled_from(RATIOS))
    def check(graphs, ratio):
        pool = resting(make, ratio)
        with torch.no_grad():
            out = pool(*graphs)
            every = resting(make, 1.0)(*graphs)
        kept = out.perm.tolist()
        induced = resting(POOLS[name], ratio)(*graphs)
        assert kept == induced.perm.tolist()
        assert torch.equal(out.x, induced.x)
        if connect == "khop:2":
            expected = khop_naive(graphs, kept)
        elif name.startswith("gtpool"):  # shows the share of the wheel, in the same order
            raw = pool.scores(*graphs[:2], graphs.batch).score
            expected = closest_naive(graphs, kept, round_scores(raw).float().tolist())
        else:
            expected = closest_naive(graphs, kept, round_scores(every.score).float().tolist())
        assert Counter(listed((None, out.perm[out.edge_index], out.edge_attr))) == expected

    check()


@pytest.mark.parametrize("case", [case for case in CHANGED if case.rsplit("-", 1)[0] in LAWFUL])
@pytest.mark.parametrize("law", ORDERLY)
def test_law(case, law):
    LAWS[law](CHANGED[case])


@pytest.mark.parametrize("case", ["gtpool-v-closest", "topkpool-khop:2"])
def test_compiled_equals_eager(case):
    LAWS["compile"](CHANGED[case])


@cases
def test_nothing_depends_on_the_numbering_where_no_two_scores_are_equal(case):
    order = {"order": "score"} if case.startswith("gtpool") else {}
    LAWS["relabelling"](partial(CHANGED[case], **order))


def test_all_nodes_kept_leaves_the_edges_as_they_are_under_closest():
    graphs = sample_batch()
    induced, closest = (
        resting(partial(GTPool, connect=c), 1.0)(*graphs) for c in ("induced", "closest")
    )
    assert torch.equal(induced.edge_index, closest.edge_index)
    assert torch.equal(induced.edge_attr, closest.edge_attr)


def test_a_node_beyond_the_reach_hands_its_edges_to_nobody():
    length = REACH + 4
    path = [(i, i + 1) for i in range(length)]
    pool = resting(partial(TopKPool, connect="closest"), 2)
    graphs = graph_of(length + 1, path)
    pool.direction.data.fill_(1.0)
    graphs.x[:] = 0
    graphs.x[0], graphs.x[1] = 2.0, 1.0
    assert pool(*graphs).edge_index.tolist() == [[0], [1]]


def test_joined_pairs_have_no_code():
    graphs = graph_of(3, [(0, 1), (1, 2)])._replace(edge_attr=torch.tensor([[3], [4]]))
    pool = resting(partial(TopKPool, connect="khop:2"), 2)
    graphs.x[1] = 0
    pool.direction.data.fill_(1.0)
    graphs.x[0], graphs.x[2] = 1.0, 2.0
    out = pool(*graphs)
    assert out.edge_index.tolist() == [[0], [1]]
    assert out.edge_attr.tolist() == [[-1]]


@pytest.mark.parametrize(
    ("conv", "connect"),
    [
        (conv, ("khop:2", "closest")[place % 2])
        for place, conv in enumerate(("gcn", "gin", "gat", "ogb-gcn", "gine", "dmpnn"))
    ],
)
def test_networks_learn_with_every_convolution(conv, connect):
    coded = conv in {"ogb-gcn", "gine", "dmpnn"}
    shape = ShapeSpec(outputs=2, node_width=CHANNELS, edge_categories=(3, 2) if coded else ())
    torch.manual_seed(0)
    spec = ModelSpec(width=16, conv=conv, connect=connect, pool_options={"order": "score"})
    model = Classifier(spec, shape).double()
    graphs = sample_batch()
    codes = torch.arange(graphs.edge_index.size(1) * 2).view(-1, 2) % torch.tensor([3, 2])
    given = graphs._replace(edge_attr=codes if coded else None)
    logits = model.eval()(*given)
    logits.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    later = [p.grad for p in model.levels[1:].parameters() if p.grad is not None]
    assert any(grad.any() for grad in later)
    alone = [model(*one) for one in split(given)]
    close(logits, torch.cat(alone))


def split(graphs):
    """Give the graphs of a batch one by one."""
    for number in graphs.batch.unique():
        nodes = (graphs.batch == number).nonzero().flatten()
        inside = graphs.batch[graphs.edge_index[0]] == number
        attr = None if graphs.edge_attr is None else graphs.edge_attr[inside]
        ends = graphs.edge_index[:, inside] - nodes[0]
        yield Graphs(graphs.x[nodes], ends, attr, torch.zeros_like(nodes))


def test_what_cannot_be_connected_is_refused():
    shape = ShapeSpec(outputs=2, node_width=3, mean_nodes=5)
    refuses("connect", lambda: GTPool(8, connect="khop:3"))
    for pool in ("asap", "diffpool", "haarpool"):
        refuses(pool, lambda pool=pool: Classifier(ModelSpec(pool=pool, connect="closest"), shape))
    refuses("connect", lambda: Classifier(ModelSpec(pool="none", connect="closest"), shape))
    refuses("connect", lambda: Classifier(ModelSpec(pool_options={"connect": "closest"}), shape))
    weighted = ShapeSpec(outputs=2, node_width=3, edge_width=1, edge_weighted=True)
    refuses("weight", lambda: Classifier(ModelSpec(connect="khop:2"), weighted))
    Classifier(ModelSpec(connect="closest"), weighted)


def test_too_many_paths_are_refused_before_they_are_listed(monkeypatch):
    monkeypatch.setattr("gtpool.ops.memory._CHECK_FROM_BYTES", 0)
    monkeypatch.setattr("gtpool.ops.memory.free_memory", lambda _: 100)
    star = [(0, i) for i in range(1, 9)] + [(i, 0) for i in range(1, 9)]
    pool = resting(partial(TopKPool, connect="khop:2"), 0.9)
    refuses("closest", lambda: pool(*graph_of(9, star)))


def test_training_says_why_two_hops_are_not_captured():
    shape = ShapeSpec(outputs=2, node_width=3)
    assert "khop:2" in (why_spec_not_captured(ModelSpec(connect="khop:2"), shape) or "")
    assert why_spec_not_captured(ModelSpec(connect="closest"), shape) is None
