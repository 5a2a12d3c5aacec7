"""Chains of partitions that follow from the structure: one graph at a time, on the host.

The clusters of a step are numbered in the order of their first nodes. Partitions are Graclus's
matchings, or those of ``gtpool.ops.coding_tree``.

Colours refined as by Weisfeiler and Leman order the nodes. Where nodes of one colour remain, one of
them gets a colour of its own, and the colours are refined again. If nodes of one colour are
symmetric, as in trees and most molecules, the numbered graph is the same for all input numberings.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gtpool.graph import CoarseningStep, GraphLayout, check_count
from gtpool.ops.coarsening import contract, contract_between
from gtpool.ops.entry import no_compile
from gtpool.ops.merge import at_least_float32
from gtpool.ops.segment import layout_from_batch, segment_max, segment_sum
from gtpool.ops.spectral import number_by_first
from gtpool.ops.structure import mix

Weights = list[dict[int, float]]
"""Weights of the edges of a graph: of each node, by neighbour."""
Labels = list[list[int]]
"""Cluster of each node of the input graph after each step, with any numbers from 0 to 2 n - 1."""
_PICKS = 64  # maximum nodes of a graph that get a colour of their own
_NONE = torch.iinfo(torch.int64).max
_DIGITS = 9  # weights that differ by less are equal


@no_compile
def partition_chain(
    edge_index: Tensor,
    level: GraphLayout,
    steps: int,
    *,
    method: str,
    split: Callable[[Weights, int], Labels],
    mean: bool,
) -> tuple[CoarseningStep, ...]:
    """Return the coarsening steps of a batch, with edges S^T A S without the diagonal.

    Args:
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        steps: Number of coarsening steps.
        method: A key of ``gtpool.ops.chains.CHAINS``.
        split: Computes the clusters of one graph; the numbers of its nodes follow from the
            structure.
        mean: Whether the features of a cluster are the mean of its nodes, not the sum.
    """
    check_count("steps", steps)
    device, edges = edge_index.device, edge_index.cpu()
    level = level._replace(batch=level.batch.cpu())
    order, graphs = ordered_graphs(edges, level)
    cluster, below = torch.arange(level.batch.numel()), level
    chain: list[CoarseningStep] = []
    for labels in _labels([split(graph, steps) for graph in graphs], level, order):
        above, batch = _numbered(labels, level)
        node = torch.empty_like(below.batch).index_copy_(0, cluster, above)
        cluster, below = above, layout_from_batch(batch)
        pairs, weight = contract_between(edges, torch.ones(edges.size(1)), cluster, below)
        share = torch.ones(node.numel())
        share = share / node.bincount()[node] if mean else share
        step = CoarseningStep(node, pairs, weight.unsqueeze(1), below, method, share)
        chain.append(step.to(device))
    return tuple(chain)


def ordered_graphs(edge_index: Tensor, level: GraphLayout) -> tuple[Tensor, list[Weights]]:
    """Return the nodes in an order that follows from the structure, [N], and the graphs in it.

    The weight of an edge is the number of edges between its nodes, either way; loops are dropped.

    Args:
        edge_index: Source and target of each edge, on the host, [2, E].
        level: The layout of the batch, on the host.
    """
    order, pairs, weight = ordered_edges(edge_index, level)
    place = order.argsort() - level.ptr[level.batch]
    graphs = [list[dict[int, float]]({} for _ in range(size)) for size in level.sizes.tolist()]
    source, target = place[pairs].tolist()
    for graph, one, other, times in zip(
        level.batch[pairs[0]].tolist(), source, target, weight.tolist(), strict=True
    ):
        graphs[graph][one][other] = float(times)
    return order, graphs


def ordered_edges(edge_index: Tensor, level: GraphLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes in an order that follows from the structure, the edges and their weights.

    Args:
        edge_index: Source and target of each edge, on the host, [2, E].
        level: The layout of the batch, on the host.

    Returns:
        The order [N], the edges both ways without loops [2, E'], and the number of edges between
        their nodes, either way, [E'].
    """
    both = torch.cat([edge_index, edge_index.flip(0)], 1)
    both = both[:, both[0] != both[1]]
    nodes = torch.arange(level.batch.numel())
    pairs, weight = contract(both, torch.ones_like(both[0]), nodes, level)
    return canonical_order(pairs, weight, level), pairs, weight


def pool_shares(x: Tensor, chain: Sequence[CoarseningStep]) -> Tensor:
    """Return the sums of each cluster of the first step, weighted by shares, [N, D] -> [N', D]."""
    step = chain[0]
    assert step.share is not None  # noqa: S101 - the chain of this method has them
    exact = at_least_float32(x)
    shared = exact * step.share.to(exact.dtype).unsqueeze(1)
    return segment_sum(shared, step.cluster, step.level.batch.numel()).to(x.dtype)


def _labels(found: list[Labels], level: GraphLayout, order: Tensor) -> Tensor:
    """Return the labels of all nodes after each step, different in each graph, [steps, N]."""
    labels = torch.cat([torch.tensor(labels) for labels in found], 1) + 2 * level.ptr[level.batch]
    return torch.empty_like(labels).index_copy_(1, order, labels)


def _numbered(labels: Tensor, level: GraphLayout) -> tuple[Tensor, Tensor]:
    """Return the clusters in order of first nodes, [N], and the graph of each, [N']."""
    dense = labels.unique(return_inverse=True)[1]
    cluster = number_by_first(dense, int(dense.max()) + 1)
    batch = torch.empty(int(dense.max()) + 1, dtype=torch.long)
    return cluster, batch.index_copy_(0, cluster, level.batch)


def canonical_order(edge_index: Tensor, weight: Tensor, level: GraphLayout) -> Tensor:
    """Return the nodes of each graph in an order that follows from its structure, [N].

    Args:
        edge_index: Source and target of each edge, both ways, without loops, on the host, [2, E].
        weight: Weight of each edge, equal both ways, int64 [E].
        level: The layout of the batch, on the host.

    Example:
        >>> from gtpool.ops.segment import layout_from_batch
        >>> level = layout_from_batch(torch.zeros(3, dtype=torch.long))
        >>> weight = torch.ones(4, dtype=torch.long)
        >>> middle_1 = torch.tensor([[1, 1, 0, 2], [0, 2, 1, 1]])
        >>> canonical_order(middle_1, weight, level).tolist()
        [0, 2, 1]
        >>> canonical_order((middle_1 + 1) % 3, weight, level).tolist()
        [0, 1, 2]
    """
    colour = _refine(torch.zeros_like(level.batch), edge_index, weight, level)
    for _ in range(_PICKS):
        pick = _unsettled(colour, edge_index, weight, level)
        if not pick.numel():
            break
        colour = colour.index_copy(0, pick, mix(mix(colour[pick])))
        colour = _refine(colour, edge_index, weight, level)
    return _by_colour(colour, level)


def _refine(colour: Tensor, edge_index: Tensor, weight: Tensor, level: GraphLayout) -> Tensor:
    """Return colours refined until the graph has no more of them, [N].

    The rounds of a graph do not depend on its batch.
    """
    source, target = edge_index
    count = _colours(colour, level)
    while True:
        sent = mix(colour)
        finer = mix(sent).index_add(0, target, sent.index_select(0, source) * mix(weight))
        found = _colours(finer, level)
        more = found > count
        if not more.any():
            return colour
        colour = torch.where(more[level.batch], finer, colour)
        count = torch.where(more, found, count)


def _by_colour(colour: Tensor, level: GraphLayout) -> Tensor:
    """Return the nodes of each graph in order of colours, equal colours by number, [N]."""
    order = colour.argsort(stable=True)
    return order[level.batch[order].argsort(stable=True)]


def _cells(colour: Tensor, level: GraphLayout) -> Tensor:
    """Return the colours numbered 0, 1, 2 … over the batch, graph by graph in their order, [N]."""
    order = _by_colour(colour, level)
    starts = (colour[order].diff() != 0) | (level.batch[order].diff() != 0)
    cell = torch.cat([starts.new_zeros(1), starts]).cumsum(0)
    return torch.empty_like(colour).index_copy_(0, order, cell)


def _colours(colour: Tensor, level: GraphLayout) -> Tensor:
    """Return the number of colours of each graph, [G]."""
    last = segment_max(_cells(colour, level), level.batch, level.sizes.numel())
    return last.diff(prepend=last.new_full((1,), -1))


def _unsettled(colour: Tensor, edge_index: Tensor, weight: Tensor, level: GraphLayout) -> Tensor:
    """Return the first node of the first colour of each graph whose nodes are not twins.

    Twins have the same neighbours, apart from each other; their order has no effect.
    """
    cell = _cells(colour, level)
    cells, (source, target) = int(cell.max()) + 1, edge_index
    name = mix(mix(torch.arange(cell.numel())))
    apart = torch.zeros_like(name).index_add(0, target, name[source] * weight)
    inside = torch.where(cell[source] == cell[target], weight, 0)
    joined = torch.zeros_like(name).scatter_reduce(0, target, inside, "amax")
    loose = _differ(apart, cell, cells) & _differ(apart + joined * name, cell, cells)
    node = torch.where(loose[cell], torch.arange(cell.numel()), _NONE)
    order = _by_colour(colour, level)
    place = torch.where(node[order] < _NONE, torch.arange(cell.numel()), _NONE)
    first = torch.full_like(level.sizes, _NONE)
    first = first.scatter_reduce(0, level.batch[order], place, "amin")
    return order[first[first < _NONE]]


def _differ(value: Tensor, cell: Tensor, number: int) -> Tensor:
    """Return whether the nodes of a cell have different values, bool [cells]."""
    first, last = (
        value.new_zeros(number).scatter_reduce(0, cell, value, way, include_self=False)
        for way in ("amin", "amax")
    )
    return first != last


def graclus_labels(weights: Weights, steps: int) -> Labels:
    """Return the clusters of each node after each of several matchings.

    Args:
        weights: Weights of the edges of a graph, equal both ways, without loops.
        steps: Number of matchings; each one matches the clusters of the last.

    Example:
        >>> path = [{1: 1.0}, {0: 1.0, 2: 1.0}, {1: 1.0, 3: 1.0}, {2: 1.0}]
        >>> graclus_labels(path, 2)
        [[0, 0, 1, 1], [0, 0, 0, 0]]
    """
    volume = [sum(found.values()) for found in weights]
    own, found = list(range(len(weights))), list[list[int]]()
    for _ in range(steps):
        cluster = _match(weights, volume)
        weights, volume = _contract(weights, volume, cluster)
        own = [cluster[node] for node in own]
        found.append(own)
    return found


def _match(weights: Weights, volume: list[float]) -> list[int]:
    """Return the pair of each node, or a number of its own, in the order of visits.

    Nodes are visited in ascending order of volume. Each one is matched to the free neighbour of the
    highest normalised weight.
    """
    cluster, visited = [-1] * len(weights), 0
    for node in sorted(range(len(weights)), key=lambda node: (volume[node], node)):
        if cluster[node] >= 0:
            continue
        free = [
            (round(weight * (1 / volume[node] + 1 / volume[near]), _DIGITS), -near)
            for near, weight in weights[node].items()
            if cluster[near] < 0
        ]
        cluster[node] = visited
        if free:
            cluster[-max(free)[1]] = visited
        visited += 1
    return cluster


def _contract(
    weights: Weights, volume: list[float], cluster: list[int]
) -> tuple[Weights, list[float]]:
    """Return the weights between clusters, and their volumes with the edges inside."""
    coarse: Weights = [{} for _ in range(max(cluster) + 1)]
    total = [0.0] * len(coarse)
    for node, found in enumerate(weights):
        own = cluster[node]
        total[own] += volume[node]
        for near, weight in found.items():
            if cluster[near] != own:
                coarse[own][cluster[near]] = coarse[own].get(cluster[near], 0.0) + weight
    return coarse, total
