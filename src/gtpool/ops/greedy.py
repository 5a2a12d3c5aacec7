"""Greedy selections, computed in rounds for a whole batch.

In a round of an independent set or a matching all items are chosen that come before every other
candidate in their way. This gives what the sequential rule gives, since no two items have the same
rank. In a round of ``spread_nodes`` each graph chooses one node.
"""

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.entry import no_compile
from gtpool.ops.sample import kept_counts, round_scores
from gtpool.ops.segment import gather_by_graph, segment_max

_NONE = torch.iinfo(torch.int64).max


def rank_by_score(score: Tensor, ties: Tensor | None = None) -> Tensor:
    """Return the place of each item in descending order of rounded scores, [N].

    Args:
        score: Score of each item, [N].
        ties: The items in the order in which equal scores go; None means by index, [N].

    Example:
        >>> rank_by_score(torch.tensor([0.1, 0.9, 0.9])).tolist()
        [2, 0, 1]
    """
    order = torch.arange(score.numel(), device=score.device) if ties is None else ties
    place = round_scores(score).index_select(0, order).argsort(descending=True, stable=True)
    return order.index_select(0, place).argsort()


@no_compile
def independent_set(source: Tensor, target: Tensor, rank: Tensor, hops: int) -> Tensor:
    """Return the maximal independent set that takes nodes by rank, as a mask, bool [N].

    Two of its nodes are more than ``hops`` apart, and every other node is within that distance of
    one of them. Edges are followed in both directions.

    Args:
        source: Source of each edge, [E].
        target: Target of each edge, [E].
        rank: Distinct rank of each node, the lowest first, [N].
        hops: Distance that two nodes of the set exceed.

    Example:
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> independent_set(*path, torch.tensor([1, 0, 2, 3, 4]), 1).tolist()
        [False, True, False, True, False]
    """
    sent, got = torch.cat([source, target]), torch.cat([target, source])

    def over_hops(value: Tensor, reduce: str) -> Tensor:
        for _ in range(hops):
            value = value.scatter_reduce(0, got, value.index_select(0, sent), reduce)
        return value

    chosen, open_ = torch.zeros_like(rank, dtype=torch.bool), torch.ones_like(rank)
    while open_.any():
        first = over_hops(torch.where(open_ > 0, rank, _NONE), "amin")
        new = (open_ > 0) & (first == rank)
        chosen |= new
        open_ = open_ * (1 - over_hops(new.long(), "amax"))
    return chosen


@no_compile
def match_edges(source: Tensor, target: Tensor, rank: Tensor, num_nodes: int) -> Tensor:
    """Return the maximal matching that takes edges by rank, as a mask, bool [E].

    No two of its edges share a node. Self-loops are never taken.

    Args:
        source: Source of each edge, [E].
        target: Target of each edge, [E].
        rank: Distinct rank of each edge, the lowest first, [E].
        num_nodes: Number N of nodes.

    Example:
        >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> match_edges(*path, torch.tensor([1, 0, 2]), 4).tolist()
        [False, True, False]
    """
    chosen, open_ = torch.zeros_like(source, dtype=torch.bool), source != target
    while open_.any():
        candidate = torch.where(open_, rank, _NONE)
        first = rank.new_full((num_nodes,), _NONE)
        for end in (source, target):
            first = first.scatter_reduce(0, end, candidate, "amin")
        new = open_ & (first[source] == rank) & (first[target] == rank)
        chosen |= new
        taken = torch.zeros(num_nodes, dtype=torch.bool, device=rank.device)
        taken[source[new]] = True
        taken[target[new]] = True
        open_ = open_ & ~(taken[source] | taken[target])
    return chosen


@no_compile
def spread_nodes(
    edge_index: Tensor,
    score: Tensor,
    ratio: float,
    level: GraphLayout,
    ties: Tensor | None = None,
) -> Tensor:
    """Return nodes chosen one by one by score times distance to the chosen ones, ascending, [K].

    The distance is in hops, along edges in both directions; n hops of a graph of n nodes if there
    is no path, and for the first node. Scores are rounded; equal products tie.

    Args:
        edge_index: Source and target of each edge, [2, E].
        score: Score of each node, not negative, [N].
        ratio: Share of nodes that are chosen.
        level: The layout of the batch.
        ties: The nodes in the order in which equal ones go; None means by index, [N].

    Example:
        >>> from gtpool.ops.segment import layout_from_sizes
        >>> one = layout_from_sizes(torch.tensor([4]), torch.device("cpu"))
        >>> path, score = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0.9, 1.0, 0.8, 0.7])
        >>> spread_nodes(path, score, 0.5, one).tolist()
        [1, 3]
    """
    sent, got = torch.cat([edge_index, edge_index.flip(0)], 1)
    batch, device = level.batch, score.device
    sizes, counts = (
        gather_by_graph(part.to(device, non_blocking=True), batch)
        for part in (level.sizes, kept_counts(level.sizes, ratio))
    )
    place = torch.arange(batch.numel(), device=device) if ties is None else ties.argsort()
    height, distance = round_scores(score).double(), sizes
    chosen = torch.zeros_like(batch, dtype=torch.bool)
    graphs = level.sizes.numel()
    for number in range(int(counts.max())):
        value = torch.where(chosen, -1.0, height * distance)
        best = value.new_full((graphs,), -1.0).scatter_reduce(0, batch, value, "amax")
        first = torch.where(value == gather_by_graph(best, batch), place, _NONE)
        first = first.new_full((graphs,), _NONE).scatter_reduce(0, batch, first, "amin")
        new = (place == gather_by_graph(first, batch)) & (number < counts)
        chosen |= new
        distance = _shortened(distance.masked_fill(new, 0), sent, got)
    return chosen.nonzero().view(-1)


@no_compile
def spread_scores(edge_index: Tensor, score: Tensor, level: GraphLayout) -> Tensor:
    """Return how far from each node the next higher score is, relative to its graph, [N].

    The distance in hops, along edges in both directions, is divided by the largest one of the
    graph. Nodes that reach no higher score have 1.

    Args:
        edge_index: Source and target of each edge, [2, E].
        score: Score of each node; rounded scores are compared, [N].
        level: The layout of the batch.

    Example:
        >>> from gtpool.ops.segment import layout_from_sizes
        >>> one = layout_from_sizes(torch.tensor([4]), torch.device("cpu"))
        >>> path, score = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0.9, 0.5, 0.6, 1.0])
        >>> spread_scores(path, score, one).tolist()
        [1.0, 0.3333333432674408, 0.3333333432674408, 1.0]
    """
    sent, got = torch.cat([edge_index, edge_index.flip(0)], 1)
    height = most = round_scores(score)
    hops, step = torch.zeros_like(score), 0
    while True:
        wider = most.scatter_reduce(0, got, most.index_select(0, sent), "amax")
        if torch.equal(wider, most):
            break
        step, most = step + 1, wider
        hops = torch.where((hops == 0) & (most > height), float(step), hops)
    longest = segment_max(hops, level.batch, level.sizes.numel())
    return torch.where(hops > 0, hops / gather_by_graph(longest, level.batch).clamp(min=1), 1.0)


def _shortened(distance: Tensor, sent: Tensor, got: Tensor) -> Tensor:
    """Return distances that no edge can shorten, given upper bounds, [N]."""
    while True:
        found = distance.scatter_reduce(0, got, distance.index_select(0, sent) + 1, "amin")
        if torch.equal(found, distance):
            return distance
        distance = found
