"""Triton kernels for the kept rows of a padded batch, scaled by the tanh of their scores."""

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

from gtpool.ops.kernels.readout import tile_of
from gtpool.ops.kernels.tile import tanh, tanh_grad


def gated_rows(x: Tensor, score: Tensor, kept: Tensor, number: Tensor) -> Tensor:
    """Return tanh(score) x of the kept rows, zeros where ``kept`` is -1, [N, D] -> [K, D].

    Args:
        x: Features of the rows, [N, D].
        score: Score of each row, [N].
        kept: Row of ``x`` for each row of the next level, -1 on padding, [K].
        number: Row of the next level for each row of ``x``, -1 if it has none, [N].
    """
    return _GatedRows.apply(x, score, kept, number)  # pyright: ignore[reportReturnType]


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _GatedRows(Function):
    """Gather in both directions, with one launch each."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        score: Tensor,
        kept: Tensor,
        number: Tensor,
    ) -> Tensor:
        x, score = x.contiguous(), score.contiguous()
        ctx.save_for_backward(x, score, number)
        count, width = kept.numel(), x.size(1)
        out = x.new_empty(count, width)
        height, columns = tile_of(width)
        grid = triton.cdiv(count, height), triton.cdiv(width, columns)
        _gate[grid](x, score, kept, out, count, WIDTH=width, ROWS=height, COLUMNS=columns)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, score, number = ctx.saved_tensors
        d_x, d_score = torch.empty_like(x), torch.empty_like(score)
        count, width = x.shape
        height, columns = tile_of(width)
        parts = (d_out.contiguous(), x, score, number, d_x, d_score)
        _gate_backward[(triton.cdiv(count, height),)](
            *parts, count, WIDTH=width, ROWS=height, COLUMNS=columns
        )
        return d_x, d_score, None, None


@triton.jit
def _gate(
    x_ptr: tl.tensor,
    score_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_rows: int,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    kept = tl.load(kept_ptr + row, mask=row < num_rows, other=-1)
    score = tl.load(score_ptr + kept, mask=kept >= 0, other=0.0).to(tl.float32)
    mask = (kept >= 0)[:, None] & (column < WIDTH)
    part = tl.load(x_ptr + kept[:, None] * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    written = (row < num_rows)[:, None] & (column < WIDTH)
    tl.store(out_ptr + row[:, None] * WIDTH + column, part * tanh(score)[:, None], mask=written)


@triton.jit
def _gate_backward(
    d_out_ptr: tl.tensor,
    x_ptr: tl.tensor,
    score_ptr: tl.tensor,
    number_ptr: tl.tensor,
    d_x_ptr: tl.tensor,
    d_score_ptr: tl.tensor,
    num_rows: int,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    number = tl.load(number_ptr + row, mask=row < num_rows, other=-1)
    score = tl.load(score_ptr + row, mask=number >= 0, other=0.0).to(tl.float32)
    gate = tanh(score)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, WIDTH, COLUMNS):
        column = (first + tl.arange(0, COLUMNS))[None, :]
        mask = (number >= 0)[:, None] & (column < WIDTH)
        sent = tl.load(d_out_ptr + number[:, None] * WIDTH + column, mask=mask, other=0.0)
        sent = sent.to(tl.float32)
        at = row[:, None] * WIDTH + column
        total += sent * tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        written = (row < num_rows)[:, None] & (column < WIDTH)
        tl.store(d_x_ptr + at, sent * gate[:, None], mask=written)
    d_score = tl.sum(total, 1) * tanh_grad(score)
    tl.store(d_score_ptr + row, d_score, mask=row < num_rows)
