"""The cells of a study: the runs behind each, and the numbers that people read. No torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gtpool.data.registry import DATASETS
from gtpool.reproduce.paper import Study, StudyCell
from gtpool.reproduce.published import AUTHORS_RAN, TABLE_1
from gtpool.study.result import RunResult
from gtpool.study.summarize import (
    EPOCH_RULES,
    MetricSummary,
    ScoreGrid,
    reported_score,
    summarize_grid,
)

OURS = ("gtpool", "gtpool-v")
RERUN = "the paper, of others' code"
"""Whose run the figure of a baseline is where GMT's paper has none."""


class CellResult(NamedTuple):
    """A cell of a study with what was run of it."""

    study: str
    name: str
    """What the cell is called in an address."""
    place: StudyCell
    keys: tuple[str, ...]
    """The runs that it should have, seed after seed."""
    rows: tuple[RunResult, ...]
    """The runs that are known, done or failed, in the same order."""
    grid: ScoreGrid
    """Test metric of all that it should have."""
    figure: MetricSummary
    """Of the seeds that count, see ``counted_seeds``."""
    rules: Mapping[str, MetricSummary]
    """The same, had the epoch been chosen otherwise."""

    @property
    def percent(self) -> float | None:
        """The figure in per cent, rounded so that equal ones are equal."""
        return None if self.figure.mean is None else round(100 * self.figure.mean, 9)

    @property
    def difference(self) -> float | None:
        """Our figure less the published one, in points."""
        told = self.place.published
        return None if told is None or self.percent is None else self.percent - told.mean

    @property
    def settled(self) -> bool:
        """Whether at least one seed has all its folds, so that the figure can be compared."""
        return any(None not in line for line in self.grid.values)

    @property
    def failed(self) -> int:
        """How many runs failed."""
        return sum(row.status == "failed" for row in self.rows)


def cell_results(name: str, study: Study, rows: Mapping[str, RunResult]) -> list[CellResult]:
    """Sum up every cell of a study.

    Args:
        name: Of the study.
        study: Its cells.
        rows: What was run, by key.
    """
    return [_result(name, cell, study.seeds, rows) for cell in study.cells]


def counted_seeds(laid: ScoreGrid) -> ScoreGrid:
    """Give the seeds that make the figure: those with all folds; if none has, those begun.

    A mean over two folds beside means over ten would say little of the seeds, much of the folds.
    """
    lines = list(zip(laid.seeds, laid.values, strict=True))
    chosen = [line for line in lines if None not in line[1]]
    chosen = chosen or [line for line in lines if set(line[1]) != {None}]
    return laid._replace(
        seeds=tuple(seed for seed, _ in chosen), values=tuple(values for _, values in chosen)
    )


def published_by(place: StudyCell) -> str:
    """Say whose run a published figure comes from; nothing where there is none."""
    if place.published is None:
        return ""
    method = place.line.partition(",")[0]  # a tuned one may have more words
    if method not in TABLE_1 or method in OURS:
        return "the paper"
    return RERUN if place.dataset in AUTHORS_RAN else "GMT's paper"


def comparable_figures(found: Sequence[CellResult]) -> dict[str, dict[str, float]]:
    """Give the settled figures in per cent, by line and dataset."""
    table: dict[str, dict[str, float]] = {}
    for result in found:
        if result.settled and result.percent is not None:
            table.setdefault(result.place.line, {})[result.place.dataset] = result.percent
    return table


def _result(name: str, cell: StudyCell, seeds: int, rows: Mapping[str, RunResult]) -> CellResult:
    keys = tuple(run.key for run in cell.runs(seeds))
    known = tuple(rows[key] for key in keys if key in rows)
    metric = next((row.metric for row in known if row.metric), _metric(cell.dataset))
    first, folds = cell.specs[0].seed, tuple(range(len(cell.specs)))

    def to_grid(value: Callable[[RunResult], float | None]) -> ScoreGrid:
        flat = [value(rows[key]) if key in rows else None for key in keys]
        lines = (flat[at : at + len(folds)] for at in range(0, len(flat), len(folds)))
        return ScoreGrid(
            metric, tuple(range(first, first + seeds)), folds, tuple(map(tuple, lines))
        )

    laid = to_grid(reported_score)
    rules = {
        rule: summarize_grid(counted_seeds(to_grid(_metric_by_rule(rule))), wanted=len(keys))
        for rule in EPOCH_RULES
    }
    figure = summarize_grid(counted_seeds(laid), wanted=len(keys))
    address = f"{name}/{cell.line}/{cell.dataset}"
    return CellResult(name, address, cell, keys, known, laid, figure, rules)


def _metric_by_rule(rule: str) -> Callable[[RunResult], float | None]:
    return lambda row: None if reported_score(row) is None else row.other_rules.get(rule)


def _metric(dataset: str) -> str:
    return "roc_auc" if dataset in DATASETS and DATASETS[dataset].family == "OGB" else "accuracy"
