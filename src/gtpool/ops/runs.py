"""Maps of rows by weights [...] or, for R runs side by side, [R, ...].

The rows of R runs stand one after another, as many of each run. Each run's rows meet its own
weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map rows, [..., I] -> [..., O], by a weight [O, I] or one a run, [R, O, I]."""
    if weight.dim() == 2:
        return functional.linear(x, weight, bias)
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
    """Combine rows with a value of ``dim`` axes, or the rows of each run with its own.

    Args:
        combine: Of two tensors that broadcast.
        x: The rows, [N, ...].
        value: One for all rows, or one a run, [R, ...].
        dim: Axes of the value of one run.
    """
    if value.dim() == dim:
        return combine(x, value)
    rows = x.unflatten(0, (value.size(0), -1))
    return combine(rows, value.unsqueeze(1)).flatten(0, 1)
