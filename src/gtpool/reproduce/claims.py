"""Claims of the paper's results section, and checks of them against tables."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import NamedTuple

from gtpool.reproduce.published import DATASETS, STUDIED, TABLE_1, TABLE_2, TABLE_3, Published
from gtpool.reproduce.study_results import OURS

Tables = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Metrics in per cent by study, row and dataset; unknown values are missing."""
BASELINES = tuple(name for name in TABLE_1 if name not in OURS)

_ROUNDING = 0.02  # points by which printed values and their differences may disagree
_SHORT = {"IMDB-BINARY": "IMDB-B", "IMDB-MULTI": "IMDB-M"}


class Figures(NamedTuple):
    """Tables that a claim is checked against."""

    tables: Tables
    final: bool
    """Whether the tables are complete, as in a paper: missing values stay missing."""
    single: Collection[tuple[str, str, str]] = ()
    """Study, row and dataset of each value from a single seed."""

    def get(self, study: str, line: str, dataset: str) -> float | None:
        """Return a value; None if it is missing."""
        return self.tables.get(study, {}).get(line, {}).get(dataset)

    def alone(self, study: str, places: Iterable[tuple[str, str]]) -> str:
        """Return the end of a sentence that lists the values from a single seed."""
        found = [
            (line, dataset) for line, dataset in places if (study, line, dataset) in self.single
        ]
        names = [f"{line} on {_short(dataset)}" for line, dataset in dict.fromkeys(found)]
        return f"; of one seed: {_join_first(names, ', ')}" if names else ""


class Verdict(NamedTuple):
    """Whether a claim holds (None if undecided), and the numbers."""

    holds: bool | None
    words: str


def gain_over_baselines(dataset: str, claimed: float, figures: Figures) -> Verdict:
    """Return the comparison of the better GTPool variant with the best baseline."""
    mine = _available(figures, "table1", OURS, dataset)
    others = _available(figures, "table1", BASELINES, dataset)
    if not mine or not others:
        return Verdict(None, "")
    best, rival = max(mine, key=mine.__getitem__), max(others, key=others.__getitem__)
    ahead = round(mine[best] - others[rival], 9)
    words = f"{best} {mine[best]:.2f}, {rival} {others[rival]:.2f}: {ahead:+z.2f}"
    missing = 0 if figures.final else len(BASELINES) - len(others)
    words += (
        f"; {missing} baseline{'s are' if missing > 1 else ' is'} not run yet" if missing else ""
    )
    words += figures.alone("table1", [(best, dataset), (rival, dataset)])
    enough = ahead >= claimed - _ROUNDING
    # A missing baseline can only lower the gain, a missing variant of ours only raise it.
    open_ = missing if enough else not figures.final and len(mine) < len(OURS)
    return Verdict(None if open_ else enough, words)


def all_above(
    study: str,
    winners: Sequence[str],
    losers: Sequence[str],
    datasets: Sequence[str],
    figures: Figures,
    *,
    margin: float = 0.0,
) -> Verdict:
    """Return whether each winner is above each loser on each dataset."""
    return pairs_above(study, [*product(winners, losers, datasets)], figures, margin=margin)


def pairs_above(
    study: str, pairs: Sequence[tuple[str, str, str]], figures: Figures, *, margin: float = 0.0
) -> Verdict:
    """Return whether the first row of each pair is above the second on a dataset.

    Args:
        study: Name of the study.
        pairs: Two rows and a dataset each.
        figures: The known values.
        margin: Required difference in points.
    """
    known = {
        (first, second, dataset): (high, low)
        for first, second, dataset in pairs
        if (high := figures.get(study, first, dataset)) is not None
        and (low := figures.get(study, second, dataset)) is not None
    }
    if not known:
        return Verdict(None, "")
    against = {
        place: (high, low)
        for place, (high, low) in known.items()
        if round(high - low, 9) <= margin  # rounds away floating-point error
    }
    missing = 0 if figures.final else len(pairs) - len(known)
    words = f"{len(known) - len(against)} of {len(known)} comparisons hold"
    if against:
        told = [
            f"{first} {high:.2f}, {second} {low:.2f} on {_short(dataset)}"
            for (first, second, dataset), (high, low) in against.items()
        ]
        words += f", not {_join_first(told, '; ')}"
    else:
        words += f", by {min(high - low for high, low in known.values()):.2f} at least"
    words += f"; {missing} cannot be made yet" if missing else ""
    decide = [(line, at) for *lines, at in against or known for line in lines]
    words += figures.alone(study, decide)
    return Verdict(False if against else None if missing else True, words)


def mean_gain(pooler: str, claimed: float, figures: Figures) -> Verdict:
    """Return the comparison of the better sampler's mean gains over three datasets."""
    names = (pooler, f"{pooler}-rws", f"{pooler}-rwsv")
    lines = [_available(figures, "table2", names, dataset) for dataset in STUDIED]
    if any(len(line) < 3 for line in lines):
        return Verdict(None, "")
    gains = [
        [line[f"{pooler}-{name}"] - line[pooler] for name in ("rws", "rwsv")] for line in lines
    ]
    mean = fmean(map(max, gains))
    rws, rwsv = (fmean(gain[at] for gain in gains) for at in (0, 1))
    words = f"the better of the two {mean:+z.2f} (RWS {rws:+z.2f}, RWSV {rwsv:+z.2f})"
    words += figures.alone("table2", product(names, STUDIED))
    return Verdict(mean >= claimed - _ROUNDING, words)


def loss_is_larger(first: str, second: str, figures: Figures) -> Verdict:
    """Return whether the first change lowers GTPool-V everywhere, and more than the second."""
    pairs = [*product((second, "gtpool-v"), (first,), STUDIED)]
    words: list[str] = []
    told: list[str] = []
    for dataset in STUDIED:
        line = _available(figures, "table3", ("gtpool-v", first, second), dataset)
        if len(line) == 3:
            told.append(dataset)
            lost = (f"{name} {line[name] - line['gtpool-v']:+z.2f}" for name in (first, second))
            words.append(f"{_short(dataset)}: {', '.join(lost)}")
    alone = figures.alone("table3", product(("gtpool-v", first, second), told))
    return Verdict(pairs_above("table3", pairs, figures).holds, "; ".join(words) + alone)


def best_at(
    study: str,
    lines: Sequence[str],
    allowed: Sequence[str],
    datasets: Sequence[str],
    figures: Figures,
) -> Verdict:
    """Return whether the best value of a parameter (or a tied one) is among given values."""
    words: list[str] = []
    told: list[str] = []
    inside: list[bool | None] = []
    for dataset in datasets:
        curve = _available(figures, study, lines, dataset)
        if len(curve) < len(lines):
            inside.append(None)
            continue
        highest = max(curve.values())
        best = [line for line, value in curve.items() if value == highest]
        inside.append(any(line in allowed for line in best))
        told.append(dataset)
        words.append(f"{_short(dataset)} best at {' and '.join(best)} ({highest:.2f})")
    return Verdict(_combine(inside), "; ".join(words) + figures.alone(study, product(lines, told)))


def drops_at_high_ratio(figures: Figures) -> Verdict:
    """Return whether the metric drops by 2 to 3 points (1.5 to 3.5) from ratio 0.5 to 0.75."""
    words: list[str] = []
    told: list[str] = []
    inside: list[bool | None] = []
    for dataset in ("PROTEINS", "ogbg-molbbbp"):
        curve = _available(figures, "ratio", ("0.5", "0.75"), dataset)
        if len(curve) < 2:
            inside.append(None)
            continue
        change = round(curve["0.75"] - curve["0.5"], 9)
        inside.append(-3.5 <= change <= -1.5)
        told.append(dataset)
        words.append(f"{_short(dataset)} {change:+z.2f}")
    alone = figures.alone("ratio", product(("0.5", "0.75"), told))
    return Verdict(_combine(inside), "; ".join(words) + alone)


def _combine(parts: Sequence[bool | None]) -> bool | None:
    """Return the conjunction of verdicts: False if one is False, else None if one is unknown."""
    return False if False in parts else None if None in parts else True


def _available(
    figures: Figures, study: str, lines: Sequence[str], dataset: str
) -> dict[str, float]:
    found = ((line, figures.get(study, line, dataset)) for line in lines)
    return {line: value for line, value in found if value is not None}


def _join_first(parts: Sequence[str], between: str) -> str:
    """Return the first three, joined, and the number of others."""
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return between.join(parts[:3]) + more


def _short(dataset: str) -> str:
    return _SHORT.get(dataset, dataset.removeprefix("ogbg-mol"))


_LARGE = 1.0  # points that count as a large margin
_TU, _OGB = DATASETS[:7], DATASETS[7:]
_POOLERS = tuple(name for name in BASELINES if name not in ("gcn", "gin", "gmt"))
_DROPPERS = ("sagpool_g", "sagpool_h", "topkpool", "asap")


class Claim(NamedTuple):
    """A claim of the paper that can be checked."""

    where: str
    claimed: str
    judge: Callable[[Figures], Verdict]


def published_figures() -> Figures:
    """Return the printed tables of the paper; its curves have no printed numbers."""
    printed = {"table1": TABLE_1, "table2": TABLE_2, "table3": TABLE_3}
    return Figures({name: _means(table) for name, table in printed.items()}, final=True)


def _means(table: Mapping[str, Mapping[str, Published | None]]) -> dict[str, dict[str, float]]:
    return {
        line: {dataset: cell.mean for dataset, cell in cells.items() if cell is not None}
        for line, cells in table.items()
    }


_LEVELS = ("1", "2", "3", "4")
_LAMBDAS = tuple(f"{tenth / 10}" for tenth in range(11))
_SWAPPED = ("sagpool_h", "topkpool", "asap")

CLAIMS = (
    *(
        Claim(
            "table 1",
            f"{points} points above the best baseline on {dataset}",
            partial(gain_over_baselines, dataset, points),
        )
        for dataset, points in (
            ("MUTAG", 4.71),
            ("ENZYMES", 5.71),
            ("PTC_MR", 4.78),
            ("Synthie", 5.32),
        )
    ),
    Claim(
        "table 1",
        "GTPool and GTPool-V beat DiffPool and MinCutPool on all datasets",
        partial(all_above, "table1", OURS, ("diffpool", "mincutpool"), DATASETS),
    ),
    Claim(
        "table 1",
        "GTPool and GTPool-V are above SAGPool, TopKPool and ASAP",
        partial(all_above, "table1", OURS, _DROPPERS, DATASETS),
    ),
    Claim(
        "table 1",
        "GTPool and GTPool-V significantly surpass GMT",
        partial(all_above, "table1", OURS, ("gmt",), DATASETS),
    ),
    Claim(
        "table 1",
        "GMT, GTPool and GTPool-V are better than other poolers (TU sets)",
        partial(all_above, "table1", ("gmt", *OURS), _POOLERS, _TU),
    ),
    Claim(
        "table 1",
        "GTPool and GTPool-V are higher than all others on the four OGB sets",
        partial(all_above, "table1", OURS, BASELINES, _OGB),
    ),
    Claim(
        "table 2",
        "RWS and RWSV improve on top-k in SAGPool_h, TopKPool and ASAP",
        partial(
            pairs_above,
            "table2",
            [
                (f"{pool}-{name}", pool, dataset)
                for pool, name, dataset in product(_SWAPPED, ("rws", "rwsv"), STUDIED)
            ],
        ),
    ),
    *(
        Claim(
            "table 2", f"by {points} points on average in {pool}", partial(mean_gain, pool, points)
        )
        for pool, points in zip(_SWAPPED, (1.73, 1.41, 0.84), strict=True)
    ),
    Claim(
        "table 2",
        "RWSV is better than RWS in most cases, apart from ASAP on PROTEINS and IMDB-B",
        partial(
            pairs_above,
            "table2",
            [
                (f"{pool}-rwsv", f"{pool}-rws", dataset)
                for pool, dataset in product(_SWAPPED, STUDIED)
                if pool != "asap" or dataset == "ogbg-molbbbp"
            ],
        ),
    ),
    Claim(
        "table 3",
        "Both scores are needed: GTPool-V is above it without one of them",
        partial(all_above, "table3", ("gtpool-v",), ("no-local-score", "no-global-score"), STUDIED),
    ),
    Claim(
        "table 3",
        "Losing the global score hurts more than losing the local one",
        partial(loss_is_larger, "no-global-score", "no-local-score"),
    ),
    Claim(
        "table 3",
        f"RWSV is above top-k by a large margin (we ask for more than {_LARGE:g} point)",
        partial(all_above, "table3", ("gtpool-v",), ("gtpool-topk",), STUDIED, margin=_LARGE),
    ),
    Claim(
        "figure (a)",
        "PROTEINS and BBBP are best at ratio 0.5",
        partial(best_at, "ratio", ("0.25", "0.5", "0.75"), ("0.5",), ("PROTEINS", "ogbg-molbbbp")),
    ),
    Claim(
        "figure (a)",
        "they drop by about 2 to 3 points at ratio 0.75 (we ask for 1.5 to 3.5)",
        drops_at_high_ratio,
    ),
    Claim(
        "figure (a)",
        "IMDB-B rises with the ratio",
        partial(
            pairs_above, "ratio", [("0.5", "0.25", "IMDB-BINARY"), ("0.75", "0.5", "IMDB-BINARY")]
        ),
    ),
    Claim(
        "figure (b)",
        "With more levels figures first rise, then fall (best at 2 or 3 of 4)",
        partial(best_at, "levels", _LEVELS, _LEVELS[1:3], STUDIED),
    ),
    Claim(
        "figure (c)",
        "With λ figures first rise, then fall (best at neither end)",
        partial(best_at, "lambda", _LAMBDAS, _LAMBDAS[1:-1], STUDIED),
    ),
    Claim(
        "figure (c)",
        "The best λ lies in 0.3 … 0.5",
        partial(best_at, "lambda", _LAMBDAS, _LAMBDAS[3:6], STUDIED),
    ),
)
"""Claims in the order of the paper."""
