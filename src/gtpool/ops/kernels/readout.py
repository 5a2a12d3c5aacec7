"""Triton kernels for read-outs of a padded batch, and for taking rows to the next level."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.ops.padded_ops import FeatureScaler
from gtpool.padded_batch import PaddedLayout


def mean_max(x: Tensor, rows: PaddedLayout) -> Tensor:
    """Return mean and maximum over each graph's rows, zeros for empty slots, [RG, 2D].

    Ties share the gradient of a maximum equally.

    Args:
        x: Features of the rows, [N, D]; padding is not read.
        rows: The layout of the rows.
    """
    return _MeanMax.apply(x, rows)


def take(x: Tensor, kept: Tensor, number: Tensor) -> Tensor:
    """Return x[kept], zeros where ``kept`` is -1, [N, D] -> [K, D].

    Args:
        x: Features of the rows, [N, D].
        kept: Row of ``x`` for each row of the next level, -1 on padding, [K].
        number: Row of the next level for each row of ``x``, -1 if it has none, [N].
    """
    return _Take.apply(x, kept, number)


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _MeanMax(Function):
    """Forward: one program per graph. Backward: each row reads the gradient of its graph."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        rows: PaddedLayout,
    ) -> Tensor:
        x = x.contiguous()
        num_graphs, (num_rows, width) = rows.size.numel(), x.shape
        out = x.new_empty(num_graphs, 2 * width)
        ties = rows.size.new_empty((num_graphs, width), dtype=torch.int32)
        height = max(8, min(64, triton.next_power_of_2(num_rows // num_graphs)))
        columns = 32  # narrow, so that a few graphs fill a GPU
        _mean_max[(num_graphs, triton.cdiv(width, columns))](
            x,
            out,
            ties,
            rows.start,
            rows.size,
            EXACT=_sum_dtype(x),
            WIDTH=width,
            ROWS=height,
            COLUMNS=columns,
            num_warps=2,
        )
        ctx.save_for_backward(x, out, ties)
        ctx.rows = rows
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, out, ties = ctx.saved_tensors
        d_x = torch.empty_like(x)
        height, columns = tile_of(x.size(1))
        grid = triton.cdiv(x.size(0), height), triton.cdiv(x.size(1), columns)
        _mean_max_backward[grid](
            d_out.contiguous(),
            x,
            out,
            ties,
            ctx.rows.size,
            ctx.rows.batch,
            d_x,
            x.size(0),
            ctx.rows.size.numel(),
            EXACT=_sum_dtype(x),
            WIDTH=x.size(1),
            ROWS=height,
            COLUMNS=columns,
        )
        return d_x, None


class _Take(Function):
    """Gather in both directions: each row of the next level has one origin, so no sums occur."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        kept: Tensor,
        number: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(number)
        return gather(x, kept)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (number,) = ctx.saved_tensors
        return gather(d_out, number), None, None


def gather(
    x: Tensor, index: Tensor, dtype: torch.dtype | None = None, scaler: FeatureScaler | None = None
) -> Tensor:
    """Return x[index], zeros where the index is -1, optionally cast and scaled, [N, D] -> [K, D].

    Args:
        x: Features of the rows, [N, D].
        index: Row of ``x`` for each row of the result, -1 for none, [K].
        dtype: Dtype of the result; None means that of ``x``.
        scaler: Scales the first columns of each run; None for none.
    """
    x = x.contiguous()
    num_rows, width = index.numel(), x.size(1)
    out = x.new_empty(num_rows, width, dtype=dtype)
    height, columns = tile_of(width)
    grid = triton.cdiv(num_rows, height), triton.cdiv(width, columns)
    mean, std = (x, x) if scaler is None else (part.contiguous() for part in scaler)
    _gather[grid](
        x,
        index,
        mean,
        std,
        out,
        num_rows,
        1 if scaler is None else num_rows // mean.size(0),
        SCALED=0 if scaler is None else mean.size(1),
        WIDTH=width,
        ROWS=height,
        COLUMNS=columns,
    )
    return out


def tile_of(width: int) -> tuple[int, int]:
    """Return the rows and columns per program of an elementwise kernel."""
    columns = max(16, min(128, int(triton.next_power_of_2(width))))
    return 1024 // columns, columns


def _sum_dtype(x: Tensor) -> tl.dtype:
    """Return the dtype of the accumulators."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


@triton.jit
def _mean_max(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    ties_ptr: tl.tensor,
    start_ptr: tl.tensor,
    size_ptr: tl.tensor,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    graph = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    start, size = tl.load(start_ptr + graph), tl.load(size_ptr + graph)
    total = tl.zeros((COLUMNS,), EXACT)
    top = tl.full((COLUMNS,), float("-inf"), EXACT)
    ties = tl.zeros((COLUMNS,), tl.int32)
    for first in range(0, size, ROWS):
        row = first + tl.arange(0, ROWS)
        mask = (row < size)[:, None] & inside[None, :]
        at = (start + row)[:, None] * WIDTH + column[None, :]
        part = tl.load(x_ptr + at, mask=mask, other=float("-inf")).to(EXACT)
        total += tl.sum(tl.where(mask, part, 0.0), 0)
        higher = tl.maximum(top, tl.max(part, 0))
        reached = tl.sum((mask & (part == higher[None, :])).to(tl.int32), 0)
        ties = tl.where(higher > top, reached, ties + reached)
        top = higher
    mean = total / tl.maximum(size, 1).to(EXACT)
    top = tl.where(size > 0, top, 0.0)
    at = graph * 2 * WIDTH + column
    tl.store(out_ptr + at, mean, mask=inside)
    tl.store(out_ptr + at + WIDTH, top, mask=inside)
    tl.store(ties_ptr + graph * WIDTH + column, ties, mask=inside)


@triton.jit
def _mean_max_backward(  # noqa: PLR0917
    d_out_ptr: tl.tensor,
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    ties_ptr: tl.tensor,
    size_ptr: tl.tensor,
    batch_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    num_rows: int,
    num_graphs: int,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    graph = tl.load(batch_ptr + row, mask=row < num_rows, other=num_graphs)
    real = graph < num_graphs
    size = tl.load(size_ptr + graph, mask=real, other=1).to(EXACT)
    mask = real[:, None] & (column < WIDTH)
    at = row[:, None] * WIDTH + column
    read = graph[:, None] * (2 * WIDTH) + column  # the mean; the maximum is WIDTH further
    d_mean = tl.load(d_out_ptr + read, mask=mask, other=0.0).to(EXACT)
    d_top = tl.load(d_out_ptr + read + WIDTH, mask=mask, other=0.0).to(EXACT)
    top = tl.load(out_ptr + read + WIDTH, mask=mask, other=0.0).to(EXACT)
    ties = tl.load(ties_ptr + graph[:, None] * WIDTH + column, mask=mask, other=1)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(EXACT)
    d_x = d_mean / size[:, None] + tl.where(x == top, d_top / ties.to(EXACT), 0.0)
    written = (row < num_rows)[:, None] & (column < WIDTH)
    tl.store(d_x_ptr + at, d_x, mask=written)


@triton.jit
def _gather(
    x_ptr: tl.tensor,
    index_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    std_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_rows: int,
    each: int,
    SCALED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    index = tl.load(index_ptr + row, mask=row < num_rows, other=-1)
    mask = (index >= 0)[:, None] & (column < WIDTH)
    part = tl.load(x_ptr + index[:, None] * WIDTH + column, mask=mask, other=0)
    if SCALED > 0:
        scaled = mask & (column < SCALED)
        at = (row // each)[:, None] * SCALED + column
        mean = tl.load(mean_ptr + at, mask=scaled, other=0.0)
        part = (part.to(mean.dtype) - mean) / tl.load(std_ptr + at, mask=scaled, other=1.0)
    written = (row < num_rows)[:, None] & (column < WIDTH)
    tl.store(out_ptr + row[:, None] * WIDTH + column, part, mask=written)
