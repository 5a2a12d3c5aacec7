"""What the layer saw and whom it kept."""

from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.ops.sample import SAMPLERS, settle
from gtpool.ops.segment import segment_softmax
from gtpool.pool.gtpool import GTPool, Scores


class Comparison(NamedTuple):
    """One graph, scored once, and the nodes that each sampler keeps of it."""

    scores: Scores
    share: Tensor
    """Share of the wheel of each node, [N]."""
    kept: dict[str, list[int]]
    """Kept nodes by sampler, a key of ``SAMPLERS``."""


@torch.no_grad()
def compare_samplers(pool: GTPool, x: Tensor, edge_index: Tensor) -> Comparison:
    """Score one graph with ``pool`` and keep nodes by every sampler, at the pool's ratio and order.

    Example:
        >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        >>> compared = compare_samplers(GTPool(8, ratio=2), torch.randn(4, 8), ring)
        >>> {name: len(kept) for name, kept in compared.kept.items()}
        {'topk': 2, 'rws': 2, 'rwsv': 2}
    """
    scores = pool.scores(x, edge_index)
    batch = edge_index.new_zeros(x.size(0))
    laid = scores.score / pool.temperature
    kept = {
        name: sample(settle(laid), batch, pool.ratio, order=pool.order).tolist()
        for name, sample in SAMPLERS.items()
    }
    return Comparison(scores, segment_softmax(laid, batch, 1), kept)
