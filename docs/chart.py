"""Dot plots as SVG text, for the pages of results: rows of marks with intervals, below each other.

As wide as the drawings of ``drawings.py``, without background and in colours of middle tone: they
can be read in light and dark and on a phone. Marks differ in shape and in colour.
"""

from collections.abc import Sequence
from html import escape
from math import ceil, floor
from typing import NamedTuple

from drawings import INK, PALE, WIDTH, svg

COLOURS = ("#3d87b3", "#cf5f45", "#4f8f8b", "#9a79ae")
"""Colour of each series; their shapes are circle, diamond, square and triangle."""
_ROW, _TOP, _GAP, _EDGE = 20, 14, 32, 16
_LETTER = 6.6
"""Width of a letter of a label, at least."""
_STEPS = (0.5, 1, 2, 5, 10, 20, 50)


class Mark(NamedTuple):
    """A point of a row, with an interval where there is one."""

    x: float
    series: int = 0
    low: float | None = None
    high: float | None = None
    hollow: bool = False


class Row(NamedTuple):
    """A label and its marks."""

    label: str
    marks: Sequence[Mark]
    """A row without marks is said to be missing."""


class Panel(NamedTuple):
    """Rows under a heading."""

    title: str
    rows: Sequence[Row]


def dot_plot(
    title: str,
    panels: Sequence[Panel],
    axis: str,
    series: Sequence[str] = (),
    *,
    ends: tuple[float, float] | None = None,
) -> str:
    """Return a picture of panels that share one scale.

    Args:
        title: For those who do not see it.
        panels: From top to bottom.
        axis: What the numbers are.
        series: Names of the series; none for a single one.
        ends: Ends of the scale, where intervals and marks are cut; by default all of them fit.
    """
    rows = [row for panel in panels for row in panel.rows]
    left = min(0.55 * WIDTH, 14 + _LETTER * max(len(row.label) for row in rows))
    low, high, step = _scale([mark for row in rows for mark in row.marks], ends)

    def at(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return left + 8 + (WIDTH - _EDGE - left - 8) * share

    parts, top = _legend(series), _TOP + 22 * len(series)
    for panel in panels:
        if panel.title:
            parts.append(_text(4, top + 8, panel.title, bold=True))
            top += 18
        bottom = top + _ROW * len(panel.rows)
        parts += _grid(at, low, high, step, top, bottom)
        for place, row in enumerate(panel.rows):
            y = top + _ROW * (place + 0.5)
            parts.append(_text(left, y + 4.5, row.label, "end", size=13))
            if not row.marks:
                parts.append(_text(left + 12, y + 4.5, "missing", size=12, colour=PALE))
            for mark in sorted(row.marks, key=lambda mark: mark.series):
                parts += _drawn(mark, at, y)
        top = bottom + _GAP
    parts.append(_text(WIDTH / 2, top + 12, axis, "middle", size=13))
    return svg(top + 22, escape(title), parts)


def _scale(marks: Sequence[Mark], ends: tuple[float, float] | None) -> tuple[float, float, float]:
    """Return the ends of the scale and the distance of its lines."""
    if ends is None:
        values = [part for mark in marks for part in mark[:1] + mark[2:4] if part is not None]
        low, high = min([*values, 0.0]), max([*values, 0.0])
    else:
        low, high = ends
    span = max(high - low, 1.0)
    step = next((step for step in _STEPS if span / step <= 6), _STEPS[-1])
    if ends is None:
        low, high = step * floor(low / step), step * ceil(high / step)
    return low, max(high, low + step), step


def _grid(at, low: float, high: float, step: float, top: float, bottom: float) -> list[str]:  # noqa: ANN001
    """Return the lines of the scale with their numbers; zero stands out."""
    parts: list[str] = []
    value = step * ceil(low / step)
    while value <= high + 1e-9:
        x, bold = at(value), value == 0
        look = (
            f'stroke="{INK}" stroke-width="{1.5 if bold else 0.5}" opacity="{0.9 if bold else 0.5}"'
        )
        parts.append(f'<path d="M{x:.1f} {top}V{bottom + 3}" {look}/>')
        number = f"{value:g}".replace("-", "−")
        parts.append(_text(x, bottom + 16, number, "middle", size=12))
        value += step
    return parts


def _drawn(mark: Mark, at, y: float) -> list[str]:  # noqa: ANN001
    """Return a mark and its interval."""
    colour = COLOURS[mark.series]
    parts: list[str] = []
    if mark.low is not None and mark.high is not None:
        line = f"M{at(mark.low):.1f} {y}H{at(mark.high):.1f}"
        parts.append(f'<path d="{line}" stroke="{colour}" stroke-width="2" opacity="0.6"/>')
    return [*parts, _shape(at(mark.x), y, mark.series, hollow=mark.hollow)]


def _shape(x: float, y: float, series: int, *, hollow: bool = False) -> str:
    """Return the shape of a series."""
    colour = COLOURS[series]
    fill = f'fill="{"none" if hollow else colour}" stroke="{colour}" stroke-width="1.5"'
    if series == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {fill}/>'
    steps = ("l5 5l-5 5l-5 -5Z", "h4v8h-8v-8Z", "l5 9h-10Z")[series - 1]
    rise = (5, 4, 5)[series - 1]
    return f'<path d="M{x:.1f} {y - rise:.1f}{steps}" {fill}/>'


def _legend(series: Sequence[str]) -> list[str]:
    """Return the names of the series beside their shapes, one a line."""
    parts: list[str] = []
    for number, name in enumerate(series):
        y = _TOP + 22 * number
        parts += [_shape(12, y, number), _text(24, y + 5, name, size=13)]
    return parts


def _text(
    x: float,
    y: float,
    words: str,
    at: str = "start",
    *,
    size: int = 14,
    colour: str = INK,
    bold: bool = False,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    look = f'text-anchor="{at}" font-size="{size}" fill="{colour}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(words)}</text>'
