"""Metrics of each kind of task, by name; ROC-AUC over tasks with missing labels.

Each function takes one set of graphs, or several of equal size along leading axes, and returns one
value per set. So every metric can choose the epoch of a run alone and of runs side by side.
"""

from collections.abc import Callable
from math import isnan
from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.ops.average import probabilities
from gtpool.spec import did_you_mean
from gtpool.train.classification import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier,
    calibration_error,
    f1,
    log_loss,
    mcc,
    one_vs_rest,
)


class Metric(NamedTuple):
    """A metric function, its name, its direction and what it takes."""

    function: Callable[..., Tensor]
    """Takes probabilities or values, and targets."""
    name: str
    higher_is_better: bool
    task: str
    """The kind of task: "classes", "binary" or "regression"."""
    by_order: bool = False
    """Whether logits have the value of their probabilities."""
    decides: bool = False
    """Whether the function takes the threshold of decisions, too."""

    def batched(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the metric of each set of graphs.

        Args:
            logits: Logits, or predicted values, [..., G, K].
            y: Targets, [..., G] or [..., G, K]; -1 or NaN where missing.
        """
        direct = self.by_order or self.task == "regression"
        return self.function(logits if direct else probabilities(logits, self.task), y)

    def measure(self, logits: Tensor, y: Tensor) -> float:
        """Return the metric of one set of graphs."""
        return self.batched(logits, y).item()

    def of_outputs(self, p: Tensor, y: Tensor, threshold: Tensor | None = None) -> float:
        """Return the metric of probabilities, or of predicted values.

        Args:
            p: Probabilities or values, [G, K].
            y: Targets, as for ``batched``.
            threshold: Probability from which on a task is 1; see ``gtpool.ops.calibrate.decide``.
        """
        more = (threshold,) if self.decides else ()
        return self.function(p, y, *more).item()

    def by_task(self, p: Tensor, y: Tensor, threshold: Tensor | None = None) -> list[float | None]:
        """Return the metric of each task; None if its labels do not define it.

        Args:
            p: Probabilities or values, one column per task, [graphs, tasks].
            y: Targets of the same shape, NaN where missing.
            threshold: Probability from which on each task is 1, [tasks].
        """
        more = (None if threshold is None else threshold.view(-1, 1, 1),) if self.decides else ()
        values = self.function(p.T.unsqueeze(-1), y.T.unsqueeze(-1), *more)
        return [None if isnan(value) else value for value in values.tolist()]


def metric_of(task: str, name: str | None = None) -> Metric:
    """Return a metric of a kind of task by its name; a ValueError lists those that fit.

    Args:
        task: "classes", "binary" or "regression".
        name: A name; None for the main metric of the task.

    Example:
        >>> metric_of("classes", "mcc").higher_is_better, metric_of("regression").name
        (True, 'rmse')
    """
    known = TASK_METRICS[task]
    if name is None:
        return METRICS[task]
    if name not in known:
        kind = {"classes": "classes", "binary": "binary tasks"}.get(task, task)
        raise ValueError(
            f"metric {name!r} does not fit {kind}{did_you_mean(name, known)} "
            f"(those that do: {', '.join(known)})"
        )
    return known[name]


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


def class_roc_auc(p: Tensor, y: Tensor) -> Tensor:
    """Area under the ROC curve of each class against the rest, averaged over the classes.

    Args:
        p: Probabilities of the classes, [..., G, K].
        y: Class of each graph, -1 where missing, [..., G].

    Example:
        >>> class_roc_auc(torch.tensor([[0.9, 0.1], [0.4, 0.6]]), torch.tensor([0, 1])).item()
        1.0
    """
    return roc_auc(*one_vs_rest(p, y))


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


def _classification(task: str) -> list[Metric]:
    return [
        Metric(balanced_accuracy, "balanced_accuracy", True, task, decides=True),
        Metric(mcc, "mcc", True, task, decides=True),
        Metric(f1, "f1", True, task, decides=True),
        Metric(average_precision, "pr_auc", True, task),
        Metric(log_loss, "log_loss", False, task),
        Metric(brier, "brier", False, task),
        Metric(calibration_error, "ece", False, task),
    ]


_ALL: dict[str, list[Metric]] = {
    "classes": [
        Metric(accuracy, "accuracy", True, "classes", by_order=True, decides=True),
        Metric(class_roc_auc, "roc_auc", True, "classes"),
        *_classification("classes"),
    ],
    "binary": [
        Metric(roc_auc, "roc_auc", True, "binary", by_order=True),
        Metric(accuracy, "accuracy", True, "binary", decides=True),
        *_classification("binary"),
    ],
    "regression": [
        Metric(rmse, "rmse", False, "regression"),
        Metric(mae, "mae", False, "regression"),
        Metric(r2, "r2", True, "regression"),
        Metric(spearman, "spearman", True, "regression"),
    ],
}
TASK_METRICS: dict[str, dict[str, Metric]] = {
    task: {metric.name: metric for metric in metrics} for task, metrics in _ALL.items()
}
"""All metrics by task and name; the first is the main one."""
METRICS: dict[str, Metric] = {task: metrics[0] for task, metrics in _ALL.items()}
"""Main metric by task."""
