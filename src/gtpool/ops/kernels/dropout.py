"""Triton kernel for dropout by key, with the same masks as ``gtpool.ops.dropout``."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.ops import dropout

_BLOCK = 512
_STRIDE, _FIRST = tl.constexpr(dropout.STRIDE), tl.constexpr(dropout.FIRST)
_SECOND, _MASK = tl.constexpr(dropout.SECOND), tl.constexpr(2**dropout.DIGITS - 1)
_SHIFT = tl.constexpr(63 - dropout.DIGITS)


def drop(x: Tensor, share: float, key: Tensor) -> Tensor:
    """Return ``x`` with dropout of probability ``share``; see ``dropout.drop_by_key``."""
    return _Drop.apply(x, share, key)  # pyright: ignore[reportReturnType]


class _Drop(Function):
    """Dropout; the backward pass recomputes the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, key: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(key)
        ctx.share = share
        return _launch(x, share, key)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (key,) = ctx.saved_tensors
        return _launch(d_out, ctx.share, key), None, None


def _launch(x: Tensor, share: float, key: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    each = x.numel() // key.numel()
    factor = 1 / (1 - share) if share < 1 else 0.0
    least = round(share * 2**dropout.DIGITS)
    grid = triton.cdiv(each, _BLOCK), key.numel()
    _drop[grid](x, key, out, each, factor, LEAST=least, BLOCK=_BLOCK)
    return out


@triton.jit
def _drop(
    x_ptr: tl.tensor,
    key_ptr: tl.tensor,
    out_ptr: tl.tensor,
    each: int,
    factor: float,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    run = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    bits = at * _STRIDE + tl.load(key_ptr + run)
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * _FIRST
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * _SECOND
    bits = bits ^ ((bits >> 31) & 0x1FFFFFFFF)
    bits = (bits >> _SHIFT) & _MASK
    x = tl.load(x_ptr + run * each + at, mask=at < each, other=0.0)
    tl.store(out_ptr + run * each + at, tl.where(bits >= LEAST, x * factor, 0.0), mask=at < each)
