"""Graclus against the rule written out on matrices."""

import pytest
import torch
from chain_laws import CHAIN_LAWS
from contract import CHANNELS, drawn, pack, ragged, ring
from hypothesis import given
from hypothesis import strategies as st
from partition_laws import same_as_twin

from gtpool.ops.partitions import Weights, graclus_labels, ordered_graphs
from gtpool.ops.segment import layout_from_batch
from gtpool.pool.graclus import Graclus


@pytest.mark.parametrize("law", CHAIN_LAWS)
def test_law(law):
    CHAIN_LAWS[law](Graclus)


def naive_pairs(matrix: torch.Tensor) -> list[list[int]]:
    """Match nodes one by one; the diagonal has the edges inside clusters."""
    degree, free, pairs = matrix.sum(1), set(range(len(matrix))), []
    for node in sorted(free, key=lambda i: (float(degree[i]), i)):
        if node not in free:
            continue
        free.remove(node)
        scores = {
            near: float(matrix[node, near] * (1 / degree[node] + 1 / degree[near]))
            for near in sorted(free)
            if matrix[node, near]
        }
        best = [near for near in scores if scores[near] > max(scores.values()) - 1e-9]
        free -= set(best[:1])
        pairs.append([node, *best[:1]])
    return pairs


def naive_clusters(weights: Weights, steps: int) -> list[list[set[int]]]:
    """Give the nodes of each cluster after each step."""
    count = len(weights)
    matrix = torch.zeros(count, count, dtype=torch.double)
    for node, found in enumerate(weights):
        for near, weight in found.items():
            matrix[node, near] = weight
    members, levels = [{node} for node in range(count)], []
    for _ in range(steps):
        pairs = naive_pairs(matrix)
        members = [set.union(*(members[i] for i in pair)) for pair in pairs]
        assign = torch.zeros(len(matrix), len(pairs), dtype=torch.double)
        for cluster, pair in enumerate(pairs):
            assign[pair, cluster] = 1
        matrix = assign.T @ matrix @ assign
        levels.append(members)
    return levels


@drawn
@given(ragged(), st.integers(1, 3))
def test_every_step_matches_as_the_rule_does(graphs, steps):
    for weights in ordered_graphs(graphs.edge_index, layout_from_batch(graphs.batch))[1]:
        levels = naive_clusters(weights, steps)
        for labels, expected in zip(graclus_labels(weights, steps), levels, strict=True):
            found = [{i for i, label in enumerate(labels) if label == k} for k in set(labels)]
            assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


@drawn
@given(ragged())
def test_features_are_means_of_pairs(graphs):
    order, found = ordered_graphs(graphs.edge_index, layout_from_batch(graphs.batch))
    clusters, first = [], 0
    for weights in found:
        nodes = order[first : first + len(weights)].tolist()
        clusters += [
            sorted(nodes[place] for place in pair) for pair in naive_clusters(weights, 1)[0]
        ]
        first += len(weights)
    graphs.x.requires_grad_()
    means = [graphs.x[pair].sum(0) / len(pair) for pair in sorted(clusters)]
    same_as_twin(Graclus(CHANNELS), graphs, torch.stack(means))


def test_a_node_prefers_the_neighbour_of_few_edges():
    hub = [(1, leaf) for leaf in (2, 3, 4)]
    path = [(0, 1), (0, 5), (5, 6)]
    edges = [*hub, *path, *((j, i) for i, j in (*hub, *path))]
    out = Graclus(CHANNELS)(*pack([(7, edges)], seed=0))
    assert out.assign[5] == out.assign[6]
    assert out.assign[0] != out.assign[5]


def test_edges_weigh_what_they_stand_for():
    out = Graclus(CHANNELS)(*pack([(4, ring(4))], seed=0))
    assert out.batch.numel() == 2
    assert out.edge_index.tolist() == [[0, 1], [1, 0]]
    assert out.edge_attr.tolist() == [[2.0], [2.0]]
