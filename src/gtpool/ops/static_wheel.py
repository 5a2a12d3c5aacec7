"""The samplers on a batch of fixed capacity: what ``gtpool.ops.sample`` keeps, in fixed shapes.

The derivation is there. Here a row knows its graph, a graph its first row and its nodes, and rows
of padding, which may stand anywhere between graphs, belong to one more graph, of which nothing
stays.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.fixed import Rows
from gtpool.ops.sample import Order, settle, sortable


def stays(score: Tensor, rows: Rows, kept: Tensor, *, sampler: str, order: Order) -> Tensor:
    """Say which rows stay, [N] bool.

    Args:
        score: Of each row, [N].
        rows: The layout.
        kept: How many nodes of each graph stay, [RG].
        sampler: "topk", "rws" or "rwsv".
        order: How nodes stand on the wheel.
    """
    score = settle(score).double()
    layout = _Layout.of(rows, kept)
    place = None
    if sampler == "topk" or order == "score":
        place = _sorted(-score if sampler == "topk" else score, layout)
    if sampler == "topk":
        chosen = layout.nth < layout.spread(layout.kept)
    else:
        weight = _weights(score, layout)
        weight = weight if place is None else weight.index_select(0, place)
        chosen = _reached(_passed(weight, layout, midway=sampler == "rwsv"), layout)
    if place is not None:
        chosen = torch.empty_like(chosen).index_copy(0, place, chosen)
    return chosen & layout.real


class _Layout(NamedTuple):
    """The rows, and per graph, padding last, [RG + 1]."""

    batch: Tensor
    real: Tensor
    row: Tensor
    first: Tensor
    """First row of each row's graph; of padding, the row itself, [N]."""
    nth: Tensor
    """Place of each row in its graph, [N]."""
    size: Tensor
    kept: Tensor

    @classmethod
    def of(cls, rows: Rows, kept: Tensor) -> "_Layout":
        nothing = rows.size.new_zeros(1)
        row = torch.arange(rows.batch.numel(), device=rows.batch.device)
        real = rows.batch < rows.size.numel()
        start = torch.cat([rows.start, nothing]).index_select(0, rows.batch)
        first = torch.where(real, start, row)
        size, kept = (torch.cat([part, nothing]) for part in (rows.size, kept))
        return cls(rows.batch, real, row, first, row - first, size, kept)

    def spread(self, value: Tensor) -> Tensor:
        """Give each row the entry of its graph, [RG + 1] -> [N]."""
        return value.index_select(0, self.batch)

    def most(self, value: Tensor) -> Tensor:
        """Give each row the largest entry of its graph, [N] -> [N]."""
        most = value.new_zeros(self.size.numel())
        return self.spread(most.scatter_reduce(0, self.batch, value, "amax", include_self=False))


def _sorted(score: Tensor, layout: _Layout) -> Tensor:
    """Order the rows by score inside each graph, equal scores by index, [N]."""
    place = sortable(score, torch.int64).argsort(stable=True)
    return place.index_select(0, layout.first.index_select(0, place).argsort(stable=True))


def _weights(score: Tensor, layout: _Layout) -> Tensor:
    """Lay the wheel in integers, floor(unit * exp(s - max s)), [N]."""
    bits = layout.size.double().frexp()[1] + (layout.kept + 1).double().frexp()[1]
    unit = layout.spread(1 << (62 - bits.long()))
    share = (score - layout.most(score)).exp().nan_to_num(0.0)
    return (share * unit).long() * layout.real


def _passed(weight: Tensor, layout: _Layout, *, midway: bool) -> Tensor:
    """Count the points k/(M+1) up to each left border, [N]."""
    before = weight.cumsum(0) - weight
    border = before - before.index_select(0, layout.first)
    whole = torch.zeros_like(layout.size).index_add(0, layout.batch, weight)
    if midway:
        border, whole = torch.where(layout.nth == 0, 0, 2 * border + weight), 2 * whole
    points = border * layout.spread(layout.kept + 1)
    points = points.div(layout.spread(whole.clamp(min=1)), rounding_mode="trunc")
    return points.minimum(layout.spread(layout.kept))


def _reached(passed: Tensor, layout: _Layout) -> Tensor:
    """Say which nodes a point reaches, given the points up to each left border, [N]."""
    excess = passed - layout.nth
    below = torch.where(layout.real, layout.most(excess) - excess, 0)
    level = layout.first + below
    latest = torch.zeros_like(level).scatter_reduce(0, level, layout.row, "amax")
    again = latest.index_select(0, level) != layout.row
    return again | (below >= layout.spread(layout.size - layout.kept))
