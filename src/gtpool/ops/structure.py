"""Colours of nodes: they break ties of scores by the structure, where samplers go by the index.

Rounded scores tie: those of symmetric nodes, and in float32 others by chance. A colour is an
integer that depends on the graph around a node and not on numbers. For ``order="structure"`` the
sampler gets the nodes of each graph in the order of their colours.

The upper half of a colour follows from degrees alone, so that no rounding error reaches it; the
lower half follows from rounded scores. Both are refined as by Weisfeiler and Leman: in each round a
node adds the hashes of its neighbours to its own.
"""

import torch
from torch import Tensor

from gtpool.ops.sample import round_scores, sortable

ROUNDS = 3
"""Rounds of refinement after the first, which tells degrees apart."""
LOW = 2**32 - 1
FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # odd, of splitmix64


def node_colours(source: Tensor, target: Tensor, counts: Tensor, score: Tensor) -> Tensor:
    """Give each node an integer that depends on its surroundings and not on its number, [N].

    Args:
        source: Source of each edge, [E].
        target: Target of each edge, [E].
        counts: Whether each edge is one, and not padding, bool [E].
        score: Score of each node, [N].

    Example:
        >>> source, target = torch.tensor([[0, 1, 2, 1, 2, 3], [1, 2, 3, 0, 1, 2]])  # a path
        >>> there = torch.ones(6, dtype=torch.bool)
        >>> node_colours(source, target, there, torch.zeros(4)).unique().numel()
        2
    """
    height = sortable(round_scores(score).float(), torch.int32).long()
    colour = torch.stack([torch.zeros_like(height), height], 1)
    there = counts.long().unsqueeze(1)
    for _ in range(ROUNDS + 1):
        sent = mix(colour)
        got = sent.index_select(0, source) * there
        given = mix(sent).index_select(0, target) * there  # another hash against the direction
        colour = sent.index_add(0, target, got).index_add(0, source, given)
    structure, scored = mix(colour).unbind(1)
    return (structure & (LOW >> 1)) << 32 | scored & LOW


def order_by_colour(colour: Tensor, first: Tensor) -> Tensor:
    """Order the rows of each graph by colour, equal colours by number, [N].

    Args:
        colour: What ``node_colours`` gave, [N].
        first: First row of each row's graph; of padding, the row itself, [N].
    """
    place = colour.argsort(stable=True)
    return place.index_select(0, first.index_select(0, place).argsort(stable=True))


def mix(value: Tensor) -> Tensor:
    """Hash integers: sums of hashes tell apart what sums of the values do not."""
    for factor in FACTORS:
        value = value * factor
        value = value ^ (value >> 29)
    return value + 1
