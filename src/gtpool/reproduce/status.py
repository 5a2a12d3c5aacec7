"""Status of the studies: finished and missing runs, and the estimated time left. No torch."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, get_args

from gtpool.data.registry import DATASETS
from gtpool.model import METHODS, method_name
from gtpool.report.progress import format_seconds
from gtpool.report.result_tables import TextTable
from gtpool.reproduce.paper import StudyCell, find_studies
from gtpool.spec import RunSpec, did_you_mean
from gtpool.study.result import RunResult
from gtpool.study.store import differing_fields, locate_rows

DeviceKind = Literal["cpu", "gpu"]
"""Kind of device of a run."""
_Times = dict[tuple[str, bool], list[float]]
"""Seconds of runs, by dataset and by whether they ran on a CPU."""


class CellStatus(NamedTuple):
    """Status of a study or of one cell."""

    study: str
    line: str
    dataset: str
    runs: Mapping[str, str]
    """Status of each run by key: "done", "failed" or "missing"."""
    pace: float | None
    """Estimated seconds per run: the mean of the cell; else the mean of the dataset, times the
    relative cost of the method on other datasets; else an estimate from the size of the dataset;
    None without any run. A run of an ensemble counts with its share of the time."""

    @property
    def wanted(self) -> int:
        """Number of planned runs."""
        return len(self.runs)

    @property
    def done(self) -> int:
        """Number of finished runs."""
        return list(self.runs.values()).count("done")

    @property
    def failed(self) -> int:
        """Number of failed runs."""
        return list(self.runs.values()).count("failed")

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of the runs that are not done; None if unknown."""
        left = self.wanted - self.done
        return 0.0 if left == 0 else None if self.pace is None else left * self.pace


def find_runs(
    studies: Iterable[str], only: str | None, seeds: int | None, choices: Path | None = None
) -> list[RunSpec]:
    """Return the distinct runs of studies.

    Args:
        studies: Names of studies; all studies if empty.
        only: Filter of the cells, such as ``dataset=PROTEINS,pool=gtpool-v``.
        seeds: Number of seeds; by default that of each study.
        choices: A ``tuned.json`` that replaces the choices of the study "tuned".
    """
    return [run for run, _ in named_runs(studies, only, seeds, choices)]


def named_runs(
    studies: Iterable[str], only: str | None, seeds: int | None, choices: Path | None = None
) -> list[tuple[RunSpec, str]]:
    """Return the runs of studies with the names of their rows; arguments as for ``find_runs``.

    The name is that of the method, or of a variant with its study. A run in several rows gets the
    first name.
    """
    found: dict[str, tuple[RunSpec, str]] = {}
    for study, cell, runs in _cells(studies, only, seeds, choices):
        name = cell.line if cell.line in METHODS else f"{study} {cell.line}"
        for run in runs:
            found.setdefault(run.key, (run, name))
    return list(found.values())


def read_rows(sources: Iterable[Path]) -> dict[str, RunResult]:
    """Return stored rows by key; for duplicates, the first finished row.

    Finished rows of one run with different results emit a warning.
    """
    rows: dict[str, RunResult] = {}
    places: dict[str, str] = {}
    apart: dict[str, str] = {}
    for source in sources:
        for row, place in locate_rows(source):
            key, known = row.key, rows.get(row.key)
            if known is None or (known.status == "failed" and row.done):
                rows[key], places[key] = row, place
            elif row.status == known.status == "done" and (names := differing_fields(row, known)):
                apart.setdefault(
                    key, f"{places[key]}, not {place}; they differ in {', '.join(names)}"
                )
    if apart:
        warnings.warn(
            f"runs with done rows that differ: {len(apart)}; the first row counts, such as "
            f"{next(iter(apart.values()))}",
            stacklevel=2,
        )
    return rows


def cell_statuses(
    studies: Iterable[str],
    only: str | None,
    seeds: int | None,
    rows: Mapping[str, RunResult],
    *,
    choices: Path | None = None,
    on: DeviceKind | None = None,
) -> list[CellStatus]:
    """Return the status of each cell.

    Args:
        studies: As in ``find_runs``.
        only: As in ``find_runs``.
        seeds: As in ``find_runs``.
        rows: Stored rows by key.
        choices: As in ``find_runs``.
        on: Device kind whose runs determine the pace; by default all.
    """
    pace = _PaceEstimate(filter_by_device(rows.values(), on))
    found: list[CellStatus] = []
    for name, cell, runs in _cells(studies, only, seeds, choices):
        known = {key: rows.get(key) for key in (run.key for run in runs)}
        done = filter_by_device((row for row in known.values() if row is not None), on)
        states = {key: "missing" if row is None else row.status for key, row in known.items()}
        found.append(CellStatus(name, cell.line, cell.dataset, states, pace.of(cell, done)))
    return found


def filter_by_device(rows: Iterable[RunResult], on: DeviceKind | None) -> list[RunResult]:
    """Return the rows of runs on a kind of device; None for all."""
    if on not in {None, *get_args(DeviceKind)}:
        raise ValueError(f"device kind must be {' or '.join(get_args(DeviceKind))}, got {on!r}")
    done = [row for row in rows if row.done]
    return [row for row in done if on is None or (row.device == "cpu") == (on == "cpu")]


class _PaceEstimate:
    """Estimates of the duration of runs, from finished runs."""

    def __init__(self, rows: Iterable[RunResult]) -> None:
        self.all: _Times = {}
        self.by_method: dict[str, _Times] = {}
        for row in rows:
            # Times of GPU ensembles and of CPU cores are not comparable.
            place = row.spec.data.source, row.device == "cpu"
            method = _method(json.dumps(row.spec_json["model"]))
            for times in (self.all, self.by_method.setdefault(method, {})):
                times.setdefault(place, []).append(row.seconds)

    def of(self, cell: StudyCell, done: list[RunResult]) -> float | None:
        """Return the estimated seconds of a run of a cell."""
        if done:
            return fmean(row.seconds for row in done)
        mine = self.by_method.get(method_name(cell.specs[0].model.to_json()), {})
        here = [
            time for place, times in self.all.items() if place[0] == cell.dataset for time in times
        ]
        if here:
            factors = [fmean(times) / fmean(self.all[place]) for place, times in mine.items()]
            return fmean(here) * (fmean(factors) if factors else 1.0)
        by_size = _seconds_a_node(mine) or _seconds_a_node(self.all)
        return None if by_size is None else by_size * _nodes(cell.dataset)


@cache
def _method(model: str) -> str:
    return method_name(json.loads(model))


def _seconds_a_node(times: _Times) -> float | None:
    """Return the mean seconds per graph over known datasets; None if none is known."""
    known = [(fmean(some), _nodes(name)) for (name, _), some in times.items() if name in DATASETS]
    return sum(mean for mean, _ in known) / sum(nodes for _, nodes in known) if known else None


def _nodes(dataset: str) -> float:
    return DATASETS[dataset].graphs * DATASETS[dataset].mean_nodes


def _cells(
    studies: Iterable[str], only: str | None, seeds: int | None, choices: Path | None
) -> list[tuple[str, StudyCell, list[RunSpec]]]:
    chosen, named = _parse_only(only), tuple(studies)
    dataset, line = chosen.get("dataset"), chosen.get("pool")
    found = every = find_studies(named, choices)
    if not named:  # without names, keep the studies that have such cells
        found = {
            name: study
            for name, study in every.items()
            if dataset in (None, *study.datasets) and line in (None, *study.lines)
        }
    cells = [
        (name, cell, cell.runs(study.seeds if seeds is None else seeds))
        for name, study in found.items()
        for cell in study.only(dataset=dataset, line=line)
    ]
    if only is not None and not cells:
        datasets = [name for study in every.values() for name in study.datasets]
        lines = [name for study in every.values() for name in study.lines]
        asked = (dataset, datasets), (line, lines)
        unknown = [(name, known) for name, known in asked if name and name not in known]
        hint = "".join(did_you_mean(name, known) for name, known in unknown)
        who = f"cell of {', '.join(named)}" if named else "study"
        raise ValueError(
            f"no {who} has {only}{hint} (`gtpool study status --cells` lists what there is)"
        )
    return cells


def _parse_only(only: str | None) -> dict[str, str]:
    """Return comma-separated ``key=value`` pairs; values may contain commas."""
    chosen: dict[str, str] = {}
    if only is None:
        return chosen
    key = ""
    for part in only.split(","):
        name, equals, value = part.partition("=")
        if equals and name.strip() in {"dataset", "pool"} - chosen.keys():
            key = name.strip()
            chosen[key] = value
        elif key and part.strip():
            chosen[key] += f",{part}"
        else:
            raise ValueError(f"--only must be dataset=NAME, pool=NAME or both, got {only!r}")
    return {key: value.strip() for key, value in chosen.items()}


class StatusCounts(NamedTuple):
    """Cells, and the runs of all of them."""

    cells: int
    whole: int
    begun: int
    done: int
    wanted: int
    failed: int


def status_table(found: Sequence[CellStatus], *, by_cell: bool = False) -> TextTable:
    """Return the table of finished and missing runs, one row per study or cell.

    Args:
        found: Status of each cell, study after study.
        by_cell: Show cells instead of their sums.
    """
    heads = ("study", "cells", "whole", "begun", "runs", "missing", "failed", "time left")
    if by_cell:
        heads = ("study", "pool", "dataset", "runs", "missing", "failed", "time left")
        lines = [
            (
                cell.study,
                cell.line,
                cell.dataset,
                *_run_counts(_sum_status([cell])),
                _time_left([cell]),
            )
            for cell in found
        ]
        return TextTable(heads, tuple(lines))
    lines = []
    for study, part in groupby(found, lambda cell: cell.study):
        cells = list(part)
        total = _sum_status(cells)
        counts = (str(count) for count in (total.cells, total.whole, total.begun))
        lines.append((study, *counts, *_run_counts(total), _time_left(cells)))
    return TextTable(heads, tuple(lines))


def status_total(found: Sequence[CellStatus]) -> str:
    """Return the status of all cells together; a run in several cells counts in the first."""
    seen = set[str]()
    alone: list[CellStatus] = []
    for cell in found:
        new = {key: state for key, state in cell.runs.items() if key not in seen}
        alone.append(cell._replace(runs=new))
        seen |= new.keys()
    done, missing, failed = _run_counts(_sum_status(alone))
    return (
        f"all: {done} runs, {missing} missing, {failed} failed, time left {_time_left(alone)}; "
        "a run that studies share counts once"
    )


def count_status(cells: Sequence[tuple[int, int, int]]) -> StatusCounts:
    """Return counts of complete and incomplete cells, and of their runs.

    Args:
        cells: Planned, finished and failed runs of each cell.

    Example:
        >>> count_status([(10, 10, 0), (10, 3, 1), (10, 0, 0)])
        StatusCounts(cells=3, whole=1, begun=1, done=13, wanted=30, failed=1)
    """
    whole = sum(done == wanted for wanted, done, _ in cells)
    begun = sum(0 < done < wanted for wanted, done, _ in cells)
    wanted, done, failed = (sum(cell[at] for cell in cells) for at in range(3))
    return StatusCounts(len(cells), whole, begun, done, wanted, failed)


def _sum_status(cells: Sequence[CellStatus]) -> StatusCounts:
    return count_status([(cell.wanted, cell.done, cell.failed) for cell in cells])


def _run_counts(total: StatusCounts) -> tuple[str, str, str]:
    return f"{total.done} of {total.wanted}", str(total.wanted - total.done), str(total.failed)


def _time_left(cells: Sequence[CellStatus]) -> str:
    """Return the estimated time left, at the pace of the finished runs."""
    parts = [cell.seconds for cell in cells]
    if None in parts:
        return "unknown"
    return format_seconds(sum(part for part in parts if part is not None))
