"""Repeat one cell of a study and compare it with the committed results. No torch."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from gtpool.reproduce.paper import StudyCell, find_studies
from gtpool.reproduce.study_results import cell_result, counted_seeds
from gtpool.study.result import RunResult
from gtpool.study.summarize import ScoreGrid, format_metric, reported_score, summarize_grid


class Repetition(NamedTuple):
    """A repeated run beside the committed one."""

    new: RunResult
    stored: RunResult

    @property
    def equal(self) -> bool:
        """Whether both test metrics are equal to the last digit."""
        return reported_score(self.new) == reported_score(self.stored)

    @property
    def same_setting(self) -> bool:
        """Whether device and commit are the same."""
        return (self.new.device, self.new.commit) == (self.stored.device, self.stored.commit)


def find_cell(
    study: str, dataset: str, line: str, seeds: int, stored: Mapping[str, RunResult]
) -> tuple[StudyCell, int]:
    """Return a cell and the number of seeds of its study.

    Unknown names, and a cell without committed runs of these seeds, raise a ValueError.

    Args:
        study: Key of ``STUDIES``.
        dataset: Column of the study.
        line: Row of the study, such as a method.
        seeds: Number of seeds to repeat.
        stored: Committed runs by key.
    """
    found = find_studies([study])[study]
    cells = found.only(dataset=dataset, line=line)
    if not cells:
        raise ValueError(f"the study {study} has no cell of {line} on {dataset}")
    runs = cells[0].runs(seeds)
    if not any(run.key in stored and stored[run.key].done for run in runs):
        raise ValueError(
            f"none of the {len(runs)} runs of {line} on {dataset} is in the committed results, so "
            f"there is nothing to compare with; `gtpool study run {study}` does missing runs, "
            "--known names other results"
        )
    return cells[0], found.seeds


def compare_with_stored(
    cell: StudyCell, new: Sequence[RunResult], stored: Mapping[str, RunResult], seeds: int
) -> list[str]:
    """Return lines that compare repeated runs with the committed ones; the last is the verdict.

    Args:
        cell: The cell.
        new: The repeated runs, all done; at least one is committed.
        stored: Committed runs by key.
        seeds: Number of seeds of the study, whose spread is the yardstick.
    """
    pairs = [
        Repetition(row, stored[row.key])
        for row in new
        if row.key in stored and stored[row.key].done
    ]
    missing = len(new) - len(pairs)
    lines = [f"{missing} of {len(new)} runs are not in the committed results"] if missing else []
    if all(pair.equal for pair in pairs):
        return [*lines, "equal"]
    metric = pairs[0].new.metric or "accuracy"
    mine, theirs = (_mean([getattr(pair, side) for pair in pairs]) for side in ("new", "stored"))
    lines.append(f"repeated: {format_metric(mine, metric)}, {_settings([p.new for p in pairs])}")
    lines.append(
        f"committed: {format_metric(theirs, metric)}, {_settings([p.stored for p in pairs])}"
    )
    if not any(pair.same_setting for pair in pairs):
        lines.append("device or commit differ, so equal figures are not expected")
    repeated = len({pair.new.spec.seed for pair in pairs})
    grid = cell_result("", cell, seeds, stored).grid
    return [*lines, _verdict(mine - theirs, metric, repeated, grid)]


def _verdict(gap: float, metric: str, repeated: int, committed: ScoreGrid) -> str:
    """Return the difference and whether it lies within what other seeds give.

    Two independent means over n seeds differ by more than twice the deviation of seeds times
    sqrt(2 / n) in about one of twenty cases.
    """
    told = f"difference {'-' if gap < 0 else '+'}{format_metric(abs(gap), metric)}"
    summary = summarize_grid(counted_seeds(committed))
    if summary.std is None or summary.spread != "seeds":
        return f"{told}; the committed runs have no spread of seeds"
    limit = 2 * summary.std * sqrt(2 / repeated)
    return (
        f"{told}; {'within' if abs(gap) <= limit else 'outside'} the spread of seeds, "
        f"± {format_metric(limit, metric)} for 95 % of repetitions"
    )


def _mean(rows: Sequence[RunResult]) -> float:
    scores = [score for row in rows if (score := reported_score(row)) is not None]
    return sum(scores) / len(scores)


def _settings(rows: Sequence[RunResult]) -> str:
    """Return the devices and commits of rows as text."""
    found = dict.fromkeys((row.device, row.commit or "unknown") for row in rows)
    return "; ".join(f"{device} at {commit}" for device, commit in found)
