"""Differences between cells of studies, with intervals, for the pages of results.

A page shows the same differences as a table and as a drawing. Cells that share a reference are
compared at once by ``gtpool.reproduce.comparison``; the level 0.05 is divided by the number of such
groups of a page.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import isnan
from statistics import fmean
from typing import NamedTuple

from figures import EVIDENCE, find, results

from gtpool.reproduce.comparison import ALPHA, Comparison, compare
from gtpool.reproduce.ensembles import SIZE, ensemble_scores
from gtpool.reproduce.panel import CANDIDATES, PANEL
from gtpool.reproduce.paper import BEYOND, DESCRIBED, ENCODED, STUDIES
from gtpool.reproduce.study_compare import MATTERS, TableComparison, compare_cells, compare_table
from gtpool.reproduce.study_results import CellResult
from gtpool.study.predictions import read_predictions

MIN_SEEDS = 3
"""Seeds that a method needs on a single split to be tested."""
DATASETS = STUDIES["table1"].datasets
STUDIED = STUDIES["table3"].datasets
SMALL = STUDIES["poolers"].datasets
RIVALS = tuple(line for line in STUDIES["best"].lines if line in CANDIDATES)
OLDER = ("gcn", "gtpool-v", "sagpool_h", "mincutpool")
"""Methods of table 1 beside which poolers beyond the paper stand."""
ENCODED_PAIRS = {"gtpool-v": ("table1: gtpool-v", f"best: paper{ENCODED}")} | {
    line: (f"poolers: {line}", f"poolers: {line}{ENCODED}") for line in BEYOND
}
"""Study and line of methods by the paper's recipe, without and with encodings."""
PREDICTIONS = read_predictions(EVIDENCE / "predictions")


VERDICTS = (
    "higher",
    "lower",
    "equal for practical purposes",
    "cannot tell",
    "not tested",
    "missing",
)
"""What can be said of a difference."""
_REFERENCE = "reference"


class Effect(NamedTuple):
    """A difference in points."""

    dataset: str
    name: str
    """What was changed."""
    difference: float | None = None
    """None where a run is missing."""
    low: float | None = None
    """None where there is no interval: rank tests, or too few seeds of a single split."""
    high: float | None = None
    verdict: str = "missing"


class Group(NamedTuple):
    """Cells of one dataset that are compared with one of them."""

    dataset: str
    against: str
    """Study and line of the reference, "study: line"."""
    changes: Mapping[str, str]
    """Study and line of each change, by its name."""


def _effects_of(group: Group, alpha: float) -> list[Effect]:
    """Return the differences of a group; the intervals hold together at level 1 - alpha."""
    cells = {name: find_cell(place, group.dataset) for name, place in _places(group).items()}
    tested = {name: cell for name, cell in cells.items() if _is_testable(cell)}
    made: dict[str, Effect] = {}
    if _REFERENCE in tested and len(tested) > 1:
        compared = compare_cells([_with_name(one, name) for name, one in tested.items()], alpha)
        changed = (name for name in tested if name != _REFERENCE)
        made = {name: _from_comparison(group.dataset, name, compared) for name in changed}
    return [
        made.get(name) or _untested(group.dataset, name, cells[name], cells[_REFERENCE])
        for name in group.changes
    ]


def _with_interval(dataset: str, name: str, gap: float, low: float, high: float) -> Effect:
    verdict = "cannot tell"
    if low > 0 or high < 0:
        verdict = "higher" if low > 0 else "lower"
    elif max(-low, high) <= MATTERS:
        verdict = "equal for practical purposes"
    return Effect(dataset, name, float(gap), float(low), float(high), verdict)


def _places(group: Group) -> dict[str, str]:
    return {_REFERENCE: group.against, **group.changes}


def find_cell(place: str, dataset: str) -> CellResult | None:
    """Return the cell of a study and line, "study: line"."""
    return find(*place.split(": ", 1), dataset)


def _with_name(cell: CellResult, name: str) -> CellResult:
    return cell._replace(place=cell.place._replace(line=name))


def _is_testable(cell: CellResult | None) -> bool:
    if cell is None:
        return False
    seeds = sum(None not in line for line in cell.grid.values)
    return seeds >= (1 if len(cell.grid.folds) > 1 else MIN_SEEDS)


def _from_comparison(dataset: str, name: str, made: Comparison) -> Effect:
    """Return the difference of a method to the reference."""
    pair = next(one for one in made.pairs if {one.first, one.second} == {name, _REFERENCE})
    sign = 1 if pair.first == name else -1
    if not isnan(pair.low):
        low, high = sorted((sign * pair.low, sign * pair.high))
        return _with_interval(dataset, name, sign * pair.difference, low, high)
    verdict = ("higher" if sign > 0 else "lower") if pair.p <= made.alpha else "cannot tell"
    return Effect(dataset, name, sign * pair.difference, verdict=verdict)


def _untested(dataset: str, name: str, this: CellResult | None, that: CellResult | None) -> Effect:
    cells = (this, that)
    if any(cell is None or not cell.has_complete_seed for cell in cells):
        return Effect(dataset, name)
    return Effect(dataset, name, this.percent - that.percent, verdict="not tested")


def _by_ensemble(dataset: str, line: str, size: int, alpha: float) -> Effect:
    """Return what an ensemble gains over the mean of its members."""
    cell = find("best", line, dataset)
    scores = ensemble_scores(cell.place, PREDICTIONS, STUDIES["best"].seeds, size)
    name = "gtpool-v" if line == "best" else line
    if not scores:
        return Effect(dataset, name)
    joined = [100 * fmean(fold) for fold in zip(*scores, strict=True)]
    members = cell.grid.values[: size * len(scores)]
    single = [100 * fmean(fold) for fold in zip(*members, strict=True)]
    if len(joined) == 1:
        return Effect(dataset, name, joined[0] - single[0], verdict="not tested")
    sizes = [row.split for row in cell.rows]
    overlap = sum(size.test for size in sizes) / sum(size.train + size.valid for size in sizes)
    made = compare({name: joined, _REFERENCE: single}, overlap=overlap, alpha=alpha)
    return _from_comparison(dataset, name, made)


def _ensembles() -> list[Effect]:
    places = [
        (dataset, line, size)
        for size, lines in ((SIZE, ("best",)), (MIN_SEEDS, RIVALS))
        for dataset in DATASETS
        for line in lines
        if size == SIZE or _has_seeds(find("best", line, dataset), size)
    ]
    return [_by_ensemble(*place, ALPHA / len(places)) for place in places]


def _has_seeds(cell: CellResult, count: int) -> bool:
    return sum(None not in line for line in cell.grid.values) >= count


def _changes(study: str, usual: str, label: str = "{}") -> dict[str, str]:
    """Return all lines of a study but the usual one, by name."""
    lines = (line for line in STUDIES[study].lines if line != usual)
    return {label.format(line): f"{study}: {line}" for line in lines}


def _wheel() -> Iterable[Group]:
    lines = STUDIES["table2"].lines
    for dataset in STUDIED:
        for pool in lines:
            if not pool.endswith(("-rws", "-rwsv")):
                wheels = (f"{pool}-rws", f"{pool}-rwsv")
                yield Group(dataset, f"table2: {pool}", {one: f"table2: {one}" for one in wheels})


def _tuning() -> Iterable[Group]:
    cells = [cell for cell in STUDIES["tuned"].cells if "pooled" not in cell.line]
    for cell in sorted(cells, key=lambda cell: DATASETS.index(cell.dataset)):
        yield Group(cell.dataset, f"table1: {cell.line}", {cell.line: f"tuned: {cell.line}"})


GROUPS: dict[str, Callable[[], Iterable[Group]]] = {
    "wheel": _wheel,
    "poolers": lambda: (
        Group(dataset, "table1: gcn", {one: f"poolers: {one}" for one in BEYOND})
        for dataset in SMALL
    ),
    "parts": lambda: (
        Group(dataset, f"{study}: gtpool-v", _changes(study, "gtpool-v"))
        for dataset in STUDIED
        for study in ("table3", "ablation")
    ),
    "levels": lambda: (
        Group(dataset, f"{study}: {usual}", _changes(study, usual, label))
        for dataset in STUDIED
        for study, usual, label in (
            ("levels", "3", "levels {}"),
            ("ratio", "0.5", "ratio {}"),
            ("lambda", "0.4", "λ {}"),
        )
    ),
    "features": lambda: (
        Group(dataset, "features: gmt, z-scored", _changes("features", "gmt, z-scored"))
        for dataset in STUDIES["features"].datasets
    ),
    "encodings": lambda: (
        Group(dataset, against, {name: place})
        for dataset in PANEL
        for name, place, against in (
            ("gtpool-v: with encodings", "best: paper, rwse", "best: paper"),
            ("gcn: with encodings, training", "panel: gcn: own", "table1: gcn"),
            ("gtpool-v instead of gcn", "best: best", "best: gcn"),
        )
    ),
    "recipe": lambda: (
        Group(dataset, "best: paper", {"gtpool-v, recipe best": "best: best"})
        for dataset in DATASETS
    ),
    "same-budget": lambda: (
        Group(
            dataset,
            "best: gcn",
            {"gtpool-v": "best: best"} | {one: f"best: {one}" for one in RIVALS if one != "gcn"},
        )
        for dataset in DATASETS
    ),
    "tuning": _tuning,
    "mutag": lambda: [Group("MUTAG", "mutag: gtpool-v", _changes("mutag", "gtpool-v"))],
}
PAGES = (*GROUPS, "ensembles")
"""Pages with differences."""


@cache
def effects(page: str) -> tuple[Effect, ...]:
    """Return the differences of a page."""
    if page == "ensembles":
        return tuple(_ensembles())
    groups = list(GROUPS[page]())
    return tuple(effect for group in groups for effect in _effects_of(group, ALPHA / len(groups)))


def _same_budget(end: str = "") -> list[CellResult]:
    """Return the cells with the encodings and training of "best" whose lines have this end."""
    names = {f"best{end}": "gtpool-v"} | {f"{line}{end}": line for line in RIVALS}
    found = [one for one in results("best") if one.place.line in names]
    return [_with_name(one, names[one.place.line]) for one in found]


def _poolers() -> list[CellResult]:
    """Return the cells of poolers beyond the paper, and some of its own, by its recipe."""
    older = [one for one in results("table1") if one.place.line in OLDER]
    beyond = [one for one in results("poolers") if one.place.line in BEYOND]
    return [*(one for one in older if one.place.dataset in SMALL), *beyond]


def _poolers_encoded() -> list[CellResult]:
    """Return the cells of GTPool-V and poolers beyond the paper with encodings."""
    return [
        _with_name(find_cell(place, dataset), name)
        for name, (_, place) in ENCODED_PAIRS.items()
        for dataset in SMALL
    ]


def _tuned() -> list[CellResult]:
    """Return the cells whose folds chose on their own validation parts, of several methods."""
    found = [one for one in results("tuned") if "pooled" not in one.place.line]
    names = [one.place.dataset for one in found]
    return [one for one in found if names.count(one.place.dataset) > 1]


FAMILIES: dict[str, Callable[[], Sequence[CellResult]]] = {
    "paper-recipe": lambda: results("table1"),
    "same-budget": _same_budget,
    "described": lambda: _same_budget(DESCRIBED),
    "poolers": _poolers,
    "poolers-encoded": _poolers_encoded,
    "tuning": _tuned,
    "repeated": lambda: [
        _with_name(one, "gtpool-v") if one.place.line == "best" else one
        for one in results("repeated")
    ],
}
"""Cells that may stand beside each other: one recipe, one budget."""


@cache
def family(name: str) -> tuple[tuple[CellResult, ...], TableComparison]:
    """Return the cells of a family, and the comparison of its methods on each dataset."""
    found = tuple(FAMILIES[name]())
    return found, compare_table(found)
