"""What a report is made of: parts with words, tables and drawings, whatever they are written as."""

from collections.abc import Mapping
from re import match
from typing import Literal, NamedTuple

PARTIAL, MISSING, WRONG = "◐", "○", "✗"
"""Marks to the eye: runs are missing, all are, a figure is wrong."""


class TableCell(NamedTuple):
    """A cell of a table."""

    text: str
    value: float | None = None
    """What a column of numbers is sorted by; cells without come last."""
    notes: tuple[str, ...] = ()
    """Smaller lines below."""
    runs: str | None = None
    """The name of the result whose runs are behind it."""
    mark: Literal["", "partial", "missing", "slip"] = ""


class ReportTable(NamedTuple):
    """A table."""

    caption: str
    heads: tuple[str, ...]
    lines: tuple[tuple[TableCell, ...], ...]
    detail: bool = False
    """Whether it is opened only on request."""
    prose: bool = False
    """Whether its cells are sentences, which wrap."""


class Picture(NamedTuple):
    """A drawing."""

    caption: str
    svg: str
    small: bool = False


class ReportSection(NamedTuple):
    """A section."""

    name: str
    """What it is called in an address."""
    title: str
    words: tuple[str, ...] = ()
    facts: Mapping[str, str] = {}
    sheets: tuple[ReportTable, ...] = ()
    pictures: tuple[Picture, ...] = ()


def text_cell(text: str) -> TableCell:
    """Give a cell of words."""
    return TableCell(text)


def number_cell(value: float | None, form: str = ".2f", *, unit: str = "") -> TableCell:
    """Give a cell of a number; a dash where there is none."""
    return TableCell("–") if value is None else TableCell(format(value, form) + unit, value)


def measured_cell(text: str) -> TableCell:
    """Give a cell of words that is sorted by the number that they begin with, if they do.

    Example:
        >>> measured_cell("1,161.5 ms, 819 MB").value, measured_cell("out of memory").value
        (1161.5, None)
    """
    found = match(r"\d[\d,]*(\.\d+)?", text)
    return TableCell(text, float(found[0].replace(",", "")) if found else None)
