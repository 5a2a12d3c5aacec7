"""Report on sampler diversity: a table, a bar chart and a summary sentence."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from gtpool.report.result_tables import TextTable

# Types only: the report needs no torch, but this module imports it.
if TYPE_CHECKING:
    from gtpool.explain.diversity import Diversity

TITLES = {"topk": "top-k", "rws": "RWS", "rwsv": "RWSV", "random": "by lot"}
"""Display names of the samplers; "by lot" is a random choice of the same number of nodes."""

_BAR, _LEFT, _WIDE = 26, 70, 230


def diversity_table(found: "Diversity") -> TextTable:
    """Return mean and standard deviation over graphs; the last row is the maximum coverage."""
    lines = [
        (TITLES[name], _mean_std(cover.intervals), _mean_std([100 * share for share in cover[1]]))
        for name, cover in found.covers.items()
    ]
    lines.append(("all nodes", _mean_std(found.occupied), "100"))
    heads = ("kept", f"score intervals, of {found.intervals}", "nodes within one step, %")
    return TextTable(heads, tuple(lines))


def draw_diversity(found: "Diversity") -> str:
    """Return an SVG bar chart of both columns of the table, mean and standard deviation."""
    panels = {
        f"score intervals with a kept node, of {found.intervals}": (
            {name: cover.intervals for name, cover in found.covers.items()},
            found.intervals,
        ),
        "nodes kept or next to a kept one, %": (
            {name: [100 * share for share in cover[1]] for name, cover in found.covers.items()},
            100,
        ),
    }
    height = 24 + _BAR * len(found.covers)
    parts: list[str] = []
    for number, (title, (lines, most)) in enumerate(panels.items()):
        top = number * (height + 22) + 16
        parts.append(
            f'<text x="{_LEFT}" y="{top}" font-size="12" fill="currentColor">{title}</text>'
        )
        for place, (name, values) in enumerate(lines.items()):
            parts.append(_bar(TITLES[name], values, most, top + 10 + place * _BAR))
    size = f"0 0 {_LEFT + _WIDE + 60} {2 * height + 22}"
    caption = "Bars: mean and standard deviation over graphs, as in the table."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img" '
        f'aria-label="{caption}">{"".join(parts)}</svg>'
    )


def judge_diversity(found: "Diversity") -> list[str]:
    """Return sentences on the paper's claim that wheels keep more diverse nodes than top-k.

    A difference counts if its mean over graphs is more than two standard errors from 0.
    """
    measures = {
        "Score intervals": {name: cover.intervals for name, cover in found.covers.items()},
        "Nodes within one step": {name: cover[1] for name, cover in found.covers.items()},
    }
    wheels, against = ("rws", "rwsv"), {}
    for other in ("topk", "random"):
        against[other] = {
            (wheel, what): _compare(values[wheel], values[other])
            for what, values in measures.items()
            for wheel in wheels
        }
    every = set(against["topk"].values())
    outcome = "holds" if every == {"more"} else "does not hold" if "more" not in every else None
    claim = "The paper's claim that the wheels keep more diverse nodes than top-k"
    said = [f"{claim} {outcome or 'holds in part'} for this model on these graphs."]
    for what in measures:
        top, lot = (
            ", ".join(f"{TITLES[wheel]} {verdict[wheel, what]}" for wheel in wheels)
            for verdict in against.values()
        )
        said.append(f"{what} against top-k: {top}; against as many nodes by lot: {lot}.")
    return said


def _mean_std(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ± {_std(values):.2f}"


def _std(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _bar(title: str, values: Sequence[float], most: float, top: float) -> str:
    """Return one bar with its label, mean and standard deviation."""
    mean, spread = fmean(values), _std(values)
    scale, middle = _WIDE / most, top + 9
    low, high = (_LEFT + scale * min(max(end, 0), most) for end in (mean - spread, mean + spread))
    return (
        f'<text x="{_LEFT - 8}" y="{middle + 4}" font-size="12" text-anchor="end" '
        f'fill="currentColor">{title}</text>'
        f'<rect x="{_LEFT}" y="{top}" width="{scale * mean:.1f}" height="18" '
        f'style="fill:var(--kept,#a9d3ea)"/>'
        f'<path d="M{low:.1f} {top + 5}v8m0 -4H{high:.1f}m0 -4v8" '
        f'stroke="currentColor" stroke-width="1.2" fill="none"/>'
        f'<text x="{_LEFT + _WIDE + 8}" y="{middle + 4}" font-size="12" '
        f'fill="currentColor">{mean:.{1 if most == 100 else 2}f}</text>'
    )


def _compare(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the comparison of two samplers, paired by graph."""
    gaps = [one - other for one, other in zip(ours, theirs, strict=True)]
    error = _std(gaps) / sqrt(len(gaps))
    if abs(fmean(gaps)) <= 2 * error or not any(gaps):
        return "about as many"
    return "more" if fmean(gaps) > 0 else "fewer"
