"""The report on the studies as one HTML page that opens offline."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gtpool.report.cells import Row, reported
from gtpool.report.site import inline
from gtpool.report.study_content import Report
from gtpool.report.study_parts import Part
from gtpool.report.template import template


def html(report: Report) -> str:
    """Write the page; the same report gives the same text."""
    page = template(Path(__file__).with_name("study.html.j2"))
    parts = [_with_drawings(part) for part in report.parts]
    return page.render(title=report.title, parts=parts, rows=_stored(report))


def _with_drawings(part: Part) -> Part:
    """Fit the drawings of a part into the page."""
    pictures = (
        picture._replace(svg=inline(picture.svg, picture.caption, f"{part.name}{at}-"))
        for at, picture in enumerate(part.pictures)
    )
    return part._replace(pictures=tuple(pictures))


def _stored(report: Report) -> Markup:
    """Give the runs behind each cell as JSON, which a script lays out on request."""
    names: dict[str | None, int] = {}
    rows: dict[str, list[Any]] = {}
    cells: dict[str, list[str]] = {}
    for result in report.results:
        cells[result.name] = [row["key"] for row in result.rows]
        for row in result.rows:
            if row["key"] not in rows:
                rows[row["key"]] = _brief(row, names)
    text = json.dumps(
        {"names": list(names), "cells": cells, "rows": rows},
        separators=(",", ":"),
        ensure_ascii=False,
    )
    # Inside a script element text ends at "</script", whatever it stands in.
    return Markup(text.replace("<", "\\u003c"))  # noqa: S704


def _brief(row: Row, names: dict[str | None, int]) -> list[Any]:
    """Give what the page lists of a run; devices and commits by number."""
    spec: Mapping[str, Any] = row["spec"]
    test, loss = reported(row), row["valid_loss"]
    return [
        spec["seed"],
        spec["split"]["fold"] + 1,
        None if test is None else round(100 * test, 2),
        row["epoch"],
        None if loss is None else round(loss, 4),
        row["seconds"],
        names.setdefault(row["device"], len(names)),
        names.setdefault(row["commit"], len(names)),
        row["error"],
    ]
