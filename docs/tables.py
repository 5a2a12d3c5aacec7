"""Write the tables of README.md and docs/*.md between their marks, made from results/.

A page marks a table by ``<!-- docs/tables.py: NAME -->`` before it and ``<!-- end -->`` after it.
``make performance`` calls this. With ``--check`` nothing is written: stale pages are named.
"""

import json
import re
import sys
from collections.abc import Sequence

import kernel_tables
import molecule_tables
import performance
import pooler_tables
import recipe_tables
import result_tables
import scale_tables
from figures import EVIDENCE, ROOT, figure, published, results
from figures import table as markdown

from gtpool.reproduce.paper import STUDIES
from gtpool.reproduce.study_results import CellResult
from gtpool.study.result import RunResult

TABLE = results("table1")
COMPARED = ("MUTAG", "PROTEINS")
MARK = re.compile(r"(<!-- docs/tables\.py: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def baselines() -> str:
    """Give one line a method: ours, the published figure and the difference on two datasets."""
    heads = " | ".join(f"{name}, ours | published | difference" for name in COMPARED)
    lines = [f"| method | {heads} |", "|---" * (1 + 3 * len(COMPARED)) + "|"]
    cells = {(result.place.line, result.place.dataset): result for result in TABLE}
    for method in STUDIES["table1"].lines:
        parts = [_beside(cells[method, dataset]) for dataset in COMPARED]
        lines.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(lines)


def study(name: str) -> str:
    """Give a study as it is, one line a network, with the published figures where there are any."""
    found = {(result.place.line, result.place.dataset): result for result in results(name)}
    datasets = STUDIES[name].datasets
    lines = [f"| {name} | {' | '.join(datasets)} |", "|---" * (1 + len(datasets)) + "|"]
    for line in STUDIES[name].lines:
        cells = [found[line, dataset] for dataset in datasets]
        lines.append(f"| {line} | {' | '.join(map(_with_paper, cells))} |")
    return "\n".join(lines)


def connect() -> str:
    """Give the edges and isolated nodes after each step, one line for each ``connect``."""
    heads = ("dataset", "pool", "connect", "joined pairs a graph", "isolated nodes, %")
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|---:|---:|"]
    path = EVIDENCE / "bench/connect.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    newest = {(row["dataset"], row["pool"], row["connect"]): row for row in rows}
    for place, row in newest.items():
        pairs, isolated = (
            " / ".join(str(row[f"{what}_{step}"]) for step in (1, 2, 3))
            for what in ("pairs", "isolated")
        )
        name = f"{place[0]} ({row['pairs_0']} pairs)"
        lines.append(f"| {name} | {place[1]} | `{place[2]}` | {pairs} | {isolated} |")
    return "\n".join(lines)


def _with_paper(result: CellResult) -> str:
    told = result.place.published
    return figure(result) + ("" if told is None else f", paper {told.mean:.2f}")


def _beside(result: CellResult) -> str:
    """Give our figure, the published one, and the difference in points."""
    change = result.difference
    shown = "–" if change is None or not result.has_complete_seed else f"{change:+z.2f}"
    return f"{figure(result)} | {published(result)} | {shown}"


def hours() -> str:
    """Give the runs an hour of each method on PROTEINS, as the stored runs took."""
    heads = ("method", "H200, side by side (at once)", "H200, one by one", "a CPU, one by one")
    found = {
        one.place.line: [row for row in one.rows if row.status == "done"]
        for study in ("table1", "table2")
        for one in results(study)
        if one.place.dataset == "PROTEINS"
    }
    lines: list[list[str]] = []
    for method, rows in found.items():
        stacked = [row for row in rows if row.together]
        alone = [row for row in rows if not row.together]
        at_once = max((row.together or 1 for row in stacked), default=0)
        cells = [f"{_an_hour(stacked)} ({at_once})" if stacked else "–"]
        for device in ("NVIDIA H200", "cpu"):
            cells.append(_an_hour([row for row in alone if row.device == device]))  # noqa: PERF401
        if rows:
            lines.append([method, *cells])
    return markdown(heads, lines)


def _an_hour(rows: Sequence[RunResult]) -> str:
    """Give the runs an hour, from the mean time of some."""
    return f"{3600 * len(rows) / sum(row.seconds for row in rows):,.0f}" if rows else "–"


MADE = {
    **result_tables.MADE,
    "baselines": baselines,
    "speed": performance.summary,
    "steps": kernel_tables.steps,
    "layers": lambda: performance.part("layers"),
    "large": performance.large,
    "hours": hours,
    "connect": connect,
    "molecule-sets": molecule_tables.sets,
    "molecule-ranks": molecule_tables.ranks,
    "molecule-scores": molecule_tables.scores,
    "molecule-candidates": molecule_tables.candidates,
    "poolers": pooler_tables.properties,
    "pooler-promises": pooler_tables.promises,
    "exponents": scale_tables.exponents,
    "failures": scale_tables.failures,
    "mapped": scale_tables.mapped,
    "predict-speed": scale_tables.predict,
    "serve": scale_tables.serve,
    "store": scale_tables.store,
    "panel": recipe_tables.panel,
    "panel-choices": recipe_tables.panel_choices,
}


def table(name: str) -> str:
    """Give a table of a page by its name: one of its own making, or a study."""
    return MADE[name]() if name in MADE else study(name)


def fill(text: str) -> str:
    """Give a page with all its marked tables as they follow from the results."""
    return MARK.sub(lambda found: f"{found[1]}\n{table(found[2])}\n\n{found[3]}", text)


def stale(*, write: bool) -> list[str]:
    """Name the pages whose tables are not those of the results; bring them up to date if asked."""
    found: list[str] = []
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        text = page.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            found.append(str(page.relative_to(ROOT)))
            if write:
                page.write_text(filled, encoding="utf-8")
    return found


if __name__ == "__main__":
    check = "--check" in sys.argv
    pages = stale(write=not check)
    sys.stdout.writelines(f"{page}\n" for page in pages)
    sys.exit(bool(pages) and check)
