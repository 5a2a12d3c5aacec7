"""Print the README's table from results/proof.jsonl; a test holds the README to it."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from gtpool.model import method_name
from gtpool.report.cells import summary

PROOF = Path(__file__).parent.parent / "results/proof.jsonl"


def headline() -> str:
    """Give the table in Markdown, one line a dataset and method."""
    rows = [json.loads(line) for line in PROOF.read_text(encoding="utf-8").splitlines()]
    lines = [
        "| dataset | method | accuracy, % | evidence | device | commit |",
        "|---|---|---|---|---|---|",
    ]
    for (source, method), group in groupby(sorted(rows, key=_cell), _cell):
        runs = list(group)
        cell = summary(runs)
        device, commit = runs[0]["device"], runs[0]["commit"]
        lines.append(
            f"| {source} | {method} | {cell.text} | {cell.evidence} | {device} | {commit} |"
        )
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> tuple[str, str]:
    spec = row["spec"]
    return spec["data"]["source"], method_name(spec["model"])


if __name__ == "__main__":
    print(headline())  # noqa: T201
