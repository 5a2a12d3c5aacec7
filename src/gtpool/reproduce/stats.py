"""Corrected paired t-test over cross-validation folds, and average ranks over datasets."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import copysign, inf, sqrt
from statistics import fmean, variance
from typing import NamedTuple

from scipy import stats

from gtpool.study.summarize import ScoreGrid


class PairedTest(NamedTuple):
    """Result of the corrected t-test."""

    mean: float
    t: float
    p: float
    """Two-sided p-value."""
    n: int
    """Number of pairs."""
    error: float
    """Standard error of the mean difference."""

    def half_width(self, alpha: float) -> float:
        """Return half the width of the interval of the mean difference at level 1 - alpha."""
        return float(stats.t.ppf(1 - alpha / 2, self.n - 1)) * self.error


def corrected_t_test(differences: Sequence[float], ratio: float) -> PairedTest:
    """Return Nadeau and Bengio's corrected t-test that the mean difference over folds is 0.

    Folds share most training graphs, so their differences are not independent:
    t = mean / sqrt((1/J + n_test / n_train) · variance), with J - 1 degrees of freedom
    (Nadeau and Bengio, Inference for the generalization error, Machine Learning 52, 2003).

    Args:
        differences: One per fold, at least two.
        ratio: Ratio of test to training graphs, n_test / n_train.

    Example:
        >>> test = corrected_t_test([1.0, 2.0, 3.0, 4.0], ratio=0.25)
        >>> round(test.t, 4), round(test.p, 4)
        (2.7386, 0.0714)
    """
    mean, count = fmean(differences), len(differences)
    error = sqrt((1 / count + ratio) * variance(differences))
    t = mean / error if error > 0 else copysign(inf, mean) if mean else 0.0
    return PairedTest(mean, t, float(2 * stats.t.sf(abs(t), count - 1)), count, error)


def fold_differences(first: ScoreGrid, second: ScoreGrid) -> list[float]:
    """Return the difference of each fold, between means over the complete seeds of either side.

    Seeds repeat the same folds and are not additional pairs; seeds of two methods are unrelated.
    Each side needs a complete seed.
    """
    pairs = zip(fold_means(first), fold_means(second), strict=True)
    return [one - other for one, other in pairs]


def fold_means(laid: ScoreGrid) -> list[float]:
    """Return the mean over complete seeds for each fold."""
    whole = [[value for value in line if value is not None] for line in laid.values]
    whole = [line for line in whole if len(line) == len(laid.folds)]
    return [fmean(values) for values in zip(*whole, strict=True)]


class Ranking(NamedTuple):
    """Average rank of each method, from the best to the worst."""

    ranks: dict[str, float]
    datasets: tuple[str, ...]
    """Datasets on which every method of ``ranks`` has a value."""
    left_out: tuple[str, ...]
    """Methods without a value on one of these datasets."""
    distance: float
    """Nemenyi's critical difference at 0.05."""

    @property
    def cliques(self) -> list[tuple[str, str]]:
        """First and last method of each maximal group without significant differences."""
        names, ranks = list(self.ranks), list(self.ranks.values())
        found: list[tuple[int, int]] = []
        for first, rank in enumerate(ranks):
            last = max(at for at, other in enumerate(ranks) if other - rank <= self.distance)
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return [(names[first], names[last]) for first, last in found]


def rank_methods(
    figures: Mapping[str, Mapping[str, float]], needed: Collection[str] = ()
) -> Ranking | None:
    """Return average ranks of methods on common datasets; 1 is the best.

    The datasets are chosen so that, with the methods that have values on all of them, the full
    table is largest; ties go to more datasets. Returns None if no two methods can be compared.

    Args:
        figures: Values by method and dataset; higher is better.
        needed: Methods that must be included.

    Example:
        >>> made = rank_methods({"a": {"x": 3, "y": 1}, "b": {"x": 2, "y": 1}, "c": {"x": 1}})
        >>> made.ranks, made.datasets, made.left_out
        ({'a': 1.25, 'b': 1.75}, ('x', 'y'), ('c',))
    """
    datasets = list(dict.fromkeys(name for line in figures.values() for name in line))
    blocks = [
        (chosen, methods)
        for size in range(len(datasets), 0, -1)
        for chosen in combinations(datasets, size)
        if len(methods := _methods_with_all(figures, chosen)) > 1 and set(needed) <= set(methods)
    ]
    if not blocks:
        return None
    chosen, methods = max(blocks, key=lambda block: len(block[0]) * len(block[1]))
    columns = [_ranked({name: figures[name][dataset] for name in methods}) for dataset in chosen]
    means = {name: fmean(column[name] for column in columns) for name in methods}
    return Ranking(
        dict(sorted(means.items(), key=lambda item: item[1])),
        chosen,
        tuple(name for name in figures if name not in methods),
        critical_difference(len(methods), len(chosen)),
    )


@cache
def critical_difference(methods: int, datasets: int) -> float:
    """Return the critical difference of average ranks by Nemenyi's test at 0.05.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    quantile = float(stats.studentized_range.ppf(0.95, methods, inf))
    return quantile * sqrt(methods * (methods + 1) / (12 * datasets))


def _methods_with_all(
    figures: Mapping[str, Mapping[str, float]], datasets: Iterable[str]
) -> list[str]:
    wanted = set(datasets)
    return [name for name, line in figures.items() if wanted <= line.keys()]


def _ranked(values: Mapping[str, float]) -> dict[str, float]:
    """Return ranks from the highest value; ties get the mean rank."""
    return {
        name: sum(other > value for other in values.values())
        + (sum(other == value for other in values.values()) + 1) / 2
        for name, value in values.items()
    }
