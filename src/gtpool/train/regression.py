"""Metrics of regression over the known targets.

Each function takes one set of graphs, or several of equal size along leading axes: predicted values
and targets, [..., G, T], NaN where missing. It returns one float64 value per set.
"""

import torch
from torch import Tensor


def rmse(outputs: Tensor, y: Tensor) -> Tensor:
    """Root of the mean squared error over the known targets.

    Example:
        >>> rmse(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [float("nan")]])).item()
        0.0
    """
    known = ~y.isnan()
    error = torch.where(known, outputs.double() - y, 0)
    return (error.square().sum((-2, -1)) / known.sum((-2, -1))).sqrt()


def mae(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error over the known targets.

    Example:
        >>> mae(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]])).item()
        1.5
    """
    known = ~y.isnan()
    error = torch.where(known, outputs.double() - y, 0)
    return error.abs().sum((-2, -1)) / known.sum((-2, -1))


def r2(outputs: Tensor, y: Tensor) -> Tensor:
    """Coefficient of determination, averaged over the tasks whose targets differ.

    Example:
        >>> r2(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0], [2.0], [3.0]])).item()
        1.0
    """
    target = y.double().mT
    known = ~target.isnan()
    error = _sum(torch.where(known, outputs.double().mT - target, 0).square())
    spread = _sum(_centred(target, known).square())
    return torch.where(spread > 0, 1 - error / spread, torch.nan).squeeze(-1).nanmean(-1)


def spearman(outputs: Tensor, y: Tensor) -> Tensor:
    """Spearman's rank correlation, averaged over the tasks whose targets differ.

    Ties have their mean rank. The value is 0 if all predictions are equal.

    Example:
        >>> y = torch.tensor([[1.0], [2.0], [9.0]])
        >>> spearman(torch.tensor([[1.0], [5.0], [6.0]]), y).item()
        1.0
    """
    target = y.double().mT
    known = ~target.isnan()
    told, true = (_centred(_ranks(part, known), known) for part in (outputs.double().mT, target))
    apart = (_sum(told.square()) * _sum(true.square())).sqrt()
    value = torch.where(apart > 0, _sum(told * true) / apart, 0.0)
    return value.where(_sum(true.square()) > 0, torch.nan).squeeze(-1).nanmean(-1)


def _ranks(values: Tensor, known: Tensor) -> Tensor:
    """Return twice the mean rank of each known value, from 0, [..., T, G]."""
    values = values.where(known, torch.inf).contiguous()
    order, counts = values.sort().values, known.sum(-1, keepdim=True)
    below = torch.searchsorted(order, values)
    up_to = torch.searchsorted(order, values, right=True).minimum(counts)
    return (below + up_to).double()


def _centred(values: Tensor, known: Tensor) -> Tensor:
    """Return values minus their mean, 0 where unknown; exactly 0 where all are equal."""
    mean = _sum(values.where(known, 0)) / known.sum(-1, keepdim=True)
    first = values.where(known, torch.inf).amin(-1, keepdim=True)
    last = values.where(known, -torch.inf).amax(-1, keepdim=True)
    return torch.where(known & (first < last), values - mean, 0)


def _sum(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True)
