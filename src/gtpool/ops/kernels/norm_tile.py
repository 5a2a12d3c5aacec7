"""Helpers of the norm kernels: tiles of rows, and sums over the rows of each run.

Sums have two steps: one program per block of rows, then one per run and 16 columns. The order of
additions is fixed, so equal inputs give equal results.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS = 512
"""Most blocks of rows of a run; a block of a longer run has several tiles."""
GROUP = 16
"""Columns per program that merges blocks."""


def tiles(
    x: Tensor, runs: int, rows: int, most: int | None = None, widest: int = 128
) -> tuple[tuple[int, int], tuple[int, int, int], dict[str, int]]:
    """Return how kernels divide the rows, [..., D].

    Args:
        x: The rows, run after run.
        runs: Number of runs.
        rows: Rows of a tile.
        most: Most blocks of rows of a run; None means that every tile is a block.
        widest: Most columns of a tile.

    Returns:
        The grid; rows of a run, blocks of a run and tiles of a block; launch options.
    """
    width = x.size(-1)
    columns = max(16, min(widest, int(triton.next_power_of_2(width))))
    run_rows = x.numel() // width // runs
    count = -(-run_rows // rows)
    steps = 1 if most is None else -(-count // most)
    blocks = -(-count // steps)
    warps = max(1, min(16, rows * columns // 1024))
    tile = {"WIDTH": width, "ROWS": rows, "COLUMNS": columns, "num_warps": warps}
    return (runs * blocks, -(-width // columns)), (run_rows, blocks, steps), tile


def sum_blocks(sums: Tensor, runs: int) -> Tensor:
    """Return sums over the blocks of each run, [K, R * blocks, D] -> [K, R, D]."""
    number, blocks, width = sums.size(0), sums.size(1) // runs, sums.size(2)
    out = sums.new_empty(number, runs, width)
    grid = number * runs, triton.cdiv(width, GROUP)
    _add_blocks[grid](sums, out, blocks, WIDTH=width, **merge_tile(blocks))
    return out


def merge_tile(blocks: int) -> dict[str, int]:
    """Return launch options of a program that reads all blocks of a run."""
    height = int(triton.next_power_of_2(blocks))
    return {"BLOCKS": height, "COLUMNS": GROUP, "num_warps": max(1, min(8, height // 32))}


def columns_last(part: Tensor) -> Tensor:
    """Return weights [R, D] with contiguous columns; views of a matrix of all weights have them."""
    return part if part.stride(1) == 1 else part.contiguous()


def sum_dtype(x: Tensor) -> tl.dtype:
    """Return the dtype of the accumulators."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


@triton.jit
def real_rows(
    x_ptr: tl.tensor,
    real_ptr: tl.tensor,
    start: tl.tensor,
    left: tl.tensor,
    column: tl.tensor,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return rows from ``start`` on, 0 on padding and after ``left`` rows; real rows, entries."""
    row = tl.arange(0, ROWS)
    real = tl.load(real_ptr + start + row, mask=row < left, other=0) != 0
    mask = real[:, None] & (column < WIDTH)[None, :]
    at, _ = places(left, column, WIDTH, ROWS)
    return tl.load(x_ptr + start * WIDTH + at, mask=mask, other=0.0).to(EXACT), real, mask


@triton.jit
def places(
    left: tl.tensor, column: tl.tensor, WIDTH: tl.constexpr, ROWS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return offsets into the rows of a tile, int32, and the mask of those that exist."""
    row = tl.arange(0, ROWS)
    mask = (row < left)[:, None] & (column < WIDTH)[None, :]
    return row[:, None] * WIDTH + column[None, :], mask


@triton.jit
def normal_rows(
    x: tl.tensor,
    mask: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    run: tl.tensor,
    column: tl.tensor,
    EPS: tl.constexpr,
    EXACT: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the normalised rows, 0 on padding, and one over the deviation, [1, columns]."""
    at, inside = run * WIDTH + column, column < WIDTH
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0)
    high = mean.to(EXACT)
    low = (mean - high).to(EXACT)  # 0 if the mean has the dtype of the rows
    var = tl.load(var_ptr + at, mask=inside, other=1.0).to(EXACT)
    scale = tl.rsqrt(var + EPS)[None, :]
    return tl.where(mask, (x - high[None, :] - low[None, :]) * scale, 0.0), scale


@triton.jit
def _add_blocks(
    sums_ptr: tl.tensor,
    out_ptr: tl.tensor,
    blocks: int,
    WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    block = tl.arange(0, BLOCKS)
    mask = (block < blocks)[:, None] & (column < WIDTH)[None, :]
    at = (place * blocks + block)[:, None] * WIDTH + column[None, :]
    total = tl.sum(tl.load(sums_ptr + at, mask=mask, other=0.0), 0)
    tl.store(out_ptr + place * WIDTH + column, total, mask=column < WIDTH)
