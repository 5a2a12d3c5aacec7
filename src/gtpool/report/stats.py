"""A paired test over folds whose training sets overlap."""

from collections.abc import Sequence
from math import atan, copysign, cos, inf, pi, sin, sqrt
from statistics import fmean, variance
from typing import NamedTuple

from gtpool.report.cells import Grid


class Paired(NamedTuple):
    """What the test says of a difference."""

    mean: float
    t: float
    p: float
    """Two-sided."""
    n: int
    """Pairs."""


def corrected_test(differences: Sequence[float], ratio: float) -> Paired:
    """Test whether a mean difference over folds is 0, by Nadeau and Bengio's corrected t.

    The folds share most of their training graphs, so that their differences are no independent
    draws; t = mean / sqrt((1/J + n_test / n_train) · variance), with J - 1 degrees of freedom
    (Nadeau and Bengio, Inference for the generalization error, Machine Learning 52, 2003).

    Args:
        differences: One a fold, two at least.
        ratio: Test graphs for each training graph, n_test / n_train.

    Example:
        >>> test = corrected_test([1.0, 2.0, 3.0, 4.0], ratio=0.25)
        >>> round(test.t, 4), round(test.p, 4)
        (2.7386, 0.0714)
    """
    mean, count = fmean(differences), len(differences)
    error = sqrt((1 / count + ratio) * variance(differences))
    t = mean / error if error > 0 else copysign(inf, mean) if mean else 0.0
    return Paired(mean, t, student_p(t, count - 1), count)


def fold_differences(first: Grid, second: Grid) -> list[float]:
    """Give the difference of each fold, between the means over the whole seeds of either side.

    Seeds repeat the same folds and are no further pairs; those of two methods have nothing to do
    with each other. Each side needs a whole seed.
    """
    pairs = zip(_by_fold(first), _by_fold(second), strict=True)
    return [one - other for one, other in pairs]


def student_p(t: float, freedom: int) -> float:
    """Give the probability that Student's t is farther from 0 than this, on either side.

    The incomplete beta function has a closed form at whole degrees of freedom (Abramowitz and
    Stegun, 26.7.3 and 26.7.4).

    Example:
        >>> round(student_p(2.262157, 9), 6), student_p(0, 3)
        (0.05, 1.0)
    """
    angle = atan(abs(t) / sqrt(freedom))
    odd = freedom % 2
    term = total = cos(angle) ** odd  # cos θ, or 1
    for power in range(2 + odd, freedom - 1, 2):
        term *= (power - 1) / power * cos(angle) ** 2
        total += term
    total *= sin(angle)
    if odd:
        total = 2 / pi * (angle + (total if freedom > 1 else 0.0))
    return max(0.0, 1 - total)


def _by_fold(laid: Grid) -> list[float]:
    """Average the whole seeds, fold by fold."""
    whole = [[value for value in line if value is not None] for line in laid.values]
    whole = [line for line in whole if len(line) == len(laid.folds)]
    return [fmean(values) for values in zip(*whole, strict=True)]
