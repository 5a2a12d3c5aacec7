"""Triton kernels for products of the tall matrices of R runs, on tensor cores.

Products are split into three of TF32, which is nearly as exact as float32; see ``tile.PRECISION``.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.kernels.tile import PRECISION


class ProductConfig(NamedTuple):
    """Tile of the result, terms of a step, and launch options of a kernel."""

    rows: int
    columns: int
    terms: int
    warps: int
    stages: int


TALL = ProductConfig(128, 64, 32, 4, 3)
SPLIT = ProductConfig(64, 64, 32, 4, 3)
_TERMS = 1024
"""Least rows that one program of a split product sums."""
_PROGRAMS = 264
"""Programs that fill a GPU twice."""


def multiply(left: Tensor, right: Tensor, config: ProductConfig = TALL) -> Tensor:
    """Return the product of each run for left matrices of many rows, [R, M, K], [R, K, N]."""
    runs, rows, terms = left.shape
    columns = right.size(2)
    out = left.new_empty(runs, rows, columns)
    grid = triton.cdiv(columns, config.columns), triton.cdiv(rows, config.rows), runs
    _multiply[grid](
        left,
        right,
        out,
        *left.stride(),
        *right.stride(),
        rows * columns,
        0,
        rows,
        columns,
        terms,
        terms,
        PRECISION=PRECISION,
        ROWS=config.rows,
        COLUMNS=config.columns,
        TERMS=config.terms,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out


def multiply_split(left: Tensor, right: Tensor, config: ProductConfig = SPLIT) -> Tensor:
    """Return the product of each run for sums of many terms, [R, M, K], [R, K, N].

    The terms are summed in parts of fixed size, the same in each call.
    """
    runs, rows, terms = left.shape
    columns = right.size(2)
    tiles = triton.cdiv(columns, config.columns) * triton.cdiv(rows, config.rows) * runs
    parts = max(1, min(triton.cdiv(_PROGRAMS, tiles), triton.cdiv(terms, 256)))
    parts = max(parts, triton.cdiv(terms, 8 * _TERMS))
    share = triton.cdiv(triton.cdiv(terms, parts), config.terms) * config.terms
    parts = triton.cdiv(terms, share)
    out = left.new_empty(runs, parts, rows, columns)
    for_all = triton.cdiv(columns, config.columns), triton.cdiv(rows, config.rows), runs * parts
    _multiply[for_all](
        left,
        right,
        out,
        *left.stride(),
        *right.stride(),
        rows * columns,
        parts,
        rows,
        columns,
        terms,
        share,
        PRECISION=PRECISION,
        ROWS=config.rows,
        COLUMNS=config.columns,
        TERMS=config.terms,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return out.squeeze(1) if parts == 1 else out.sum(1)


@triton.jit(do_not_specialize=("rows", "terms", "share", "out_stride", "left_run", "right_run"))
def _multiply(  # noqa: PLR0917
    left_ptr: tl.tensor,
    right_ptr: tl.tensor,
    out_ptr: tl.tensor,
    left_run: int,
    left_row: int,
    left_term: int,
    right_run: int,
    right_term: int,
    right_column: int,
    out_stride: int,
    parts: int,
    rows: int,
    columns: int,
    terms: int,
    share: int,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TERMS: tl.constexpr,
) -> None:
    """Sum ``share`` terms of a tile; axis 2 counts runs, or parts of runs."""
    matrix = tl.program_id(2).to(tl.int64)
    run, first = matrix, 0
    if parts > 0:
        run, first = matrix // parts, (matrix % parts).to(tl.int32) * share
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = (row < rows)[:, None], (column < columns)[None, :]
    left = left_ptr + run * left_run + row.to(tl.int64)[:, None] * left_row
    right = right_ptr + run * right_run + column.to(tl.int64)[None, :] * right_column
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(first, tl.minimum(first + share, terms), TERMS):
        term = start + tl.arange(0, TERMS)
        inside = term < terms
        along = term.to(tl.int64)
        one = tl.load(left + along[None, :] * left_term, mask=in_rows & inside[None, :], other=0.0)
        other = tl.load(
            right + along[:, None] * right_term, mask=in_columns & inside[:, None], other=0.0
        )
        total = tl.dot(one, other, total, input_precision=PRECISION)
    at = out_ptr + matrix * out_stride + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(at, total, mask=in_rows & in_columns)
