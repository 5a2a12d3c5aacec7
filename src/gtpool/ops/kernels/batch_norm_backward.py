"""Backward pass of ``gtpool.ops.kernels.batch_norm``: sums over rows, then one pass."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.kernels.norm_tile import BLOCKS, normal_rows, places, real_rows, sum_blocks, tiles


def gradients(
    saved: tuple[Tensor, ...], d_out: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the rows, the weights and the biases.

    Args:
        saved: Rows, mask, mean, variance, weights, biases and real rows of each run, None if the
            statistics do not depend on the rows.
        d_out: The gradient of the result.
        options: Options of the kernels.
    """
    *parts, total = saved
    x, weight, bias = parts[0], *parts[4:]
    runs, width = weight.shape
    parts = (*parts, weight.stride(0), bias.stride(0), d_out.contiguous())
    grid, sizes, tile = tiles(x, runs, 64, BLOCKS, 64)
    sums = x.new_empty(3, grid[0], width)
    _block_gradients[grid](*parts, sums, *sizes, **options, **tile)
    d_bias, d_weight, real_sum = sum_blocks(sums, runs)
    d_x = torch.empty_like(x)
    grid, sizes, tile = tiles(x, runs, 32)
    parts = (*parts, d_weight, real_sum, total, d_x)
    _row_gradients[grid](*parts, *sizes[:2], **options, **tile)
    return d_x, d_weight, d_bias


@triton.jit
def _gradient_rows(  # noqa: PLR0917
    x_ptr: tl.tensor,
    real_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    d_out_ptr: tl.tensor,
    run: tl.tensor,
    start: tl.tensor,
    left: tl.tensor,
    column: tl.tensor,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    RELU: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the gradient before ReLU, the normalised rows, factors and mask of real entries."""
    inside = column < WIDTH
    x, _, mask = real_rows(x_ptr, real_ptr, start, left, column, EXACT, WIDTH, ROWS)
    normal, scale = normal_rows(x, mask, mean_ptr, var_ptr, run, column, EPS, EXACT, WIDTH)
    weight = tl.load(weight_ptr + run * weight_stride + column, mask=inside, other=0.0)[None, :]
    at, written = places(left, column, WIDTH, ROWS)
    d_out = tl.load(d_out_ptr + start * WIDTH + at, mask=written, other=0.0).to(EXACT)
    if RELU:
        bias = tl.load(bias_ptr + run * bias_stride + column, mask=inside, other=0.0)[None, :]
        d_out = tl.where(normal * weight + bias <= 0, 0.0, d_out)
    return d_out, normal, scale * weight, mask


@triton.jit
def _block_gradients(  # noqa: PLR0917
    x_ptr: tl.tensor,
    real_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    weight_stride: int,
    bias_stride: int,
    d_out_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    run_rows: int,
    blocks: int,
    steps: int,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    RELU: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Store sums of the gradient, of its product with the normalised rows, and of real rows."""
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    d_bias = tl.zeros((COLUMNS,), EXACT)
    d_weight = tl.zeros((COLUMNS,), EXACT)
    real_sum = tl.zeros((COLUMNS,), EXACT)
    for step in range(steps):
        first = (place % blocks * steps + step) * ROWS
        d_out, normal, _, mask = _gradient_rows(
            x_ptr,
            real_ptr,
            mean_ptr,
            var_ptr,
            weight_ptr,
            bias_ptr,
            weight_stride,
            bias_stride,
            d_out_ptr,
            place // blocks,
            place // blocks * run_rows + first,
            run_rows - first,
            column,
            EPS,
            EXACT,
            RELU,
            WIDTH,
            ROWS,
        )
        d_bias += tl.sum(d_out, 0)
        d_weight += tl.sum(d_out * normal, 0)
        real_sum += tl.sum(tl.where(mask, d_out, 0.0), 0)
    at, inside = place * WIDTH + column, column < WIDTH
    size = tl.num_programs(0).to(tl.int64) * WIDTH
    tl.store(sums_ptr + at, d_bias, mask=inside)
    tl.store(sums_ptr + size + at, d_weight, mask=inside)
    tl.store(sums_ptr + 2 * size + at, real_sum, mask=inside)


@triton.jit
def _row_gradients(  # noqa: PLR0917
    x_ptr: tl.tensor,
    real_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    weight_stride: int,
    bias_stride: int,
    d_out_ptr: tl.tensor,
    d_weight_ptr: tl.tensor,
    real_sum_ptr: tl.tensor,
    total_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
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
    d_x, normal, factor, mask = _gradient_rows(
        x_ptr,
        real_ptr,
        mean_ptr,
        var_ptr,
        weight_ptr,
        bias_ptr,
        weight_stride,
        bias_stride,
        d_out_ptr,
        run,
        start,
        left,
        column,
        EPS,
        EXACT,
        RELU,
        WIDTH,
        ROWS,
    )
    inside = column < WIDTH
    if total_ptr is not None:
        total = tl.load(total_ptr + run).to(EXACT)
        slope = tl.load(d_weight_ptr + run * WIDTH + column, mask=inside, other=0.0) / total
        mean = tl.load(real_sum_ptr + run * WIDTH + column, mask=inside, other=0.0) / total
        d_x -= mean[None, :] + normal * slope[None, :]
    at, written = places(left, column, WIDTH, ROWS)
    tl.store(d_x_ptr + start * WIDTH + at, tl.where(mask, d_x * factor, 0.0), mask=written)
