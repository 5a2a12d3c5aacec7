"""Linear maps with weights [...], or [R, ...] for R runs side by side.

The rows of R runs are concatenated, with the same number of rows per run. Each run uses its own
weights. Only linear maps and values per run need this; other layers treat all rows alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from gtpool.ops import dense


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return mapped rows, [..., I] -> [..., O], for a weight [O, I] or one per run, [R, O, I]."""
    if weight.dim() == 2:
        return dense.linear(x, weight, bias)
    if weight.size(0) == 1:
        return functional.linear(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
    rows = x.reshape(weight.size(0), -1, x.size(-1))
    if bias is None:
        out = torch.bmm(rows, weight.mT)
    else:
        out = torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return out.view(*x.shape[:-1], -1)


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
