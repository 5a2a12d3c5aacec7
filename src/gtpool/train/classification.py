"""Metrics of classes and of binary tasks, from probabilities.

Each function takes probabilities ``p`` of one set of graphs, or of several of equal size along
leading axes, and returns one float64 value per set. ``y`` is the class of each graph, [..., G], -1
where missing, for probabilities of K classes, [..., G, K]. Or it has the shape of ``p``, with 0, 1
and NaN where missing, for T binary tasks, [..., G, T]; the value is then the mean over the tasks
for which the metric is defined. A value is NaN if the labels do not define it.

With two classes, F1, PR-AUC and the Brier score are those of the second class.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gtpool.ops.calibrate import decide

BINS = 15
"""Number of equal bins of the expected calibration error."""
_TINY = torch.finfo(torch.double).eps


def accuracy(p: Tensor, y: Tensor, threshold: Tensor | None = None) -> Tensor:
    """Return the share of graphs whose prediction is their label.

    Args:
        p: Probabilities; for classes without ``threshold`` also logits.
        y: Labels.
        threshold: As for ``gtpool.ops.calibrate.decide``.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])).item()
        0.5
    """
    predicted, label = _decisions(p, y, threshold)
    hits = (predicted == label).sum(-1).double() / (label >= 0).sum(-1)
    return _mean_over_tasks(hits, p, y)


def balanced_accuracy(p: Tensor, y: Tensor, threshold: Tensor | None = None) -> Tensor:
    """Return the mean over the classes of the share of their graphs that is found.

    It takes two classes among the labels; other classes without graphs are left out.

    Args:
        p: Probabilities.
        y: Labels.
        threshold: As for ``gtpool.ops.calibrate.decide``.

    Example:
        >>> p = torch.tensor([[0.4], [0.6], [0.9]])
        >>> balanced_accuracy(p, torch.tensor([[0.0], [0.0], [1.0]])).item()
        0.75
    """
    cells = _confusion(p, y, threshold)
    true = cells.sum(-1)
    recall = cells.diagonal(dim1=-2, dim2=-1) / true
    return _mean_over_tasks(recall.nanmean(-1).where(_has_two(true), torch.nan), p, y)


def mcc(p: Tensor, y: Tensor, threshold: Tensor | None = None) -> Tensor:
    """Return Matthews' correlation coefficient; 0 if all predictions are equal.

    Gorodkin, 2004, for several classes.

    Args:
        p: Probabilities.
        y: Labels, of two classes at least.
        threshold: As for ``gtpool.ops.calibrate.decide``.

    Example:
        >>> p = torch.tensor([[0.1], [0.2], [0.9], [0.8]])
        >>> mcc(p, torch.tensor([[0.0], [0.0], [1.0], [1.0]])).item()
        1.0
    """
    cells = _confusion(p, y, threshold)
    true, told, count = cells.sum(-1), cells.sum(-2), cells.sum((-1, -2))
    both = cells.diagonal(dim1=-2, dim2=-1).sum(-1) * count - (true * told).sum(-1)
    apart = (count.square() - told.square().sum(-1)) * (count.square() - true.square().sum(-1))
    value = torch.where(apart > 0, both / apart.sqrt(), 0.0)
    return _mean_over_tasks(value.where(_has_two(true), torch.nan), p, y)


def f1(p: Tensor, y: Tensor, threshold: Tensor | None = None) -> Tensor:
    """Return F1 of the second of two classes, or its mean over more classes.

    The mean is over the classes that occur among labels or predictions.

    Args:
        p: Probabilities.
        y: Labels; of two classes, the second must occur.
        threshold: As for ``gtpool.ops.calibrate.decide``.

    Example:
        >>> p = torch.tensor([[0.1], [0.6], [0.9], [0.3]])
        >>> f1(p, torch.tensor([[0.0], [0.0], [1.0], [1.0]])).item()
        0.5
    """
    cells = _confusion(p, y, threshold)
    true, told = cells.sum(-1), cells.sum(-2)
    each = 2 * cells.diagonal(dim1=-2, dim2=-1) / (true + told)
    value = each[..., 1].where(true[..., 1] > 0, torch.nan)
    return _mean_over_tasks(value if cells.size(-1) == 2 else each.nanmean(-1), p, y)


def average_precision(p: Tensor, y: Tensor) -> Tensor:
    """Return the area under the precision-recall curve as average precision; ties count as one.

    With two classes it is that of the second, with more the mean over classes against the rest.

    Args:
        p: Probabilities.
        y: Labels, of both kinds.

    Example:
        >>> p = torch.tensor([[0.1], [0.4], [0.3], [0.8]])
        >>> round(average_precision(p, torch.tensor([[0.0], [0.0], [1.0], [1.0]])).item(), 4)
        0.8333
    """
    p, y = one_vs_rest(p, y)
    label = y.mT
    known, positive = ~label.isnan(), label > 0.5
    score, absent = p.double().mT.contiguous(), -torch.inf
    counts, positives = known.sum(-1, keepdim=True), positive.sum(-1, keepdim=True)
    above, found = (
        torch.searchsorted(score.where(mask, absent).contiguous().sort().values, score)
        for mask in (known, positive)
    )
    total = label.size(-1)
    # Of what scores at least as high as a positive, the share that is positive.
    precision = (total - found).double() / (total - above).clamp(min=1)
    mean = (precision * positive).sum(-1) / positives.squeeze(-1)
    both = (positives > 0) & (positives < counts)
    return mean.where(both.squeeze(-1), torch.nan).nanmean(-1)


def log_loss(p: Tensor, y: Tensor) -> Tensor:
    """Return the mean of -log p of the label.

    Args:
        p: Probabilities; those below 2e-16 count as 2e-16.
        y: Labels.

    Example:
        >>> round(log_loss(torch.tensor([[0.5, 0.5]]), torch.tensor([1])).item(), 4)
        0.6931
    """
    p, label = p.double(), y if y.shape != p.shape else y.mT
    if y.shape == p.shape:
        of_label = torch.where(label > 0.5, p.mT, 1 - p.mT)
        known = ~label.isnan()
    else:
        of_label = p.gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        known = label >= 0
    return _mean_over_tasks(_mean_known(-of_label.clamp(min=_TINY).log(), known), p, y)


def brier(p: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared error of the probability of the second class.

    For more than two classes, the squared errors of all classes are added.

    Args:
        p: Probabilities.
        y: Labels.

    Example:
        >>> round(brier(torch.tensor([[0.8], [0.4]]), torch.tensor([[1.0], [0.0]])).item(), 4)
        0.1
    """
    share, label = one_vs_rest(p, y)
    error = (share.double() - label).square().mT
    each = _mean_known(error, ~label.mT.isnan())
    return each.nanmean(-1) if y.shape == p.shape else each.sum(-1)


def calibration_error(p: Tensor, y: Tensor) -> Tensor:
    """Return the expected calibration error over 15 equal bins of probability.

    It is the mean over the graphs of the difference between mean probability and frequency in their
    bin: of the predicted class, or of the label 1 of a binary task.

    Args:
        p: Probabilities.
        y: Labels.

    Example:
        >>> p = torch.tensor([[0.7], [0.7]])
        >>> round(calibration_error(p, torch.tensor([[1.0], [0.0]])).item(), 4)
        0.2
    """
    told, hit, known = reliability_pairs(p, y)
    place = (told * BINS).ceil().clamp(1, BINS)
    gaps = [
        ((told - hit) * (known & (place == number))).sum(-1).abs() for number in range(1, BINS + 1)
    ]
    return _mean_over_tasks(torch.stack(gaps).sum(0) / known.sum(-1), p, y)


def reliability_pairs(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a reliability diagram compares, [..., G] for classes, [..., T, G] for tasks.

    These are the probability of the predicted class, or of the label 1; whether it is the label
    (0 or 1); and whether the label is known.

    Args:
        p: Probabilities.
        y: Labels.
    """
    p = p.double()
    if y.shape == p.shape:
        return p.mT, (y.mT > 0.5).double(), ~y.mT.isnan()
    told, predicted = p.max(-1)
    return told, (predicted == y).double(), y >= 0


def one_vs_rest(p: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities and labels of each class against the rest, as binary tasks.

    Two classes become one task, that of the second. Binary tasks are returned as they are.

    Args:
        p: Probabilities.
        y: Labels.
    """
    if y.shape == p.shape:
        return p, y
    classes = p.size(-1)
    label = one_hot(y.clamp(min=0), classes).double().where((y >= 0).unsqueeze(-1), torch.nan)
    return (p[..., 1:], label[..., 1:]) if classes == 2 else (p, label)


def _decisions(p: Tensor, y: Tensor, threshold: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return predicted and true labels, -1 where missing: [..., G], or [..., T, G] for tasks."""
    if y.shape != p.shape:
        return decide(p, "classes", threshold), y
    label = y.mT
    return decide(p, "binary", threshold).mT, label.nan_to_num(-1.0).long()


def _confusion(p: Tensor, y: Tensor, threshold: Tensor | None) -> Tensor:
    """Return the confusion matrix, true by predicted: [..., K, K], or [..., T, 2, 2] for tasks."""
    predicted, label = _decisions(p, y, threshold)
    classes = 2 if y.shape == p.shape else p.size(-1)
    true = one_hot(label.clamp(min=0), classes) * (label >= 0).unsqueeze(-1)
    return true.double().mT @ one_hot(predicted, classes).double()


def _has_two(true: Tensor) -> Tensor:
    """Return whether at least two classes have graphs."""
    return (true > 0).sum(-1) > 1


def _mean_known(each: Tensor, known: Tensor) -> Tensor:
    """Return the mean over the last axis of what is known."""
    return each.where(known, 0.0).sum(-1) / known.sum(-1)


def _mean_over_tasks(each: Tensor, p: Tensor, y: Tensor) -> Tensor:
    """Return the mean over binary tasks for which there is a value; of classes the value itself."""
    return each.nanmean(-1) if y.shape == p.shape else each
