"""Print the tables of README.md and docs/baselines.md, made from results/; a test compares."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from gtpool.model import METHODS, method_name
from gtpool.report.cells import summary
from gtpool.study.published import TABLE_1

RESULTS = Path(__file__).parent.parent / "results"
COMPARED = ("MUTAG", "PROTEINS")

_Row = dict[str, Any]


def headline() -> str:
    """Give the README's table in Markdown, one line a dataset and method."""
    lines = [
        "| dataset | method | accuracy, % | evidence | device | commit |",
        "|---|---|---|---|---|---|",
    ]
    for (source, method), runs in _cells("proof").items():
        cell = summary(runs)
        device, commit = runs[0]["device"], runs[0]["commit"]
        lines.append(
            f"| {source} | {method} | {cell.text} | {cell.evidence} | {device} | {commit} |"
        )
    return "\n".join(lines)


def baselines() -> str:
    """Give one line a method: ours, the published figure and the difference on two datasets."""
    heads = " | ".join(f"{name}, ours | published | difference" for name in COMPARED)
    lines = [f"| method | {heads} |", "|---" * (1 + 3 * len(COMPARED)) + "|"]
    cells = _cells("baselines")
    for method in METHODS:
        if any((source, method) in cells for source in COMPARED):
            parts = (_beside(cells.get((source, method)), method, source) for source in COMPARED)
            lines.append(f"| {method} | {' | '.join(parts)} |")
    return "\n".join(lines)


def _cells(name: str) -> dict[tuple[str, str], list[_Row]]:
    """Read the rows of a file, by dataset and method."""
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return {key: list(group) for key, group in groupby(sorted(rows, key=_cell), _cell)}


def _cell(row: _Row) -> tuple[str, str]:
    spec = row["spec"]
    return spec["data"]["source"], method_name(spec["model"])


def _beside(runs: list[_Row] | None, method: str, source: str) -> str:
    """Give our figure, the published one, and the difference in points."""
    published = TABLE_1.get(method, {}).get(source)
    told = "–" if published is None else f"{published.mean:.2f} ± {published.std:.2f}"
    if runs is None:
        return f"missing | {told} | –"
    cell = summary(runs)
    ours = cell.text + (f" ({cell.missing} folds missing)" if cell.missing else "")
    if published is None or cell.mean is None:
        return f"{ours} | {told} | –"
    return f"{ours} | {told} | {100 * cell.mean - published.mean:+.2f}"


if __name__ == "__main__":
    print(headline(), baselines(), sep="\n\n")  # noqa: T201
