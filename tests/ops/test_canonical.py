from random import Random

import networkx as nx
import pytest
import torch
from contract import drawn, pack, ragged, ring, shuffled
from hypothesis import given
from hypothesis import strategies as st

from gtpool.ops.partitions import ordered_graphs
from gtpool.ops.segment import layout_from_batch


def numbered(graphs):
    return ordered_graphs(graphs.edge_index, layout_from_batch(graphs.batch))


def both_ways(graph):
    graph = nx.convert_node_labels_to_integers(graph)
    return len(graph), [*graph.edges, *((j, i) for i, j in graph.edges)]


SYMMETRIC = {
    "ring": nx.cycle_graph(14),
    "path": nx.path_graph(9),
    "star": nx.star_graph(30),
    "complete": nx.complete_graph(11),
    "bipartite": nx.complete_bipartite_graph(4, 7),
    "grid": nx.grid_2d_graph(4, 5),
    "cube": nx.hypercube_graph(4),
    "Petersen": nx.petersen_graph(),
    "tree": nx.balanced_tree(3, 3),
    "two rings": nx.disjoint_union(nx.cycle_graph(7), nx.cycle_graph(7)),
    "ring of cliques": nx.ring_of_cliques(5, 4),
    "nothing": nx.empty_graph(5),
}


@drawn
@given(ragged(), st.randoms(use_true_random=False))
def test_the_numbered_graphs_are_the_same_for_all_numberings(graphs, random):
    order, found = numbered(graphs)
    assert order.sort()[0].tolist() == list(range(len(order)))
    assert torch.equal(graphs.batch[order], graphs.batch)
    assert numbered(shuffled(graphs, random)[1])[1] == found


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_nodes_have_no_numbers_of_their_own(name):
    graphs = pack([both_ways(SYMMETRIC[name])], seed=0)
    for random in [Random(seed) for seed in range(3)]:  # noqa: S311 - to number nodes
        assert numbered(shuffled(graphs, random)[1])[1] == numbered(graphs)[1]


def test_a_graph_has_the_order_that_it_has_alone():
    parts = [both_ways(graph) for graph in SYMMETRIC.values()] + [(1, []), (5, ring(5))]
    order, graphs = numbered(pack(parts, seed=0))
    first = 0
    for (nodes, edges), graph in zip(parts, graphs, strict=True):
        alone = numbered(pack([(nodes, edges)], seed=0))
        assert order[first : first + nodes].tolist() == (alone[0] + first).tolist()
        assert alone[1] == [graph]
        first += nodes


def test_a_weight_counts_the_edges_both_ways_without_loops():
    _, (graph,) = numbered(pack([(2, [(0, 1), (0, 1), (1, 0), (1, 1)])], seed=0))
    assert graph == [{1: 3.0}, {0: 3.0}]
