"""How far the studies have come, as a table. No torch."""

from collections.abc import Sequence
from itertools import groupby

from gtpool.report.table import Table
from gtpool.study.status import Standing


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
            (cell.study, cell.line, cell.dataset, *_counts([cell]), _duration([cell]))
            for cell in found
        ]
        return Table(heads, tuple(lines))
    lines = []
    for study, part in groupby(found, lambda cell: cell.study):
        cells = list(part)
        whole = sum(cell.done == cell.wanted for cell in cells)
        begun = sum(0 < cell.done < cell.wanted for cell in cells)
        counts = (str(count) for count in (len(cells), whole, begun))
        lines.append((study, *counts, *_counts(cells), _duration(cells)))
    return Table(heads, tuple(lines))


def standing_total(found: Sequence[Standing]) -> str:
    """Sum up all cells; a run that several have counts in the first."""
    seen = set[str]()
    alone: list[Standing] = []
    for cell in found:
        new = {key: state for key, state in cell.runs.items() if key not in seen}
        alone.append(cell._replace(runs=new))
        seen |= new.keys()
    done, missing, failed = _counts(alone)
    return (
        f"all: {done} runs, {missing} missing, {failed} failed, time left {_duration(alone)}; "
        "a run that studies share counts once"
    )


def _counts(cells: Sequence[Standing]) -> tuple[str, str, str]:
    wanted, done, failed = (
        sum(getattr(cell, name) for cell in cells) for name in ("wanted", "done", "failed")
    )
    return f"{done} of {wanted}", str(wanted - done), str(failed)


def _duration(cells: Sequence[Standing]) -> str:
    """Give the time that is left, at the pace of the runs so far."""
    parts = [cell.seconds for cell in cells]
    if None in parts:
        return "unknown"
    seconds = sum(part for part in parts if part is not None)
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
