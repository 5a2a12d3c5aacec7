"""Drawings of graphs, as SVG."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

_KEPT, _DROPPED, _INK = "#2a6f97", "#ffffff", "#22333b"


def draw_kept(
    path: Path,
    edges: Collection[tuple[int, int]],
    labels: Sequence[str],
    panels: Mapping[str, Collection[int]],
) -> None:
    """Draw one graph once for each panel, with the nodes that the panel keeps filled.

    Args:
        path: The SVG file to write.
        edges: Pairs of nodes, in either or both directions.
        labels: What to write on each node.
        panels: Title of each panel and the nodes that it keeps.
    """
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(len(labels)))
    graph.add_edges_from(edges)
    place: dict[int, list[float]] = dict(enumerate(_layout(graph).tolist()))
    # One salt for the ids inside the file: the same picture gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "gtpool", "svg.fonttype": "none"}):
        figure = Figure(figsize=(3.6 * len(panels), 3.6), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (title, kept) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            nx.draw_networkx_edges(graph, place, ax=axes, edge_color=_INK, width=1.4)
            circles = nx.draw_networkx_nodes(
                graph,
                place,
                ax=axes,
                node_color=[_KEPT if node in kept else _DROPPED for node in graph],
                edgecolors=_INK,
                node_size=260,
            )
            circles.set_clip_on(False)  # a circle has a size on paper, which the axes do not know
            for node, (x, y) in place.items():
                colour = _DROPPED if node in kept else _INK
                axes.text(x, y, labels[node], color=colour, ha="center", va="center", fontsize=9)
            axes.set_title(title, color=_INK)
            axes.set_aspect("equal")
            axes.margins(0.1)
            axes.axis("off")
        figure.savefig(path, metadata={"Date": None})


def _layout(graph: "nx.Graph[int]") -> np.ndarray:
    """Place nodes so that distances on paper follow distances in the graph, [N, 2].

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
