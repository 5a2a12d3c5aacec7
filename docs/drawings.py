"""Draw the layer, the wheel's worked example and the three levels: docs/{layer,wheel,levels}.svg.

    python docs/drawings.py

Whom a sampler keeps is asked of the sampler, not typed in. The pictures have no background and
colours of middle tone, so that they read on light and dark paper, and are 440 wide, so that their
words can be read on a phone. A test holds the files to this program.
"""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from math import cos, pi, sin
from pathlib import Path

import torch

from gtpool.ops.sample import SAMPLERS

WIDTH = 440
BLUE, RED, GREY, PALE, INK = "#2a6f97", "#b84a33", "#6b7a83", "#9aa5ab", "#74838c"
SHADES = ("#4f8f8b", "#2a6f97", "#8a6a9e", "#b84a33")
NAMES = {"rws": "RWS", "rwsv": "RWSV", "topk": "top-k"}
Point = tuple[float, float]


def layer() -> str:
    """Draw what one layer does to one graph, from top to bottom."""
    shares, letters = (0.12, 0.20, 0.10, 0.10, 0.23, 0.25), "abcdef"
    kept = keep("rwsv", shares)
    spots: list[Point] = [(146, 50), (182, 22), (182, 78), (246, 22), (246, 78), (294, 50)]
    places = dict(enumerate(spots))
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]
    below = {node: (x, y + 492) for node, (x, y) in places.items()}
    parts = [
        *graph(places, edges, letters, range(6)),
        words(220, 118, "features X, edges A"),
        arrow(220, 126, 220, 146),
        box(20, 148, 400, 40, BLUE, "Q, K, V = three linear maps of X"),
        arrow(120, 188, 120, 210),
        arrow(320, 188, 320, 210),
        box(20, 212, 196, 62, SHADES[0], "global score S_g", "its whole graph (5)"),
        box(224, 212, 196, 62, SHADES[2], "local score S_l", "its neighbourhood (6)"),
        arrow(120, 274, 120, 296),
        arrow(320, 274, 320, 296),
        box(20, 298, 400, 40, GREY, "S = softmax(λ S_g + (1 − λ) S_l)  (7)"),
        arrow(220, 338, 220, 358),
        *bar(378, letters, kept, borders(shares, midway=True)),
        words(220, 442, f"the wheel: RWSV keeps {listed(kept, letters)}  (8)–(12)"),
        arrow(220, 448, 220, 468),
        *looks(below, kept),
        *graph(below, [edge for edge in edges if set(edge) <= set(kept)], letters, kept),
        words(220, 612, "the kept nodes attend to all nodes  (14), (15)"),
        words(220, 634, "and keep the edges between them  (13)"),
        arrow(220, 642, 220, 662),
        box(20, 664, 400, 40, BLUE, "feed-forward net  (16)"),
    ]
    return svg(714, "One GTPool layer: project, score, turn the wheel, attend", parts)


def wheel() -> str:
    """Draw the worked example: four nodes, two points, three samplers."""
    shares, letters = (0.20, 0.20, 0.25, 0.35), "abcd"
    count = len(keep("rws", shares))
    points = [(k + 1) / (count + 1) for k in range(count)]
    labels = [f"{letter} .{100 * share:.0f}" for letter, share in zip(letters, shares, strict=True)]
    parts = [
        *donut(220, 118, 92, shares, labels, points),
        words(220, 240, "each node as wide as its share"),
    ]
    notes = {
        "rws": "the node that a point falls on",
        "rwsv": "the node whose right border is nearest",
        "topk": "the highest shares; there are no points",
    }
    for place, (name, note) in enumerate(notes.items()):
        kept, top = keep(name, shares), 276 + 118 * place
        ends = borders(shares, midway=name == "rwsv")
        written = letters if name == "rwsv" else labels
        parts += [
            words(20, top, f"{NAMES[name]} keeps {listed(kept, letters)}", "start", bold=True),
            *bar(top + 20, written, kept, ends, points=name != "topk"),
            words(20, top + 78, note, "start"),
        ]
    return svg(606, "The wheel's worked example: RWS, RWSV and top-k on four nodes", parts)


def levels() -> str:
    """Draw the classifier: convolve, pool and read out three times, add up, classify."""
    grid = [(node % 4, node // 4) for node in range(12)]
    edges = [
        (node, other)
        for node, (x, y) in enumerate(grid)
        for other, (u, v) in enumerate(grid[:node])
        if max(abs(x - u), abs(y - v)) == 1
    ]
    shares = (0.04, 0.04, 0.08, 0.12, 0.10, 0.06, 0.08, 0.10, 0.06, 0.12, 0.10, 0.10)
    nodes, parts = list(range(12)), []
    for level in range(4):
        top = 16 + 176 * level
        places = {node: (30 + 34 * x, top + 12 + 34 * y) for node, (x, y) in enumerate(grid)}
        kept = [nodes[at] for at in keep("rwsv", [shares[node] for node in nodes])]
        among = [edge for edge in edges if set(edge) <= set(nodes)]
        stay = nodes if level == 3 else kept
        parts += graph({node: places[node] for node in nodes}, among, [""] * 12, stay, 8)
        parts.append(words(81, top + 112, f"{len(nodes)} nodes"))
        if level < 3:
            parts += [
                arrow(146, top + 66, 168, top + 84),
                box(170, top + 70, 126, 34, SHADES[0], "convolution"),
                arrow(233, top + 104, 233, top + 118),
                box(170, top + 120, 126, 34, BLUE, "GTPool"),
                arrow(170, top + 146, 146, top + 182),
            ]
        if level > 0:
            parts += [
                arrow(146, top + 34, 168, top + 26),
                box(170, top + 6, 126, 34, SHADES[2], "read-out"),
                arrow(296, top + 23, 336, top + 23),
            ]
        nodes = kept
    parts += [
        box(338, 186, 82, 394, GREY, "Σ", "(17)"),
        arrow(379, 580, 379, 598),
        box(338, 600, 82, 40, RED, "head"),
        arrow(379, 640, 379, 656),
        words(379, 674, "class"),
    ]
    return svg(690, "Three levels: convolve, pool, read out; add up; classify", parts)


def keep(sampler: str, shares: Sequence[float]) -> list[int]:
    """Ask a sampler for half of the nodes."""
    score = torch.tensor(shares, dtype=torch.double).log()
    return SAMPLERS[sampler](score, torch.zeros(len(shares), dtype=torch.long), 0.5).tolist()


def borders(shares: Sequence[float], *, midway: bool) -> list[float]:
    """Give where each node ends on the wheel; RWSV's ends stand midway between those of RWS."""
    ends = [sum(shares[: at + 1]) for at in range(len(shares))]
    if midway:
        ends = [(end + after) / 2 for end, after in pairwise(ends)] + [1.0]
    return ends


def listed(kept: Collection[int], letters: str) -> str:
    """Name the kept nodes as a set."""
    return "{" + ", ".join(letters[node] for node in kept) + "}"


def bar(
    top: float,
    labels: Sequence[str],
    kept: Collection[int],
    ends: Sequence[float],
    *,
    points: bool = True,
) -> list[str]:
    """Lay the wheel out flat: kept nodes filled, the points as marks above."""
    parts, start = [], 0.0
    for node, (label, end) in enumerate(zip(labels, ends, strict=True)):
        x, width = 20 + 400 * start, 400 * (end - start)
        fill, colour = (BLUE, "#ffffff") if node in kept else ("none", INK)
        parts.append(
            f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="38" '
            f'fill="{fill}" stroke="{PALE}" stroke-width="1.5"/>'
        )
        parts.append(words(x + width / 2, top + 24, label, colour=colour, bold=True))
        start = end
    for place in range(len(kept) if points else 0):
        x = 20 + 400 * (place + 1) / (len(kept) + 1)
        parts.append(f'<path d="M{x - 7:.2f} {top - 12}h14l-7 16Z" fill="{INK}"/>')
    return parts


def donut(
    x: float,
    y: float,
    radius: float,
    shares: Sequence[float],
    labels: Sequence[str],
    points: Sequence[float],
) -> list[str]:
    """Draw the wheel round, from the top clockwise."""
    parts, start = [], 0.0
    for node, share in enumerate(shares):
        first, last = on(x, y, radius, start), on(x, y, radius, start + share)
        parts.append(
            f'<path d="M{x:.2f} {y:.2f}L{first[0]:.2f} {first[1]:.2f}A{radius} {radius} 0 '
            f'{int(share > 0.5)} 1 {last[0]:.2f} {last[1]:.2f}Z" fill="{SHADES[node]}" '
            f'stroke="#ffffff" stroke-width="1.5"/>'
        )
        middle = on(x, y, 0.62 * radius, start + share / 2)
        parts.append(words(middle[0], middle[1] + 5, labels[node], colour="#ffffff", bold=True))
        start += share
    for point, name in zip(points, ("⅓", "⅔"), strict=True):
        tip, said = on(x, y, radius - 4, point), on(x, y, radius + 26, point)
        left, right = (on(x, y, radius + 13, point + aside) for aside in (-0.012, 0.012))
        corners = "L".join(f"{u:.2f} {v:.2f}" for u, v in (tip, left, right))
        parts.append(f'<path d="M{corners}Z" fill="{INK}"/>')
        parts.append(words(said[0], said[1] + 5, name, bold=True))
    return parts


def on(x: float, y: float, radius: float, share: float) -> Point:
    """Give the place on a circle after a share of a turn, from the top clockwise."""
    return x + radius * sin(2 * pi * share), y - radius * cos(2 * pi * share)


def looks(places: dict[int, Point], kept: Collection[int]) -> list[str]:
    """Draw a thin line from each kept node to every other."""
    return [
        f'<path d="M{x:.2f} {y:.2f}L{u:.2f} {v:.2f}" stroke="{RED}" stroke-dasharray="3 4"/>'
        for node in kept
        for x, y in [places[node]]
        for other, (u, v) in places.items()
        if other not in kept or other < node
    ]


def graph(
    places: dict[int, Point],
    edges: Sequence[tuple[int, int]],
    letters: Sequence[str],
    filled: Collection[int],
    radius: float = 15,
) -> list[str]:
    """Draw nodes and the edges between them."""
    parts = []
    for source, target in edges:
        (x, y), (u, v) = places[source], places[target]
        parts.append(
            f'<path d="M{x:.2f} {y:.2f}L{u:.2f} {v:.2f}" stroke="{PALE}" stroke-width="2"/>'
        )
    for node, (x, y) in places.items():
        fill = BLUE if node in filled else PALE
        parts.append(f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius}" fill="{fill}"/>')
        if letters[node]:
            parts.append(words(x, y + 5, letters[node], colour="#ffffff", bold=True))
    return parts


def box(x: float, y: float, width: float, height: float, fill: str, *lines: str) -> str:
    """Draw a filled box with a line or two of white words."""
    middle, first = x + width / 2, y + height / 2 + 5 - 10 * (len(lines) - 1)
    text = "".join(
        words(middle, first + 21 * number, line, colour="#ffffff", bold=number == 0)
        for number, line in enumerate(lines)
    )
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}"/>{text}'


def arrow(x: float, y: float, u: float, v: float) -> str:
    """Draw a line with a head at its end."""
    return f'<path d="M{x} {y}L{u} {v}" stroke="{INK}" stroke-width="2" marker-end="url(#head)"/>'


def words(
    x: float, y: float, text: str, at: str = "middle", *, colour: str = INK, bold: bool = False
) -> str:
    """Write words; the letter after an underscore stands lower."""
    weight = ' font-weight="600"' if bold else ""
    low = r'<tspan dy="4" font-size="12">\1</tspan><tspan dy="-4">\2</tspan>'
    text = re.sub(r"_(\w)([^_]*)", low, text)
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{at}" fill="{colour}"{weight}>{text}</text>'


def svg(height: int, title: str, parts: Sequence[str]) -> str:
    """Put the parts into one picture with a title for those who do not see it."""
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="15"'
    head = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" orient="auto"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {font}>',
        f"<title>{title}</title>",
        f'<marker id="head" {head}><path d="M0 0L8 4L0 8Z" fill="{INK}"/></marker>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the three files beside this one."""
    for draw in (layer, wheel, levels):
        Path(__file__).with_name(f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
