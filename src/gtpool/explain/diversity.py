"""How diverse the kept nodes of a dataset are, by sampler: the paper's claim, measured."""

from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.deprecated import old_names
from gtpool.explain.trace import PoolingStep, frozen_copy, sample_by, score_nodes, trace_pooling
from gtpool.graph import check_count
from gtpool.model.classifier import Classifier
from gtpool.ops.sample import SAMPLERS, settle
from gtpool.ops.segment import segment_max, segment_softmax, segment_sum, spread
from gtpool.pool.gtpool import GTPool, Scores

INTERVALS = 10


class Coverage(NamedTuple):
    """How far the kept nodes reach, in each graph."""

    intervals: tuple[int, ...]
    """Score intervals that hold a kept node."""
    neighbourhood: tuple[float, ...]
    """Share of the nodes that are kept or have a kept neighbour."""


class Diversity(NamedTuple):
    """The first pooling step of a model on every graph of a dataset."""

    intervals: int
    """Into so many intervals of equal width the range of a graph's scores is cut."""
    occupied: tuple[int, ...]
    """In how many of them a graph has nodes at all."""
    covers: dict[str, Coverage]
    """By sampler: the keys of ``SAMPLERS``, and "random" for as many nodes by lot."""


def diversity(
    model: Classifier,
    data: GraphDataset,
    *,
    intervals: int = INTERVALS,
    seed: int = 0,
    batch_size: int = 128,
) -> Diversity:
    """Compare whom the samplers keep on the scores that a model's first pooler gives.

    The intervals have equal width. Were they to hold equally many nodes, top-k would cover the
    upper ones by arithmetic, whatever the model; and nodes of equal score have no order.

    Args:
        model: A network whose pooler drops nodes, on the device of ``data``.
        data: Graphs with the features that the model was trained on.
        intervals: Of the range from the lowest to the highest score of a graph.
        seed: Of the choice by lot.
        batch_size: Graphs at once.
    """
    if not model.ratios:
        raise ValueError(
            f"pool {model.spec.pool!r} drops no nodes, so there is no choice to compare"
        )
    check_count("intervals", intervals)
    model, random = frozen_copy(model), torch.Generator().manual_seed(seed)
    occupied: list[int] = []
    covered: dict[str, list[int]] = {name: [] for name in (*SAMPLERS, "random")}
    near: dict[str, list[float]] = {name: [] for name in covered}
    for part in torch.arange(len(data)).split(batch_size):
        step = trace_pooling(model, data.take(part))[1][0]
        score = score_nodes(step).score
        cell = _cells(settle(score), step, intervals)
        occupied += _count(cell, step, intervals)
        lot = torch.rand(score.numel(), generator=random).to(score.device)
        for name in covered:
            kept = _by_lot(step, lot) if name == "random" else sample_by(step, name, score)
            covered[name] += _count(cell[kept], step, intervals)
            near[name] += _share_near(kept, step)
    covers = {name: Coverage(tuple(covered[name]), tuple(near[name])) for name in covered}
    return Diversity(intervals, tuple(occupied), covers)


def _cells(score: Tensor, step: PoolingStep, intervals: int) -> Tensor:
    """Number the interval of each node through all graphs, [N]."""
    batch, graphs = step.level.batch, step.level.sizes.numel()
    high, low = segment_max(score, batch, graphs), -segment_max(-score, batch, graphs)
    width = (high - low).masked_fill(high == low, 1)  # all alike: all in the first
    place = (score - spread(low, batch)) / spread(width, batch) * intervals
    return batch * intervals + place.long().clamp(max=intervals - 1)


def _count(cells: Tensor, step: PoolingStep, intervals: int) -> list[int]:
    """Count the intervals of each graph that occur."""
    seen = cells.new_zeros(step.level.sizes.numel() * intervals)
    return seen.index_fill(0, cells, 1).view(-1, intervals).sum(1).tolist()


def _by_lot(step: PoolingStep, lot: Tensor) -> Tensor:
    level = step.level
    return SAMPLERS["topk"](lot, level.batch, step.pool.ratio, sizes=level.sizes)


def _share_near(kept: Tensor, step: PoolingStep) -> list[float]:
    """Give the share of each graph's nodes that are kept or joined to one that is."""
    is_kept = torch.zeros_like(step.level.batch).index_fill(0, kept, 1)
    source, target = step.edge_index
    near = is_kept.index_add(0, target, is_kept[source]).index_add(0, source, is_kept[target])
    reached = segment_sum((near > 0).long(), step.level.batch, step.level.sizes.numel())
    return (reached.cpu() / step.level.sizes).tolist()


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


__getattr__ = old_names(__name__, {"Cover": "Coverage"})
