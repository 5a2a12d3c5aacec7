"""Result tables as plain values, with output for a terminal and in Markdown."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gtpool.study.result import RunResult
from gtpool.study.summarize import (
    EPOCH_RULES,
    MetricSummary,
    ScoreGrid,
    format_metric,
    has_folds,
    metric_title,
    score_grid,
    summarize,
    summarize_grid,
)

if TYPE_CHECKING:  # it imports torch
    from gtpool.study.learning_curve import LearningCurve

_WIDEST = 1 << 16
_LINE_BREAK = re.compile(r"[\t\n]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class TextTable(NamedTuple):
    """Headings and rows of the same number of cells."""

    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def markdown(self, text: Collection[int] = (0,)) -> str:
        """Return a Markdown table; columns in ``text`` are left-aligned, others right-aligned."""
        rule = tuple("---" if at in text else "---:" for at in range(len(self.heads)))
        cells = (self.heads, rule, *self.lines)
        return "\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in cells)

    def terminal(self, text: Collection[int] = (0,)) -> str:
        """Return aligned columns; columns in ``text`` are left-aligned, others right-aligned."""
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for at, head in enumerate(self.heads):
            justify = "left" if at in text else "right"
            table.add_column(_cell(head), justify=justify, no_wrap=True)
        for line in self.lines:
            table.add_row(*map(_cell, line))
        # As wide as it takes: a table is neither wrapped nor cut where output goes to a file.
        console = Console(width=_WIDEST, color_system=None, force_jupyter=False)
        with console.capture() as shown:
            console.print(table, crop=False)
        return "\n".join(line.rstrip() for line in shown.get().splitlines())


def methods_table(
    methods: Mapping[str, Sequence[RunResult]], cells: Mapping[str, MetricSummary] | None = None
) -> TextTable:
    """Return a comparison table of methods.

    Args:
        methods: Rows of each method by name; all with the same metric.
        cells: Mean and deviation of each; by default of its rows.
    """
    if cells is None:
        cells = {name: summarize(rows) for name, rows in methods.items()}
    # Runs that failed before they started have no metric.
    metric = next((cell.metric for cell in cells.values() if cell.n), "accuracy")
    lines: list[tuple[str, ...]] = []
    for name, cell in cells.items():
        done = [row for row in methods[name] if row.done]
        weights = f"{done[0].parameters:,}" if done else "–"
        seconds = f"{sum(row.seconds for row in done) / len(done):.1f}" if done else "–"
        lines.append((name, cell.text, str(cell.n), str(cell.missing), weights, seconds))
    heads = ("method", metric_title(metric), "runs", "missing", "parameters", "seconds a run")
    return TextTable(heads, tuple(lines))


def runs_table(rows: Sequence[RunResult], ensembles: ScoreGrid | None = None) -> TextTable:
    """Return the test metric of every run: one row per fold, one column per seed, and means.

    A split without folds has one row with the name of its rule. Failed and missing runs are dashes.

    Args:
        rows: The runs.
        ensembles: Test metric of each ensemble of seeds or blend, as further columns.
    """
    laid, rule = score_grid(rows), rows[0].spec.split.rule
    folded, heads = has_folds(rule), [f"seed {seed}" for seed in laid.seeds]
    if ensembles is not None:
        laid = laid._replace(values=laid.values + ensembles.values)
        several = len(ensembles.seeds) > 1
        heads += [
            f"{ensembles.kind} {n}" if several else ensembles.kind
            for n, _ in enumerate(ensembles.seeds, 1)
        ]
    lines = [
        (
            f"{fold + 1}" if folded else rule,
            *(format_metric(line[place], laid.metric) for line in laid.values),
        )
        for place, fold in enumerate(laid.folds)
    ]
    if len(laid.folds) > 1:
        lines.append(("mean", *(format_metric(mean, laid.metric) for mean in laid.means)))
    return TextTable(("fold" if folded else "split", *heads), tuple(lines))


def rules_table(rows: Sequence[RunResult]) -> TextTable:
    """Return the mean test metric of the runs under each rule of epoch selection."""
    done = [row for row in rows if row.done]
    lines: list[tuple[str, ...]] = []
    for rule, words in EPOCH_RULES.items():
        cell = summarize([row.updated(test=row.other_rules[rule]) for row in done])
        lines.append((words, cell.text))
    return TextTable(("epoch chosen", metric_title(done[0].metric)), tuple(lines))


def tasks_table(
    targets: Sequence[str],
    labels: Sequence[int],
    metrics: Mapping[str, Mapping[tuple[int, int], Sequence[float | None]]],
) -> TextTable:
    """Return one row per task: its metrics over all runs and its number of labels.

    Args:
        targets: Names of the tasks.
        labels: Number of labelled graphs of each task.
        metrics: By name, the metric of each task by seed and fold of the run; None if undefined.
            The first is counted in the column of runs.
    """
    runs = next(iter(metrics.values()))
    seeds, folds = (tuple(sorted(set(part))) for part in zip(*runs, strict=True))
    lines: list[tuple[str, ...]] = []
    for task, (name, count) in enumerate(zip(targets, labels, strict=True)):
        cells: list[MetricSummary] = []
        for metric, by_place in metrics.items():
            by_run = {place: values[task] for place, values in by_place.items()}
            values = tuple(tuple(by_run.get((seed, fold)) for fold in folds) for seed in seeds)
            cells.append(summarize_grid(ScoreGrid(metric, seeds, folds, values)))
        figures = [cell.text if cell.n else format_metric(None, cell.metric) for cell in cells]
        counted = [str(cells[0].n)] if len(runs) > 1 else []
        lines.append((name, *figures, str(count), *counted))
    counted = ["runs"] if len(runs) > 1 else []
    return TextTable(("task", *map(metric_title, metrics), "labels", *counted), tuple(lines))


def scores_table(scores: Mapping[str, MetricSummary]) -> TextTable:
    """Return one row per metric: mean and deviation; a dash where it is undefined in all runs.

    The number of runs is a column if a metric is undefined in some.

    Args:
        scores: Mean and deviation of each metric by name.
    """
    counted = len({cell.n for cell in scores.values()}) > 1
    lines = [
        (
            metric_title(name),
            cell.text if cell.n else format_metric(None, name),
            *([str(cell.n)] if counted else []),
        )
        for name, cell in scores.items()
    ]
    heads = ("metric", "on test parts", *(["runs"] if counted else []))
    return TextTable(heads, tuple(lines))


def curve_table(curve: "LearningCurve") -> TextTable:
    """Return one row per size of the training parts of a learning curve."""
    lines = [(f"{point.graphs:.0f}", point.cell.text, str(point.cell.n)) for point in curve.points]
    title = metric_title(curve.points[0].scores.metric)
    return TextTable(("training graphs", f"test {title}", "runs"), tuple(lines))


def printable(text: str) -> str:
    r"""Return text that is safe for a terminal, with control characters escaped.

    Example:
        >>> printable("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    return _CONTROL.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _cell(text: str) -> Text:
    """Return a cell of one line, in which brackets are no markup."""
    return Text(_LINE_BREAK.sub(_code, printable(text)))


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|")
