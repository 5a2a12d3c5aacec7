"""Triton kernels for layer norm with weights of each run."""

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

from gtpool.ops.kernels.norm_tile import BLOCKS, columns_last, places, sum_blocks, sum_dtype, tiles


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return layer norm over the last axis, [..., D], with weight and bias of each run, [R, D]."""
    return _LayerNorm.apply(x, weight, bias, {"EPS": eps, "EXACT": sum_dtype(x)})


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _LayerNorm(Function):
    """One program per block of rows; the backward pass normalises the rows again."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        x, weight, bias = x.contiguous(), columns_last(weight), columns_last(bias)
        ctx.save_for_backward(x, weight)
        ctx.options = options
        out = torch.empty_like(x)
        grid, sizes, tile = _row_tiles(x, weight.size(0))
        parts = (x, weight, bias, weight.stride(0), bias.stride(0), out)
        _layer_norm[grid](*parts, *sizes[:2], **options, **tile)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_x = torch.empty_like(x)
        grid, sizes, tile = _row_tiles(x, weight.size(0), BLOCKS)
        sums = x.new_empty(2, grid[0], x.size(-1))
        parts = (x, weight, weight.stride(0), d_out.contiguous(), d_x, sums)
        _layer_gradients[grid](*parts, *sizes, **ctx.options, **tile)
        d_bias, d_weight = sum_blocks(sums, weight.size(0))
        return d_x, d_weight, d_bias, None


def _row_tiles(x: Tensor, runs: int, most: int | None = None) -> tuple[Any, Any, dict[str, int]]:
    """Return what ``tiles`` returns, for tiles of whole rows."""
    columns = max(16, triton.next_power_of_2(x.size(-1)))
    return tiles(x, runs, max(1, 4096 // columns), most, columns)


@triton.jit
def _normal_rows(
    x_ptr: tl.tensor,
    at: tl.tensor,
    mask: tl.tensor,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the normalised rows, and one over their deviation, [rows, 1].

    The second subtraction removes the rounding error of the mean.
    """
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(EXACT)
    for _ in tl.static_range(2):
        x = tl.where(mask, x - (tl.sum(x, 1) / WIDTH)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + EPS)[:, None]
    return x * scale, scale


@triton.jit
def _layer_norm(  # noqa: PLR0917
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    weight_stride: int,
    bias_stride: int,
    out_ptr: tl.tensor,
    run_rows: int,
    blocks: int,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64)
    run, column = place // blocks, tl.arange(0, COLUMNS)
    first = place % blocks * ROWS
    at, mask = places(run_rows - first, column, WIDTH, ROWS)
    start = (run * run_rows + first) * WIDTH
    normal, _ = _normal_rows(x_ptr + start, at, mask, EPS, EXACT, WIDTH)
    inside = column < WIDTH
    weight = tl.load(weight_ptr + run * weight_stride + column, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + run * bias_stride + column, mask=inside, other=0.0)
    tl.store(out_ptr + start + at, normal * weight[None, :] + bias[None, :], mask=mask)


@triton.jit
def _layer_gradients(  # noqa: PLR0917
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    weight_stride: int,
    d_out_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    run_rows: int,
    blocks: int,
    steps: int,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64)
    run, column = place // blocks, tl.arange(0, COLUMNS)
    inside = column < WIDTH
    weight = tl.load(weight_ptr + run * weight_stride + column, mask=inside, other=0.0)
    d_bias = tl.zeros((COLUMNS,), EXACT)
    d_weight = tl.zeros((COLUMNS,), EXACT)
    for step in range(steps):
        first = (place % blocks * steps + step) * ROWS
        at, mask = places(run_rows - first, column, WIDTH, ROWS)
        start = (run * run_rows + first) * WIDTH
        normal, scale = _normal_rows(x_ptr + start, at, mask, EPS, EXACT, WIDTH)
        d_out = tl.load(d_out_ptr + start + at, mask=mask, other=0.0).to(EXACT)
        d_bias += tl.sum(d_out, 0)
        d_weight += tl.sum(d_out * normal, 0)
        d_normal = d_out * weight[None, :]
        mean = (tl.sum(d_normal, 1) / WIDTH)[:, None]
        slope = (tl.sum(d_normal * normal, 1) / WIDTH)[:, None]
        tl.store(d_x_ptr + start + at, (d_normal - mean - normal * slope) * scale, mask=mask)
    at = place * WIDTH + column
    tl.store(sums_ptr + at, d_bias, mask=inside)
    at += tl.num_programs(0).to(tl.int64) * WIDTH
    tl.store(sums_ptr + at, d_weight, mask=inside)
