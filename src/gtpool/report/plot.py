"""Plots as SVG text, deterministic for equal input."""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from math import isnan, nan
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gtpool.study.result import RunResult
from gtpool.study.summarize import metric_title

if TYPE_CHECKING:  # it imports torch
    from gtpool.study.learning_curve import LearningCurve

INK = "#22333b"
"""Colour of text and lines; a page replaces it by its text colour."""
KEPT, OTHER = "#2a6f97", "#c8553d"
"""Two colours that are distinguishable on light and dark backgrounds."""
_DROPPED, _GRID, _DARK = "#ffffff", "#9aa5ab", "#22333c"
_SHADES = LinearSegmentedColormap.from_list("kept", ["#e8eef2", KEPT])
_STYLE = {"svg.hashsalt": "gtpool", "svg.fonttype": "none", "text.parse_math": False}


def draw_kept(
    edges: Collection[tuple[int, int]],
    labels: Sequence[str],
    panels: Mapping[str, Collection[int]],
) -> str:
    """Return drawings of one graph, one per panel, with the kept nodes of the panel filled.

    Args:
        edges: Pairs of nodes, in either or both directions.
        labels: Label of each node.
        panels: Title of each panel and its kept nodes.
    """
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(labels)))
    graph.add_edges_from(edges)
    place: dict[int, list[float]] = dict(enumerate(stress_layout(graph).tolist()))
    with svg_figure((3.6 * len(panels), 3.6)) as figure:
        for axes, (title, kept) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            nx.draw_networkx_edges(graph, place, ax=axes, edge_color=INK, width=1.4)
            circles = nx.draw_networkx_nodes(
                graph,
                place,
                ax=axes,
                node_color=[KEPT if node in kept else _DROPPED for node in graph],
                edgecolors=INK,
                node_size=260,
            )
            circles.set_clip_on(False)  # markers have a size in points and may exceed the axes
            for node, (x, y) in place.items():
                colour = _DROPPED if node in kept else INK
                axes.text(x, y, labels[node], color=colour, ha="center", va="center", fontsize=9)
            axes.set_title(title, color=INK)
            axes.set_aspect("equal")
            axes.margins(0.1)
            axes.axis("off")
        return figure_to_svg(figure)


def draw_curves(rows: Sequence[RunResult]) -> str:
    """Return a plot of loss and metric by epoch: mean over runs, and range from worst to best.

    Lines end at the epoch that fewer than half of the runs reach.

    Args:
        rows: Finished runs of one method, with their curves.
    """
    metric = rows[0].metric
    panels = {
        "loss": {"training": "train_loss", "validation": "valid_loss"},
        metric_title(metric): {"validation": "valid_metric", "test": "test_metric"},
    }
    with svg_figure((8, 3.2)) as figure:
        for axes, (title, lines) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            factor = 100 if title.endswith("%") else 1
            for (label, name), colour in zip(lines.items(), (KEPT, OTHER), strict=True):
                curves = [row.curves[name] for row in rows if row.curves]
                low, mean, high = (factor * part for part in _mean_and_range(curves))
                epochs = np.arange(1, len(mean) + 1)
                axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
                axes.plot(epochs, mean, color=colour, label=label)
            axes.set_xlabel("epoch")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_title(title, color=INK, fontsize=10)
            style_axes(axes)
            axes.legend(frameon=False, labelcolor=INK, fontsize=9)
        return figure_to_svg(figure)


def draw_confusion(counts: NDArray[Any], classes: Sequence[str]) -> str:
    """Return a plot of the confusion matrix: true classes (rows) and predicted ones (columns).

    Args:
        counts: Number of graphs, [classes, classes].
        classes: Names of the classes.
    """
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 1.6 + 0.55 * len(classes)
    with svg_figure((side + 1, side)) as figure:
        axes = figure.subplots()
        # Rectangles instead of imshow, which embeds a bitmap that does not scale.
        axes.pcolormesh(share, cmap=_SHADES, vmin=0, vmax=1, edgecolors=_GRID, linewidth=0.5)
        axes.invert_yaxis()
        for row, line in enumerate(counts.tolist()):
            for column, count in enumerate(line):
                colour = _DROPPED if share[row, column] > 0.6 else _DARK
                place = column + 0.5, row + 0.5
                axes.text(*place, str(count), ha="center", va="center", color=colour, fontsize=9)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(np.arange(len(classes)) + 0.5, [_truncate(name) for name in classes])
        axes.set_aspect("equal")
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        style_axes(axes, grid=False)
        axes.tick_params(length=0)
        return figure_to_svg(figure)


def draw_roc(curves: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> str:
    """Return a plot of ROC curves and their mean.

    Args:
        curves: False and true positive rates, from 0 to 1.
    """
    place = np.linspace(0, 1, 201)
    with svg_figure((4, 4)) as figure:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=_GRID, linewidth=1)
        for false, true in curves:
            axes.plot(false, true, color=KEPT, alpha=0.3, linewidth=0.7)
        if curves:
            mean = np.mean([np.interp(place, false, true) for false, true in curves], 0)
            axes.plot([0, *place], [0, *mean], color=KEPT, linewidth=2)
        axes.set_aspect("equal")
        axes.set_xlabel("share of negatives called positive")
        axes.set_ylabel("share of positives found")
        style_axes(axes)
        return figure_to_svg(figure)


def draw_scatter(true: NDArray[Any], predicted: NDArray[Any]) -> str:
    """Return a plot of predicted against true values.

    Args:
        true: True values, [n].
        predicted: Predicted values, [n].
    """
    with svg_figure((4, 4)) as figure:
        axes = figure.subplots()
        ends = [float(min(true.min(), predicted.min())), float(max(true.max(), predicted.max()))]
        axes.plot(ends, ends, color=_GRID, linewidth=1)
        axes.plot(true, predicted, "o", color=KEPT, alpha=0.5, markersize=3, markeredgewidth=0)
        axes.set_xlabel("true")
        axes.set_ylabel("predicted")
        style_axes(axes)
        return figure_to_svg(figure)


def draw_learning_curve(curve: "LearningCurve") -> str:
    """Return a plot of the test metric by number of training graphs: every run, mean, deviation.

    The axis of graphs is logarithmic: equal steps are equal factors.
    """
    title = metric_title(curve.points[0].scores.metric)
    factor = 100 if title.endswith("%") else 1
    graphs = [point.graphs for point in curve.points]
    scores = np.array([point.scores.values for point in curve.points], float)
    means = [
        factor * nan if (mean := point.cell.mean) is None else factor * mean
        for point in curve.points
    ]
    with svg_figure((5, 3.2)) as figure:
        axes = figure.subplots()
        axes.plot(
            graphs, factor * scores.reshape(len(graphs), -1), color=KEPT, alpha=0.3, linewidth=0.7
        )
        errors = [factor * (point.cell.std or 0) for point in curve.points]
        axes.errorbar(graphs, means, errors, color=KEPT, marker="o", capsize=4, linewidth=2)
        axes.set_xscale("log", base=2)
        axes.set_xticks(graphs, [f"{count:.0f}" for count in graphs])
        axes.minorticks_off()
        axes.set_xlabel("training graphs")
        axes.set_ylabel(title)
        style_axes(axes)
        return figure_to_svg(figure)


def draw_reliability(curves: Mapping[str, Sequence[tuple[float, float, int]]]) -> str:
    """Return a reliability diagram: how often predictions are right, by their probability.

    The area of a point grows with the number of its predictions.

    Args:
        curves: Mean probability, frequency and number of predictions of each bin, by label; at most
            two, of which the last stands out.
    """
    colours = (KEPT,) if len(curves) == 1 else (OTHER, KEPT)
    with svg_figure((4, 4)) as figure:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=_GRID, linewidth=1)
        for (label, bins), colour in zip(curves.items(), colours, strict=True):
            told, found, counts = (np.array(part) for part in zip(*bins, strict=True))
            axes.plot(told, found, color=colour, linewidth=1, label=label)
            axes.scatter(told, found, 4 + 90 * counts / counts.sum(), color=colour, linewidths=0)
        axes.set_aspect("equal")
        axes.set_xlabel("mean probability")
        axes.set_ylabel("frequency")
        style_axes(axes)
        if len(curves) > 1:
            axes.legend(frameon=False, labelcolor=INK, fontsize=9)
        return figure_to_svg(figure)


def with_background(svg: str) -> str:
    """Return a drawing as a file, with its own background, because a viewer's may be dark."""
    return svg.replace("<svg ", '<svg style="background: #ffffff" ', 1)


@contextmanager
def svg_figure(size: tuple[float, float]) -> Generator[Figure]:
    """Return a figure with text as text and deterministic ids."""
    with mpl.rc_context(_STYLE):  # pyright: ignore[reportArgumentType]
        figure = Figure(figsize=size, layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        yield figure


def figure_to_svg(figure: Figure) -> str:
    """Return the SVG element without date, metadata or prolog."""
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    svg = file.getvalue()
    return svg[svg.index("<svg") :]


def _mean_and_range(
    curves: Sequence[Sequence[float | None]],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return minimum, mean and maximum of each epoch that at least half of the runs reach."""
    lengths = sorted(map(len, curves), reverse=True)
    values: list[tuple[float, float, float]] = []
    for epoch in range(lengths[(len(lengths) - 1) // 2]):
        seen = [line[epoch] for line in curves if epoch < len(line)]
        known = [value for value in seen if value is not None and not isnan(value)]
        mean = sum(known) / len(known) if known else nan
        values.append((min(known, default=nan), mean, max(known, default=nan)))
    low, middle, high = np.array(values).T
    return low, middle, high


def style_axes(axes: Axes, *, grid: bool = True) -> None:
    """Hide spines and ticks without information, and set one colour for the others."""
    axes.set_facecolor("none")
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8, length=3 * grid)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
        label.set_fontsize(9)
    if grid:
        axes.grid(color=_GRID, linewidth=0.5, alpha=0.5)


def _truncate(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"


def stress_layout(graph: "nx.Graph[int]") -> np.ndarray:
    """Return node positions whose distances approximate path lengths in the graph, [N, 2].

    Classical scaling of the path lengths, then stress majorisation (Gansner et al., 2004).
    """
    hops = np.array(nx.floyd_warshall_numpy(graph))
    hops[np.isinf(hops)] = hops[np.isfinite(hops)].max() + 1
    count = len(hops)
    if count == 1:
        return np.zeros((1, 2))
    centre = np.eye(count) - 1 / count
    value, vector = np.linalg.eigh(-0.5 * centre @ hops**2 @ centre)
    place = vector[:, -2:] * np.sqrt(np.maximum(value[-2:], 1e-6))
    weight = 1 / np.where(hops > 0, hops, np.inf) ** 2
    pull = np.linalg.pinv(np.diag(weight.sum(1)) - weight)
    for _ in range(200):
        apart = np.linalg.norm(place[:, None] - place[None], axis=-1)
        ratio = weight * hops / np.where(apart > 0, apart, 1)
        place = pull @ ((np.diag(ratio.sum(1)) - ratio) @ place)
    return place
