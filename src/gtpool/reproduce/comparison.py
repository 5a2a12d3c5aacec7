"""Statistics of the studies: tests of methods on the same test parts, and average ranks. No torch.

``compare`` follows "Practically significant method comparison protocols for machine learning in
small molecule drug discovery" (Ash et al., 2024): repeated-measures ANOVA and Tukey's HSD where the
variances are alike, else Friedman's test and Conover's; a smallest difference that matters beside
significance.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import combinations
from math import inf, sqrt
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.float64]

ALPHA = 0.05
"""Level of each family of tests."""


class Pair(NamedTuple):
    """Difference of two methods, the better one first."""

    first: str
    second: str
    difference: float
    """Mean over the blocks of first minus second."""
    low: float
    """Lower end of the simultaneous interval of the difference; NaN for rank tests."""
    high: float
    """Upper end of the same."""
    p: float
    """P-value, adjusted for the number of pairs; 1 if mean and ranks favour different methods."""


class Comparison(NamedTuple):
    """Comparison of methods over blocks: folds, repeats or datasets."""

    test: str
    """Name of the tests."""
    p: float
    """P-value of the hypothesis that all methods are equal."""
    blocks: int
    """Number of blocks on which all methods were measured; of unpaired scores the smallest."""
    means: dict[str, float]
    """Mean of each method over the blocks, from the best to the worst."""
    pairs: tuple[Pair, ...]
    alpha: float = ALPHA
    """Level of the tests and of the intervals."""

    @property
    def best(self) -> tuple[str, ...]:
        """The best method and those that cannot be told from it at ``alpha``."""
        first = next(iter(self.means))
        alike = (pair.second for pair in self.pairs if pair.first == first and pair.p > self.alpha)
        return first, *alike

    def verdict(self, pair: Pair, smallest: float) -> str:
        """Return what a pair's interval says about a smallest difference that matters.

        Args:
            pair: One of ``pairs``.
            smallest: Smallest difference that matters, in units of the scores.
        """
        if pair.p <= self.alpha:
            return "better" if pair.difference >= smallest else "better, by less than matters"
        equal = pair.high <= smallest and pair.low >= -smallest
        return "equal for practical purposes" if equal else "cannot tell"


def compare(
    scores: Mapping[str, Sequence[float]],
    *,
    overlap: float = 0.0,
    higher_is_better: bool = True,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare methods that were measured on the same blocks.

    Args:
        scores: Scores by method; the i-th of each is that of block i.
        overlap: Ratio of tested to other graphs if the blocks are folds of one dataset, once or
            repeated: 1/4 for 5 folds. Their training parts overlap, so the variance of a mean
            difference is (1/n + overlap) instead of 1/n times that of a block (Nadeau and Bengio,
            2003). Graphs of the validation part count as others. 0 for independent blocks.
        higher_is_better: Direction of the scores.
        alpha: Level of the tests; divide it by the number of tables that are compared together.

    Example:
        >>> made = compare({"a": [0.9, 0.8, 0.9], "b": [0.7, 0.6, 0.6], "c": [0.9, 0.8, 0.8]})
        >>> made.test, made.best
        ("repeated-measures ANOVA, Tukey's HSD", ('a', 'c'))
    """
    names = list(scores)
    lengths = {len(scores[name]) for name in names}
    if len(names) < 2 or len(lengths) != 1 or min(lengths) < 2:
        raise ValueError(
            "a comparison needs two methods and two blocks on which each was measured, got "
            + ", ".join(f"{name}: {len(scores[name])}" for name in names)
        )
    table = np.array([scores[name] for name in names], float).T  # [blocks, methods]
    if not np.isfinite(table).all():
        raise ValueError("a score is missing or infinite; leave out its block or its method")
    sign = 1.0 if higher_is_better else -1.0
    order = np.argsort(-sign * table.mean(0), kind="stable")
    table, names = sign * table[:, order], [names[at] for at in order]
    test = _tukey if _variances_alike(table) else _conover
    label, p, adjusted, half = test(table, overlap, alpha)
    means = table.mean(0)
    pairs = tuple(
        Pair(names[i], names[j], gap, gap - half, gap + half, float(adjusted[i, j]))
        for i, j in combinations(range(len(names)), 2)
        for gap in (float(means[i] - means[j]),)
    )
    by_name = dict(zip(names, (sign * means).tolist(), strict=True))
    return Comparison(label, p, len(table), by_name, pairs, alpha)


def compare_unpaired(
    scores: Mapping[str, Sequence[float]],
    *,
    higher_is_better: bool = True,
    alpha: float = ALPHA,
) -> Comparison:
    """Compare methods whose scores are not paired, such as seeds on a single split.

    One-way ANOVA, and Tukey's HSD with Kramer's extension to unequal numbers of scores.

    Args:
        scores: Scores by method; their numbers may differ.
        higher_is_better: Direction of the scores.
        alpha: Level of the tests; divide it by the number of tables that are compared together.

    Example:
        >>> made = compare_unpaired({"a": [0.9, 0.8, 0.85], "b": [0.2, 0.3], "c": [0.8, 0.9]})
        >>> made.best
        ('a', 'c')
    """
    if len(scores) < 2 or min(map(len, scores.values())) < 2:
        raise ValueError(
            "a comparison needs two methods and two scores of each, got "
            + ", ".join(f"{name}: {len(scores[name])}" for name in scores)
        )
    sign = 1.0 if higher_is_better else -1.0
    named = {name: sign * np.array(values, float) for name, values in scores.items()}
    if not all(np.isfinite(values).all() for values in named.values()):
        raise ValueError("a score is missing or infinite; leave it or its method out")
    names = sorted(named, key=lambda name: -named[name].mean())
    means = [float(named[name].mean()) for name in names]
    counts = np.array([len(named[name]) for name in names])
    freedom = int(counts.sum()) - len(names)
    rest = np.concatenate([named[name] - named[name].mean() for name in names])
    error = float((rest**2).sum() / freedom)
    label, pairs = "one-way ANOVA, Tukey-Kramer", list(combinations(range(len(names)), 2))
    gaps = np.array([means[i] - means[j] for i, j in pairs])
    if _is_rounding(rest, np.concatenate(list(named.values()))):
        p, half, whole = (gaps == 0).astype(float), np.zeros(len(pairs)), float(not gaps.any())
    else:
        scales = np.array([sqrt(error / 2 * (1 / counts[i] + 1 / counts[j])) for i, j in pairs])
        p = stats.studentized_range.sf(gaps / scales, len(names), freedom)
        half = float(stats.studentized_range.ppf(1 - alpha, len(names), freedom)) * scales
        whole = float(stats.f_oneway(*(named[name] for name in names)).pvalue)
    found = tuple(
        Pair(names[i], names[j], *map(float, (gap, gap - width, gap + width, value)))
        for (i, j), gap, width, value in zip(pairs, gaps, half, p, strict=True)
    )
    by_name = {name: sign * mean for name, mean in zip(names, means, strict=True)}
    return Comparison(label, whole, int(counts.min()), by_name, found, alpha)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values of several tests, adjusted by Holm's method.

    Example:
        >>> [round(value, 9) for value in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    factors = np.arange(len(values), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1)
    return adjusted.tolist()


_Test = tuple[str, float, Scores, float]
"""Name, p-value of the whole, adjusted p-values above the diagonal, half width of intervals."""


def _variances_alike(table: Scores) -> bool:
    """Whether Levene's test, around the median, does not tell the variances of methods apart.

    What all methods of a block share is removed by its median: it hides differences of variance.
    Two methods are always alike, since a paired test has a single variance.
    """
    rest = table - table.mean(0)
    rest -= np.median(rest, axis=1, keepdims=True)
    return _is_rounding(rest, table) or not stats.levene(*rest.T, center="median").pvalue < ALPHA


def _tukey(table: Scores, overlap: float, alpha: float) -> _Test:
    """Repeated-measures ANOVA and Tukey's HSD, with the correction for overlapping blocks."""
    blocks, methods = table.shape
    grand, means = table.mean(), table.mean(0)
    rest = table - means - table.mean(1, keepdims=True) + grand
    freedom = (blocks - 1) * (methods - 1)
    between = float(((means - grand) ** 2).sum() / (methods - 1))
    name = "repeated-measures ANOVA, Tukey's HSD"
    gaps = np.abs(means[:, None] - means)
    if _is_rounding(rest, table):
        same = np.isclose(gaps, 0, rtol=0, atol=_ROUNDING * np.abs(table).max())
        return name, float(same.all()), same.astype(float), 0.0
    error = float((rest**2).sum() / freedom) * (1 / blocks + overlap)
    whole = float(stats.f.sf(between / error, methods - 1, freedom))
    adjusted = np.ones_like(gaps)
    upper = np.triu_indices(methods, 1)
    adjusted[upper] = stats.studentized_range.sf(gaps[upper] / sqrt(error), methods, freedom)
    width = float(stats.studentized_range.ppf(1 - alpha, methods, freedom)) * sqrt(error)
    return name, whole, adjusted, width


def _conover(table: Scores, overlap: float, alpha: float) -> _Test:
    """Friedman's test and Conover's test of rank sums, p-values adjusted by Holm's method.

    A pair counts only where Friedman's test rejects too, and where the method of the higher mean,
    the first of the pair, has the higher ranks.
    """
    del alpha  # rank tests have no intervals
    blocks, methods = table.shape
    ranks = stats.rankdata(table, axis=1)
    sums = ranks.sum(0)
    total = (ranks**2).sum()
    centre = blocks * methods * (methods + 1) ** 2 / 4
    spread, correction = total - centre, 1 + blocks * overlap
    name = "Friedman's test, Conover's test with Holm's correction"
    if spread == 0:
        return name, 1.0, np.ones((methods, methods)), float("nan")
    chi = (methods - 1) * ((sums**2).sum() - blocks * centre) / spread / correction
    whole = float(stats.chi2.sf(chi, methods - 1))
    freedom = (blocks - 1) * (methods - 1)
    rest = max(total - (sums**2).sum() / blocks, 0.0)
    error = sqrt(2 * blocks * rest / freedom * correction)
    gaps = np.maximum(sums[:, None] - sums, 0)
    t = np.divide(gaps, error, out=np.where(gaps > 0, np.inf, 0.0), where=error > 0)
    p, upper = 2 * stats.t.sf(t, freedom), np.triu_indices(methods, 1)
    adjusted = np.ones_like(p)
    adjusted[upper] = np.maximum(holm(p[upper].tolist()), whole)
    return name, whole, adjusted, float("nan")


_ROUNDING = 1e-12
"""Relative size of what is left of equal numbers after sums."""


def _is_rounding(rest: Scores, table: Scores) -> bool:
    return bool(np.abs(rest).max() <= _ROUNDING * np.abs(table).max())


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
