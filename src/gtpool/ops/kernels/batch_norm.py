"""Triton kernels for batch norm over the real rows of each run, with ReLU and a residual."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.ops.kernels.batch_norm_backward import gradients
from gtpool.ops.kernels.norm_tile import (
    BLOCKS,
    GROUP,
    columns_last,
    merge_tile,
    normal_rows,
    places,
    real_rows,
    sum_dtype,
    tiles,
)


def batch_norm(
    x: Tensor,
    real: Tensor,
    running: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    *,
    training: bool,
    eps: float,
    momentum: float,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Return batch norm over the real rows of each run, then ReLU and sum if requested, [RN, D].

    Args:
        x: The rows, run after run, [RN, D]; padding is not read and is normalised to the bias.
        real: Mask of rows that are not padding, bool [RN].
        running: Running mean and variance, contiguous, [R, D]; updated in place in training mode,
            except for runs without real rows.
        weight: Factor of each column, [R, D].
        bias: Summand of each column, [R, D].
        training: Use the statistics of the batch instead of the running ones.
        eps: Added to the variance.
        momentum: Share of the batch in the running statistics.
        relu: Apply ReLU to the result.
        residual: Added at the end, on padding too, [RN, D].
    """
    options = {"EPS": eps, "EXACT": sum_dtype(x), "RELU": relu}
    share = momentum if training else None
    return _BatchNorm.apply(x, real, *running, weight, bias, residual, share, options)


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _BatchNorm(Function):
    """Statistics in two kernels, then one pass; backward: sums in two kernels, then one pass."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        real: Tensor,
        mean: Tensor,
        var: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        momentum: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        x, weight, bias = x.contiguous(), columns_last(weight), columns_last(bias)
        ctx.options = options
        total = None
        if momentum is not None:
            total, mean, var = _statistics(x, real, mean, var, momentum)
        ctx.save_for_backward(x, real, mean, var, weight, bias, total)
        out = torch.empty_like(x)
        strides = weight.stride(0), bias.stride(0)
        residual = None if residual is None else residual.contiguous()
        grid, sizes, tile = tiles(x, weight.size(0), 32)
        parts = (x, real, mean, var, weight, bias, *strides, residual, out)
        _normalize[grid](*parts, *sizes[:2], **options, **tile)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        d_x, d_weight, d_bias = gradients(ctx.saved_tensors, d_out, ctx.options)
        d_residual = d_out if ctx.needs_input_grad[6] else None
        return d_x, None, None, None, d_weight, d_bias, d_residual, None, None


def _statistics(
    x: Tensor, real: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return real rows [R], mean and variance [R, D] of each run; update the running ones.

    The mean is float64: rounded to float32, its error can exceed a small deviation.
    """
    runs, width = running_mean.shape
    grid, sizes, tile = tiles(x, runs, 64, BLOCKS, 64)
    count = x.new_empty(grid[0], dtype=torch.float64)
    mean, square = x.new_empty(2, grid[0], width, dtype=torch.float64)
    _block_statistics[grid](x, real, count, mean, square, *sizes, EXACT=sum_dtype(x), **tile)
    total = x.new_empty(runs, dtype=torch.float64)
    run_mean = torch.empty_like(running_mean, dtype=torch.float64)
    run_var = torch.empty_like(running_var)
    _run_statistics[(runs, triton.cdiv(width, GROUP))](
        *(count, mean, square, total, run_mean, run_var, running_mean, running_var, sizes[1]),
        MOMENTUM=momentum,
        WIDTH=width,
        **merge_tile(sizes[1]),
    )
    return total, run_mean, run_var


@triton.jit
def _block_statistics(
    x_ptr: tl.tensor,
    real_ptr: tl.tensor,
    count_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    square_ptr: tl.tensor,
    run_rows: int,
    blocks: int,
    steps: int,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Store number, mean and sum of squared deviations of the real rows of each block."""
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.full((), 0.0, tl.float64)
    mean = tl.zeros((COLUMNS,), tl.float64)
    square = tl.zeros((COLUMNS,), tl.float64)
    for step in range(steps):
        first = (place % blocks * steps + step) * ROWS
        start, left = place // blocks * run_rows + first, run_rows - first
        x, real, mask = real_rows(x_ptr, real_ptr, start, left, column, EXACT, WIDTH, ROWS)
        found = tl.sum(real.to(EXACT), 0)
        divisor = tl.maximum(found, 1.0)
        near = tl.sum(x, 0) / divisor
        x = tl.where(mask, x - near[None, :], 0.0)
        rest = tl.sum(x, 0) / divisor  # the rounding error of the mean
        x = tl.where(mask, x - rest[None, :], 0.0)
        shift = near.to(tl.float64) + rest - mean
        total = count + found.to(tl.float64)
        share = found / tl.maximum(total, 1.0)
        mean += shift * share
        square += tl.sum(x * x, 0) + shift * shift * count * share
        count = total
    at, inside = place * WIDTH + column, column < WIDTH
    tl.store(mean_ptr + at, mean, mask=inside)
    tl.store(square_ptr + at, square, mask=inside)
    tl.store(count_ptr + place, count)


@triton.jit
def _run_statistics(  # noqa: PLR0917
    count_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    square_ptr: tl.tensor,
    total_ptr: tl.tensor,
    run_mean_ptr: tl.tensor,
    run_var_ptr: tl.tensor,
    running_mean_ptr: tl.tensor,
    running_var_ptr: tl.tensor,
    blocks: int,
    MOMENTUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Merge the statistics of blocks by Chan, Golub and LeVeque's formula in float64."""
    run = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    block, inside = tl.arange(0, BLOCKS), column < WIDTH
    mask = (block < blocks)[:, None] & inside[None, :]
    at = (run * blocks + block)[:, None] * WIDTH + column[None, :]
    count = tl.load(count_ptr + run * blocks + block, mask=block < blocks, other=0.0)
    part = tl.load(mean_ptr + at, mask=mask, other=0.0)
    square = tl.load(square_ptr + at, mask=mask, other=0.0)
    total = tl.sum(count, 0)
    divisor = tl.maximum(total, 1.0)
    mean = tl.sum(part * count[:, None], 0) / divisor
    shift = part - mean[None, :]
    square = tl.sum(square + shift * shift * count[:, None], 0)
    at = run * WIDTH + column
    tl.store(run_mean_ptr + at, mean, mask=inside)
    tl.store(run_var_ptr + at, square / divisor, mask=inside)
    tl.store(total_ptr + run, divisor)
    seen = column < tl.where(total > 0, WIDTH, 0)
    old = tl.load(running_mean_ptr + at, mask=seen, other=0.0).to(tl.float64)
    tl.store(running_mean_ptr + at, old + (mean - old) * MOMENTUM, mask=seen)
    old = tl.load(running_var_ptr + at, mask=seen, other=0.0).to(tl.float64)
    unbiased = square / tl.maximum(total - 1.0, 1.0)
    tl.store(running_var_ptr + at, old + (unbiased - old) * MOMENTUM, mask=seen)


@triton.jit
def _normalize(  # noqa: PLR0917
    x_ptr: tl.tensor,
    real_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    weight_stride: int,
    bias_stride: int,
    residual_ptr: tl.tensor,
    out_ptr: tl.tensor,
    run_rows: int,
    blocks: int,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    RELU: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64)
    run = place // blocks
    first = place % blocks * ROWS
    start, left = run * run_rows + first, run_rows - first
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    x, _, mask = real_rows(x_ptr, real_ptr, start, left, column, EXACT, WIDTH, ROWS)
    normal, _ = normal_rows(x, mask, mean_ptr, var_ptr, run, column, EPS, EXACT, WIDTH)
    weight = tl.load(weight_ptr + run * weight_stride + column, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + run * bias_stride + column, mask=inside, other=0.0)
    out = normal * weight[None, :] + bias[None, :]
    if RELU:
        out = tl.where(out < 0, 0.0, out)  # keeps NaN
    at, mask = places(left, column, WIDTH, ROWS)
    if residual_ptr is not None:
        out += tl.load(residual_ptr + start * WIDTH + at, mask=mask, other=0.0)
    tl.store(out_ptr + start * WIDTH + at, out, mask=mask)
