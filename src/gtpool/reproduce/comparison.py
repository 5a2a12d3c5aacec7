"""Comparison of several methods on the same test parts, corrected for the number of pairs.

Follows "Practically significant method comparison protocols for machine learning in small molecule
drug discovery" (Ash et al., 2024): repeated-measures ANOVA and Tukey's HSD where the variances are
alike, else Friedman's test and Conover's; a smallest difference that matters beside significance.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Scores = NDArray[np.float64]

ALPHA = 0.05
"""Level of each family of tests."""
MAX_VARIANCE_RATIO = 9.0
"""Above this ratio of the largest to the smallest variance, ranks are compared."""


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
    """P-value, adjusted for the number of pairs."""


class Comparison(NamedTuple):
    """Comparison of methods over blocks: folds, repeats or datasets."""

    test: str
    """Name of the tests."""
    p: float
    """P-value of the hypothesis that all methods are equal."""
    blocks: int
    """Number of blocks on which all methods were measured."""
    means: dict[str, float]
    """Mean of each method over the blocks, from the best to the worst."""
    pairs: tuple[Pair, ...]
    alpha: float = ALPHA
    """Level of the tests and of the intervals."""

    @property
    def best(self) -> tuple[str, ...]:
        """The best method and those that cannot be told from it at ``alpha``."""
        first = next(iter(self.means))
        alike = [pair.second for pair in self.pairs if pair.first == first and pair.p > self.alpha]
        if self.p > self.alpha:
            alike = [name for name in self.means if name != first]
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
        overlap: Ratio of test to training graphs if the blocks are folds of one dataset. Their
            training parts overlap, so the variance of a mean difference is (1/n + overlap) instead
            of 1/n times that of a block (Nadeau and Bengio, 2003). 0 for independent blocks.
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
    table, names = table[:, order], [names[at] for at in order]
    test = _tukey if _variances_alike(table) else _conover
    label, p, adjusted, half = test(table, overlap, alpha)
    means = table.mean(0)
    pairs = tuple(
        Pair(names[i], names[j], gap, gap - half, gap + half, float(adjusted[i, j]))
        for i, j in combinations(range(len(names)), 2)
        for gap in (float(sign * (means[i] - means[j])),)
    )
    by_name = dict(zip(names, means.tolist(), strict=True))
    return Comparison(label, p, len(table), by_name, pairs, alpha)


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
    """Whether the variances of the methods differ by at most ``MAX_VARIANCE_RATIO``."""
    variances = table.var(0, ddof=1)
    return bool(variances.max() <= MAX_VARIANCE_RATIO * variances.min())


def _tukey(table: Scores, overlap: float, alpha: float) -> _Test:
    """Repeated-measures ANOVA and Tukey's HSD, with the correction for overlapping blocks."""
    blocks, methods = table.shape
    grand, means = table.mean(), table.mean(0)
    rest = table - means - table.mean(1, keepdims=True) + grand
    freedom = (blocks - 1) * (methods - 1)
    error = float((rest**2).sum() / freedom)
    between = float(((means - grand) ** 2).sum() / (methods - 1))
    share = 1 / blocks + overlap
    name = "repeated-measures ANOVA, Tukey's HSD"
    gaps = np.abs(means[:, None] - means)
    if error == 0:
        return name, float(between == 0), (gaps == 0).astype(float), 0.0
    whole = float(stats.f.sf(between / (share * error), methods - 1, freedom))
    scale = sqrt(share * error)
    adjusted = np.ones_like(gaps)
    upper = np.triu_indices(methods, 1)
    adjusted[upper] = stats.studentized_range.sf(gaps[upper] / scale, methods, freedom)
    width = float(stats.studentized_range.ppf(1 - alpha, methods, freedom)) * scale
    return name, whole, adjusted, width


def _conover(table: Scores, overlap: float, alpha: float) -> _Test:
    """Friedman's test and Conover's test of rank sums, p-values adjusted by Holm's method."""
    del alpha  # rank tests have no intervals
    blocks, methods = table.shape
    ranks = stats.rankdata(table, axis=1)
    sums = ranks.sum(0)
    total = (ranks**2).sum()
    centre = blocks * methods * (methods + 1) ** 2 / 4
    spread = total - centre
    name = "Friedman's test, Conover's test with Holm's correction"
    if spread == 0:
        return name, 1.0, np.ones((methods, methods)), float("nan")
    chi = (methods - 1) * ((sums**2).sum() - blocks * centre) / spread
    whole = float(stats.chi2.sf(chi, methods - 1))
    freedom = (blocks - 1) * (methods - 1)
    rest = max(total - (sums**2).sum() / blocks, 0.0)
    error = sqrt(2 * blocks * rest / freedom * (1 + blocks * overlap))
    gaps = np.abs(sums[:, None] - sums)
    t = np.divide(gaps, error, out=np.where(gaps > 0, np.inf, 0.0), where=error > 0)
    p, upper = 2 * stats.t.sf(t, freedom), np.triu_indices(methods, 1)
    adjusted = np.ones_like(p)
    adjusted[upper] = holm(p[upper].tolist())
    return name, whole, adjusted, float("nan")
