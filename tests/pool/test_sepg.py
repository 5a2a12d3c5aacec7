"""SEP-G against sums over the clusters of its tree; tests/ops/test_coding_tree.py has the tree."""

import pytest
import torch
from chain_laws import CHAIN_LAWS
from contract import CHANNELS, drawn, pack, ragged, ring
from hypothesis import given
from hypothesis import strategies as st
from partition_laws import same_as_twin

from gtpool.ops.coding_tree import coding_tree_labels
from gtpool.ops.partitions import ordered_graphs
from gtpool.ops.segment import layout_from_batch
from gtpool.pool.sepg import SEPG


@pytest.mark.parametrize("law", CHAIN_LAWS)
def test_law(law):
    CHAIN_LAWS[law](SEPG)


@drawn
@given(ragged(), st.integers(1, 3))
def test_clusters_are_sums_over_the_lowest_level_of_the_tree(graphs, steps):
    order, found = ordered_graphs(graphs.edge_index, layout_from_batch(graphs.batch))
    of, first = {}, 0
    for number, weights in enumerate(found):
        for place, label in enumerate(coding_tree_labels(weights, steps)[0]):
            of[int(order[first + place])] = number, label
        first += len(weights)
    clusters = list(dict.fromkeys(of[node] for node in sorted(of)))
    graphs.x.requires_grad_()
    naive = [sum(graphs.x[node] for node in of if of[node] == cluster) for cluster in clusters]
    same_as_twin(SEPG(CHANNELS, steps=steps), graphs, torch.stack(naive))


def test_two_triangles_joined_by_an_edge_become_two_nodes_and_an_edge():
    edges = [*ring(3), *((i + 3, j + 3) for i, j in ring(3)), (2, 3), (3, 2)]
    graphs = pack([(6, edges)], seed=0)
    out = SEPG(CHANNELS, steps=1)(*graphs)
    assert out.assign.tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(out.x, torch.stack([graphs.x[:3].sum(0), graphs.x[3:].sum(0)]))
    assert out.edge_index.tolist() == [[0, 1], [1, 0]]
    assert out.edge_attr.tolist() == [[1.0], [1.0]]


def test_nodes_without_edges_stay_as_they_are():
    graphs = pack([(4, []), (3, [(0, 1), (1, 0)])], seed=0)
    out = SEPG(CHANNELS, steps=2)(*graphs)
    assert out.assign.tolist() == [0, 1, 2, 3, 4, 4, 5]


def test_what_does_not_fit_is_refused():
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="steps must be an int of at least 1"):
            SEPG(CHANNELS, steps=wrong)
