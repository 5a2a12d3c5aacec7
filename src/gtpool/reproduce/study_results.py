"""Results of the cells of a study: their runs and summary values. No torch."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from gtpool.data.registry import DATASETS
from gtpool.reproduce.paper import Study, StudyCell
from gtpool.reproduce.published import AUTHORS_RAN, SEP_G, TABLE_1
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
"""Source of a baseline value that is not from GMT's paper."""


class CellResult(NamedTuple):
    """A cell of a study with its finished runs."""

    study: str
    name: str
    """Anchor of the cell."""
    place: StudyCell
    keys: tuple[str, ...]
    """The planned runs, seed after seed."""
    rows: tuple[RunResult, ...]
    """The finished and failed runs, in the same order."""
    grid: ScoreGrid
    """Summary of the test metric over all planned runs."""
    figure: MetricSummary
    """Summary over the counted seeds; see ``counted_seeds``."""
    rules: Mapping[str, MetricSummary]
    """The same under other rules of epoch selection."""

    @property
    def percent(self) -> float | None:
        """The value in per cent, rounded so that ties compare equal."""
        return None if self.figure.mean is None else round(100 * self.figure.mean, 9)

    @property
    def difference(self) -> float | None:
        """Our value minus the published one, in points."""
        told = self.place.published
        return None if told is None or self.percent is None else self.percent - told.mean

    @property
    def has_complete_seed(self) -> bool:
        """Whether at least one seed has all folds, so that the value is comparable."""
        return any(None not in line for line in self.grid.values)

    @property
    def done(self) -> tuple[RunResult, ...]:
        """The finished runs."""
        return tuple(row for row in self.rows if row.done)

    @property
    def valid_percent(self) -> float | None:
        """Mean validation metric of the finished runs, in per cent."""
        found = [row.valid_metric for row in self.done if row.valid_metric is not None]
        return 100 * fmean(found) if found else None

    @property
    def parameters(self) -> tuple[int, ...]:
        """The numbers of parameters of the networks, increasing."""
        return tuple(sorted({row.parameters for row in self.done if row.parameters is not None}))

    @property
    def seconds(self) -> float | None:
        """Mean seconds of a finished run; a run of an ensemble counts with its share."""
        return fmean(row.seconds for row in self.done) if self.done else None

    @property
    def beside(self) -> str:
        """What was used beside the dataset: other sets, pre-trained weights, descriptors."""
        spec = self.place.specs[0]
        used = (
            self.place.beside,
            "pre-trained weights" if spec.train.start else "",
            "molecular descriptors" if spec.data.molecule_features else "",
        )
        return ", ".join(filter(None, used)) or "nothing"

    def listed(self, field: Literal["device", "commit"]) -> str:
        """Return the devices or commits of the runs as text."""
        return "; ".join(dict.fromkeys(str(getattr(row, field)) for row in self.rows))

    @property
    def failed(self) -> int:
        """Number of failed runs."""
        return sum(row.status == "failed" for row in self.rows)


def cell_results(name: str, study: Study, rows: Mapping[str, RunResult]) -> list[CellResult]:
    """Return the results of every cell of a study.

    Args:
        name: Name of the study.
        study: The study.
        rows: Finished runs by key.
    """
    return [cell_result(name, cell, study.seeds, rows) for cell in study.cells]


def cell_result(
    name: str, cell: StudyCell, seeds: int, rows: Mapping[str, RunResult]
) -> CellResult:
    """Return the result of one cell.

    Args:
        name: Name of the study.
        cell: The cell.
        seeds: Number of planned seeds.
        rows: Finished runs by key.
    """
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


def fold_means(laid: ScoreGrid) -> list[float]:
    """Return the mean over complete seeds for each fold; at least one seed must be complete.

    Seeds repeat the same folds, so they are not additional blocks of a comparison.
    """
    whole = [[value for value in line if value is not None] for line in laid.values]
    whole = [line for line in whole if len(line) == len(laid.folds)]
    return [fmean(values) for values in zip(*whole, strict=True)]


def counted_seeds(laid: ScoreGrid) -> ScoreGrid:
    """Return the seeds that count: those with all folds, or all seeds if none is complete.

    A mean over two folds is not comparable with means over ten folds.
    """
    lines = list(zip(laid.seeds, laid.values, strict=True))
    chosen = [line for line in lines if None not in line[1]]
    chosen = chosen or [line for line in lines if set(line[1]) != {None}]
    return laid._replace(
        seeds=tuple(seed for seed, _ in chosen), values=tuple(values for _, values in chosen)
    )


def published_by(place: StudyCell) -> str:
    """Return the source of a published value; empty if there is none."""
    if place.published is None:
        return ""
    method = place.line.partition(",")[0]  # names of tuned methods may have a suffix
    if method in SEP_G:
        return "its own paper"
    if method not in TABLE_1 or method in OURS:
        return "the paper"
    return RERUN if place.dataset in AUTHORS_RAN else "GMT's paper"


def comparable_figures(found: Sequence[CellResult]) -> dict[str, dict[str, float]]:
    """Return the complete values in per cent, by row and dataset."""
    table: dict[str, dict[str, float]] = {}
    for result in found:
        if result.has_complete_seed and result.percent is not None:
            table.setdefault(result.place.line, {})[result.place.dataset] = result.percent
    return table


def _metric_by_rule(rule: str) -> Callable[[RunResult], float | None]:
    return lambda row: None if reported_score(row) is None else row.other_rules.get(rule)


def _metric(dataset: str) -> str:
    return "roc_auc" if dataset in DATASETS and DATASETS[dataset].family == "OGB" else "accuracy"
