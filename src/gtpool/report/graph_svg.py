"""SVG drawings of a graph with marked nodes: molecules by rdkit, other graphs by a layout.

Colours come from the page (``--kept``, ``--important``, ``--ring``, ``--paper``), with a light
theme as default. The output is deterministic.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from html import escape
from math import atan2, cos, sin, tau
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import networkx as nx

from gtpool.report.plot import stress_layout

if TYPE_CHECKING:
    from rdkit.Chem import Mol

MOST_DRAWN = 250
"""Maximum nodes of a drawn graph."""

MOST_RINGS = 300
"""Maximum rings of a drawn molecule; rdkit's layout takes many seconds for more."""

_FILL = {
    "kept": "fill:var(--kept,#a9d3ea);stroke:none",
    "important": "fill:var(--important,#f5c9bd);stroke:none",
}
_RING = "fill:none;stroke:var(--ring,#c8553d);stroke-width:2.5"
_HOP, _RADIUS, _SIZE = 44, 13, (320, 260)


class Marks(NamedTuple):
    """Marked nodes of a drawing."""

    filled: Collection[int] = ()
    ringed: Collection[int] = ()
    faded: Collection[int] = ()
    colour: Literal["kept", "important"] = "kept"
    """Meaning of the filled nodes."""


def draw_graph(
    edges: Iterable[tuple[int, int]],
    names: Sequence[str],
    marks: Marks,
    caption: str,
    smiles: str | None = None,
) -> str:
    """Return a drawing of a graph as SVG.

    Args:
        edges: Pairs of nodes, in either or both directions.
        names: Label of each node.
        marks: Marked nodes.
        caption: Text for screen readers.
        smiles: SMILES of a molecule; its atoms must be the nodes, in order.
    """
    if len(names) > MOST_DRAWN:
        text = f"{len(names)} nodes are too many to draw"
        body = f'<text x="150" y="25" text-anchor="middle" fill="currentColor">{text}</text>'
        return _svg(body, (0, 0, 300, 40), caption)
    if smiles is not None and (molecule := _read_molecule(smiles, len(names))):
        return _draw_molecule(molecule, marks, caption)
    return _draw_nodes(_unique_edges(edges), names, marks, caption)


def _svg(body: str, box: tuple[float, float, float, float], caption: str) -> str:
    left, top, width, height = (f"{number:g}" for number in box)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left} {top} {width} {height}" '
        f'role="img" aria-label="{escape(caption)}">{body}</svg>'
    )


def _unique_edges(edges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return each pair of different nodes once."""
    return tuple(sorted({(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]}))


def _draw_nodes(
    edges: tuple[tuple[int, int], ...], names: Sequence[str], marks: Marks, caption: str
) -> str:
    """Return a drawing with nodes as circles at their layout positions."""
    place = _node_positions(edges, len(names))
    parts: list[str] = []
    for source, target in edges:
        (x1, y1), (x2, y2) = place[source], place[target]
        pale = _opacity(source in marks.faded or target in marks.faded)
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="currentColor" stroke-width="1.5"{pale}/>'
        )
    for node, (name, (x, y)) in enumerate(zip(names, place, strict=True)):
        look = _FILL[marks.colour] if node in marks.filled else "fill:var(--paper,#fff);stroke:none"
        at = f'cx="{x:.1f}" cy="{y:.1f}"'
        small = 9 if len(name) > 2 else 12
        body = (
            f"<title>node {node}: {escape(name)}</title>"
            f'<circle {at} r="{_RADIUS}" stroke="currentColor" style="{look}"/>'
            f'<text x="{x:.1f}" y="{y + small / 3:.1f}" font-size="{small}" '
            f'text-anchor="middle" fill="currentColor">{escape(_truncate(name))}</text>'
        )
        if node in marks.ringed:
            body += f'<circle {at} r="{_RADIUS + 2}" style="{_RING}"/>'
        parts.append(f"<g{_opacity(node in marks.faded)}>{body}</g>")
    if list(names) != [str(node) for node in range(len(names))]:
        parts.append(_node_numbers(place, edges, marks.faded, _RADIUS + 7))
    edge = _RADIUS + 12
    left, top = (min(spot[axis] for spot in place) - edge for axis in (0, 1))
    right, bottom = (max(spot[axis] for spot in place) + edge for axis in (0, 1))
    return _svg("".join(parts), (left, top, right - left, bottom - top), caption)


@lru_cache(maxsize=8)
def _node_positions(edges: tuple[tuple[int, int], ...], count: int) -> list[tuple[float, float]]:
    """Return the position of each node, cached so that all steps of a graph share it."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    return [(round(_HOP * x, 1), round(_HOP * y, 1)) for x, y in stress_layout(graph).tolist()]


def _opacity(faded: bool) -> str:
    return ' opacity=".35"' if faded else ""


def _truncate(name: str) -> str:
    return name if len(name) <= 4 else f"{name[:3]}…"


def _read_molecule(smiles: str, atoms: int) -> "Mol | None":
    """Return the molecule, or None if rdkit should not draw it."""
    from rdkit.Chem import MolFromSmiles  # noqa: PLC0415 - other graphs do without
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    with BlockLogs():
        molecule = cast("Mol | None", MolFromSmiles(smiles))
    if molecule is None or molecule.GetNumAtoms() != atoms:
        raise ValueError(f"{smiles[:60]!r} must be a molecule of {atoms} atoms")
    return molecule if molecule.GetRingInfo().NumRings() <= MOST_RINGS else None


def _draw_molecule(molecule: "Mol", marks: Marks, caption: str) -> str:
    """Return rdkit's drawing with marks, fading and the colours of the page."""
    from rdkit.Chem.Draw.rdMolDraw2D import MolDraw2DSVG  # noqa: PLC0415 - other graphs do without

    drawer = MolDraw2DSVG(*_SIZE)
    options = drawer.drawOptions()
    options.clearBackground = False
    options.atomHighlightsAreCircles = True
    options.highlightRadius = 0.4
    options.useBWAtomPalette()
    filled = sorted(marks.filled)
    drawer.DrawMolecule(
        molecule,
        highlightAtoms=filled,
        highlightBonds=[],
        highlightAtomColors=dict.fromkeys(filled, (1.0, 0.0, 1.0)),  # a unique colour
    )
    spots = [(spot.x, spot.y) for spot in map(drawer.GetDrawCoords, range(molecule.GetNumAtoms()))]
    drawer.FinishDrawing()
    body = drawer.GetDrawingText().partition("<!-- END OF HEADER -->\n")[2]
    body = re.sub(r"class='[^']*'", lambda found: _fade_element(found[0], marks.faded), body)
    body = re.sub(r"style='fill:#FF00FF[^']*'", f"style='{_FILL[marks.colour]}'", body)
    body = body.removesuffix("</svg>\n").replace("#000000", "currentColor")
    radius = re.search(r"<ellipse[^>]* rx='([\d.]+)'", body)
    size = float(radius[1]) + 1 if radius else 10
    rings = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" style="{_RING}"/>'
        for x, y in (spots[atom] for atom in sorted(marks.ringed))
    )
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    return _svg(
        body + rings + _node_numbers(spots, bonds, marks.faded, 13), (0, 0, *_SIZE), caption
    )


def _node_numbers(
    spots: Sequence[tuple[float, float]],
    edges: Iterable[tuple[int, int]],
    faded: Collection[int],
    distance: float,
) -> str:
    """Return the labels of the nodes, placed where their edges leave the most space."""
    angles: list[list[float]] = [[] for _ in spots]
    for pair in edges:
        for node, other in (pair, pair[::-1]):
            (x, y), (x2, y2) = spots[node], spots[other]
            angles[node].append(atan2(y2 - y, x2 - x))
    parts: list[str] = []
    for node, (x, y) in enumerate(spots):
        around = sorted(angles[node]) or [0.0]
        ends = zip(around, [*around[1:], around[0] + tau], strict=True)
        low, high = max(ends, key=lambda pair: pair[1] - pair[0])
        right, down = cos((low + high) / 2), sin((low + high) / 2)
        at = f'x="{x + distance * right:.1f}" y="{y + distance * down + 3:.1f}"'
        parts.append(f"<text {at}{_opacity(node in faded)}>{node}</text>")
    look = 'font-size="9" text-anchor="middle" fill="currentColor"'
    return f"<g {look}>{''.join(parts)}</g>"


def _fade_element(text: str, faded: Collection[int]) -> str:
    """Return a part of rdkit's drawing, faded if it belongs to a faded atom."""
    atoms = map(int, re.findall(r"atom-(\d+)", text))
    return text + _opacity(any(atom in faded for atom in atoms))
