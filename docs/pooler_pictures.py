"""Draw what each pooler keeps or merges of a molecule and of a protein: docs/pooled-*.svg.

    python docs/pooler_pictures.py [--check]

The poolers see a convolution with random weights. Those with a loss of their own are trained on it;
the others are untrained. A picture whose dataset is not there is left as it is.
"""

import sys
from pathlib import Path
from typing import cast

import networkx as nx
import torch
from drawings import BLUE, INK, PALE, RED, SHADES, svg, words
from pooler_tables import make
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gtpool.data.locate import locate
from gtpool.data.sources import load
from gtpool.graph import NodeDrop
from gtpool.ops.backend import Pooler
from gtpool.ops.packed import PackedGraph
from gtpool.pool import POOLS
from gtpool.report.plot import stress_layout

HERE = Path(__file__).parent
PICTURES = {"molecule": ("MUTAG", 0), "protein": ("PROTEINS", 3)}
"""Dataset and graph of each picture."""
COLUMNS, WIDE, HIGH, CHANNELS, CLUSTERS, STEPS = 4, 110, 118, 16, 5, 200
COLOURS = (BLUE, RED, *SHADES[:1], "#b08a2e", SHADES[2], "#4d6b3c")


def picture(name: str) -> str:
    """Return one picture: the graph, then what each pooler makes of it."""
    dataset, number = PICTURES[name]
    graph = load(dataset).to_pyg()[number]
    edges = sorted({tuple(sorted(pair)) for pair in graph["edge_index"].T.tolist()})
    spots = places(edges, graph["x"].size(0))
    features = graph["x"].double() / graph["x"].amax(0).clamp(min=1)
    parts = [panel(0, f"{len(spots)} nodes", spots, edges, [INK] * len(spots), [True] * len(edges))]
    for at, pool in enumerate(POOLS, start=1):
        colours, inside = look(pool, features, graph["edge_index"], edges)
        parts.append(panel(at, pool, spots, edges, colours, inside))
    rows = -(-len(parts) // COLUMNS)
    title = f"Graph {number} of {dataset}, and what each pooler keeps or merges of it"
    return svg(rows * HIGH + 4, title, parts)


def places(edges: list[tuple[int, int]], nodes: int) -> list[tuple[float, float]]:
    """Return the place of each node in a panel; mirrored layouts give the same places."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(edges)
    found = torch.tensor(stress_layout(graph))
    found = found - found.mean(0)
    sign = found.gather(0, found.abs().argmax(0, keepdim=True)).sign()
    found = found * sign
    low, high = found.min(0).values, found.max(0).values
    scale = min((WIDE - 20) / float(high[0] - low[0]), (HIGH - 36) / float(high[1] - low[1]))
    middle = torch.tensor([WIDE / 2, (HIGH - 18) / 2])
    return [tuple(spot) for spot in ((found - (low + high) / 2) * scale + middle).tolist()]


def look(
    pool: str, x: Tensor, edge_index: Tensor, edges: list[tuple[int, int]]
) -> tuple[list[str], list[bool]]:
    """Return the colour of each node, and which edges are kept or inside a cluster."""
    torch.manual_seed(0)
    layer = make(pool, CHANNELS, 0.5, CLUSTERS).double()
    hidden = GCNConv(x.size(1), CHANNELS).double()(x, edge_index).relu().detach()
    train(layer, hidden, edge_index)
    out = layer.eval()(hidden, edge_index)
    if isinstance(out, NodeDrop):
        kept = set(out.perm.tolist())
        colours = [BLUE if node in kept else PALE for node in range(len(x))]
        return colours, [set(pair) <= kept for pair in edges]
    cluster = (out.assign.argmax(1) if out.assign.dim() == 2 else out.assign).tolist()
    beside = nx.Graph([(cluster[i], cluster[j]) for i, j in edges if cluster[i] != cluster[j]])
    beside.add_nodes_from(sorted(set(cluster)))
    shade = nx.greedy_color(beside)
    colours = [COLOURS[shade[number] % len(COLOURS)] for number in cluster]
    return colours, [cluster[i] == cluster[j] for i, j in edges]


def train(layer: nn.Module, x: Tensor, edge_index: Tensor) -> None:
    """Train a layer on its own loss, if it has one."""
    graph = PackedGraph.of(edge_index, torch.zeros(len(x), dtype=torch.long))
    pooler = cast("Pooler", layer)
    if pooler.pool(x, graph).loss is None:
        return
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = pooler.pool(x, graph).loss
        assert loss is not None  # noqa: S101 - asked above
        loss.sum().backward()
        optimiser.step()


def panel(
    at: int,
    name: str,
    spots: list[tuple[float, float]],
    edges: list[tuple[int, int]],
    colours: list[str],
    inside: list[bool],
) -> str:
    """Draw a graph with its name below; edges inside are bold."""
    left, top = WIDE * (at % COLUMNS), HIGH * (at // COLUMNS) + 2
    places_ = [(round(left + x), round(top + y)) for x, y in spots]
    parts = []
    for bold in (False, True):
        line = "".join(
            "M{} {}L{} {}".format(*places_[i], *places_[j])
            for (i, j), within in zip(edges, inside, strict=True)
            if within == bold
        )
        stroke = f'stroke="{INK if bold else PALE}" stroke-width="{2.5 if bold else 1}"'
        parts.append(f'<path d="{line}" fill="none" {stroke}/>' if line else "")
    for colour in dict.fromkeys(colours):
        here = (place for place, own in zip(places_, colours, strict=True) if own == colour)
        dots = "".join(f'<circle cx="{x}" cy="{y}" r="3.6"/>' for x, y in here)
        parts.append(f'<g fill="{colour}">{dots}</g>')
    parts.append(words(left + WIDE / 2, top + HIGH - 10, name))
    return "".join(parts)


def stale(*, write: bool) -> list[str]:
    """Name the pictures that are not what this program draws; write them if asked."""
    found: list[str] = []
    for name in PICTURES:
        file = HERE / f"pooled-{name}.svg"
        if locate(PICTURES[name][0]).origin == "download":
            continue
        text = picture(name)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            found.append(file.name)
            if write:
                file.write_text(text, encoding="utf-8")
    return found


if __name__ == "__main__":
    check = "--check" in sys.argv
    pictures = stale(write=not check)
    sys.stdout.writelines(f"{name}\n" for name in pictures)
    sys.exit(bool(pictures) and check)
