"""What of the studies is done, what is missing, and how long that would take. No torch."""

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple, get_args

from gtpool.model import METHODS, method_name
from gtpool.spec import ModelSpec, RunSpec, did_you_mean
from gtpool.study.paper import Cell, find
from gtpool.study.store import Row, differing, placed_rows

Kind = Literal["cpu", "gpu"]
"""Where a run was done."""


class Standing(NamedTuple):
    """How far a study, or one cell of it, has come."""

    study: str
    line: str
    dataset: str
    wanted: int
    done: int
    failed: int
    seconds: float | None
    """How long what is missing would take one run after the other, by the mean of runs of the same
    cell; else by that of its dataset, or of all, and by how much longer than others its method
    takes elsewhere; None where nothing has run."""


def find_runs(
    studies: Iterable[str], only: str | None, seeds: int | None, choices: Path | None = None
) -> list[RunSpec]:
    """List the runs of studies, each once.

    Args:
        studies: Names; all studies if there is none.
        only: Which cells, such as ``dataset=PROTEINS,pool=gtpool-v``.
        seeds: How many; by default as many as each study should have.
        choices: What "tuned" has in place of our choices, a ``tuned.json``.
    """
    return [run for run, _ in named_runs(studies, only, seeds, choices)]


def named_runs(
    studies: Iterable[str], only: str | None, seeds: int | None, choices: Path | None = None
) -> list[tuple[RunSpec, str]]:
    """List the runs of studies with the name of their line, by the arguments of ``find_runs``.

    A method is named as such, a change with its study; a run of several lines has the first.
    """
    found: dict[str, tuple[RunSpec, str]] = {}
    for study, cell, runs in _cells(studies, only, seeds, choices):
        name = cell.line if cell.line in METHODS else f"{study} {cell.line}"
        for run in runs:
            found.setdefault(run.key, (run, name))
    return list(found.values())


def known_rows(sources: Iterable[Path]) -> dict[str, Row]:
    """Read rows by key; where a run has several, a done one counts, the first of equals.

    Done rows of a run with different numbers give a warning.
    """
    rows: dict[str, Row] = {}
    places: dict[str, str] = {}
    apart: dict[str, str] = {}
    for source in sources:
        for row, place in placed_rows(source):
            key, known = row["key"], rows.get(row["key"])
            if known is None or known["status"] != "done":
                rows[key], places[key] = row, place
            elif row["status"] == "done" and (names := differing(row, known)):
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


def standings(
    studies: Iterable[str],
    only: str | None,
    seeds: int | None,
    rows: Mapping[str, Row],
    *,
    choices: Path | None = None,
    on: Kind | None = None,
) -> list[Standing]:
    """Say of each cell how far it has come.

    Args:
        studies: As in ``find_runs``, and so the next two.
        only: Which cells.
        seeds: How many.
        rows: What has run, by key.
        choices: As in ``find_runs``.
        on: Count the pace of runs there alone; by default of all.
    """
    pace = _Pace(ran_on(rows.values(), on))
    found: list[Standing] = []
    for name, cell, runs in _cells(studies, only, seeds, choices):
        known = [rows[run.key] for run in runs if run.key in rows]
        done = [row for row in known if row["status"] == "done"]
        left = pace.of(cell, ran_on(done, on)) if len(done) < len(runs) else 0.0
        seconds = None if left is None else left * (len(runs) - len(done))
        counts = len(runs), len(done), len(known) - len(done)
        found.append(Standing(name, cell.line, cell.dataset, *counts, seconds))
    return found


def ran_on(rows: Iterable[Row], on: Kind | None) -> list[Row]:
    """Give the rows of what was done on a CPU or on a GPU; None is on either."""
    if on not in {None, *get_args(Kind)}:
        raise ValueError(f"runs are on {' or '.join(get_args(Kind))}, got {on!r}")
    done = [row for row in rows if row["status"] == "done"]
    return [row for row in done if on is None or (row["device"] == "cpu") == (on == "cpu")]


class _Pace:
    """How long a run takes, from what was done."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.by_dataset: dict[str, list[float]] = {}
        self.by_model: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            source, model = row["spec"]["data"]["source"], json.dumps(row["spec"]["model"])
            self.by_dataset.setdefault(source, []).append(row["seconds"])
            self.by_model.setdefault(model, {}).setdefault(source, []).append(row["seconds"])

    def of(self, cell: Cell, done: list[Row]) -> float | None:
        """Give the seconds of a run of this cell."""
        if done:
            return fmean(row["seconds"] for row in done)
        everything = [second for part in self.by_dataset.values() for second in part]
        here = self.by_dataset.get(cell.dataset) or everything
        return fmean(here) * self._factor(cell.specs[0].model) if here else None

    def _factor(self, model: ModelSpec) -> float:
        """Say how many times a usual run of its dataset a run of this method takes elsewhere."""
        method = method_name(model.to_json())
        factors = [
            fmean(seconds) / fmean(self.by_dataset[source])
            for known, datasets in self.by_model.items()
            if method_name(json.loads(known)) == method
            for source, seconds in datasets.items()
        ]
        return fmean(factors) if factors else 1.0


def _cells(
    studies: Iterable[str], only: str | None, seeds: int | None, choices: Path | None
) -> Iterable[tuple[str, Cell, list[RunSpec]]]:
    chosen, named = _read(only), tuple(studies)
    dataset, line = chosen.get("dataset"), chosen.get("pool")
    found = every = find(named, choices)
    if not named:  # of all studies, those that have it
        found = {
            name: study
            for name, study in every.items()
            if dataset in (None, *study.datasets) and line in (None, *study.lines)
        }
    if not found:
        datasets = [name for study in every.values() for name in study.datasets]
        lines = [name for study in every.values() for name in study.lines]
        asked = (dataset, datasets), (line, lines)
        unknown = [(name, known) for name, known in asked if name and name not in known]
        hint = "".join(did_you_mean(name, known) for name, known in unknown)
        raise ValueError(
            f"no study has {only}{hint} (`gtpool study status --cells` lists what there is)"
        )
    for name, study in found.items():
        for cell in study.only(dataset=dataset, line=line):
            yield name, cell, cell.runs(study.seeds if seeds is None else seeds)


def _read(only: str | None) -> dict[str, str]:
    """Read ``key=value`` pairs with commas between; a value may hold commas itself."""
    chosen: dict[str, str] = {}
    if only is None:
        return chosen
    key = ""
    for part in only.split(","):
        name, equals, value = part.partition("=")
        if equals and name in {"dataset", "pool"} - chosen.keys():
            key = name
            chosen[key] = value
        elif key and part:
            chosen[key] += f",{part}"
        else:
            raise ValueError(f"--only is dataset=NAME, pool=NAME or both, got {only!r}")
    return chosen
