"""Average ranks over datasets, and which of them are too near to be told apart."""

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from math import sqrt
from statistics import fmean
from typing import NamedTuple

# Quantiles of the studentized range at infinitely many degrees of freedom, alpha 0.05, over √2,
# for k = 2 … 20 methods. Up to 10: Demšar, Statistical comparisons of classifiers over multiple
# data sets, JMLR 7, 2006, table 5(a); beyond: the same integral solved. A test solves all again.
_QUANTILES = (
    *(1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164),
    *(3.219, 3.268, 3.313, 3.354, 3.391, 3.426, 3.458, 3.489, 3.517, 3.544),
)


class Ranking(NamedTuple):
    """Methods from the best average rank to the worst."""

    ranks: dict[str, float]
    datasets: tuple[str, ...]
    """Those on which every method of ``ranks`` has a figure."""
    left_out: tuple[str, ...]
    """Methods that lack a figure on one of them."""
    distance: float | None
    """Nemenyi's critical difference at 0.05; None for more than 20 methods."""

    @property
    def cliques(self) -> list[tuple[str, str]]:
        """First and last of each longest run of methods that the test does not tell apart."""
        if self.distance is None:
            return []
        names, ranks = list(self.ranks), list(self.ranks.values())
        found: list[tuple[int, int]] = []
        for first, rank in enumerate(ranks):
            last = max(at for at, other in enumerate(ranks) if other - rank <= self.distance)
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return [(names[first], names[last]) for first, last in found]


def rank(
    figures: Mapping[str, Mapping[str, float]], needed: Collection[str] = ()
) -> Ranking | None:
    """Rank methods by their figures on the datasets that they have in common; 1 is the best.

    Of all choices of datasets that one counts which, with the methods that have figures on all of
    them, makes the largest full table; of equals the one with more datasets. None where no two
    methods can be compared.

    Args:
        figures: By method and dataset, higher is better.
        needed: Methods that must be among them.

    Example:
        >>> made = rank({"a": {"x": 3, "y": 1}, "b": {"x": 2, "y": 1}, "c": {"x": 1}})
        >>> made.ranks, made.datasets, made.left_out
        ({'a': 1.25, 'b': 1.75}, ('x', 'y'), ('c',))
    """
    datasets = list(dict.fromkeys(name for line in figures.values() for name in line))
    blocks = [
        (chosen, methods)
        for size in range(len(datasets), 0, -1)
        for chosen in combinations(datasets, size)
        if len(methods := _complete(figures, chosen)) > 1 and set(needed) <= set(methods)
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


def critical_difference(methods: int, datasets: int) -> float | None:
    """Give how far apart two average ranks must be, by Nemenyi's test at 0.05.

    Example:
        >>> round(critical_difference(4, 14), 2)
        1.25
    """
    if methods - 2 >= len(_QUANTILES):
        return None
    return _QUANTILES[methods - 2] * sqrt(methods * (methods + 1) / (6 * datasets))


def _complete(figures: Mapping[str, Mapping[str, float]], datasets: Iterable[str]) -> list[str]:
    wanted = set(datasets)
    return [name for name, line in figures.items() if wanted <= line.keys()]


def _ranked(values: Mapping[str, float]) -> dict[str, float]:
    """Rank values from the highest; equal ones share the mean of their ranks."""
    return {
        name: sum(other > value for other in values.values())
        + (sum(other == value for other in values.values()) + 1) / 2
        for name, value in values.items()
    }
