"""k-MIS against a sequential rule written out node by node."""

from functools import partial
from random import Random

import pytest
import torch
from contract import CHANNELS, Graphs, distinct, drawn, pack, ragged, ring, shuffled
from hypothesis import assume, given
from hypothesis import strategies as st
from partition_laws import PARTITION_LAWS, same_as_twin

from gtpool.graph import NodeDrop
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import SAMPLERS, round_scores
from gtpool.pool.kmispool import KMISPool

MAKERS = {
    "kmis": KMISPool,
    "two hops, sum": partial(KMISPool, k=2, reduce="sum"),
    "plain order, wheel": partial(KMISPool, greedy=False, sampler="rws"),
    "structure, rwsv": partial(KMISPool, sampler="rwsv", order="structure"),
}


@pytest.mark.parametrize(
    ("name", "law"),
    [
        (name, law)
        for name in MAKERS
        for law in PARTITION_LAWS
        if law != "compile" or name == "two hops, sum"
    ],
)
def test_law(name, law):
    PARTITION_LAWS[law](MAKERS[name])


def distances(graphs: Graphs) -> list[list[float]]:
    """Count the hops between all nodes, in either direction of an edge (Floyd and Warshall)."""
    count = len(graphs.x)
    hops = [[0.0 if i == j else float("inf") for j in range(count)] for i in range(count)]
    for source, target in graphs.edge_index.T.tolist():
        if source != target:
            hops[source][target] = hops[target][source] = 1.0
    for via in range(count):
        for i in range(count):
            for j in range(count):
                hops[i][j] = min(hops[i][j], hops[i][via] + hops[via][j])
    return hops


def naive(pool: KMISPool, graphs: Graphs) -> torch.Tensor:
    """Take the nodes one by one, then give each node to the nearest chosen one."""
    count, hops = len(graphs.x), distances(graphs)
    score = torch.sigmoid(graphs.x @ pool.score.weight[0] + pool.score.bias)
    matrix = torch.eye(count, dtype=torch.double)
    for source, target in graphs.edge_index.T.tolist():
        if source != target:
            matrix[target, source] += 1
    walks = torch.linalg.matrix_power(matrix, pool.k).sum(1)
    priority = round_scores(score.detach() / walks if pool.greedy else score.detach())
    before = []
    if pool.sampler != "topk":
        before = SAMPLERS[pool.sampler](priority, graphs.batch, pool.ratio).tolist()
    order = sorted(range(count), key=lambda i: (i not in before, -float(priority[i]), i))
    chosen = []
    for node in order:
        if all(hops[node][other] > pool.k for other in chosen):
            chosen.append(node)
    rows = []
    for centre in sorted(chosen):
        mine = [
            i
            for i in range(count)
            if min(chosen, key=lambda c: (hops[i][c], order.index(c))) == centre
        ]
        members = [score[i] * graphs.x[i] for i in mine]
        kept = score[centre] * graphs.x[centre]
        total = torch.stack(members).sum(0)
        rows.append({"kept": kept, "sum": total, "mean": total / len(mine)}[pool.reduce])
    return torch.stack(rows)


@drawn
@given(
    ragged(),
    st.integers(1, 3),
    st.sampled_from(["mean", "sum", "kept"]),
    st.booleans(),
    st.sampled_from(["topk", "rws", "rwsv"]),
)
def test_it_gives_what_the_sequential_rule_gives(graphs, k, reduce, greedy, sampler):
    torch.manual_seed(0)
    pool = KMISPool(CHANNELS, 0.5, k=k, reduce=reduce, greedy=greedy, sampler=sampler).double()
    graphs.x.requires_grad_()
    same_as_twin(pool, graphs, naive(pool, graphs))


@drawn
@given(ragged(), st.integers(1, 2), st.randoms(use_true_random=False))
def test_other_numbers_give_the_same_clusters_where_no_two_scores_are_equal(graphs, k, random):
    torch.manual_seed(0)
    pool = KMISPool(CHANNELS, k=k).double()
    score = pool.score(graphs.x).sigmoid().flatten()
    whole = PackedGraph.of(graphs.edge_index, graphs.batch)
    score = round_scores(score / pool._neighbourhoods(score, whole))
    every = NodeDrop(graphs.x, None, None, graphs.batch, None, score)
    assume(distinct(every))
    old, renumbered = shuffled(graphs, random)
    one, other = pool(*graphs), pool(*renumbered)
    assert same_clusters(one.assign, other.assign[old.argsort()])
    torch.testing.assert_close(one.x[one.assign], other.x[other.assign[old.argsort()]])


def same_clusters(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two partitions put the same nodes together."""
    return torch.equal(one[:, None] == one, other[:, None] == other)


# A tree in which no two nodes are alike, but many have the same degree.
UNLIKE = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 6), (3, 7), (7, 8), (8, 9)]


@pytest.mark.parametrize("sampler", ["topk", "rws", "rwsv"])
def test_equal_scores_go_by_the_structure_and_not_by_the_numbering(sampler):
    random = [Random(seed) for seed in range(6)]  # noqa: S311 - to number nodes
    both = UNLIKE + [(target, source) for source, target in UNLIKE]
    graphs = pack([(10, both)], seed=0)
    graphs = graphs._replace(x=torch.ones_like(graphs.x))
    differ = 0
    for order in ("structure", "index"):
        torch.manual_seed(0)
        pool = KMISPool(CHANNELS, order=order, sampler=sampler, greedy=False).double()
        before = pool(*graphs).assign
        for way in random:
            old, renumbered = shuffled(graphs, way)
            alike = same_clusters(before, pool(*renumbered).assign[old.argsort()])
            assert alike or order == "index"
            differ += not alike
    assert differ


def test_a_wheel_chooses_other_nodes_than_the_highest():
    graphs = pack([(40, ring(40))], seed=1)
    kept = {}
    for sampler in SAMPLERS:
        torch.manual_seed(0)
        kept[sampler] = KMISPool(CHANNELS, 0.3, sampler=sampler).double()(*graphs).assign.tolist()
    assert kept["topk"] != kept["rws"] != kept["rwsv"]


def test_wrong_options_are_refused():
    for options, says in (
        ({"k": 0}, "k must be an int"),
        ({"k": 9}, "k must be at most 8, got 9"),
        ({"reduce": "max"}, "unknown reduce 'max'"),
    ):
        with pytest.raises(ValueError, match=says):
            KMISPool(CHANNELS, **options)
    with pytest.raises(ValueError, match="ratio"):
        KMISPool(CHANNELS, 1.5)
