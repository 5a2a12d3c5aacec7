"""From probabilities to what is told: temperature, decisions by a threshold, conformal sets.

Temperatures: Guo et al., "On calibration of modern neural networks", ICML 2017. Conformal sets by
the probability of a label: Sadinle et al., "Least ambiguous set-valued classifiers with bounded
error levels", JASA 2019. Intervals by absolute residuals: Lei et al., "Distribution-free predictive
inference for regression", JASA 2018.

``y`` is the class of each graph, [G], for probabilities of K classes, [G, K]; 0, 1 and NaN where
missing for binary tasks, [G, T]; or values, [G, T]. A dataset of classes has one target here.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

_SMALLEST = 1e-12  # probability in a log loss
_HOTTEST = math.log(10)  # temperatures are from 1/10 to 10
_STEPS = 50  # of a bisection


def decide(p: Tensor, task: str, threshold: Tensor | None = None) -> Tensor:
    """Return the predicted class of each graph, [..., G], or 0 and 1 by binary task, [..., G, T].

    Args:
        p: Probabilities, [..., G, K] or [..., G, T].
        task: "classes" or "binary".
        threshold: Probability from which on a binary task is 1, one for each task, or the second of
            two classes is predicted. By default 0.5, and the most probable class.

    Example:
        >>> import torch
        >>> p = torch.tensor([[0.6, 0.4]])
        >>> decide(p, "classes").item(), decide(p, "classes", torch.tensor([0.3])).item()
        (0, 1)
    """
    if task == "classes" and threshold is None:
        return p.argmax(-1)
    least = p.new_tensor([0.5]) if threshold is None else threshold.to(p)
    return (p[..., 1] >= least[0]).long() if task == "classes" else (p >= least).long()


def logits_of(p: Tensor, task: str) -> Tensor:
    """Return logits of probabilities, in float64; they are infinite at 0 and 1.

    Args:
        p: Probabilities, [..., K] or [..., T].
        task: "classes" or "binary".
    """
    p = p.double()
    return p.log() if task == "classes" else p.log() - (-p).log1p()


def fit_temperature(p: Tensor, y: Tensor, task: str) -> Tensor:
    """Return the temperature of each target, from 1/10 to 10, with the lowest log loss, [T].

    Logits are divided by it. It is 1 where nothing has a lower loss than the probabilities as they
    are, or where all labels of a target are the same.

    Args:
        p: Probabilities of at least one graph, [G, K] or [G, T].
        y: Labels.
        task: "classes" or "binary".

    Example:
        >>> p = torch.tensor([[0.99, 0.01], [0.99, 0.01], [0.01, 0.99], [0.01, 0.99]])
        >>> fit_temperature(p, torch.tensor([0, 1, 1, 1]), "classes").item() > 2
        True
    """
    z, label = label_shares(p, task).clamp(min=_SMALLEST).log(), labels_of(y, task)
    known = label >= 0
    right = _of_label(z, label)
    # The loss is convex in the inverse of the temperature: bisect the sign of its slope.
    low = z.new_full(label.shape[1:], -_HOTTEST)
    high = -low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        scaled = middle.exp().unsqueeze(-1) * z
        slope = ((scaled.softmax(-1) * z).sum(-1) - right).where(known, 0).sum(0)
        low, high = middle.where(slope < 0, low), high.where(slope < 0, middle)
    inverse = ((low + high) / 2).exp()
    before, after = (
        _of_label((factor * z).log_softmax(-1), label).where(known, 0).sum(0)
        for factor in (1, inverse.unsqueeze(-1))
    )
    several = label.where(known, z.size(-1)).amin(0) < label.amax(0)
    return (1 / inverse).where(several & (after > before), 1.0)


def nonconformity(p: Tensor, y: Tensor, task: str) -> Tensor:
    """Return how badly each target is predicted, [G, T]; NaN where missing.

    It is 1 - the probability of the label, or the absolute residual of a value.

    Args:
        p: Probabilities or values, [G, K] or [G, T].
        y: Labels or values.
        task: "classes", "binary" or "regression".
    """
    if task == "regression":
        return (p.double() - y).abs()
    label = labels_of(y, task)
    return (1 - _of_label(label_shares(p, task), label)).where(label >= 0, torch.nan)


def prediction_sets(p: Tensor, task: str, limit: Tensor) -> Tensor:
    """Return whether each label is in the conformal set, [G, 1, K] or [G, T, 2].

    These are the labels whose nonconformity is at most the limit, and always the most probable one.

    Args:
        p: Probabilities, [G, K] or [G, T].
        task: "classes" or "binary".
        limit: Largest nonconformity of each target, [T].
    """
    shares = label_shares(p, task)
    likely = one_hot(shares.argmax(-1), shares.size(-1)).bool()
    return (1 - shares <= limit.unsqueeze(-1)) | likely


def label_shares(p: Tensor, task: str) -> Tensor:
    """Return the probability of each label of each target, [G, 1, K] or [G, T, 2], in float64."""
    p = p.double()
    return p.unsqueeze(-2) if task == "classes" else torch.stack([1 - p, p], -1)


def labels_of(y: Tensor, task: str) -> Tensor:
    """Return the label of each target as an index, [G, T]; -1 where missing."""
    return y.unsqueeze(-1) if task == "classes" else y.nan_to_num(-1.0).long()


def _of_label(each: Tensor, label: Tensor) -> Tensor:
    """Return what belongs to the label of each target, [G, T]."""
    return each.gather(-1, label.clamp(min=0).unsqueeze(-1)).squeeze(-1)
