"""Coding trees against the definition: entropies computed anew for every pair and every node."""

from math import log2

import pytest
from contract import drawn, pack, ragged, ring
from hypothesis import given
from hypothesis import strategies as st

from gtpool.ops.coding_tree import CodingTree, coding_tree_labels
from gtpool.ops.partitions import Weights, ordered_graphs
from gtpool.ops.segment import layout_from_batch

CLOSE = 1e-9
Parents = dict[int, int]
"""Parent of each tree node but the root, which is the node -1."""


def weights_of(graphs) -> list[Weights]:
    return ordered_graphs(graphs.edge_index, layout_from_batch(graphs.batch))[1]


def leaves_below(parent: Parents, node: int, count: int) -> set[int]:
    return {leaf for leaf in range(count) if node in ancestors(parent, leaf)}


def ancestors(parent: Parents, node: int) -> list[int]:
    """List a node and those above it, the root last."""
    return [node] if node == -1 else [node, *ancestors(parent, parent[node])]


def entropy(parent: Parents, weights: Weights) -> float:
    """Compute the structural entropy by its definition."""

    def volume(members: set[int]) -> float:
        return sum(sum(weights[member].values()) for member in members)

    total, value = volume(set(range(len(weights)))), 0.0
    for node, above in parent.items():
        inside, around = (leaves_below(parent, at, len(weights)) for at in (node, above))
        cut = sum(w for i in inside for j, w in weights[i].items() if j not in inside)
        if cut:
            value -= cut / total * log2(volume(inside) / volume(around))
    return value


def depth(parent: Parents, count: int) -> int:
    return max(len(ancestors(parent, leaf)) for leaf in range(count)) - 1


def naive_merges(weights: Weights) -> Parents:
    """Merge the pair of adjacent children of the root that lowers the entropy most."""
    parent, new = dict.fromkeys(range(len(weights)), -1), len(weights)
    while True:
        top = sorted(node for node, above in parent.items() if above == -1)
        below = {node: leaves_below(parent, node, len(weights)) for node in top}
        before, tried = entropy(parent, weights), {}
        for one in top:
            for other in top[top.index(one) + 1 :]:
                merged = {**parent, one: new, other: new, new: -1}
                gain = before - entropy(merged, weights)
                if any(j in below[other] for i in below[one] for j in weights[i]):
                    tried[one, other] = gain
                else:
                    assert gain < CLOSE
        if len(top) <= 2 or not tried:
            return parent
        best = max(tried.values())
        one, other = next(pair for pair, gain in tried.items() if gain > best - CLOSE)
        parent = {**parent, one: new, other: new, new: -1}
        new += 1


def naive_removals(parent: Parents, weights: Weights, height: int) -> Parents:
    """Remove the node that raises the entropy least until the tree has the height."""
    while depth(parent, len(weights)) > height:
        tried = {}
        for node in sorted(set(parent) - set(range(len(weights)))):
            rest = {child: above for child, above in parent.items() if child != node}
            tried[node] = {c: parent[node] if above == node else above for c, above in rest.items()}
        values = {node: entropy(tree, weights) for node, tree in tried.items()}
        least = min(values.values())
        parent = next(tried[node] for node in values if values[node] < least + CLOSE)
    return parent


def naive_levels(parent: Parents, count: int, height: int) -> list[list[frozenset[int]]]:
    """Fill all gaps between levels, then read off the cluster of each leaf at each level."""
    heights = dict.fromkeys(range(count), 0)
    while len(heights) < len(parent):
        for node in set(parent) - set(heights):
            children = [child for child, above in parent.items() if above == node]
            if set(children) <= set(heights):
                heights[node] = 1 + max(heights[child] for child in children)
    heights[-1] = height
    filled = dict(parent)
    for node, above in parent.items():
        lower = node
        for level in range(heights[node] + 1, heights[above]):
            new = max(filled) + 1
            filled[lower], filled[new], heights[new] = new, above, level
            lower = new
    level_of = [{heights[node]: node for node in ancestors(filled, leaf)} for leaf in range(count)]
    return [
        [frozenset(leaves_below(filled, of[level], count)) for of in level_of]
        for level in range(1, height)
    ]


def parents_of(tree: CodingTree) -> Parents:
    root = len(tree.parent) - 1
    gone = {n for n in range(tree.leaves, root) if not tree.children[n]}
    return {
        node: -1 if above == root else above
        for node, above in enumerate(tree.parent[:-1])
        if node not in gone
    }


@drawn
@given(ragged(), st.integers(2, 4))
def test_the_tree_is_that_of_the_definition_and_has_its_entropy(graphs, height):
    for weights in weights_of(graphs):
        tree = CodingTree(weights)
        expected = naive_merges(weights)
        assert parents_of(tree) == expected
        tree.compress(height)
        expected = naive_removals(expected, weights, height)
        assert parents_of(tree) == expected
        assert tree.height[-1] == max(1, depth(expected, len(weights))) <= height
        assert entropy(parents_of(tree), weights) == pytest.approx(entropy(expected, weights))


@drawn
@given(ragged(), st.integers(1, 3))
def test_levels_are_those_of_the_filled_tree(graphs, steps):
    for weights in weights_of(graphs):
        count = len(weights)
        merged = naive_removals(naive_merges(weights), weights, steps + 1)
        expected = naive_levels(merged, count, steps + 1)
        for labels, sets in zip(coding_tree_labels(weights, steps), expected, strict=True):
            ours = [frozenset(i for i in range(count) if labels[i] == label) for label in labels]
            assert ours == sets


@drawn
@given(ragged())
def test_merging_never_raises_the_entropy_and_compressing_never_lowers_it(graphs):
    for weights in weights_of(graphs):
        flat = entropy(dict.fromkeys(range(len(weights)), -1), weights)
        values = []
        for height in (9, 4, 3, 2, 1):
            tree = CodingTree(weights)
            tree.compress(height)
            values.append(entropy(parents_of(tree), weights))
        assert values == pytest.approx(sorted(values))
        assert values[-1] == pytest.approx(flat)


def test_two_triangles_joined_by_an_edge_are_two_clusters():
    edges = [*ring(3), *((i + 3, j + 3) for i, j in ring(3)), (2, 3), (3, 2)]
    (weights,) = weights_of(pack([(6, edges)], seed=0))
    (labels,) = coding_tree_labels(weights, 1)
    ends = [node for node in range(6) if len(weights[node]) == 3]
    assert len(set(labels)) == 2
    assert sorted(map(labels.count, set(labels))) == [3, 3]
    assert labels[ends[0]] != labels[ends[1]]
