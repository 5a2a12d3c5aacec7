"""SVG plots of the studies: parameter curves, box plots of seeds, average ranks."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from gtpool.report.plot import INK, KEPT, OTHER, figure_to_svg, style_axes, svg_figure
from gtpool.reproduce.comparison import Ranking


class Point(NamedTuple):
    """A point of a curve, in per cent."""

    x: float
    mean: float
    std: float


class SeedFigures(NamedTuple):
    """Values of a method, in per cent: one per seed, and the published one."""

    values: Sequence[float]
    published: float | None


def draw_sweep(curves: Mapping[str, Sequence[Point]], axis: str) -> str:
    """Return a plot of values by parameter, one panel per dataset, with error bars.

    Args:
        curves: Points of each dataset, may be empty; each panel has its own scale.
        axis: Name of the parameter.
    """
    with svg_figure((3.0 * len(curves), 2.8)) as figure:
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for axes, (dataset, points) in zip(panels, curves.items(), strict=True):
            x = [point.x for point in points]
            axes.errorbar(
                x,
                [point.mean for point in points],
                yerr=[point.std for point in points],
                color=KEPT,
                ecolor=INK,
                elinewidth=0.8,
                capsize=3,
                marker="o",
                markersize=4,
            )
            title = dataset if points else f"{dataset}: not run yet"
            axes.set_title(title, color=INK, fontsize=10)
            axes.set_xlabel(axis)
            axes.set_xticks(x if len(x) < 6 else x[::2])
            if not points:
                axes.set_yticks([])
            style_axes(axes)
        return figure_to_svg(figure)


def draw_boxes(methods: Mapping[str, SeedFigures], dataset: str) -> str:
    """Return a box plot over seeds, with a dot per seed and the published value as a diamond.

    Args:
        methods: Methods from top to bottom.
        dataset: Heading of the plot.
    """
    with svg_figure((4.2, 0.9 + 0.3 * len(methods))) as figure:
        axes = figure.subplots()
        for place, (values, published) in enumerate(methods.values()):
            low, first, middle, third, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
            axes.plot([low, high], [place, place], color=INK, linewidth=0.8)
            axes.barh(place, third - first, 0.5, first, color=KEPT, alpha=0.35)
            axes.plot([middle, middle], [place - 0.25, place + 0.25], color=KEPT, linewidth=2)
            dots = np.full(len(values), place)
            axes.plot(values, dots, ".", color=INK, markersize=3, alpha=0.7)
            if published is not None:
                axes.plot(published, place, "D", color=OTHER, markersize=5)
        axes.set_yticks(range(len(methods)), list(methods))
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.set_title(dataset, color=INK, fontsize=10)
        style_axes(axes)
        return figure_to_svg(figure)


def draw_ranks(ranking: Ranking) -> str:
    """Return a critical-difference diagram: bars join methods without significant differences."""
    count = len(ranking.ranks)
    half, cliques = ceil(count / 2), ranking.cliques
    step, below = 1.0, 0.5 * len(cliques) + 0.8
    with svg_figure((8, 1.0 + 0.22 * half + 0.11 * len(cliques))) as figure:
        axes = figure.subplots()
        for place, (name, rank) in enumerate(ranking.ranks.items()):
            left = place < half
            depth = below + step * (place if left else count - 1 - place)
            end = 0.9 if left else count + 0.1
            axes.plot([rank, rank, end], [0, depth, depth], color=INK, linewidth=0.8)
            side = "right" if left else "left"
            text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
            axes.text(
                end, depth, f" {text} ", color=INK, ha=side, va="center", fontsize=9, clip_on=False
            )
        for number, (first, last) in enumerate(cliques):
            ends = [ranking.ranks[first] - 0.06, ranking.ranks[last] + 0.06]
            axes.plot(ends, [0.5 * number + 0.5] * 2, color=OTHER, linewidth=3.5)
        _draw_critical_difference(axes, ranking.distance)
        axes.set_xlim(-0.14 * count, 1.14 * count + 1)
        axes.set_ylim(below + step * half, -3)
        style_axes(axes, grid=False)
        axes.set_xticks(range(1, count + 1))
        axes.xaxis.set_ticks_position("top")
        axes.spines["top"].set(visible=True, color=INK, bounds=(1, count))
        axes.spines["top"].set_position(("data", 0))
        axes.tick_params(length=3)
        axes.set_yticks([])
        return figure_to_svg(figure)


def _draw_critical_difference(axes: Axes, distance: float) -> None:
    """Draw the critical difference above the axis."""
    axes.plot([1, 1 + distance], [-2.2, -2.2], color=INK, linewidth=1.5)
    for end in (1, 1 + distance):
        axes.plot([end, end], [-2.5, -1.9], color=INK, linewidth=1.5)
    axes.text(
        1.15 + distance,
        -2.2,
        f"critical difference {distance:.2f}",
        color=INK,
        va="center",
        fontsize=9,
    )
