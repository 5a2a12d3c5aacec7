"""Dropping nodes: from the score of each node to the graph of those that stay."""

from torch import Tensor

from gtpool.graph import Level, NodeDrop
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


def drop_and_scale(
    x: Tensor,
    raw: Tensor,
    score: Tensor,
    ratio: float,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    level: Level,
    *,
    sampler: str,
    order: Order,
) -> NodeDrop:
    """Keep nodes by their score, and scale the features of those that stay by it.

    Top-k ranks the score before its activation, ``raw``: where the activation is flat, rounding
    would make unequal nodes tie. A wheel takes the softmax of ``score`` itself.
    """
    ranked = raw if sampler == "topk" else score
    kept, edges, edge_attr = drop(
        ranked, ratio, edge_index, edge_attr, level, sampler=sampler, order=order
    )
    score = score.index_select(0, kept)
    pooled = (x.index_select(0, kept) * score.unsqueeze(1)).to(x.dtype)
    return NodeDrop(pooled, edges, edge_attr, level.batch.index_select(0, kept), kept, score)
