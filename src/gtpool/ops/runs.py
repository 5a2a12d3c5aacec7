"""Linear maps with weights [...], or [R, ...] for R runs side by side.

The rows of R runs are concatenated, with the same number of rows per run. Each run uses its own
weights. Only linear maps and values per run need this; other layers treat all rows alike.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from gtpool.ops import dense
from gtpool.ops.padded_ops import has_triton


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return mapped rows, [..., I] -> [..., O], for a weight [O, I] or one per run, [R, O, I]."""
    if weight.dim() == 2:
        return dense.linear(x, weight, bias)
    alone = weight.size(0) == 1 and bias is None
    if not alone and uses_kernels(x, weight, 2) and needs_grad(x, weight, bias):
        rows = x.reshape(-1, x.size(-1))
        return kernels().linear(rows, weight, bias).view(*x.shape[:-1], -1)
    if weight.size(0) == 1:
        return functional.linear(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
    rows = x.reshape(weight.size(0), -1, x.size(-1))
    if bias is None:
        out = torch.bmm(rows, weight.mT)
    else:
        out = torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return out.view(*x.shape[:-1], -1)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Return the sum of rows and a bias, [N, D], [D] or one per run, [R, D] -> [N, D]."""
    if uses_kernels(x, bias) and needs_grad(x, bias):
        return kernels().add_bias(x, bias)
    return per_run(torch.add, x, bias)


def uses_kernels(x: Tensor, value: Tensor, dim: int = 1) -> bool:
    """Return whether rows and values per run are processed by Triton kernels.

    Args:
        x: The rows, [N, ...].
        value: One value for all rows, or one per run, [R, ...].
        dim: Number of axes of one run's value.
    """
    fits = x.is_cuda and value.dim() == dim + 1 and x.dtype == value.dtype == torch.float32
    return (
        fits and has_triton() and dense.runs_as_written() and not torch.is_autocast_enabled("cuda")
    )


def needs_grad(*parts: Tensor | None) -> bool:
    """Return whether gradients of some tensors are recorded."""
    return torch.is_grad_enabled() and any(
        part is not None and part.requires_grad for part in parts
    )


def kernels() -> ModuleType:
    """Return the kernels around linear maps."""
    return import_module("gtpool.ops.kernels.linear")


def per_run(
    combine: Callable[[Tensor, Tensor], Tensor], x: Tensor, value: Tensor, dim: int = 1
) -> Tensor:
    """Return ``combine(x, value)``, with one value for all rows or one per run.

    Args:
        combine: Function of two broadcastable tensors.
        x: The rows, [N, ...].
        value: One value for all rows, or one per run, [R, ...].
        dim: Number of axes of one run's value.
    """
    if value.dim() == dim:
        return combine(x, value)
    rows = x.unflatten(0, (value.size(0), -1))
    return combine(rows, value.unsqueeze(1)).flatten(0, 1)
