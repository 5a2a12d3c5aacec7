"""Products of tall matrices on a CPU by oneDNN, where it is faster than torch's default, MKL.

On AMD processors with AVX-512, MKL uses AVX2: oneDNN takes half the time. It compiles a kernel for
each new shape, which takes longer than a product. So it gets the largest multiple of ``STEP`` rows,
and the remaining rows go to MKL: batches of any sizes then need few kernels.

The operator is private to PyTorch, so ``_fits`` looks it up by name.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

STEP = 128
"""Rows are a multiple of this in a product by oneDNN."""
LEAST = 2**23
"""Multiplications from which oneDNN is used: below, calls take longer than they save."""

_NAME = "_linear_pointwise"
_transformed = getattr(torch._C, "_are_functorch_transforms_active")  # noqa: B009, SLF001 # pyright: ignore[reportPrivateUsage]
_HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, _NAME)
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``functional.linear(x, weight, bias)``, with gradients."""
    if not runs_as_written() or not _fits(x, weight.size(0)):
        return functional.linear(x, weight, bias)
    if torch.is_autocast_enabled("cpu") or weight.dtype != x.dtype:
        return functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def runs_as_written() -> bool:
    """Return whether a call is neither compiled nor transformed by ``torch.func``."""
    return not (torch.compiler.is_compiling() or _transformed())


def map_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` without gradients, [N, I], [O, I] -> [N, O]."""
    if not _fits(x, weight.size(0)):
        return functional.linear(x, weight, bias)
    rows = x.size(0) // STEP * STEP
    most = _onednn(x[:rows], weight, bias)
    return torch.cat([most, functional.linear(x[rows:], weight, bias)]) if len(x) > rows else most


def sum_products(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left.T @ right`` without gradients, [N, O], [N, I] -> [O, I]."""
    if not _fits(left, right.size(1)):
        return left.T @ right
    rows = left.size(0) // STEP * STEP
    most = _onednn(left[:rows].T, right[:rows].T, None)
    return most.addmm_(left[rows:].T, right[rows:])


def _fits(x: Tensor, columns: int) -> bool:
    if not _HAS_ONEDNN or x.dim() != 2 or x.dtype != torch.float32 or x.device.type != "cpu":
        return False
    return x.size(0) >= STEP and x.numel() * columns >= LEAST


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return getattr(torch.ops.mkldnn, _NAME)(x, weight, bias, "none", [], "")


class _Linear(Function):
    """Linear map of many rows."""

    # torch calls these methods with types that the annotations of Function do not describe: hence
    # Any and the ignored override. With setup_context, a call would take three times as long.

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        return map_rows(x, weight, bias)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        again = torch.is_grad_enabled()  # the gradient will be differentiated
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        d_x = d_weight = None
        if needs_x:
            d_x = d_out @ weight if again else map_rows(d_out, weight.T)
        if needs_weight:
            d_weight = d_out.T @ x if again else sum_products(d_out, x)
        return d_x, d_weight, d_out.sum(0) if needs_bias else None

    @staticmethod
    def jvp(ctx: Any, *grads: Any) -> Tensor:  # noqa: ANN401
        (x, weight), (d_x, d_weight, d_bias) = ctx.saved_tensors, grads
        parts = [] if d_bias is None else [d_bias.expand(x.size(0), -1)]
        parts += [] if d_x is None else [functional.linear(d_x, weight)]
        parts += [] if d_weight is None else [functional.linear(x, d_weight)]
        return torch.stack(parts).sum(0)
