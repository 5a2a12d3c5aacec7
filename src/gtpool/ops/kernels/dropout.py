"""Triton kernels for dropout by key, with the same masks as ``gtpool.ops.dropout``."""

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


def mix(bits: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of 64 bits, as the function in ``gtpool.ops.dropout``."""
    bits = bits.contiguous()
    out = torch.empty_like(bits)
    _mix[(triton.cdiv(bits.numel(), _BLOCK),)](bits, out, bits.numel(), BLOCK=_BLOCK)
    return out


def next_keys(key: Tensor, count: int, first: Tensor | None = None) -> Tensor:
    """Return so many keys derived from the key of each run, from number ``first`` on, [count, R].

    Args:
        key: Key of each run, int64 [R].
        count: Number of keys.
        first: Number of the first key, int64 [1]; None means 0.
    """
    key = key.contiguous()
    out, runs = key.new_empty(count, key.numel()), key.numel()
    _next_keys[(triton.cdiv(out.numel(), _BLOCK),)](
        key,
        key if first is None else first,
        out,
        out.numel(),
        runs,
        SHIFTED=first is not None,
        BLOCK=_BLOCK,
    )
    return out


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
    factor, least = constants(share)
    grid = triton.cdiv(each, _BLOCK), key.numel()
    _drop[grid](x, key, out, each, factor, LEAST=least, BLOCK=_BLOCK)
    return out


def constants(share: float) -> tuple[float, int]:
    """Return the factor of kept entries and the least integer that is kept."""
    return 1 / (1 - share) if share < 1 else 0.0, round(share * 2**dropout.DIGITS)


@triton.jit(do_not_specialize_on_alignment=["key_ptr"])
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
    x = tl.load(x_ptr + run * each + at, mask=at < each, other=0.0)
    x = tl.where(keeps(at, tl.load(key_ptr + run), LEAST), x * factor, 0.0)
    tl.store(out_ptr + run * each + at, x, mask=at < each)


@triton.jit
def _mix(bits_ptr: tl.tensor, out_ptr: tl.tensor, count: int, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(bits_ptr + at, mask=at < count, other=0)
    tl.store(out_ptr + at, _mixed(bits), mask=at < count)


@triton.jit
def _next_keys(
    key_ptr: tl.tensor,
    first_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: int,
    runs: int,
    SHIFTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(key_ptr + at % runs, mask=at < count, other=0) + at // runs + 1
    if SHIFTED:
        bits += tl.load(first_ptr)
    tl.store(out_ptr + at, _mixed(bits), mask=at < count)


@triton.jit
def keeps(place: tl.tensor, key: tl.tensor, LEAST: tl.constexpr) -> tl.tensor:
    """Return the mask of positions that dropout keeps, given the int64 position in a run."""
    return ((_mixed(place * _STRIDE + key) >> _SHIFT) & _MASK) >= LEAST


@triton.jit
def _mixed(bits: tl.tensor) -> tl.tensor:
    bits = (bits ^ ((bits >> 30) & 0x3FFFFFFFF)) * _FIRST
    bits = (bits ^ ((bits >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return bits ^ ((bits >> 31) & 0x1FFFFFFFF)
