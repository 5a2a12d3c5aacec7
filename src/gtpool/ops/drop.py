"""Dropping nodes: from the score of each node to the graph of those that stay."""

from torch import Tensor

from gtpool.graph import Level
from gtpool.ops.entry import eager
from gtpool.ops.sample import SAMPLERS, Order, settle
from gtpool.ops.segment import induced


@eager
def keep(score: Tensor, ratio: float, level: Level, *, sampler: str, order: Order) -> Tensor:
    """Choose the nodes that stay, ascending, [K]; equal nodes tie whatever rounding did to them."""
    sample = SAMPLERS[sampler]
    return sample(settle(score), level.batch, ratio, order=order, level=level)


@eager
def drop(
    score: Tensor,
    ratio: float,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    level: Level,
    *,
    sampler: str,
    order: Order,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Give the kept nodes, the edges between them, and those edges' features.

    Args:
        score: Of each node, [N].
        ratio: Share of nodes kept, or their number.
        edge_index: Source and target of each edge, [2, E].
        edge_attr: Edge features, [E, ...].
        level: The layout of the batch.
        sampler: A key of ``SAMPLERS``.
        order: How nodes stand on the wheel, a name of ``ORDERS``.
    """
    kept = keep(score, ratio, level, sampler=sampler, order=order)
    return kept, *induced(edge_index, edge_attr, kept, level.batch.numel())
