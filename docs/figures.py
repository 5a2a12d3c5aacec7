"""Finished runs of results/, and figures of them as text, for the tables of docs/tables.py."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gtpool.reproduce.paper import STUDIES
from gtpool.reproduce.status import read_rows
from gtpool.reproduce.study_results import CellResult, cell_results

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "results"
ROWS = read_rows([EVIDENCE / "runs"])


@cache
def results(study: str) -> Sequence[CellResult]:
    """Return the results of all cells of a study."""
    return cell_results(study, STUDIES[study], ROWS)


def find(study: str, line: str, dataset: str) -> CellResult | None:
    """Return the result of a cell; None if the study does not have it."""
    places = ((one.place.line, one.place.dataset) for one in results(study))
    return dict(zip(places, results(study), strict=True)).get((line, dataset))


def figure(result: CellResult) -> str:
    """Return a figure with its runs; a cell without a complete seed is missing."""
    if not result.has_complete_seed:
        return "missing"
    runs = result.figure.n
    over = " over folds" if result.figure.spread == "folds" and runs > 1 else ""
    return f"{result.figure.text}{over} ({runs} run{'s' if runs > 1 else ''})"


def published(result: CellResult) -> str:
    """Return the paper's figure of a cell."""
    told = result.place.published
    return "–" if told is None else f"{told.mean:.2f} ± {told.std:.2f}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [f"| {' | '.join(cells)} |" for cells in (heads, *lines)]
    return "\n".join((rows[0], "|" + "---|" * len(heads), *rows[1:]))
