"""Triton kernels that gather a padded batch, with one launch per part."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from collections.abc import Sequence
from fractions import Fraction

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops import padded_segment
from gtpool.padded_batch import PaddedLayout

_PLACES = 2048
"""Maximum graph slots of a run for the kernel."""
_BLOCK = 128
_VALUES = 4
"""Maximum tensors whose values ``gather_rows`` gathers."""


def gather_layout(
    index: Tensor, counts: Tensor, ratios: Sequence[float], capacity: int
) -> PaddedLayout:
    """Return the layout of graphs of a dataset; see ``padded_segment``."""
    runs, places = index.shape
    if places > _PLACES or len(set(ratios)) > 1:
        return padded_segment.gather_layout(index, counts, ratios, capacity)
    start, size = (index.new_empty(runs * places) for _ in range(2))
    batch = index.new_empty(runs * capacity)
    ratio = ratios[0] if ratios else 1.0
    share = Fraction(1) if isinstance(ratio, int) else Fraction(str(ratio))
    wide = triton.next_power_of_2(places)
    rows = max(16, min(_BLOCK, 2**15 // wide))
    _gather_layout[triton.cdiv(capacity, rows), runs](  # the second grid axis is at most 65,535
        index,
        counts,
        start,
        size,
        batch,
        places,
        capacity,
        runs * places,
        MOST=ratio if isinstance(ratio, int) else 0,
        UP=share.numerator,
        DOWN=share.denominator,
        TIMES=len(ratios),
        PLACES=wide,
        ROWS=rows,
    )
    return PaddedLayout(start, size, batch)


def row_numbers(rows: PaddedLayout, index: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each row in the dataset and in the batch, -1 on padding, [N] each."""
    number, own = gather_rows(rows, index, first, (), rows.start)
    return number, own


def gather_rows(
    rows: PaddedLayout, index: Tensor, first: Tensor, values: Sequence[Tensor], by: Tensor
) -> tuple[Tensor, ...]:
    """Return row numbers and shifted values in one launch; see ``padded_segment``."""
    count = rows.batch.numel()
    out = tuple(torch.empty_like(rows.batch) for _ in range(2 + len(values)))
    absent = (index,) * (_VALUES - len(values))
    _gather_rows[(triton.cdiv(count, _BLOCK),)](
        rows.start,
        rows.batch,
        index,
        first,
        by,
        *out[:2],
        *values,
        *absent,
        *out[2:],
        *absent,
        count,
        rows.size.numel(),
        VALUES=len(values),
        ROWS=_BLOCK,
    )
    return out


def gather_shifted(values: Tensor, number: Tensor, rows: PaddedLayout, by: Tensor) -> Tensor:
    """Return ``values[number]`` plus the offset ``by`` of each row's graph, -1 on padding, [N]."""
    out, count = torch.empty_like(number), number.numel()
    grid = (triton.cdiv(count, _BLOCK),)
    _gather_shifted[grid](values, number, rows.batch, by, out, count, ROWS=_BLOCK)
    return out


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Return ``outer[inner]``, -1 where ``inner`` is -1."""
    out, count = torch.empty_like(inner), inner.numel()
    _compose[(triton.cdiv(count, _BLOCK),)](outer, inner, out, count, ROWS=_BLOCK)
    return out


@triton.jit
def _gather_layout(  # noqa: PLR0917
    index_ptr: tl.tensor,
    counts_ptr: tl.tensor,
    start_ptr: tl.tensor,
    size_ptr: tl.tensor,
    batch_ptr: tl.tensor,
    places: int,
    capacity: int,
    nowhere: int,
    MOST: tl.constexpr,
    UP: tl.constexpr,
    DOWN: tl.constexpr,
    TIMES: tl.constexpr,
    PLACES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    run = tl.program_id(1).to(tl.int64)
    slot = tl.arange(0, PLACES)
    within = slot < places
    graph = tl.load(index_ptr + run * places + slot, mask=within, other=-1)
    size = tl.load(counts_ptr + graph, mask=graph >= 0, other=0)
    for _ in tl.static_range(TIMES):
        size = tl.minimum(size, MOST) if MOST > 0 else (size * UP + (DOWN - 1)) // DOWN
    end = tl.cumsum(size, 0)
    if tl.program_id(0) == 0:
        tl.store(start_ptr + run * places + slot, end - size + run * capacity, mask=within)
        tl.store(size_ptr + run * places + slot, size, mask=within)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    passed = (end[None, :] <= row[:, None]) & within[None, :]
    nth = tl.sum(passed.to(tl.int32), 1)
    batch = tl.where(nth < places, nth + run * places, nowhere)
    tl.store(batch_ptr + run * capacity + row, batch, mask=row < capacity)


@triton.jit
def _gather_rows(  # noqa: PLR0917
    start_ptr: tl.tensor,
    batch_ptr: tl.tensor,
    index_ptr: tl.tensor,
    first_ptr: tl.tensor,
    by_ptr: tl.tensor,
    number_ptr: tl.tensor,
    own_ptr: tl.tensor,
    value_0: tl.tensor,
    value_1: tl.tensor,
    value_2: tl.tensor,
    value_3: tl.tensor,
    out_0: tl.tensor,
    out_1: tl.tensor,
    out_2: tl.tensor,
    out_3: tl.tensor,
    count: int,
    graphs: int,
    VALUES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    graph = tl.load(batch_ptr + row, mask=row < count, other=graphs)
    real = graph < graphs
    which = tl.load(index_ptr + graph, mask=real, other=0)
    first = tl.load(first_ptr + which, mask=real, other=0)
    number = first + row - tl.load(start_ptr + graph, mask=real, other=0)
    tl.store(number_ptr + row, tl.where(real, number, -1), mask=row < count)
    tl.store(own_ptr + row, tl.where(real, row, -1), mask=row < count)
    by = tl.load(by_ptr + graph, mask=real, other=0)
    if VALUES > 0:
        _shift(value_0, out_0, number, by, row, real, count)
    if VALUES > 1:
        _shift(value_1, out_1, number, by, row, real, count)
    if VALUES > 2:
        _shift(value_2, out_2, number, by, row, real, count)
    if VALUES > 3:
        _shift(value_3, out_3, number, by, row, real, count)


@triton.jit
def _shift(
    value_ptr: tl.tensor,
    out_ptr: tl.tensor,
    number: tl.tensor,
    by: tl.tensor,
    row: tl.tensor,
    real: tl.tensor,
    count: tl.tensor,
) -> None:
    value = tl.load(value_ptr + number, mask=real, other=0)
    tl.store(out_ptr + row, tl.where(real, value + by, -1), mask=row < count)


@triton.jit
def _gather_shifted(
    values_ptr: tl.tensor,
    number_ptr: tl.tensor,
    batch_ptr: tl.tensor,
    by_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: int,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    number = tl.load(number_ptr + row, mask=row < count, other=-1)
    real = number >= 0
    value = tl.load(values_ptr + number, mask=real, other=0)
    graph = tl.load(batch_ptr + row, mask=real, other=0)
    by = tl.load(by_ptr + graph, mask=real, other=0)
    tl.store(out_ptr + row, tl.where(real, value + by, -1), mask=row < count)


@triton.jit
def _compose(
    outer_ptr: tl.tensor,
    inner_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: int,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inner = tl.load(inner_ptr + row, mask=row < count, other=-1)
    outer = tl.load(outer_ptr + inner, mask=inner >= 0, other=-1)
    tl.store(out_ptr + row, outer, mask=row < count)
