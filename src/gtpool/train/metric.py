"""Metrics: accuracy, ROC-AUC over tasks with missing labels, RMSE.

Each function takes one set of graphs, or several of equal size along leading axes, and returns one
value per set.
"""

from collections.abc import Callable
from math import isnan
from typing import NamedTuple

import torch
from torch import Tensor


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Accuracy; graphs of class -1 are ignored.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])).item()
        0.5
    """
    return (logits.argmax(-1) == y).sum(-1).double() / (y >= 0).sum(-1)


def roc_auc(logits: Tensor, y: Tensor) -> Tensor:
    """Area under the ROC curve, averaged over the tasks that have both classes (OGB's rule).

    Missing labels are NaN and are ignored. The result is NaN if no task has both classes.

    Example:
        >>> nan = float("nan")
        >>> y = torch.tensor([[1.0, 1.0], [0.0, nan], [1.0, 1.0]])
        >>> roc_auc(torch.tensor([[0.9, 0.1], [0.5, 0.2], [0.4, 0.3]]), y).item()
        0.5
    """
    label = y.mT
    known = ~label.isnan()
    score = torch.where(known, logits.mT, float("inf")).contiguous()  # missing labels rank last
    order, counts = score.sort().values, known.sum(-1)
    below = torch.searchsorted(order, score)
    up_to = torch.searchsorted(order, score, right=True).minimum(counts.unsqueeze(-1))
    positive = known & (label > 0.5)
    positives = positive.sum(-1)
    pairs = positives * (counts - positives)
    # In integers: twice the sum of the ranks of the positives, with mean ranks for ties.
    ranks = ((below + up_to + 1) * positive).sum(-1)
    areas = (ranks - positives * (positives + 1)).double() / (2 * pairs)
    both = pairs > 0
    return areas.where(both, 0).sum(-1) / both.sum(-1)


def rmse(outputs: Tensor, y: Tensor) -> Tensor:
    """Root of the mean squared error over the known targets.

    Example:
        >>> rmse(torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [float("nan")]])).item()
        0.0
    """
    known = ~y.isnan()
    error = torch.where(known, outputs.double() - y, 0)
    return (error.square().sum((-2, -1)) / known.sum((-2, -1))).sqrt()


class Metric(NamedTuple):
    """A metric function, its name and its direction."""

    batched: Callable[[Tensor, Tensor], Tensor]
    name: str
    higher_is_better: bool

    def measure(self, logits: Tensor, y: Tensor) -> float:
        """Return the metric of one set of graphs."""
        return self.batched(logits, y).item()

    def by_task(self, logits: Tensor, y: Tensor) -> list[float | None]:
        """Return the metric of each task; None if it has no label or only one class.

        Args:
            logits: One column per task, [graphs, tasks].
            y: Targets of the same shape, NaN where missing.
        """
        values = self.batched(logits.T.unsqueeze(-1), y.T.unsqueeze(-1))
        return [None if isnan(value) else value for value in values.tolist()]


METRICS: dict[str, Metric] = {
    "classes": Metric(accuracy, "accuracy", True),
    "binary": Metric(roc_auc, "roc_auc", True),
    "regression": Metric(rmse, "rmse", False),
}
"""Metric by task."""
