"""Elements of a report, independent of the output format: parts, tables and plots."""

from collections.abc import Mapping
from re import match
from typing import Literal, NamedTuple

PARTIAL, MISSING, WRONG = "◐", "○", "✗"
"""Marks of a cell: some runs missing, all runs missing, wrong value."""


class TableCell(NamedTuple):
    """A cell of a table."""

    text: str
    value: float | None = None
    """Sort key of a numeric column; cells without a value come last."""
    notes: tuple[str, ...] = ()
    """Smaller lines below the text."""
    runs: str | None = None
    """Name of the result whose runs the cell shows."""
    mark: Literal["", "partial", "missing", "slip"] = ""
    best: bool = False
    """Whether the method cannot be told from the best of its column."""


class ReportTable(NamedTuple):
    """A table."""

    caption: str
    heads: tuple[str, ...]
    lines: tuple[tuple[TableCell, ...], ...]
    detail: bool = False
    """Whether the table is collapsed."""
    prose: bool = False
    """Whether cells contain sentences and wrap."""


class Picture(NamedTuple):
    """A plot."""

    caption: str
    svg: str
    small: bool = False


class ReportSection(NamedTuple):
    """A section."""

    name: str
    """Anchor of the part."""
    title: str
    words: tuple[str, ...] = ()
    facts: Mapping[str, str] = {}
    sheets: tuple[ReportTable, ...] = ()
    pictures: tuple[Picture, ...] = ()


def text_cell(text: str) -> TableCell:
    """Return a text cell."""
    return TableCell(text)


def number_cell(value: float | None, form: str = ".2f", *, unit: str = "") -> TableCell:
    """Return a numeric cell; a dash for a missing value."""
    return TableCell("–") if value is None else TableCell(format(value, form) + unit, value)


def measured_cell(text: str) -> TableCell:
    """Return a text cell, sorted by its leading number if there is one.

    Example:
        >>> measured_cell("1,161.5 ms, 819 MB").value, measured_cell("out of memory").value
        (1161.5, None)
    """
    found = match(r"\d[\d,]*(\.\d+)?", text)
    return TableCell(text, float(found[0].replace(",", "")) if found else None)
