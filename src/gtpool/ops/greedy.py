"""Greedy selections in an order, computed in rounds for a whole batch.

In a round all items are chosen that come before every other candidate in their way. This gives what
the sequential rule gives, since no two items have the same rank.
"""

import torch
from torch import Tensor

from gtpool.ops.entry import no_compile
from gtpool.ops.sample import round_scores

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
