"""Which nodes stay: top-k, and the paper's roulette wheels RWS and RWSV.

A wheel gives each node of a graph an interval as wide as its share of the softmax of the scores.
M points, k/(M+1) for k = 1 … M, fall on the wheel, and a node hit by a point is kept; a point whose
node is taken already goes on to the nearest free node on the left, around the circle.

The sequential rule is computed for a whole batch at once. A node is dropped when the points run
short of it. Let E_i be the number of points left of node i minus the number of nodes left of it:
E falls by at most one from node to node, so on its way from its maximum to the end of the graph it
passes every integer, and the n - M highest of those integers are passed for the last time at the
n - M nodes that no point reaches.

Borders are integers, so a graph keeps the same nodes alone and in a batch, and equal scores, which
put points exactly on borders, are decided exactly. A point on a border belongs to the left node.
"""

from collections.abc import Callable, Collection
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gtpool.ops.segment import offsets, ranks, segment_max, sizes_of

Order = Literal["index", "score"]
Points = Literal["fixed", "random"]
Sampler = Callable[..., Tensor]

ORDERS = ("index", "score")
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
) -> Tensor:
    """Keep the nodes of highest score; of equal scores, the lowest index.

    The arguments are those of :func:`rws`; there is no wheel, so ``order`` changes nothing and
    random ``points`` are refused.

    Example:
        >>> topk(torch.tensor([0.1, 0.9, 0.4, 0.9]), torch.zeros(4, dtype=torch.long), 0.5).tolist()
        [1, 3]
    """
    if points != "fixed" or generator is not None:
        raise ValueError("topk draws no points: leave points='fixed' and generator=None")
    check_choice("order", order, ORDERS)
    layout = _layout(score, batch, ratio, sizes)
    by_score = _argsort(score, batch, descending=True)
    highest = layout.rank < layout.kept.index_select(0, batch)
    return _indices(torch.empty_like(highest).index_copy_(0, by_score, highest), layout.num_kept)


def rws(
    score: Tensor,
    batch: Tensor,
    ratio: float,
    *,
    order: Order = "index",
    points: Points = "fixed",
    generator: torch.Generator | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Roulette wheel sampling: keep the node whose interval holds the point.

    Args:
        score: Raw finite score of each node, [N]; the softmax over a graph is taken here.
        batch: Graph of each node, sorted, [N].
        ratio: A float in (0, 1] keeps ceil(ratio * n) of n nodes, counted on its decimal value
            whatever the dtype of ``score``; an int of at least 1 keeps min(ratio, n).
        order: How nodes stand on the wheel: as numbered, or by ascending score (ties by index).
        points: Evenly spaced, or drawn uniformly from ``generator``.
        generator: Source of random points, on the device of ``score``.
        sizes: Nodes of each graph on the host, [G]; with it nothing synchronises a GPU.

    Returns:
        The kept nodes in ascending order, [K].

    Example:
        >>> score = torch.tensor([0.20, 0.20, 0.25, 0.35]).log()
        >>> rws(score, torch.zeros(4, dtype=torch.long), 0.5).tolist()
        [1, 3]
    """
    return _spin(_own_borders, score, batch, ratio, order, points, generator, sizes)


def rwsv(
    score: Tensor,
    batch: Tensor,
    ratio: float,
    *,
    order: Order = "index",
    points: Points = "fixed",
    generator: torch.Generator | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """The variant of roulette wheel sampling: keep the node whose right border is nearest.

    Equally, a wheel whose borders stand midway between those of :func:`rws`, whose arguments it
    shares.

    Example:
        >>> score = torch.tensor([0.20, 0.20, 0.25, 0.35]).log()
        >>> rwsv(score, torch.zeros(4, dtype=torch.long), 0.5).tolist()
        [1, 2]
    """
    return _spin(_midway_borders, score, batch, ratio, order, points, generator, sizes)


SAMPLERS: dict[str, Sampler] = {"topk": topk, "rws": rws, "rwsv": rwsv}


def settle(score: Tensor) -> Tensor:
    """Round scores to half their binary digits: nodes alike in all but rounding errors tie.

    The same node gets a score that differs in its last digits when its graph is computed alone and
    in a batch, and twins in one graph get two. Where a point falls on the border between them, that
    would decide. Of 24 digits in float32 12 stay, of 53 in float64 26; shorter types are coarse
    already.

    Example:
        >>> settle(torch.tensor([0.1, 0.1 + 1e-8])).unique().numel()
        1
    """
    digits = {torch.float32: 12, torch.float64: 26}.get(score.dtype)
    if digits is None:
        return score
    mantissa, exponent = score.detach().frexp()
    return torch.ldexp((mantissa * 2**digits).round(), exponent - digits)


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
    """Say how many nodes of each graph stay, [G], exactly.

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
    if share.numerator * int(sizes.max()) + share.denominator < 2**63:
        return (sizes * share.numerator + share.denominator - 1) // share.denominator
    distinct, which = sizes.unique(return_inverse=True)
    return torch.tensor([ceil(share * size) for size in distinct.tolist()])[which]


class _Layout(NamedTuple):
    """What follows from sizes and ratio alone, on the device of the scores."""

    size: Tensor  # [G] nodes of each graph
    kept: Tensor  # [G] nodes to keep of each graph
    bits: Tensor  # [G] binary places of a weight: as many as int64 holds for this size
    first: Tensor  # [G] first node of each graph
    last: Tensor  # [G] last node of each graph
    rank: Tensor  # [N] place of each node in its graph
    num_kept: int


def _layout(score: Tensor, batch: Tensor, ratio: float, sizes: Tensor | None) -> _Layout:
    if score.dim() != 1 or score.shape != batch.shape:
        raise ValueError(
            f"score and batch must be vectors of one length, got {list(score.shape)} "
            f"and {list(batch.shape)}"
        )
    size = sizes_of(batch) if sizes is None else sizes
    kept = kept_counts(size, ratio)
    # A border is a sum of n weights, twice that for a midpoint, times M + 1: below 2**63.
    bits = 62 - _bit_length(size) - _bit_length(kept + 1)
    num_kept = int(kept.sum())
    ptr = offsets(size)
    small = (size, kept, bits, ptr[:-1], ptr[1:] - 1)
    size, kept, bits, first, last = (part.to(score.device, non_blocking=True) for part in small)
    return _Layout(size, kept, bits, first, last, ranks(batch, first), num_kept)


def _bit_length(value: Tensor) -> Tensor:
    return value.double().frexp().exponent.long()


def _spin(
    borders: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    score: Tensor,
    batch: Tensor,
    ratio: float,
    order: Order,
    points: Points,
    generator: torch.Generator | None,
    sizes: Tensor | None,
) -> Tensor:
    check_choice("order", order, ORDERS)
    check_choice("points", points, POINTS)
    layout = _layout(score, batch, ratio, sizes)
    place = _argsort(score, batch) if order == "score" else None
    weight = _weights(score.detach(), batch, layout)
    if place is not None:
        weight = weight.index_select(0, place)
    border, whole = borders(weight, batch, layout.last)
    if points == "fixed":
        if generator is not None:
            raise ValueError("a generator draws random points: give points='random' with it")
        passed = _fixed_points_passed(border, whole, batch, layout)
    else:
        passed = _random_points_passed(border, whole, batch, layout, generator)
    keep = _reached(passed, batch, layout)
    if place is not None:
        keep = torch.empty_like(keep).index_copy_(0, place, keep)
    return _indices(keep, layout.num_kept)


def _weights(score: Tensor, batch: Tensor, layout: _Layout) -> Tensor:
    """Lay the wheel in integers, floor(2^bits * exp(s - max s)), [N]."""
    score = score.double()
    top = segment_max(score, batch, layout.size.numel())
    share = (score - top.index_select(0, batch)).exp().nan_to_num_(0.0)
    return (share * torch.exp2(layout.bits.double()).index_select(0, batch)).long()


def _own_borders(weight: Tensor, batch: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Right border of each node [N], and of the whole wheel [G], by a segmented cumulative sum.

    The running sum over all graphs may leave int64 and wrap: differences inside a graph are exact.
    """
    running = weight.cumsum(0)
    end = running.index_select(0, last)
    start = torch.cat([end.new_zeros(1), end[:-1]])
    return running - start.index_select(0, batch), end - start


def _midway_borders(weight: Tensor, batch: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Twice the midpoint between the right borders of a node and its right neighbour, [N], [G]."""
    border, whole = _own_borders(weight, batch, last)
    doubled = border + border.roll(-1)
    return doubled.index_copy_(0, last, 2 * whole), 2 * whole


def _fixed_points_passed(border: Tensor, whole: Tensor, batch: Tensor, layout: _Layout) -> Tensor:
    """Count the points k/(M+1) up to each right border, [N]."""
    whole = whole.clamp(min=1).index_select(0, batch)  # 0 only when every score is NaN
    kept = layout.kept.index_select(0, batch)
    passed = torch.div((kept + 1) * border, whole, rounding_mode="trunc").minimum(kept)
    return passed.index_copy_(0, layout.last, layout.kept)


def _random_points_passed(
    border: Tensor,
    whole: Tensor,
    batch: Tensor,
    layout: _Layout,
    generator: torch.Generator | None,
) -> Tensor:
    """Count M uniform points of each graph up to each right border, [N]."""
    if generator is None:
        raise ValueError("points='random' needs a generator=torch.Generator(device) to draw from")
    graph = torch.arange(whole.numel(), device=border.device)
    graph = graph.repeat_interleave(layout.kept, output_size=layout.num_kept)
    drawn = torch.rand(
        layout.num_kept, dtype=torch.double, device=border.device, generator=generator
    )
    place = batch + border.double() / whole.clamp(min=1).index_select(0, batch)
    hit = torch.searchsorted(place, graph + (1 - drawn))
    hit = hit.clamp(layout.first.index_select(0, graph), layout.last.index_select(0, graph))
    points = torch.zeros_like(border).index_add_(0, hit, torch.ones_like(hit))
    return _own_borders(points, batch, layout.last)[0]


def _reached(passed: Tensor, batch: Tensor, layout: _Layout) -> Tensor:
    """Say which nodes a point reaches, given the points up to each right border, [N] bool."""
    first = layout.rank == 0
    excess = passed.roll(1).masked_fill_(first, 0) - layout.rank  # E of the module's docstring
    graphs = layout.size.numel()
    # Graphs are set apart by steps larger than any E, so that one scan serves them all.
    step = 2 * passed.numel() + 2
    level = excess - batch * step
    after = level.flip(0).cummax(0).values.flip(0).roll(-1)
    after = after.index_copy_(0, layout.last, layout.last.new_full((graphs,), -graphs * step))
    short = layout.size - layout.kept
    floor = segment_max(level, batch, graphs) - short
    return level <= after.maximum(floor.index_select(0, batch))


def _argsort(score: Tensor, batch: Tensor, *, descending: bool = False) -> Tensor:
    """Order the nodes by score inside each graph, equal scores by index, [N]."""
    place = score.detach().argsort(descending=descending, stable=True)
    return place.index_select(0, batch.index_select(0, place).argsort(stable=True))


def _indices(keep: Tensor, num_kept: int) -> Tensor:
    """List the marked nodes; their number is known, so nothing waits for the device."""
    slot = torch.where(keep, keep.cumsum(0) - 1, num_kept)
    nodes = torch.arange(keep.numel(), device=keep.device)
    return slot.new_zeros(num_kept + 1).scatter_(0, slot, nodes)[:num_kept]
