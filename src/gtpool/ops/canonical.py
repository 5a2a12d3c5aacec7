"""Numberings of nodes that follow from the structure of their graph.

Colours refined as by Weisfeiler and Leman order the nodes. Where nodes of one colour remain, one of
them gets a colour of its own, and the colours are refined again. If nodes of one colour are
symmetric, as in trees and most molecules, the numbered graph is the same for all input numberings.
"""

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.segment import segment_max
from gtpool.ops.structure import mix

_PICKS = 64  # maximum nodes of a graph that get a colour of their own
_NONE = torch.iinfo(torch.int64).max


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
