"""How good predictions are: accuracy, ROC-AUC over tasks with missing labels, RMSE."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Share of graphs whose highest logit is their class.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    return (logits.argmax(1) == y).double().mean().item()


def roc_auc(logits: Tensor, y: Tensor) -> float:
    """Area under the ROC curve, averaged over the tasks that have both classes (OGB's rule).

    Missing labels are NaN and do not count; NaN if no task has both classes.

    Example:
        >>> nan = float("nan")
        >>> y = torch.tensor([[1.0, 1.0], [0.0, nan], [1.0, 1.0]])
        >>> roc_auc(torch.tensor([[0.9, 0.1], [0.5, 0.2], [0.4, 0.3]]), y)
        0.5
    """
    areas: list[Tensor] = []
    for score, label in zip(logits.double().T, y.T, strict=True):
        known = ~label.isnan()
        area = _area(score[known], label[known] > 0.5)
        if area is not None:
            areas.append(area)
    return torch.stack(areas).mean().item() if areas else float("nan")


def rmse(outputs: Tensor, y: Tensor) -> float:
    """Root of the mean squared error over the known targets.

    Example:
        >>> rmse(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [float("nan")]]))
        0.0
    """
    known = ~y.isnan()
    return (outputs[known].double() - y[known].double()).square().mean().sqrt().item()


class Metric(NamedTuple):
    """A measure of predictions, and whether more is better."""

    measure: Callable[[Tensor, Tensor], float]
    name: str
    higher_is_better: bool


METRICS: dict[str, Metric] = {
    "classes": Metric(accuracy, "accuracy", True),
    "binary": Metric(roc_auc, "roc_auc", True),
    "regression": Metric(rmse, "rmse", False),
}
"""The metric of each kind of task."""


def _area(score: Tensor, positive: Tensor) -> Tensor | None:
    """Share of pairs of a positive and a negative that are ordered rightly, ties as half."""
    positives = int(positive.sum())
    negatives = positive.numel() - positives
    if positives == 0 or negatives == 0:
        return None
    _, place, count = score.unique(return_inverse=True, return_counts=True)
    # Mean rank of equal scores, from 1; float32 could not add up those of a few thousand graphs.
    rank = (count.cumsum(0) - (count.double() - 1) / 2)[place]
    return (rank[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives)
