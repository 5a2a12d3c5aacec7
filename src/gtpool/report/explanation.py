"""Self-contained HTML page that explains predictions of a model."""

from collections.abc import Sequence
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gtpool.report.graph_svg import Marks, draw_graph
from gtpool.report.page import load_template
from gtpool.report.result_tables import TextTable
from gtpool.study.store import write_atomic

# Types only: the page needs no torch, but this module imports it.
if TYPE_CHECKING:
    from gtpool.explain import (
        Diversity,
        Explained,
        Explanation,
        Explanations,
        Fidelity,
        LevelEdges,
        LevelView,
    )

TITLES = {"topk": "top-k", "rws": "RWS", "rwsv": "RWSV", "random": "by lot"}
"""Display names of the samplers; "by lot" is a random choice of the same number of nodes."""

_BAR, _LEFT, _WIDE = 26, 70, 230
MOST_LISTED = 500
"""Maximum number of nodes in the table of a graph."""

BLEND_NOTE = (
    "The model is a blend with boosted trees. The explanation and its probabilities are those of "
    "the network alone; `gtpool predict` gives those of the blend."
)
CALIBRATION_NOTE = (
    "The model has a temperature or threshold. The explanation and its probabilities are those "
    "without; `gtpool predict` gives those with them."
)
ENSEMBLE_NOTE = (
    "Predictions and probabilities are the means over the members, ± their standard deviation. The "
    "pooling steps and the importance of a graph are those of the member whose prediction is "
    "nearest to the mean; the probabilities without and with only the important nodes are those of "
    "the ensemble. Diversity and edges over all graphs are those of the first member."
)
"""How explanations of an ensemble are to be read."""


def write_explanation(
    path: Path, title: str, found: "Explanations", notes: Sequence[str] = ()
) -> None:
    """Write the page, atomically; equal explanations give equal bytes.

    Args:
        path: The HTML file.
        title: Name of the model and the graphs.
        found: Result of ``explain_source``.
        notes: Remarks on how the values were computed.
    """
    page = load_template(Path(__file__).with_name("explanation.html.j2"))
    diversity = found.diversity
    text = page.render(
        title=title,
        notes=notes,
        dropping=found.sampler is not None,
        diversity=None
        if diversity is None
        else {
            "graphs": len(diversity.occupied),
            "intervals": diversity.intervals,
            "judged": judge_diversity(diversity),
            "table": diversity_table(diversity),
            "picture": Markup(draw_diversity(diversity)),  # noqa: S704 - ours, numbers only
        },
        connectivity=connectivity_table(found.connectivity) if found.connectivity else None,
        graphs=[_graph_values(graph, found) for graph in found.graphs],
    )
    write_atomic(path, text.encode())


def connectivity_table(levels: "Sequence[LevelEdges]") -> TextTable:
    """List the nodes of each level, the pairs that an edge joins, and the share without an edge."""
    names = ["input", *(f"after step {step}" for step in range(1, len(levels)))]
    lines = (
        (name, str(level.nodes), str(level.pairs), f"{100 * level.isolated:.1f}")
        for name, level in zip(names, levels, strict=True)
    )
    return TextTable(("level", "nodes", "joined pairs", "isolated nodes, %"), tuple(lines))


def draw_level(
    view: "LevelView",
    edges: Sequence[tuple[int, int]],
    names: Sequence[str],
    *,
    smiles: str | None = None,
) -> str:
    """Return an SVG of a step on the input graph: kept nodes filled, top-k ringed, others faded.

    Args:
        view: The step.
        edges: Edges of the input graph.
        names: Label of each node.
        smiles: SMILES of a molecule, drawn by rdkit; its atoms must be the nodes.
    """
    gone = set(range(len(names))) - set(view.nodes)
    ringed = () if view.topk == view.kept else view.topk
    caption = f"{len(view.kept)} of {len(view.nodes)} nodes kept: {_listed(view.kept)}"
    return draw_graph(edges, names, Marks(view.kept, ringed, gone), caption, smiles)


def draw_survivors(
    explanation: "Explanation", names: Sequence[str], *, smiles: str | None = None
) -> list[str]:
    """Return drawings of the input graph and of each step, with the kept nodes filled."""
    left = [range(0), *(view.kept for view in explanation.levels)]
    captions = [f"the whole graph, {explanation.nodes} nodes"]
    captions += [
        f"after step {step}: {_listed(view.kept)}"
        for step, view in enumerate(explanation.levels, 1)
    ]
    return [
        draw_graph(explanation.edges, names, Marks(kept), caption, smiles)
        for kept, caption in zip(left, captions, strict=True)
    ]


def _graph_values(graph: "Explained", found: "Explanations") -> dict[str, Any]:
    """Return the values of a graph for the page."""
    why, target = graph.explanation, found.targets[graph.explanation.target]
    pictures = [
        (
            _step_caption(step, view, found.sampler),
            draw_level(view, why.edges, graph.names, smiles=graph.smiles),
        )
        for step, view in enumerate(why.levels, 1)
    ]
    if why.fidelity is not None:
        marks = Marks(why.fidelity.nodes, colour="important")
        caption = f"the most important half: {_listed(sorted(why.fidelity.nodes))}"
        svg = draw_graph(why.edges, graph.names, marks, caption, graph.smiles)
        pictures.append(("The more important half of the nodes.", svg))
    return {
        "name": f"{found.unit} {graph.number}",
        "id": graph.id or graph.smiles or "",
        "said": _prediction_text(why, found),
        "target": target,
        "truth": graph.truth,
        "pictures": [(caption, Markup(svg)) for caption, svg in pictures],  # noqa: S704 - escaped there
        "key": [_LEGEND[name] for name in _legend_marks(why)],
        "fidelity": why.fidelity and _fidelity_text(why.fidelity, found.task, target),
        "nodes": _nodes_table(graph),
        "left_out": max(0, why.nodes - MOST_LISTED),
        "steps": [
            (step, _step_table(view, graph.names)) for step, view in enumerate(why.levels[1:], 2)
        ],
    }


_LEGEND = {
    "kept": ("background: var(--kept)", "kept by the model"),
    "ring": ("border: 2px solid var(--ring)", "kept by top-k"),
    "gone": ("background: var(--line)", "gone before, pale"),
    "important": ("background: var(--important)", "important"),
}


def _legend_marks(why: "Explanation") -> list[str]:
    """Return the legend of a graph's drawings."""
    there = {
        "kept": bool(why.levels),
        "ring": any(view.topk != view.kept for view in why.levels),
        "gone": len(why.levels) > 1,
        "important": why.fidelity is not None,
    }
    return [name for name, is_there in there.items() if is_there]


def _prediction_text(why: "Explanation", found: "Explanations") -> str:
    """Return the prediction and its probability as text."""
    name, logit = found.targets[why.target], why.logits[why.target]
    apart = "" if why.spread is None else f" ± {why.spread:.2g}"
    if found.task == "regression":
        return f"{name}: {logit:.4g}{apart}"
    if found.task == "binary":
        answer = "yes" if logit >= 0 else "no"
        return f"{name}: {answer}, probability {_sigmoid(logit):.3f}{apart}"
    top = max(why.logits)
    powers = [exp(value - top) for value in why.logits]
    best = powers.index(1.0)
    said = f"{found.targets[best]}, probability {1 / sum(powers):.3f}"
    if best == why.target:
        return said + apart
    return f"{said}; asked about {name}, probability {powers[why.target] / sum(powers):.3f}{apart}"


def _sigmoid(value: float) -> float:
    return 1 / (1 + exp(-value)) if value >= 0 else exp(value) / (1 + exp(value))


def _step_caption(step: int, view: "LevelView", sampler: str | None) -> str:
    """Return the caption of a step."""
    name = TITLES[sampler or "topk"]
    said = f"Step {step}: {name} keeps {len(view.kept)} of {len(view.nodes)} nodes"
    share = f"{100 * view.isolated:.0f} %"
    edges = f" Edges join {view.pairs} pairs of them; {share} of them have no edge."
    if sampler == "topk":
        return f"{said}.{edges}"
    others = len(set(view.topk) - set(view.kept))
    return f"{said}; top-k would keep {others or 'no'} other{'s' * (others > 1)} (ringed).{edges}"


def _fidelity_text(told: "Fidelity", task: str, target: str) -> str:
    """Return an explanation of the fidelity values."""
    number = ".4g" if task == "regression" else ".3f"
    p, without, alone = (format(value, number) for value in (told.p, told.without, told.alone))
    count = len(told.nodes)
    nodes = f"{count} most important nodes" if count > 1 else "most important node"
    return (
        f"{_QUANTITIES[task]} {target} is {p}. Without the {nodes} it is {without}; with "
        f"{'these' if count > 1 else 'it'} alone, {alone}. {_VERDICTS[_verdict(told, task)]}"
    )


def _verdict(told: "Fidelity", task: str) -> str:
    """Return a comparison of the prediction on the important nodes and on the others."""
    p, without, alone = told.p, told.without, told.alone
    if task == "regression":
        return "named" if abs(alone - p) < abs(without - p) else "others"
    if task == "binary" and p < 0.5:  # the prediction is 0
        p, without, alone = 1 - p, 1 - without, 1 - alone
    if max(without, alone) < p / 2:
        return "neither"
    return "named" if alone > without else "others"


_VERDICTS = {
    "named": "This half bears the answer better than the other: the importance is borne out.",
    "others": "The other half bears the answer as well or better: do not trust the importance.",
    "neither": "Neither half bears the answer alone: the model needs both.",
}
_QUANTITIES = {
    "classes": "The probability of class",
    "binary": "The probability of",
    "regression": "The predicted value of",
}


def _nodes_table(graph: "Explained") -> TextTable:
    """Return the node table: values of the first step, importance and last level."""
    why = graph.explanation
    heads, columns = ["node", "name"], [[str(node) for node in range(why.nodes)], graph.names]
    if why.levels:
        more_heads, more = _columns(why.levels[0])
        heads, columns = [*heads, *more_heads], [*columns, *more]
    if why.importance is not None:
        heads.append("importance")
        columns.append([f"{value:.3f}" for value in why.importance])
    if why.levels:
        heads += ["kept up to step", "its number from step to step"]
        paths = why.paths()
        columns.append([str(len(path) - 1) for path in paths])
        columns.append([" → ".join(map(str, path)) for path in paths])
    lines = zip(*(column[:MOST_LISTED] for column in columns), strict=True)
    return TextTable(tuple(heads), tuple(lines))


def _step_table(view: "LevelView", names: Sequence[str]) -> TextTable:
    heads, columns = _columns(view)
    nodes = [str(node) for node in view.nodes]
    called = [names[node] for node in view.nodes]
    kept, topk = (["●" if node in part else "" for node in view.nodes] for part in view[5:7])
    listed = (nodes, called, *columns, kept, topk)
    lines = zip(*(column[:MOST_LISTED] for column in listed), strict=True)
    return TextTable(("node", "name", *heads, "kept", "top-k"), tuple(lines))


def _columns(view: "LevelView") -> tuple[list[str], list[list[str]]]:
    """Return the numeric columns of a step."""
    values = {
        "score": view.score,
        "global": view.global_score,
        "local": view.local_score,
        "attention": view.attention,
    }
    there = {name: part for name, part in values.items() if part is not None}
    return list(there), [[f"{value:.4f}" for value in part] for part in there.values()]


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"


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
