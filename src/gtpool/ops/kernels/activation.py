"""Triton kernels of bias, activation and dropout, and of the sums of their gradients."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import triton
import triton.language as tl

from gtpool.ops.kernels.dropout import keeps

# Biases and keys are rows of a matrix: by their alignment each kernel would be compiled anew.
_BY_VALUE = {
    "do_not_specialize": ("each", "bias_stride"),
    "do_not_specialize_on_alignment": ("bias_ptr", "key_ptr"),
}


@triton.jit(**_BY_VALUE)
def activate_tiles(  # noqa: PLR0917
    x_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    key_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    out_ptr: tl.tensor,
    each: int,
    bias_stride: int,
    factor: float,
    ACT: tl.constexpr,
    DROPS: tl.constexpr,
    LEAST: tl.constexpr,
    ADDS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Store the rows of a tile plus bias, activated, with dropout, plus a residual."""
    run = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < each)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    at = run * each * WIDTH + place
    bias = tl.load(bias_ptr + run * bias_stride + column, mask=column < WIDTH, other=0.0)
    x = tl.load(x_ptr + at, mask=mask, other=0.0) + bias[None, :]
    if ACT == "relu":
        x = tl.where(x < 0, 0.0, x)  # NaN stays
    if ACT == "gelu":
        x *= _normal_below(x)
    if DROPS:
        x = tl.where(keeps(place, tl.load(key_ptr + run), LEAST), x * factor, 0.0)
    if ADDS:
        x += tl.load(residual_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + at, x, mask=mask)


@triton.jit(**_BY_VALUE)
def sum_parts(  # noqa: PLR0917
    d_out_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    key_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    each: int,
    bias_stride: int,
    share: int,
    factor: float,
    ACT: tl.constexpr,
    DROPS: tl.constexpr,
    LEAST: tl.constexpr,
    STORES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Store the gradients of ``share`` rows of a run, and their sum."""
    run, part = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = part * share
    for start in range(first, tl.minimum(first + share, each), ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        mask = (row < each)[:, None] & inside[None, :]
        place = row[:, None] * WIDTH + column[None, :]
        at = run * each * WIDTH + place
        d = tl.load(d_out_ptr + at, mask=mask, other=0.0)
        if ACT == "relu":
            d = tl.where(tl.load(kept_ptr + at, mask=mask, other=0.0) <= 0, 0.0, d * factor)
        elif DROPS:
            d = tl.where(keeps(place, tl.load(key_ptr + run), LEAST), d * factor, 0.0)
        if ACT == "gelu":
            bias = tl.load(bias_ptr + run * bias_stride + column, mask=inside, other=0.0)
            x = tl.load(kept_ptr + at, mask=mask, other=0.0) + bias[None, :]
            d *= _normal_below(x) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
        if STORES:
            tl.store(d_x_ptr + at, d, mask=mask)
        total += d
    to = (run * tl.num_programs(0) + part) * WIDTH + column
    tl.store(partial_ptr + to, tl.sum(total, 0), mask=inside)


@triton.jit
def _normal_below(x: tl.tensor) -> tl.tensor:
    """Return the probability that a standard normal number is below x."""
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476))
