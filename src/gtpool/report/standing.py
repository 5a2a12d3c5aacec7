"""How far the studies have come, as a table. No torch."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from gtpool.report.progress import spell_time
from gtpool.report.table import Table
from gtpool.study.status import Standing


class Tally(NamedTuple):
    """Cells, and the runs of all of them."""

    cells: int
    whole: int
    begun: int
    done: int
    wanted: int
    failed: int


def standing_table(found: Sequence[Standing], *, by_cell: bool = False) -> Table:
    """Lay out what is done and missing, one line a study or a cell.

    Args:
        found: The standing of each cell, study after study.
        by_cell: Show cells, not their sums.
    """
    heads = ("study", "cells", "whole", "begun", "runs", "missing", "failed", "time left")
    if by_cell:
        heads = ("study", "pool", "dataset", "runs", "missing", "failed", "time left")
        lines = [
            (cell.study, cell.line, cell.dataset, *_runs(_tally([cell])), _duration([cell]))
            for cell in found
        ]
        return Table(heads, tuple(lines))
    lines = []
    for study, part in groupby(found, lambda cell: cell.study):
        cells = list(part)
        total = _tally(cells)
        counts = (str(count) for count in (total.cells, total.whole, total.begun))
        lines.append((study, *counts, *_runs(total), _duration(cells)))
    return Table(heads, tuple(lines))


def standing_total(found: Sequence[Standing]) -> str:
    """Sum up all cells; a run that several have counts in the first."""
    seen = set[str]()
    alone: list[Standing] = []
    for cell in found:
        new = {key: state for key, state in cell.runs.items() if key not in seen}
        alone.append(cell._replace(runs=new))
        seen |= new.keys()
    done, missing, failed = _runs(_tally(alone))
    return (
        f"all: {done} runs, {missing} missing, {failed} failed, time left {_duration(alone)}; "
        "a run that studies share counts once"
    )


def tally(cells: Sequence[tuple[int, int, int]]) -> Tally:
    """Count cells by how far they are, and their runs.

    Args:
        cells: Of each the runs that it should have, those done, those that failed.

    Example:
        >>> tally([(10, 10, 0), (10, 3, 1), (10, 0, 0)])
        Tally(cells=3, whole=1, begun=1, done=13, wanted=30, failed=1)
    """
    whole = sum(done == wanted for wanted, done, _ in cells)
    begun = sum(0 < done < wanted for wanted, done, _ in cells)
    wanted, done, failed = (sum(cell[at] for cell in cells) for at in range(3))
    return Tally(len(cells), whole, begun, done, wanted, failed)


def _tally(cells: Sequence[Standing]) -> Tally:
    return tally([(cell.wanted, cell.done, cell.failed) for cell in cells])


def _runs(total: Tally) -> tuple[str, str, str]:
    return f"{total.done} of {total.wanted}", str(total.wanted - total.done), str(total.failed)


def _duration(cells: Sequence[Standing]) -> str:
    """Give the time that is left, at the pace of the runs so far."""
    parts = [cell.seconds for cell in cells]
    if None in parts:
        return "unknown"
    return spell_time(sum(part for part in parts if part is not None))
