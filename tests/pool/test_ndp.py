"""NDP against definitions: cuts counted edge by edge, nodes eliminated one by one."""

import networkx as nx
import pytest
import torch
from chain_laws import CHAIN_LAWS
from contract import (
    CHANNELS,
    Graphs,
    adjacency_of,
    close,
    drawn,
    matrices,
    nodes_of,
    pack,
    ragged,
    ring,
)
from hypothesis import given
from hypothesis import strategies as st
from partition_laws import same_as_twin

from gtpool.ops.decimation import SPARSIFY, decimation_chain, kron_reduction
from gtpool.ops.segment import layout_from_batch
from gtpool.pool.ndp import NDP

OWN = {
    "coarse edges": "they are those of a Kron reduction",
    "gradients": "dropped nodes have none",
}


@pytest.mark.parametrize("law", CHAIN_LAWS)
def test_law(law):
    if law in OWN:
        with pytest.raises(AssertionError):
            CHAIN_LAWS[law](NDP)
    else:
        CHAIN_LAWS[law](NDP)


def undirected(graphs: Graphs) -> list[torch.Tensor]:
    """Give the matrix of each graph, whose edges both ways weigh one, without loops."""
    found = [(matrix + matrix.T) / 2 for matrix in adjacency_of(graphs)]
    return [matrix - matrix.diag().diag() for matrix in found]


def components(matrix: torch.Tensor) -> list[list[int]]:
    return [sorted(part) for part in nx.connected_components(nx.from_numpy_array(matrix.numpy()))]


def eliminate(matrix: torch.Tensor, kept: list[int]) -> torch.Tensor:
    """Take nodes away one by one, joining all their neighbours (star-mesh transform)."""
    matrix = matrix.clone()
    for node in range(len(matrix)):
        if node not in kept and matrix[node].sum() > 0:
            row = matrix[node].clone()
            matrix += row[:, None] * row[None, :] / row.sum()
            matrix[node], matrix[:, node] = 0, 0
            matrix.fill_diagonal_(0)
    return matrix[kept][:, kept]


def chain_of(graphs: Graphs, steps: int):
    return decimation_chain(graphs.edge_index, layout_from_batch(graphs.batch), steps)


@drawn
@given(ragged(), st.integers(1, 3))
def test_each_step_cuts_half_of_the_weight_and_keeps_half_of_the_nodes(graphs, steps):
    whole = undirected(graphs)
    batch = graphs.batch
    for step in chain_of(graphs, steps):
        kept_of = (step.share > 0).tolist()
        pooled = matrices(step.edge_index, step.edge_attr.double(), step.level.batch)
        for number, matrix in enumerate(whole):
            nodes = (batch == number).nonzero().flatten().tolist()
            kept = [place for place, node in enumerate(nodes) if kept_of[node]]
            dropped = [place for place in range(len(nodes)) if place not in kept]
            assert matrix[kept][:, dropped].sum() >= 0.5 * matrix.sum() / 2 - 1e-6
            for part in components(matrix):
                assert 1 <= len(set(part) & set(kept)) <= max(1, len(part) // 2)
            whole[number] = eliminate(matrix, kept)
            heavy = torch.where(whole[number] >= SPARSIFY, whole[number], 0.0)
            torch.testing.assert_close(pooled[number], heavy, rtol=1e-5, atol=1e-6)
        batch = step.level.batch


@drawn
@given(ragged())
def test_kept_nodes_have_their_features_and_dropped_ones_no_gradient(graphs):
    share = chain_of(graphs, 1)[0].share
    graphs.x.requires_grad_()
    pool = NDP(CHANNELS)
    rows = [graphs.x[node] for node in range(len(share)) if share[node] == 1]
    same_as_twin(pool, graphs, torch.stack(rows))
    pool(*graphs).x.sum().backward()
    assert torch.equal(graphs.x.grad.any(1), share == 1)


@drawn
@given(ragged())
def test_a_node_is_in_the_cluster_that_a_walk_most_likely_reaches_first(graphs):
    step = chain_of(graphs, 1)[0]
    for matrix, nodes in zip(undirected(graphs), nodes_of(graphs), strict=True):
        kept = [place for place, node in enumerate(nodes) if step.share[node] == 1]
        walk = matrix / matrix.sum(1, keepdim=True).clamp(min=1e-9)
        walk[kept] = torch.eye(len(nodes), dtype=torch.double)[kept]
        reached = torch.linalg.matrix_power(walk, 2**20)[:, kept]
        first = int(step.cluster[nodes[kept[0]]])
        own = torch.tensor([int(step.cluster[node]) - first for node in nodes])
        close(reached.gather(1, own[:, None])[:, 0], reached.amax(1))


def test_a_reduction_keeps_effective_resistances():
    graph = nx.connected_watts_strogatz_graph(14, 4, 0.4, seed=1)
    matrix = torch.tensor(nx.to_numpy_array(graph))
    kept = torch.arange(14) % 3 == 0
    smaller, _ = kron_reduction(matrix, kept)

    def resistances(weights):
        inverse = torch.linalg.pinv(weights.sum(1).diag() - weights)
        return inverse.diag()[:, None] + inverse.diag()[None] - 2 * inverse

    close(resistances(smaller), resistances(matrix)[kept][:, kept])


@pytest.mark.parametrize(
    "graph",
    [nx.path_graph(9), nx.cycle_graph(12), nx.grid_2d_graph(4, 5), nx.star_graph(7)],
    ids=["path", "ring", "grid", "star"],
)
def test_a_bipartite_graph_is_cut_whole(graph):
    graph = nx.convert_node_labels_to_integers(graph)
    edges = [*graph.edges, *((j, i) for i, j in graph.edges)]
    graphs = pack([(len(graph), edges)], seed=0)
    kept = chain_of(graphs, 1)[0].share == 1
    source, target = graphs.edge_index
    assert (kept[source] != kept[target]).all()
    assert 2 * int(kept.sum()) <= len(graph)


def test_a_path_keeps_every_other_node_and_halves_the_weights():
    out = NDP(CHANNELS)(*pack([(5, [(i, i + 1) for i in range(4)])], seed=0))
    assert len(out.x) == 2
    assert out.edge_attr.tolist() == [[0.25], [0.25]]  # an edge one way weighs a half
    assert NDP(CHANNELS)(*pack([(6, ring(6))], seed=0)).edge_attr.unique().tolist() == [0.5]


def test_light_edges_are_left_out_but_count_for_the_next_step():
    hub, middle = 0, range(1, 241)
    paths = [edge for at in middle for edge in ((hub, at), (at, 240 + at), (at, 480 + at))]
    edges = [*paths, *((j, i) for i, j in paths)]
    first, second = chain_of(pack([(721, edges)], seed=0), 2)
    assert first.share.nonzero().flatten().tolist() == [*middle]
    assert first.edge_index.size(1) == 0  # the hub is gone, and each edge weighs 1 / 240
    assert second.level.sizes.tolist() == [120]
