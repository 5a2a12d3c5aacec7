"""What training makes small, by the kind of task."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from gtpool.data.dataset import GraphDataset

Loss = Callable[[Tensor, Tensor], Tensor]
"""From the outputs and targets of some graphs to one number."""


def make_loss(
    data: GraphDataset, train: Tensor, shift: Tensor, scale: Tensor, *, weigh: bool
) -> Loss:
    """Choose the loss of the task; missing targets do not count.

    Args:
        data: The graphs, whose schema names the task.
        train: The graphs that train, which give class weights and the units of a regression.
        shift: Of a regression, is set to the mean of each target.
        scale: Of a regression, is set to the deviation of each target, in which errors count.
        weigh: Weigh classes inversely to their share.
    """
    y = data.y[train.to(data.y.device)]
    if data.schema.task == "classes":
        weight = _class_weights(y, data.schema.num_outputs) if weigh else None
        return lambda logits, target: cross_entropy(
            logits, target, None if weight is None else weight.to(logits.dtype)
        )
    if data.schema.task == "binary":
        weight = _positive_weights(y) if weigh else None
        return lambda logits, target: _known(
            binary_cross_entropy_with_logits(
                logits, target.nan_to_num(0.0), pos_weight=weight, reduction="none"
            ),
            target,
        )
    std = (y - y.nanmean(0)).square().nanmean(0).sqrt()
    with torch.no_grad():
        shift.copy_(y.nanmean(0).nan_to_num(0.0))
        scale.copy_(torch.where(std > 0, std, 1.0))
    unit = scale.clone()
    return lambda outputs, target: _known(
        mse_loss(outputs / unit, target.nan_to_num(0.0) / unit, reduction="none"), target
    )


def _known(loss: Tensor, target: Tensor) -> Tensor:
    known = ~target.isnan()
    return (loss * known).sum() / known.sum().clamp(min=1)


def _class_weights(y: Tensor, classes: int) -> Tensor:
    count = y.bincount(minlength=classes).clamp(min=1)
    return y.numel() / (classes * count)


def _positive_weights(y: Tensor) -> Tensor:
    return ((y == 0).sum(0).clamp(min=1) / (y == 1).sum(0).clamp(min=1)).float()
