"""Content of the report on the studies: parts with tables, curves and box plots. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gtpool.data.registry import DATASETS
from gtpool.report.progress import format_seconds
from gtpool.reproduce.ensembles import ensemble_scores, mean_and_deviation
from gtpool.reproduce.paper import Study, StudyCell
from gtpool.reproduce.published import TABLE_1, TABLE_6
from gtpool.reproduce.status import count_status
from gtpool.reproduce.study_compare import (
    TableComparison,
    claims_section,
    compare_table,
    comparison_section,
    ranks_section,
)
from gtpool.reproduce.study_parts import (
    MISSING,
    PARTIAL,
    WRONG,
    Picture,
    ReportSection,
    ReportTable,
    TableCell,
    number_cell,
    text_cell,
)
from gtpool.reproduce.study_plot import Point, SeedFigures, draw_boxes, draw_sweep
from gtpool.reproduce.study_results import RERUN, CellResult, cell_results, published_by
from gtpool.study.predictions import Predictions
from gtpool.study.result import RunResult
from gtpool.study.summarize import EPOCH_RULES

_NUMBERS = ("ours", "±", "over", "published", "±", "by", "difference", "runs", "of")
_SETTINGS = ("validation", "parameters", "seconds a run", "device", "commit", "beside the set")
_FEW = 3  # minimum seeds of a box plot

_MAIN = "table1"  # its methods are ranked
_BUDGET = "best"  # its methods have one budget, and ensembles of the same size
_MEMBERS = 3
_COMPARED = {
    _MAIN: "The paper's recipe: all methods at once",
    "tuned": "Tuned: all methods at once",
    _BUDGET: "The same budget: all methods at once",
    "repeated": "Repeated cross-validation: all methods at once",
}
"""Studies whose methods are tested together. Tuned and untuned methods are in different ones."""
_HOW = (
    "A figure is the test metric at the epoch of the lowest validation loss (OGB's sets: of the "
    "best validation ROC-AUC); test metrics of other epochs choose nothing. It is the mean over "
    "seeds of the mean over the ten folds, ± the standard deviation over seeds; of a single seed, "
    "over its folds. OGB's sets have one split: there it is the mean over seeds. A seed counts "
    "when all its folds are done; where no seed is whole, what is there is shown, but neither "
    "ranked, tested nor judged."
)
_MARKS = (
    f"{PARTIAL} marks a figure that rests on fewer runs than it should, {MISSING} one of which "
    "nothing is there yet. Differences are ours less published, in points. Where methods are "
    "compared, those that cannot be told from the best of their column are bold."
)


class Report(NamedTuple):
    """The report on all studies."""

    title: str
    parts: list[ReportSection]
    results: list[CellResult]
    compared: Mapping[str, TableComparison]
    """Comparisons of the methods of a study, by name of the study."""


def make_report(
    rows: Mapping[str, RunResult],
    studies: Mapping[str, Study],
    *,
    predictions: Predictions | None = None,
    more: Iterable[ReportSection] = (),
) -> Report:
    """Return the report on the finished runs of the studies.

    Args:
        rows: Finished runs by key.
        studies: Studies by name.
        predictions: Test predictions for ensembles, as ``read_predictions`` returns them.
        more: Additional parts for the end, such as timings.
    """
    found = {name: cell_results(name, study, rows) for name, study in studies.items()}
    parts = [_summary_section(rows, found)]
    compared: dict[str, TableComparison] = {}
    for name, study in studies.items():
        together = [one for one in found[name] if one.place.line in study.together]
        if name in _COMPARED:
            compared[name] = compare_table(together)
        parts.append(study_section(name, study, found[name], compared.get(name)))
        if name == _MAIN:
            parts += [seeds_section(found[name]), ranks_section(found[name])]
        if name in _COMPARED:
            parts.append(
                comparison_section(f"compare-{name}", _COMPARED[name], together, compared[name])
            )
        if name == _BUDGET:
            parts.append(ensemble_section(study, _of_rows(predictions or {}, rows)))
    parts += [claims_section(found), dataset_section(), *more]
    everything = [result for several in found.values() for result in several]
    return Report("GTPool: what the paper says, and what was measured", parts, everything, compared)


def _of_rows(predictions: Predictions, rows: Mapping[str, RunResult]) -> Predictions:
    """Return the targets, and the predictions of the given runs."""
    return {
        name: array
        for name, array in predictions.items()
        if "/y/" in name or name.rpartition("/")[2] in rows
    }


def _summary_section(
    rows: Mapping[str, RunResult], found: Mapping[str, Sequence[CellResult]]
) -> ReportSection:
    wanted = {key for several in found.values() for result in several for key in result.keys}
    mine = [row for key, row in rows.items() if key in wanted]
    done = [row for row in mine if row.done]
    versions = (", ".join(f"{name} {at}" for name, at in row.versions.items()) for row in done)
    facts = {
        "runs": f"{len(done):,} of {len(wanted):,} are done, {len(mine) - len(done)} failed; "
        f"{len(rows) - len(mine)} rows belong to no study shown here",
        "devices": _listed(row.device for row in done),
        "commits": _listed(row.commit or "not known" for row in done),
        "versions": _listed(versions),
        "time": f"{format_seconds(sum(row.seconds for row in done))} of machine time; "
        "runs side by side count with their share",
        "last run": max((row.finished for row in done), default="none"),
    }
    heads = ("study", "cells", "whole", "begun", "runs done", "of", "failed")
    lines = tuple((text_cell(name), *_counts(several)) for name, several in found.items())
    missing = ReportTable("What is there, and what is missing.", heads, lines)
    return ReportSection("summary", "Summary", (_HOW, _MARKS), facts, (missing,))


def _counts(found: Sequence[CellResult]) -> tuple[TableCell, ...]:
    """Return the numbers of cells and runs of a study as text."""
    cells = [
        (len(result.keys), len(result.rows) - result.failed, result.failed) for result in found
    ]
    return tuple(number_cell(count, "d") for count in count_status(cells))


def _listed(values: Iterable[str]) -> str:
    """Return the distinct values, joined, the most frequent first."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return "; ".join(f"{value} ({count:,} runs)" for value, count in ordered) or "none"


def study_section(
    name: str,
    study: Study,
    found: Sequence[CellResult],
    compared: TableComparison | None = None,
) -> ReportSection:
    """Return the part of a study: methods or values by datasets, and a table of all numbers.

    Args:
        name: Name of the study.
        study: The study.
        found: Results of its cells.
        compared: Comparison of its methods, for the marks.
    """
    by_place = {(result.place.line, result.place.dataset): result for result in found}
    first = study.axis or "method"
    tables = tuple(
        ReportTable(
            caption,
            (first, *study.datasets),
            tuple(
                (
                    text_cell(line),
                    *(
                        _figure_cell(by_place.get((line, dataset)), compared)
                        for dataset in study.datasets
                    ),
                )
                for line in lines
            ),
        )
        for caption, lines in {"": study.together, **study.apart}.items()
    )
    begun = [result for result in found if result.figure.mean is not None]
    detail = ReportTable(
        "All numbers, a line for each cell that has runs. “validation” is the mean validation "
        "metric, “beside the set” what was used beside the dataset. The last columns say what each "
        "rule of choosing the epoch makes of the same runs; the optimistic one looks at the "
        "answers.",
        (first, "dataset", *_NUMBERS, *_SETTINGS, *EPOCH_RULES.values()),
        tuple(map(_number_cells, begun)),
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
    sheets = (*tables, detail) if begun else tables
    return ReportSection(name, study.title, tuple(notes), {}, sheets, pictures)


def ensemble_section(study: Study, predictions: Predictions) -> ReportSection:
    """Return the test metric of ensembles of the same size of all methods of a study."""
    lines = [
        (
            text_cell(line),
            *(_ensemble_cell(cell, study.seeds, predictions) for cell in study.only(line=line)),
        )
        for line in study.together
    ]
    note = (
        f"Mean probability of {_MEMBERS} networks that differ in the seed, from the exported test "
        "predictions. Seeds are in disjoint groups; ± is over folds, the mean of the groups. Their "
        "single runs are those of the table above."
    )
    sheet = ReportTable("", ("method", *study.datasets), tuple(lines))
    title = f"The same budget: ensembles of {_MEMBERS}"
    return ReportSection("ensembles", title, (note,), {}, (sheet,))


def _ensemble_cell(cell: StudyCell, seeds: int, predictions: Predictions) -> TableCell:
    scores = ensemble_scores(cell, predictions, seeds, _MEMBERS)
    if not scores:
        return TableCell("–", None, (f"{MISSING} no predictions",), None, "missing")
    mean, std = mean_and_deviation(scores)
    spread = "" if std is None else f" ± {std:.2f}"
    count = f"{len(scores)} ensemble{'s' * (len(scores) > 1)}"
    return TableCell(f"{mean:.2f}{spread}", mean, (count,))


def seeds_section(found: Sequence[CellResult]) -> ReportSection:
    """Return a box plot per dataset of the methods with at least three complete seeds."""
    pictures: list[Picture] = []
    for dataset in dict.fromkeys(result.place.dataset for result in found):
        spreads = {
            result.place.line: SeedFigures(
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
    return ReportSection("seeds", "Spread over seeds", (note,), pictures=tuple(pictures))


def dataset_section() -> ReportSection:
    """Return the paper's table of datasets beside the actual values."""
    heads = ("dataset", "graphs", "truth", "nodes a graph", "truth", "edges a graph", "truth")
    heads += ("classes", "truth", "remark")
    lines: list[tuple[TableCell, ...]] = []
    for name, told in TABLE_6.items():
        true = DATASETS[name]
        columns = (
            _compare_cells(told.graphs, true.graphs, "d"),
            _compare_cells(told.nodes, true.mean_nodes, ".2f"),
            _compare_cells(told.edges, true.mean_edges, ".2f"),
        )
        classes = number_cell(told.classes, "d")
        tasks = true.tasks is not None and true.tasks > 1
        if tasks:
            classes = classes._replace(text=f"{classes.text} {WRONG}", mark="slip")
        both = _is_wrong(told.edges, true.mean_edges) and not _is_wrong(
            told.edges, 2 * true.mean_edges
        )
        remark = "these are tasks of two classes each" if tasks else ""
        remark = "counts both directions of an edge" if both else remark
        flat = (entry for pair in columns for entry in pair)
        lines.append((text_cell(name), *flat, classes, text_cell(true.outputs), text_cell(remark)))
    note = (
        f"The paper's figures, and those of the files. {WRONG} marks what is off by more than one "
        "per cent; edges are undirected ones."
    )
    return ReportSection(
        "datasets", "Datasets", (note,), {}, (ReportTable("", heads, tuple(lines)),)
    )


_GIVEN_UP = {
    (line, dataset)
    for line, figures in TABLE_1.items()
    for dataset, figure in figures.items()
    if figure is None
}
"""Text of a published value that is a dash in the paper."""


def _figure_cell(result: CellResult | None, compared: TableComparison | None) -> TableCell:
    """Return a cell with our value, and below it the published value, difference and runs."""
    if result is None:
        return TableCell("")
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
        return TableCell("–", None, tuple(notes), result.name if result.rows else None, "missing")
    best = compared is not None and compared.is_told_from_best(result) is False
    over = ", ± folds" if figure.spread == "folds" and figure.std is not None else ""
    if figure.missing:
        notes.append(f"{PARTIAL} {figure.n} of {wanted} runs{over}")
        return TableCell(figure.text, result.percent, tuple(notes), result.name, "partial", best)
    notes.append(f"{wanted} runs{over}")
    return TableCell(figure.text, result.percent, tuple(notes), result.name, best=best)


def _number_cells(result: CellResult) -> tuple[TableCell, ...]:
    figure, told = result.figure, result.place.published
    rules = (result.rules[rule].mean for rule in EPOCH_RULES)
    return (
        text_cell(result.place.line),
        text_cell(result.place.dataset),
        TableCell(f"{result.percent:.2f}", result.percent, runs=result.name),
        number_cell(None if figure.std is None else 100 * figure.std),
        text_cell(figure.spread),
        number_cell(told.mean if told else None),
        number_cell(told.std if told else None),
        text_cell(published_by(result.place) or "–"),
        number_cell(result.difference, "+z.2f"),
        number_cell(figure.n, "d"),
        number_cell(len(result.keys), "d"),
        number_cell(result.valid_percent),
        _range_cell(result.parameters),
        number_cell(result.seconds, ".1f"),
        text_cell(result.listed("device")),
        text_cell(result.listed("commit")),
        text_cell(result.beside),
        *(number_cell(None if rule is None else 100 * rule) for rule in rules),
    )


def _range_cell(values: Sequence[int]) -> TableCell:
    """Return a cell with the first and last of increasing values."""
    if not values:
        return TableCell("–")
    ends = dict.fromkeys((values[0], values[-1]))
    return TableCell(" to ".join(f"{value:,}" for value in ends), values[0])


def _curves(study: Study, found: Sequence[CellResult]) -> tuple[Picture, ...]:
    """Return the plot of a parameter study, if it has values."""
    if study.axis is None:
        return ()
    curves = {
        dataset: [
            Point(float(result.place.line), result.percent, 100 * (result.figure.std or 0.0))
            for result in found
            if result.place.dataset == dataset
            and result.has_complete_seed
            and result.percent is not None
        ]
        for dataset in study.datasets
    }
    if max(map(len, curves.values())) < 2:
        return ()
    caption = f"{study.title}: mean and deviation, in per cent, by {study.axis}."
    return (Picture(caption, draw_sweep(curves, study.axis)),)


def _seeds(result: CellResult) -> list[float]:
    """Return the value of each complete seed, in per cent."""
    lines = zip(result.grid.values, result.grid.means, strict=True)
    return [100 * mean for values, mean in lines if None not in values and mean is not None]


def _compare_cells(told: float, true: float, form: str) -> tuple[TableCell, TableCell]:
    """Return a cell with the paper's value, marked if it is wrong, and the actual value."""
    entry = number_cell(told, form)
    if _is_wrong(told, true):
        entry = entry._replace(text=f"{entry.text} {WRONG}", mark="slip")
    return entry, number_cell(true, form)


def _is_wrong(told: float, true: float) -> bool:
    return abs(told - true) > 0.01 * true
