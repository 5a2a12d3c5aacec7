"""Coding trees of low structural entropy: the hierarchy of SEP-G.

The structural entropy of a graph under a tree whose leaves are the nodes is the sum over all tree
nodes v but the root of -(g_v / vol(G)) log2(vol(v) / vol(parent of v)), where vol(v) is the sum of
the degrees of the leaves below v, and g_v the weight of the edges that leave them.

Two children i and j of the root, joined by edges of weight w, become children of a new node; this
lowers the entropy by 2 w / vol(G) log2(vol(G) / (vol(i) + vol(j))). The removal of a node v with
parent p raises it by the weight of the edges between different children of v, both ways, divided
by vol(G), times log2(vol(p) / vol(v)).
"""

from heapq import heapify, heappop, heappush
from math import log2

from gtpool.ops.partitions import Labels, Weights

_DIGITS = 9  # costs that differ by less are equal


def coding_tree_labels(weights: Weights, steps: int) -> Labels:
    """Return the clusters of each node in the tree of height ``steps`` + 1, without its root.

    Args:
        weights: Weights of the edges of a graph, equal both ways, without loops.
        steps: Number of levels between the nodes and the root.

    Example:
        >>> path = [{1: 1.0}, {0: 1.0, 2: 1.0}, {1: 1.0, 3: 1.0}, {2: 1.0}]
        >>> coding_tree_labels(path, 1)
        [[4, 4, 5, 5]]
    """
    tree = CodingTree(weights)
    tree.compress(steps + 1)
    return tree.levels(steps + 1)


class CodingTree:
    """A tree over the nodes of a graph; the leaves are 0 to n - 1, the root is the last node.

    Args:
        weights: Weights of the edges of the graph, equal both ways, without loops.

    Example:
        >>> path = [{1: 1.0}, {0: 1.0, 2: 1.0}, {1: 1.0, 3: 1.0}, {2: 1.0}]
        >>> CodingTree(path).parent
        [4, 4, 5, 5, 6, 6, -1]
    """

    def __init__(self, weights: Weights) -> None:
        self.leaves = len(weights)
        self.volume = [sum(found.values()) for found in weights]
        self.cut = list(self.volume)
        """Weight of the edges that leave each node."""
        self.parent = [-1] * self.leaves
        self.children: list[set[int]] = [set() for _ in weights]
        self.height = [0] * self.leaves
        self._merge([dict(found) for found in weights])

    def _merge(self, links: Weights) -> None:
        """Merge adjacent children of the root, highest gain first, while more than two are left."""
        total, left = sum(self.volume), self.leaves
        queue = [
            (self._gain(one, other, weight, total), one, other)
            for one, found in enumerate(links)
            for other, weight in found.items()
            if one < other
        ]
        heapify(queue)
        while queue and left > 2:
            _, one, other = heappop(queue)
            if self.parent[one] >= 0 or self.parent[other] >= 0:
                continue
            new, left = self._add({one, other}, 2 * links[one][other]), left - 1
            links.append(_joined(links, one, other))
            for near, weight in links[new].items():
                links[near][new] = weight
                heappush(queue, (self._gain(near, new, weight, total), near, new))
        self._add({node for node, above in enumerate(self.parent) if above < 0}, 0.0)

    def _gain(self, one: int, other: int, weight: float, total: float) -> float:
        """Return the rise in entropy by a merge, times half the volume; never positive."""
        return -round(weight * log2(total / (self.volume[one] + self.volume[other])), _DIGITS)

    def _add(self, children: set[int], inside: float) -> int:
        """Add a node above others; edges of weight ``inside``, both ways, no longer leave it."""
        new = len(self.parent)
        self.parent.append(-1)
        self.children.append(children)
        self.volume.append(sum(self.volume[child] for child in children))
        self.cut.append(sum(self.cut[child] for child in children) - inside)
        self.height.append(1 + max(self.height[child] for child in children))
        for child in children:
            self.parent[child] = new
        return new

    def compress(self, height: int) -> None:
        """Remove nodes, the lowest rise in entropy first, until the height is right; once only."""
        root = len(self.parent) - 1
        inside = [
            sum(self.cut[child] for child in found) - cut
            for found, cut in zip(self.children, self.cut, strict=True)
        ]

        def cost(node: int) -> float:
            ratio = self.volume[self.parent[node]] / self.volume[node]
            return round(inside[node] * log2(ratio), _DIGITS)

        costs = {node: cost(node) for node in range(self.leaves, root)}
        queue = [(value, node) for node, value in costs.items()]
        heapify(queue)
        while self.height[root] > height:
            value, node = heappop(queue)
            if costs.get(node) != value:
                continue  # removed, or its cost has changed
            del costs[node]
            above, below = self.parent[node], self.children[node]
            self._remove(node)
            inside[above] += inside[node]
            for changed in (above, *below):
                if changed in costs:
                    costs[changed] = cost(changed)
                    heappush(queue, (costs[changed], changed))

    def _remove(self, node: int) -> None:
        """Attach the children of a node to its parent."""
        above, below = self.parent[node], self.children[node]
        self.children[above] = (self.children[above] - {node}) | below
        self.children[node] = set()
        for child in below:
            self.parent[child] = above
        while above >= 0:
            height = 1 + max(self.height[child] for child in self.children[above])
            if height == self.height[above]:
                break
            self.height[above] = height
            above = self.parent[above]

    def levels(self, height: int) -> list[list[int]]:
        """Return the highest node at each height from 1 to ``height`` - 1 above each leaf.

        The root has the height ``height``; lower nodes are filled up to their parent.
        """
        root, top = len(self.parent) - 1, list(range(self.leaves))
        found: list[list[int]] = []
        for step in range(1, height):
            for leaf, node in enumerate(top):
                reached, above = node, self.parent[node]
                while above != root and self.height[above] <= step:
                    reached, above = above, self.parent[above]
                top[leaf] = reached
            found.append(list(top))
        return found


def _joined(links: Weights, one: int, other: int) -> dict[int, float]:
    """Return the links of two nodes as one, and take theirs away."""
    joined, rest = links[one], links[other]
    for near, weight in rest.items():
        joined[near] = joined.get(near, 0.0) + weight
    del joined[one], joined[other]
    links[one], links[other] = {}, {}
    for near in joined:
        links[near].pop(one, None)
        links[near].pop(other, None)
    return joined
