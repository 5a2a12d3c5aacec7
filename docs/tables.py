"""Write the tables of README.md and docs/*.md between their marks, made from results/.

A page marks a table by ``<!-- docs/tables.py: NAME -->`` before it and ``<!-- end -->`` after it.
``make performance`` calls this. With ``--check`` nothing is written: stale pages are named.
"""

import json
import re
import sys
from collections.abc import Sequence

import figures
import molecule_tables
import performance
import pooler_tables
import recipe_tables
from figures import EVIDENCE, ROOT, ROWS, figure, find, published, results

from gtpool.reproduce.paper import STUDIES, find_studies
from gtpool.reproduce.study_compare import paired_test
from gtpool.reproduce.study_results import OURS, CellResult, cell_results
from gtpool.study.result import RunResult
from gtpool.study.summarize import EPOCH_RULES

TABLE = results("table1")
TUNED = results("tuned")
FIRST = cell_results(
    "tuned", find_studies(["tuned"], EVIDENCE / "tuning/first/tuned.json")["tuned"], ROWS
)
COMPARED = ("MUTAG", "PROTEINS")
MARK = re.compile(r"(<!-- docs/tables\.py: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RIVALRY = ("MUTAG", "PROTEINS", "ogbg-molbbbp")
TU = tuple(name for name in STUDIES["table1"].datasets if not name.startswith("ogbg"))
ALIKE = tuple(
    (name, f"tuned: {line}", f"table1: {line}")
    for name in COMPARED
    for line in STUDIES["tuned"].lines
    if line in STUDIES["table1"].lines and line not in OURS
)
BOTH = ("PROTEINS", "IMDB-BINARY")
TESTED = (
    *((dataset, "table1: gtpool-v", "table1: mlp") for dataset in TU),
    *(
        (name, f"table2: {pool}-{by}", f"table2: {pool}")
        for name in BOTH
        for pool in ("sagpool_h", "topkpool", "asap")
        for by in ("rws", "rwsv")
    ),
    *(
        (name, f"table3: {part}", "table3: gtpool-v")
        for name in BOTH
        for part in ("no-local-score", "no-global-score", "gtpool-topk")
    ),
    ("IMDB-BINARY", "ablation: score order, gate", "ablation: gtpool-v"),
    ("IMDB-BINARY", "ablation: score order, gate", "features: gmt, raw"),
    *((name, "levels: 1", "levels: 3") for name in BOTH),
    *((name, "ratio: 0.75", "ratio: 0.5") for name in BOTH),
    ("ENZYMES", "features: gmt, z-scored", "features: gmt, raw"),
    ("MUTAG", "mutag: score order", "mutag: gtpool-v"),
    ("MUTAG", "mutag: gin, sum, read_input, score order", "mutag: gin, sum, read_input"),
    ("MUTAG", "mutag: flat gcn, sum", "mutag: flat gcn"),
    ("MUTAG", "mutag: flat gine (bonds)", "mutag: flat gin"),
    ("MUTAG", "mutag: gine (bonds), sum, read_input", "mutag: gin, sum, read_input"),
    ("MUTAG", "mutag: flat gin", "mutag: flat gcn"),
    ("MUTAG", "mutag: gin", "mutag: gtpool-v"),
    ("MUTAG", "mutag: gin, sum, read_input, 3 convs", "mutag: gtpool-v"),
    ("MUTAG", "table1: mincutpool", "table1: gtpool-v"),
    *((dataset, "tuned: gtpool-v", "table1: gtpool-v") for dataset in TU),
    ("Synthie", "tuned: gtpool-v", "table1: sortpool"),
    *ALIKE,
    *((name, tuned, "tuned: gtpool-v") for name, tuned, _ in ALIKE),
    *((name, "best: best", "best: paper") for name in TU),
    *((name, "best: best", "best: gcn") for name in TU),
)
"""Comparisons of the paired tests: the dataset, and two lines of studies."""


def headline() -> str:
    """Give the first table: ours, the paper, tuned and the best baseline, one line a dataset."""
    heads = ("dataset", "GTPool", "GTPool-V", "paper", "tuned", "best baseline here")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for dataset in STUDIES["table1"].datasets:
        cells = {result.place.line: result for result in TABLE if result.place.dataset == dataset}
        tuned = _at(TUNED, "gtpool-v", dataset)
        figures = (
            figure(cells["gtpool"]),
            figure(cells["gtpool-v"]),
            published(cells["gtpool-v"]),
            tuned,
            _best([cell for name, cell in cells.items() if name not in OURS]),
        )
        lines.append(f"| {dataset} | {' | '.join(figures)} |")
    return "\n".join(lines)


def baselines() -> str:
    """Give one line a method: ours, the published figure and the difference on two datasets."""
    heads = " | ".join(f"{name}, ours | published | difference" for name in COMPARED)
    lines = [f"| method | {heads} |", "|---" * (1 + 3 * len(COMPARED)) + "|"]
    cells = {(result.place.line, result.place.dataset): result for result in TABLE}
    for method in STUDIES["table1"].lines:
        parts = [_beside(cells[method, dataset]) for dataset in COMPARED]
        lines.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(lines)


def rules() -> str:
    """Give what each rule of choosing the epoch makes of the same runs of GTPool-V."""
    heads = ("dataset", "paper", *EPOCH_RULES.values())
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for result in TABLE:
        if result.place.line == "gtpool-v" and result.has_complete_seed:
            figures = (result.rules[rule].text for rule in EPOCH_RULES)
            lines.append(
                f"| {result.place.dataset} | {published(result)} | {' | '.join(figures)} |"
            )
    return "\n".join(lines)


def tuned() -> str:
    """Give GTPool-V before and after both searches, one line a dataset."""
    heads = ("dataset", "paper", "untuned", "each fold's choice", "pooled validation", "1st search")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for result in TABLE:
        if result.place.line == "gtpool-v":
            dataset = result.place.dataset
            chosen = _at(TUNED, "gtpool-v", dataset)
            pooled = _at(TUNED, "gtpool-v, pooled validation", dataset)
            figures = (figure(result), chosen, pooled, _at(FIRST, "gtpool-v", dataset))
            lines.append(f"| {dataset} | {published(result)} | {' | '.join(figures)} |")
    return "\n".join(lines)


def rivals() -> str:
    """Give the methods that were tuned with one budget, before and after, on each set of them."""
    heads = ("same budget", "untuned", "each fold's choice", "pooled validation")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for dataset in RIVALRY:
        for line in STUDIES["tuned"].lines:
            chosen = _at(TUNED, line, dataset)
            if "pooled" not in line and chosen != "–":
                pooled = _at(TUNED, f"{line}, pooled validation", dataset)
                figures = (_at(TABLE, line, dataset), chosen, pooled)
                lines.append(f"| {dataset}, {line} | {' | '.join(figures)} |")
    return "\n".join(lines)


def tests() -> str:
    """Give the paired tests that the page speaks of, where both sides have a whole seed."""
    heads = ("dataset", "this", "against", "difference", "t")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for dataset, *names in TESTED:
        found = [_named(name, dataset) for name in names]
        if all(one is not None and one.has_complete_seed for one in found):
            first, second = found
            test = paired_test(first, second)
            figures = f"{round(test.mean, 9):+z.2f} | {test.t:z.1f}"
            lines.append(f"| {dataset} | {' | '.join(names)} | {figures} |")
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


def _at(found: Sequence[CellResult], line: str, dataset: str) -> str:
    """Give the figure of a place; a dash where the study does not have it."""
    here = [one for one in found if (one.place.line, one.place.dataset) == (line, dataset)]
    return figure(here[0]) if here else "–"


def _named(name: str, dataset: str) -> CellResult | None:
    """Find the cell of "study: line" on a dataset."""
    return find(*name.split(": ", 1), dataset)


def _with_paper(result: CellResult) -> str:
    told = result.place.published
    return figure(result) + ("" if told is None else f", paper {told.mean:.2f}")


def _best(found: list[CellResult]) -> str:
    """Give the baselines of the highest figure on the test parts, and of how many."""
    known = [result for result in found if result.has_complete_seed]
    if not known:
        return "missing"
    highest = max(result.percent or 0.0 for result in known)
    first = (f"{one.place.line} {figure(one)}" for one in known if one.percent == highest)
    part = (
        "" if len(known) == len(found) else f", best of {len(known)} run ({len(found)} there are)"
    )
    return " and ".join(first) + part


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
    return figures.table(heads, lines)


def _an_hour(rows: Sequence[RunResult]) -> str:
    """Give the runs an hour, from the mean time of some."""
    return f"{3600 * len(rows) / sum(row.seconds for row in rows):,.0f}" if rows else "–"


MADE = {
    "headline": headline,
    "results": recipe_tables.best_in_short,
    "baselines": baselines,
    "rules": rules,
    "tuned": tuned,
    "rivals": rivals,
    "paired": tests,
    "speed": performance.summary,
    "ensembles": lambda: performance.part("crossval"),
    "layers": lambda: performance.part("layers"),
    "large": performance.large,
    "hours": hours,
    "connect": connect,
    "best": recipe_tables.best,
    "best-beyond-paper": recipe_tables.beyond_paper,
    "best-aims": recipe_tables.aims,
    "best-rivals": recipe_tables.rivals,
    "best-rival-ensembles": recipe_tables.rival_ensembles,
    "best-positions": recipe_tables.positions,
    "molecule-sets": molecule_tables.sets,
    "molecule-ranks": molecule_tables.ranks,
    "molecule-scores": molecule_tables.scores,
    "molecule-candidates": molecule_tables.candidates,
    "poolers": pooler_tables.properties,
    "pooler-promises": pooler_tables.promises,
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
