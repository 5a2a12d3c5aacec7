"""The tables of the studies and of the datasets, with curves and box plots. No torch."""

from collections.abc import Sequence

from gtpool.data.registry import DATASETS
from gtpool.report.cells import RULES
from gtpool.report.study_cells import RERUN, Result, published_by
from gtpool.report.study_parts import (
    MISSING,
    PARTIAL,
    SLIP,
    Entry,
    Part,
    Picture,
    Sheet,
    number,
    words,
)
from gtpool.report.study_plot import Point, Spread, draw_boxes, draw_sweep
from gtpool.study.paper import Study
from gtpool.study.published import TABLE_1, TABLE_6

_NUMBERS = ("ours", "±", "over", "published", "±", "by", "difference", "runs", "of")
_FEW = 3  # seeds that a box plot needs


def study_part(name: str, study: Study, found: Sequence[Result]) -> Part:
    """Give a study: methods or values down, datasets across, and all numbers on request."""
    by_place = {(result.place.line, result.place.dataset): result for result in found}
    lines = tuple(
        (words(line), *(_cell(by_place.get((line, dataset))) for dataset in study.datasets))
        for line in study.lines
    )
    first = study.axis or "method"
    table = Sheet("", (first, *study.datasets), lines)
    begun = [result for result in found if result.figure.mean is not None]
    detail = Sheet(
        "All numbers, a line for each cell that has runs. The last columns say what each rule of "
        "choosing the epoch makes of the same runs; the optimistic one looks at the answers.",
        (first, "dataset", *_NUMBERS, *RULES.values()),
        tuple(map(_numbers, begun)),
        detail=True,
    )
    notes = [study.note]
    if any(published_by(result.place) == RERUN for result in found):
        notes.append(
            "Published figures of baselines are those of GMT's paper; † marks those that the "
            "authors of GTPool ran themselves, on ENZYMES, PTC_MR and Synthie."
        )
    pictures = _curves(study, found)
    if study.axis and not pictures:
        notes.append("No curve can be drawn yet.")
    sheets = (table, detail) if begun else (table,)
    return Part(name, study.title, tuple(notes), {}, sheets, pictures)


def seeds_part(found: Sequence[Result]) -> Part:
    """Draw the seeds of every method that has three whole ones, a drawing each dataset."""
    pictures: list[Picture] = []
    for dataset in dict.fromkeys(result.place.dataset for result in found):
        spreads = {
            result.place.line: Spread(
                seeds, told.mean if (told := result.place.published) else None
            )
            for result in found
            if result.place.dataset == dataset and len(seeds := _seeds(result)) >= _FEW
        }
        if spreads:
            caption = f"{dataset}, %, methods of three seeds and more."
            pictures.append(Picture(caption, draw_boxes(spreads, dataset), small=True))
    note = (
        "Quartiles, median and range over seeds, a dot each seed; a diamond where the published "
        "figure lies."
        if pictures
        else "No method has three whole seeds yet."
    )
    return Part("seeds", "Spread over seeds", (note,), pictures=tuple(pictures))


def dataset_part() -> Part:
    """Give the paper's table of datasets beside the truth."""
    heads = ("dataset", "graphs", "truth", "nodes a graph", "truth", "edges a graph", "truth")
    heads += ("classes", "truth", "remark")
    lines: list[tuple[Entry, ...]] = []
    for name, told in TABLE_6.items():
        true = DATASETS[name]
        columns = (
            _beside(told.graphs, true.graphs, "d"),
            _beside(told.nodes, true.mean_nodes, ".2f"),
            _beside(told.edges, true.mean_edges, ".2f"),
        )
        classes = number(told.classes, "d")
        tasks = true.tasks is not None and true.tasks > 1
        if tasks:
            classes = classes._replace(text=f"{classes.text} {SLIP}", mark="slip")
        both = _off(told.edges, true.mean_edges) and not _off(told.edges, 2 * true.mean_edges)
        remark = "these are tasks of two classes each" if tasks else ""
        remark = "counts both directions of an edge" if both else remark
        flat = (entry for pair in columns for entry in pair)
        lines.append((words(name), *flat, classes, words(true.outputs), words(remark)))
    note = (
        f"The paper's figures, and those of the files. {SLIP} marks what is off by more than one "
        "per cent; edges are undirected ones."
    )
    return Part("datasets", "Datasets", (note,), {}, (Sheet("", heads, tuple(lines)),))


_GIVEN_UP = {
    (line, dataset)
    for line, figures in TABLE_1.items()
    for dataset, figure in figures.items()
    if figure is None
}
"""Where the paper has a dash."""


def _cell(result: Result | None) -> Entry:
    """Give our figure, with the published one, the difference and the runs below."""
    if result is None:
        return Entry("")
    figure, told = result.figure, result.place.published
    notes: list[str] = []
    if told is not None:
        dagger = "†" if published_by(result.place) == RERUN else ""
        change = "" if result.difference is None else f", {result.difference:+z.2f}"
        notes.append(f"paper{dagger} {told.mean:.2f} ± {told.std:.2f}{change}")
    elif (result.place.line, result.place.dataset) in _GIVEN_UP:
        notes.append("paper: more than 10 days")
    wanted = len(result.keys)
    if figure.mean is None:
        notes.append(f"{MISSING} none of {wanted} runs")
        return Entry("–", None, tuple(notes), result.name if result.rows else None, "missing")
    over = ", ± folds" if figure.spread == "folds" and figure.std is not None else ""
    if figure.missing:
        notes.append(f"{PARTIAL} {figure.n} of {wanted} runs{over}")
        return Entry(figure.text, result.percent, tuple(notes), result.name, "partial")
    notes.append(f"{wanted} runs{over}")
    return Entry(figure.text, result.percent, tuple(notes), result.name)


def _numbers(result: Result) -> tuple[Entry, ...]:
    figure, told = result.figure, result.place.published
    rules = (result.rules[rule].mean for rule in RULES)
    return (
        words(result.place.line),
        words(result.place.dataset),
        Entry(f"{result.percent:.2f}", result.percent, runs=result.name),
        number(None if figure.std is None else 100 * figure.std),
        words(figure.spread),
        number(told.mean if told else None),
        number(told.std if told else None),
        words(published_by(result.place) or "–"),
        number(result.difference, "+z.2f"),
        number(figure.n, "d"),
        number(len(result.keys), "d"),
        *(number(None if rule is None else 100 * rule) for rule in rules),
    )


def _curves(study: Study, found: Sequence[Result]) -> tuple[Picture, ...]:
    """Draw a parameter study, if there is something to draw."""
    if study.axis is None:
        return ()
    curves = {
        dataset: [
            Point(float(result.place.line), result.percent, 100 * (result.figure.std or 0.0))
            for result in found
            if result.place.dataset == dataset and result.settled and result.percent is not None
        ]
        for dataset in study.datasets
    }
    if max(map(len, curves.values())) < 2:
        return ()
    caption = f"{study.title}: mean and deviation, in per cent, by {study.axis}."
    return (Picture(caption, draw_sweep(curves, study.axis)),)


def _seeds(result: Result) -> list[float]:
    """Give the figure of each whole seed, in per cent."""
    lines = zip(result.grid.values, result.grid.means, strict=True)
    return [100 * mean for values, mean in lines if None not in values and mean is not None]


def _beside(told: float, true: float, form: str) -> tuple[Entry, Entry]:
    """Give a figure of the paper, marked if it is wrong, and the truth."""
    entry = number(told, form)
    if _off(told, true):
        entry = entry._replace(text=f"{entry.text} {SLIP}", mark="slip")
    return entry, number(true, form)


def _off(told: float, true: float) -> bool:
    return abs(told - true) > 0.01 * true
