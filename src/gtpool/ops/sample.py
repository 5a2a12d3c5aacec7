"""Samplers of the kept nodes: top-k, and the paper's roulette wheels RWS and RWSV.

A wheel gives each node of a graph an interval as wide as the softmax of its score. M points k/(M+1)
for k = 1 … M are placed on the wheel, and a node hit by a point is kept. If the node is already
taken, the point moves to the nearest free node on the left, around the circle.

The sequential rule is computed for a whole batch at once. Let E_i be the number of points left of
node i minus the number of nodes left of it. E falls by at most one from node to node. Between its
maximum and the end of the graph it therefore passes every integer. The n - M highest of those
integers are passed for the last time at the n - M nodes that no point reaches: these are dropped.

Borders are integers. A graph therefore keeps the same nodes alone and in a batch, and ties, which
put points exactly on borders, are resolved exactly. A point on a border belongs to the left node.
"""

from collections.abc import Callable, Collection
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.segment import gather_by_graph, offsets, segment_max, sizes_of

Order = Literal["index", "score", "structure"]
Points = Literal["fixed", "random"]
Sampler = Callable[..., Tensor]

ORDERS = ("index", "score")
"""Orders of a sampler, which sees no edges."""
NODE_ORDERS = (*ORDERS, "structure")
"""Orders of a pooler; see ``gtpool.ops.structure``."""
POINTS = ("fixed", "random")


def topk(
    score: Tensor,
    batch: Tensor,
    ratio: float,
    *,
    order: Order = "index",
    points: Points = "fixed",
    generator: torch.Generator | None = None,
    sizes: Tensor | None = None,
    level: GraphLayout | None = None,
) -> Tensor:
    """Return the nodes with the highest scores; ties go to the lowest index.

    The arguments are those of :func:`rws`. There is no wheel: ``order`` has no effect, and random
    ``points`` raise an error.

    Example:
        >>> topk(torch.tensor([0.1, 0.9, 0.4, 0.9]), torch.zeros(4, dtype=torch.long), 0.5).tolist()
        [1, 3]
    """
    if points != "fixed" or generator is not None:
        raise ValueError("topk has no random points; use points='fixed' and generator=None")
    check_choice("order", order, ORDERS)
    layout = _layout(score, batch, ratio, sizes, level)
    place = _argsort(-score, layout.batch)
    node = torch.arange(batch.numel(), device=batch.device)
    highest = node < gather_by_graph(layout.first + layout.kept, layout.batch)
    return _indices(torch.empty_like(highest).index_copy_(0, place, highest), layout.num_kept)


def rws(
    score: Tensor,
    batch: Tensor,
    ratio: float,
    *,
    order: Order = "index",
    points: Points = "fixed",
    generator: torch.Generator | None = None,
    sizes: Tensor | None = None,
    level: GraphLayout | None = None,
) -> Tensor:
    """Roulette wheel sampling: return the nodes whose intervals contain the points.

    Args:
        score: Raw finite score of each node, [N]; this function takes the softmax over a graph.
        batch: Graph of each node, sorted, [N].
        ratio: A float in (0, 1] keeps ceil(ratio * n) of n nodes, computed from its decimal value
            for any dtype of ``score``. An int of at least 1 keeps min(ratio, n).
        order: Order of the nodes on the wheel: by index, or by ascending score (ties by index).
        points: Evenly spaced, or drawn uniformly from ``generator``.
        generator: Source of random points, on the device of ``score``.
        sizes: Nodes of each graph on the host, [G]; avoids a device sync.
        level: The layout of the batch, as an alternative to ``sizes``; it is not checked.

    Returns:
        The kept nodes in ascending order, [K].

    Example:
        >>> score = torch.tensor([0.20, 0.20, 0.25, 0.35]).log()
        >>> rws(score, torch.zeros(4, dtype=torch.long), 0.5).tolist()
        [1, 3]
    """
    return _spin(_own_borders, score, batch, ratio, order, points, generator, sizes, level)


def rwsv(
    score: Tensor,
    batch: Tensor,
    ratio: float,
    *,
    order: Order = "index",
    points: Points = "fixed",
    generator: torch.Generator | None = None,
    sizes: Tensor | None = None,
    level: GraphLayout | None = None,
) -> Tensor:
    """Roulette wheel sampling, variant: return the nodes whose right borders are nearest.

    This is a wheel whose borders lie midway between those of :func:`rws`. The arguments are the
    same.

    Example:
        >>> score = torch.tensor([0.20, 0.20, 0.25, 0.35]).log()
        >>> rwsv(score, torch.zeros(4, dtype=torch.long), 0.5).tolist()
        [1, 2]
    """
    return _spin(_midway_borders, score, batch, ratio, order, points, generator, sizes, level)


SAMPLERS: dict[str, Sampler] = {"topk": topk, "rws": rws, "rwsv": rwsv}


def round_scores(score: Tensor) -> Tensor:
    """Return scores rounded to half their bits, so that scores equal up to rounding errors tie.

    The last bits of a score depend on the batch, and differ between symmetric nodes of one graph.
    They would decide when a point lies on the border between such nodes. float32 keeps 12 of 24
    bits, float64 26 of 53; shorter types are not rounded.

    Example:
        >>> round_scores(torch.tensor([0.1, 0.1 + 1e-8])).unique().numel()
        1
    """
    if score.dtype not in (torch.float32, torch.float64):
        return score.detach()
    dtype, spare = (torch.int32, 12) if score.dtype == torch.float32 else (torch.int64, 27)
    bits = score.detach().view(dtype)  # sign, exponent, mantissa: rounds the end of the mantissa
    return ((bits + (1 << spare - 1)) & -(1 << spare)).view(score.dtype)


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Raise a ValueError that lists the choices unless ``value`` is one of them."""
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"unknown {name} {value!r}; choose one of {listed}")


def check_ratio(ratio: float) -> None:
    """Raise a ValueError unless ``ratio`` is a float in (0, 1] or an int of at least 1."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"ratio must be a float in (0, 1] or an int >= 1, got {ratio!r}")
    if isinstance(ratio, int) and ratio < 1:
        raise ValueError(f"an int ratio is the number of nodes to keep, at least 1, got {ratio}")
    if isinstance(ratio, float) and not 0 < ratio <= 1:
        raise ValueError(
            f"a float ratio is the share of nodes to keep, in (0, 1], got {ratio}; "
            "to keep a fixed number of nodes, give an int"
        )


def kept_counts(sizes: Tensor, ratio: float) -> Tensor:
    """Return the exact number of kept nodes of each graph, [G].

    Example:
        >>> kept_counts(torch.tensor([100, 3, 1]), 0.07).tolist()
        [7, 1, 1]
        >>> kept_counts(torch.tensor([100, 3, 1]), 2).tolist()
        [2, 2, 1]
    """
    check_ratio(ratio)
    if isinstance(ratio, int):
        return sizes.clamp(max=ratio)
    share = Fraction(str(ratio))
    if share.numerator * int(sizes.sum()) + share.denominator < 2**63:
        return (sizes * share.numerator + share.denominator - 1) // share.denominator
    distinct, which = sizes.unique(return_inverse=True)
    return torch.tensor([kept_count(size, ratio) for size in distinct.tolist()])[which]


def kept_count(nodes: int, ratio: float) -> int:
    """Return the exact number of kept nodes of a graph with ``nodes`` nodes."""
    return min(ratio, nodes) if isinstance(ratio, int) else ceil(Fraction(str(ratio)) * nodes)


def kept_ptr(level: GraphLayout, ratio: float) -> Tensor:
    """Return the first kept node of each graph, then their number, on the host, [G + 1]."""
    # As text: 1 keeps one node, 1.0 keeps all.
    return level.cached(("kept", str(ratio)), lambda: offsets(kept_counts(level.sizes, ratio)))


class _Layout(NamedTuple):
    """Values that depend only on sizes and ratio, on the device of the scores.

    Empty graphs are removed; the G other graphs are renumbered.
    """

    num_kept: int  # nodes to keep in all graphs
    batch: Tensor  # graph of each node, [N]; the fields below are [G]
    first: Tensor  # first node
    last: Tensor  # last node
    kept: Tensor  # nodes to keep, the M of the paper
    short: Tensor  # nodes to drop
    unit: Tensor  # the largest weight: the largest power of two that avoids overflow of int64


def _layout(
    score: Tensor, batch: Tensor, ratio: float, sizes: Tensor | None, level: GraphLayout | None
) -> _Layout:
    if level is not None:
        name = ("wheel", str(ratio), level.batch.device)
        return level.cached(name, lambda: _build_layout(level.batch, ratio, level.sizes))
    if score.dim() != 1 or score.shape != batch.shape:
        raise ValueError(
            f"score and batch must be vectors of the same length, got {list(score.shape)} "
            f"and {list(batch.shape)}"
        )
    batch = batch.long()
    size = sizes_of(batch) if sizes is None else sizes.long()
    if sizes is not None and int(size.sum()) != batch.numel():
        raise ValueError(f"sizes add up to {int(size.sum())} nodes, but batch has {batch.numel()}")
    return _build_layout(batch, ratio, size)


def _build_layout(batch: Tensor, ratio: float, size: Tensor) -> _Layout:
    if not size.all():
        number = size.bool().cumsum(0) - 1
        batch = number.to(batch.device, non_blocking=True).index_select(0, batch)
        size = size[size > 0]
    kept = kept_counts(size, ratio)
    # A border is a sum of n weights (doubled for a midpoint), times M + 1: below 2**63.
    unit = torch.ones_like(size) << (62 - _bit_length(size) - _bit_length(kept + 1))
    ptr = offsets(size)
    parts = torch.stack([ptr[:-1], ptr[1:] - 1, kept, size - kept, unit])
    return _Layout(int(kept.sum()), batch, *parts.to(batch.device, non_blocking=True).unbind())


def _bit_length(value: Tensor) -> Tensor:
    return value.double().frexp().exponent


def _spin(
    borders: Callable[[Tensor, _Layout], tuple[Tensor, Tensor]],
    score: Tensor,
    batch: Tensor,
    ratio: float,
    order: Order,
    points: Points,
    generator: torch.Generator | None,
    sizes: Tensor | None,
    level: GraphLayout | None,
) -> Tensor:
    check_choice("order", order, ORDERS)
    check_choice("points", points, POINTS)
    layout = _layout(score, batch, ratio, sizes, level)
    place = _argsort(score, layout.batch) if order == "score" else None
    weight = _weights(score, layout)
    if place is not None:
        weight = weight.index_select(0, place)
    border, whole = borders(weight, layout)
    if points == "fixed":
        if generator is not None:
            raise ValueError("a generator needs points='random', but points is 'fixed'")
        passed = _fixed_points_passed(border, whole, layout)
    else:
        passed = _random_points_passed(border, whole, layout, generator)
    keep = _reached(passed, layout)
    if place is not None:
        keep = torch.empty_like(keep).index_copy_(0, place, keep)
    return _indices(keep, layout.num_kept)


def _weights(score: Tensor, layout: _Layout) -> Tensor:
    """Return the integer widths of the wheel, floor(unit * exp(s - max s)), [N]."""
    score = score.detach().double()
    top = segment_max(score, layout.batch, layout.kept.numel())
    share = (score - gather_by_graph(top, layout.batch)).exp_().nan_to_num_(0.0)
    return share.mul_(gather_by_graph(layout.unit, layout.batch)).long()


def _own_borders(weight: Tensor, layout: _Layout) -> tuple[Tensor, Tensor]:
    """Return the left border of each node [N] and the total width of each wheel [G].

    The cumulative sum over all graphs may overflow int64; differences inside a graph stay exact.
    """
    running = weight.cumsum(0)
    end = running.index_select(0, layout.last)
    start = torch.cat([end.new_zeros(1), end[:-1]])
    return running.sub_(weight).sub_(gather_by_graph(start, layout.batch)), end - start


def _midway_borders(weight: Tensor, layout: _Layout) -> tuple[Tensor, Tensor]:
    """Return twice the midpoint of each node's interval, 0 for the first, and widths, [N], [G]."""
    border, whole = _own_borders(weight, layout)
    return border.mul_(2).add_(weight).index_fill_(0, layout.first, 0), 2 * whole


def _fixed_points_passed(border: Tensor, whole: Tensor, layout: _Layout) -> Tensor:
    """Return the number of points k/(M+1) up to each left border, [N]."""
    whole = whole.clamp(min=1)  # 0 only if a score is not finite
    passed = border * gather_by_graph(layout.kept + 1, layout.batch)
    passed.div_(gather_by_graph(whole, layout.batch), rounding_mode="trunc")
    return passed.clamp_(max=gather_by_graph(layout.kept, layout.batch))


def _random_points_passed(
    border: Tensor,
    whole: Tensor,
    layout: _Layout,
    generator: torch.Generator | None,
) -> Tensor:
    """Return the number of M uniform points up to each left border, [N]."""
    if generator is None:
        raise ValueError("points='random' needs generator=torch.Generator(device)")
    graph = torch.arange(whole.numel(), device=border.device)
    graph = graph.repeat_interleave(layout.kept, output_size=layout.num_kept)
    drawn = torch.rand(
        layout.num_kept, dtype=torch.double, device=border.device, generator=generator
    )
    place = layout.batch + border / gather_by_graph(whole.double().clamp(min=1), layout.batch)
    hit = torch.searchsorted(place, graph + (1 - drawn)) - 1
    hit = hit.clamp(layout.first.index_select(0, graph), layout.last.index_select(0, graph))
    points = torch.zeros_like(border).index_add_(0, hit, torch.ones_like(hit))
    return _own_borders(points, layout)[0]


def _reached(passed: Tensor, layout: _Layout) -> Tensor:
    """Return the mask of kept nodes, given the points up to each left border, bool [N]."""
    node = torch.arange(passed.numel(), device=passed.device)
    excess = passed - node  # E of the module docstring, minus the graph's first node
    top = segment_max(excess, layout.batch, layout.kept.numel())
    below = gather_by_graph(top, layout.batch) - excess
    level = below + gather_by_graph(
        layout.first, layout.batch
    )  # below < n, so the levels of a graph stay within its rows
    latest = torch.zeros_like(node).scatter_reduce_(0, level, node, "amax")
    again = latest.index_select(0, level) != node
    return again.logical_or_(below >= gather_by_graph(layout.short, layout.batch))


def _argsort(score: Tensor, batch: Tensor) -> Tensor:
    """Return the nodes sorted by score inside each graph, ties by index, [N].

    It sorts integers: the graph fits in the bits above a short float, and integer sorts are faster.
    """
    score = score.detach()
    if score.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return (sortable(score.float(), torch.int32) + (batch << 32)).argsort(stable=True)
    place = sortable(score.double(), torch.int64).argsort(stable=True)
    return place.index_select(0, batch.index_select(0, place).argsort(stable=True))


def sortable(score: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floats as integers of the same width and order."""
    digits = (score + 0.0).view(dtype)  # turns -0.0 into 0.0
    return torch.where(digits < 0, digits ^ torch.iinfo(dtype).max, digits)


def _indices(keep: Tensor, num_kept: int) -> Tensor:
    """Return the indices of marked nodes; their number is known, so there is no device sync."""
    return torch.nonzero_static(keep, size=num_kept).view(-1)
