"""Diversity of the nodes that each sampler keeps, to measure the paper's claim."""

from typing import NamedTuple, get_args

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.explain.connectivity import LevelEdges, count_edges
from gtpool.explain.trace import PoolingStep, frozen_copy, sample_by, score_nodes, trace_pooling
from gtpool.graph import check_count
from gtpool.model.predictor import Predictor, member_inputs, members_of
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import SAMPLERS, round_scores
from gtpool.ops.segment import gather_by_graph, segment_max, segment_softmax, segment_sum
from gtpool.pool.gtpool import GTPool, Scores
from gtpool.spec import Connect

INTERVALS = 10


class Coverage(NamedTuple):
    """Coverage of each graph by its kept nodes."""

    intervals: tuple[int, ...]
    """Number of score intervals that hold a kept node."""
    neighbourhood: tuple[float, ...]
    """Share of nodes that are kept or have a kept neighbour."""


class Diversity(NamedTuple):
    """Coverage by the first pooling step of a model, on every graph of a dataset."""

    intervals: int
    """Number of intervals of equal width over the scores of a graph."""
    occupied: tuple[int, ...]
    """Number of intervals that hold a node, for each graph."""
    covers: dict[str, Coverage]
    """Coverage by sampler: the keys of ``SAMPLERS``, and "random" for a random choice."""


def diversity(
    model: Predictor,
    data: GraphDataset,
    *,
    intervals: int = INTERVALS,
    seed: int = 0,
    batch_size: int = 128,
) -> Diversity:
    """Compare the nodes that the samplers keep, given the scores of a model's first pooler.

    Of an ensemble, the scores are those of its first member.

    The intervals have equal width. With quantiles instead, top-k would cover the upper ones for any
    model, and nodes of equal score would have no order.

    Args:
        model: A network whose pooler drops nodes, on the device of ``data``.
        data: Graphs with the features that the model was trained on.
        intervals: Number of intervals from the lowest to the highest score of a graph.
        seed: Seed of the random choice.
        batch_size: Graphs per batch.
    """
    if not model.ratios:
        raise ValueError(
            f"pool {model.spec.pool!r} drops no nodes, so there are no samplers to compare"
        )
    check_count("intervals", intervals)
    first, random = frozen_copy(members_of(model)[0]), torch.Generator().manual_seed(seed)
    occupied: list[int] = []
    covered: dict[str, list[int]] = {name: [] for name in (*SAMPLERS, "random")}
    near: dict[str, list[float]] = {name: [] for name in covered}
    for part in torch.arange(len(data)).split(batch_size):
        step = trace_pooling(first, member_inputs(model, data.take(part), 0))[1][0]
        score = score_nodes(step).score
        cell = _cells(round_scores(score), step, intervals)
        occupied += _count(cell, step, intervals)
        lot = torch.rand(score.numel(), generator=random).to(score.device)
        for name in covered:
            kept = _by_lot(step, lot) if name == "random" else sample_by(step, name, score)
            covered[name] += _count(cell[kept], step, intervals)
            near[name] += _share_near(kept, step)
    covers = {name: Coverage(tuple(covered[name]), tuple(near[name])) for name in covered}
    return Diversity(intervals, tuple(occupied), covers)


def _cells(score: Tensor, step: PoolingStep, intervals: int) -> Tensor:
    """Return the interval of each node, counted over all graphs, [N]."""
    batch, graphs = step.level.batch, step.level.sizes.numel()
    high, low = segment_max(score, batch, graphs), -segment_max(-score, batch, graphs)
    width = (high - low).masked_fill(high == low, 1)  # equal scores: all in the first
    place = (score - gather_by_graph(low, batch)) / gather_by_graph(width, batch) * intervals
    return batch * intervals + place.long().clamp(max=intervals - 1)


def _count(cells: Tensor, step: PoolingStep, intervals: int) -> list[int]:
    """Return the number of distinct intervals of each graph."""
    seen = cells.new_zeros(step.level.sizes.numel() * intervals)
    return seen.index_fill(0, cells, 1).view(-1, intervals).sum(1).tolist()


def _by_lot(step: PoolingStep, lot: Tensor) -> Tensor:
    level = step.level
    return SAMPLERS["topk"](lot, level.batch, step.pool.ratio, sizes=level.sizes)


def _share_near(kept: Tensor, step: PoolingStep) -> list[float]:
    """Return the share of each graph's nodes that are kept or adjacent to a kept node."""
    is_kept = torch.zeros_like(step.level.batch).index_fill(0, kept, 1)
    source, target = step.edge_index
    near = is_kept.index_add(0, target, is_kept[source]).index_add(0, source, is_kept[target])
    reached = segment_sum((near > 0).long(), step.level.batch, step.level.sizes.numel())
    return (reached.cpu() / step.level.sizes).tolist()


class Comparison(NamedTuple):
    """The scores of one graph, and the nodes that each sampler keeps."""

    scores: Scores
    share: Tensor
    """Share of the roulette wheel of each node, [N]."""
    kept: dict[str, list[int]]
    """Kept nodes by sampler, a key of ``SAMPLERS``."""
    edges: dict[str, dict[str, LevelEdges]]
    """Edges between them, by sampler and by ``connect``."""


@torch.no_grad()
def compare_samplers(pool: GTPool, x: Tensor, edge_index: Tensor) -> Comparison:
    """Return the nodes of one graph that each sampler keeps, with the ratio and order of ``pool``.

    Example:
        >>> ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
        >>> compared = compare_samplers(GTPool(8, ratio=2), torch.randn(4, 8), ring)
        >>> {name: len(kept) for name, kept in compared.kept.items()}
        {'topk': 2, 'rws': 2, 'rwsv': 2}
    """
    scores = pool.scores(x, edge_index)
    batch = edge_index.new_zeros(x.size(0))
    laid = scores.score / pool.temperature
    graph = PackedGraph.of(edge_index, batch)
    kept = {name: graph.keep(laid, pool.ratio, sampler=name, order=pool.order) for name in SAMPLERS}
    edges = {name: _connected(graph, nodes, pool.ratio, laid) for name, nodes in kept.items()}
    share = segment_softmax(laid, batch, 1)
    return Comparison(scores, share, {name: part.tolist() for name, part in kept.items()}, edges)


def _connected(
    graph: PackedGraph, kept: Tensor, ratio: float, score: Tensor
) -> dict[str, LevelEdges]:
    """Return the edges between the kept nodes by ``connect``."""
    options: tuple[Connect, ...] = get_args(Connect)
    after = {name: graph.subgraph(kept, ratio, score, name).edge_index for name in options}
    return {name: count_edges(edges, kept.numel()) for name, edges in after.items()}
