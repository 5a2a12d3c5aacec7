"""Linear maps of R runs: gradients of biases, activation and dropout by Triton kernels."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gtpool.ops.kernels.activation import activate_tiles, sum_parts
from gtpool.ops.kernels.dropout import constants
from gtpool.ops.kernels.norm_tile import sum_blocks

_ROWS, _COLUMNS = 32, 64
"""Tile of a program that sums rows."""
_TILE, _FULL = 64, 264
"""Rows and columns of a product's tile; tiles that fill a GPU."""
_FEW, _PARTS = 128, 256
"""Rows of a run that one program sums; maximum partial sums of a run."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return mapped rows of R runs, [R * n, I], [R, O, I], [R, O] or None -> [R * n, O]."""
    return _Linear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Return the sum of the rows of R runs and a bias of each run, [R * n, D], [R, D]."""
    return _AddBias.apply(x, bias)  # pyright: ignore[reportReturnType]


def activate(
    x: Tensor,
    bias: Tensor,
    act: str = "none",
    share: float = 0.0,
    key: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Return rows plus bias, activated, with dropout, plus a residual, [R * n, D].

    Args:
        x: The rows of R runs, run after run, [R * n, D].
        bias: Bias of each run, [R, D].
        act: ``"none"``, ``"relu"`` or ``"gelu"``.
        share: Probability of dropping an entry; see ``dropout.drop_by_key``.
        key: Key of each run, int64 [R]; None for no dropout.
        residual: Added at the end, [R * n, D]; not after a ReLU.
    """
    share = share if key is not None else 0.0
    return _Activate.apply(x, bias, act, share, key, residual)  # pyright: ignore[reportReturnType]


def sum_rows(x: Tensor, runs: int) -> Tensor:
    """Return the sum of the rows of each run, [R * n, D] -> [R, D], the same in each call."""
    return _backward(x, runs)[1]


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored overrides.


class _Linear(Function):
    """Linear map; kernels sum the gradient of the bias.

    The gradient of the weights is contiguous. That of ``torch.bmm`` is transposed and would be
    copied.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        if weight.size(0) == 1:
            return functional.linear(x, weight[0], None if bias is None else bias[0])
        rows = x.reshape(weight.size(0), -1, x.size(1))
        if bias is None:
            return torch.bmm(rows, weight.mT).flatten(0, 1)
        return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        runs = weight.size(0)
        d_out = d_out.contiguous()
        d_rows, rows = (part.reshape(runs, -1, part.size(1)) for part in (d_out, x))
        d_x = _product(d_rows, weight).flatten(0, 1) if needs_x else None
        d_weight = _sum_of_products(d_rows, rows) if needs_weight else None
        return d_x, d_weight, sum_rows(d_out, runs) if needs_bias else None


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.size(0) == 1:
        return torch.mm(left[0], right[0]).unsqueeze(0)
    return torch.bmm(left, right)


def _sum_of_products(d_rows: Tensor, rows: Tensor) -> Tensor:
    """Return the gradient of the weights, [R, n, O], [R, n, I] -> [R, O, I].

    cuBLAS gives one program each tile of a few runs, however many rows that sums: the rows are
    summed in parts, the same in each call.
    """
    (runs, each, outer), inner = d_rows.shape, rows.size(2)
    if runs == 1:  # cuBLAS splits the rows of a single product itself
        return _product(d_rows.mT, rows)
    tiles, parts = runs * triton.cdiv(outer, _TILE) * triton.cdiv(inner, _TILE), 1
    while tiles * parts < _FULL and each % (2 * parts) == 0 and each >= 2 * parts * _FEW:
        parts *= 2
    split = (part.reshape(runs * parts, each // parts, part.size(2)) for part in (d_rows, rows))
    left, right = split
    found = torch.bmm(left.mT, right)
    return found if parts == 1 else found.unflatten(0, (runs, parts)).sum(1)


class _AddBias(Function):
    """Addition of a bias, whose gradient is summed by kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN401
        ctx.runs = bias.size(0)
        return (x.unflatten(0, (bias.size(0), -1)) + bias.unsqueeze(1)).flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        return d_out, sum_rows(d_out, ctx.runs) if ctx.needs_input_grad[1] else None


class _Activate(Function):
    """Bias, activation and dropout in one kernel; the backward pass also sums the bias gradient.

    The output of a ReLU says which entries pass gradients. Otherwise the input is kept and the mask
    computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        bias: Tensor,
        act: str,
        share: float,
        key: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        if act == "relu" and residual is not None:  # the backward pass reads the output
            raise ValueError("a residual is not added to the output of a ReLU")
        x = x.contiguous()
        out = torch.empty_like(x)
        (runs, width), each = bias.shape, x.size(0) // bias.size(0)
        factor, least = constants(share)
        columns = max(16, min(128, int(triton.next_power_of_2(width))))
        rows = 1024 // columns
        activate_tiles[triton.cdiv(each, rows), triton.cdiv(width, columns), runs](
            x,
            bias,
            bias if key is None else key,
            x if residual is None else residual.contiguous(),
            out,
            each,
            bias.stride(0),
            factor,
            ACT=act,
            DROPS=share > 0,
            LEAST=least,
            ADDS=residual is not None,
            WIDTH=width,
            ROWS=rows,
            COLUMNS=columns,
        )
        ctx.save_for_backward(out if act == "relu" else x, bias, key)
        ctx.act, ctx.share = act, share
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        kept, bias, key = ctx.saved_tensors
        d_x, d_bias = _backward(d_out, bias.size(0), kept, bias, ctx.act, ctx.share, key)
        return d_x, d_bias, None, None, None, d_out if ctx.needs_input_grad[5] else None


def _backward(
    d_out: Tensor,
    runs: int,
    kept: Tensor | None = None,
    bias: Tensor | None = None,
    act: str = "none",
    share: float = 0.0,
    key: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients before activation and dropout, and their sums over each run's rows."""
    d_out = d_out.contiguous()
    each, width = d_out.size(0) // runs, d_out.size(1)
    factor, least = constants(share)
    changes = act != "none" or share > 0
    d_x = torch.empty_like(d_out) if changes else d_out
    parts = 1 if each <= _FEW else min(_PARTS, triton.cdiv(each, _ROWS))
    partial = d_out.new_empty(runs, parts, width)
    sum_parts[parts, triton.cdiv(width, _COLUMNS), runs](
        d_out,
        d_out if kept is None else kept,
        d_out if bias is None else bias,
        d_out if key is None else key,
        d_x,
        partial,
        each,
        0 if bias is None else bias.stride(0),
        triton.cdiv(triton.cdiv(each, parts), _ROWS) * _ROWS,
        factor,
        ACT=act,
        DROPS=share > 0,
        LEAST=least,
        STORES=changes,
        WIDTH=width,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
    )
    sums = partial.squeeze(1) if parts == 1 else sum_blocks(partial.view(1, -1, width), runs)[0]
    return d_x, sums
