"""Progress of runs and of the rows of a long table: live in a terminal, else lines. No torch."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from time import monotonic
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gtpool.model import method_name
from gtpool.spec import RunSpec
from gtpool.study.result import RunResult
from gtpool.study.summarize import (
    format_metric,
    format_seconds,
    has_folds,
    metric_name,
    reported_score,
    run_label,
)

_RunGroup = dict[int, RunSpec]  # the runs of one table row, by fold
_PAUSE = 0.2  # minimum seconds between two updates of the table
_LINE_PAUSE = 5.0  # minimum seconds between two lines without a terminal
_ROWS_PAUSE = 1.0  # minimum seconds between two updates of the line about rows
_ROWS_LINE_PAUSE = 30.0  # minimum seconds between two such lines without a terminal
_FRAME = 7  # maximum lines of the table's borders, headings and caption
_CELL = 5  # characters of a value, so that columns keep their width
_FEW = 3  # epochs after a run's slow first epoch before its pace counts


class EpochLike(Protocol):
    """The displayed fields of an epoch."""

    @property
    def number(self) -> int: ...  # noqa: D102


class Progress:
    """Progress display for ``run_many``, used as a context manager.

    In a terminal it draws a table with folds as columns and seeds as rows. It shows the test metric
    of finished runs, the epoch of active runs, the mean and the time left. If the terminal has too
    few lines, it shows active rows and the latest finished ones. If it is too narrow, it shows the
    number of finished folds. Without a terminal it prints one line per run.

    Args:
        console: Console to write to; by default standard error.
        clock: Function that returns seconds.
        names: Display name of each run by key; by default the method of its network.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = monotonic,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.clock, self.names = clock, names or {}
        self.specs: list[RunSpec] = []
        self.rows: dict[str, RunResult] = {}
        """Finished runs by key."""
        self.at: dict[str, int] = {}
        """Last epoch of active runs by key."""
        self._since: dict[str, tuple[int, float]] = {}  # first reported epoch and its time
        self._began, self._before, self._drawn = clock(), 0, clock()
        self._preparing: dict[str, float] = {}
        self._draws = False
        self._live: Live | None = None
        self._group([])

    def __enter__(self) -> Self:
        self._draws = self.console.is_terminal
        return self

    def __exit__(self, *_: object) -> None:
        self._draws = False
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None:
        """Record all runs, and the rows that exist already."""
        if self._draws and self._live is None:  # not earlier: keeps lines printed before
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._group(specs)
        for row in done:
            self._take(row)
        self._began, self._before = self.clock(), len(done)
        if done:
            self._say(f"{self._count(len(done))} {'are' if specs[1:] else 'is'} done already")
        self._draw()

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the progress of a preparation step, at intervals and at its end."""
        late = self.clock() - self._drawn
        if done < total and late < (_LINE_PAUSE if self._live is None else _PAUSE):
            return
        began, self._drawn = self._preparing.setdefault(what, self.clock()), self.clock()
        left = (self._drawn - began) * (total - done) / max(1, done)
        line = f"{what}: {done} of {total}"
        line += f", about {format_seconds(left)} left" if done < total else ""
        self._say(line)
        if self._live is not None:
            self._live.update(Text(line), refresh=True)

    def started(self, spec: RunSpec) -> None:
        """Record the start of a run."""
        self.at[spec.key] = 0

    def epoch(self, spec: RunSpec, epoch: EpochLike) -> None:
        """Record an epoch."""
        self.at[spec.key] = epoch.number
        self._since.setdefault(spec.key, (epoch.number, self.clock()))
        if self.clock() - self._drawn > _PAUSE:
            self._draw()

    def finished(self, row: RunResult) -> None:
        """Record the row of a finished run."""
        self.at.pop(row.key, None)
        self._take(row)
        spec = row.spec
        name = f"{spec.data.source}, {self._name(spec)}"
        self._say(f"{name}, {run_label(spec)}: {_result(row)} ({self.summary()})")
        self._draw()

    def seconds_left(self) -> float | None:
        """Return the estimated seconds left; None until a run has ended or done a few epochs.

        The estimate assumes the mean epochs of finished runs. Before any run has finished it
        assumes all epochs, which is an upper bound with early stopping.
        """
        usual = self._epochs.value if self._epochs.count else self._most_epochs
        late = self._patience / 2  # assumed epochs left of a run that is longer than the mean
        lengths = ((n, usual if n < usual else n + late) for n in self.at.values())
        on_the_way = sum(min(0.95, n / length) for n, length in lengths)
        ended = len(self.rows) - self._before
        left = len(self.specs) - len(self.rows) - on_the_way
        if ended:
            return (self.clock() - self._began) * left / (ended + on_the_way)
        made = ((number - self._since[key][0], key) for key, number in self.at.items() if number)
        paces = [(self.clock() - self._since[key][1]) / few for few, key in made if few >= _FEW]
        return fmean(paces) * usual * left / len(self.at) if paces else None

    def summary(self) -> str:
        """Return the number of finished runs, their mean if comparable, and the time left."""
        failed = len(self.rows) - self._tests.count
        parts = [self._count(len(self.rows))]
        if failed:
            parts.append(f"{failed} failed")
        if self._tests.count and self._one_kind:
            parts.append(
                f"mean {metric_name(self._metric)} {format_metric(self._tests.value, self._metric)}"
            )
        left = self.seconds_left() if self.specs else None
        if left is not None and len(self.rows) < len(self.specs):
            bound = self._patience and not self._epochs.count
            time = f"at most {format_seconds(left)} left, less if runs stop early"
            parts.append(time if bound else f"about {format_seconds(left)} left")
        return ", ".join(parts)

    def table(self) -> Table:
        """Return the current table."""
        lines, caption = self._in_view(), self.summary()
        if len(lines) < len(self._lines):
            caption += f"; {len(lines)} of {len(self._lines)} lines shown"
        table = self._build_table(lines, caption, by_fold=True)
        boundless = self.console.options.update_width(10**6)
        if Measurement.get(self.console, boundless, table).maximum <= self.console.width:
            return table
        return self._build_table(lines, caption, by_fold=False)

    def _count(self, done: int) -> str:
        return f"{done} of {len(self.specs)} run{'s' * (len(self.specs) > 1)}"

    def _group(self, specs: Sequence[RunSpec]) -> None:
        """Group runs into table rows, and reset the finished runs."""
        self.specs, self.rows = list(specs), {}
        self._lines: dict[str, _RunGroup] = {}
        self._line_of: dict[str, str] = {}
        self._latest: dict[str, None] = {}  # rows with a finished run, the latest last
        for spec in specs:
            line = replace(spec, split=replace(spec.split, fold=0)).key
            self._lines.setdefault(line, {})[spec.split.fold] = spec
            self._line_of[spec.key] = line
        self._folds = sorted({spec.split.fold for spec in specs})
        self._folded = any(has_folds(spec.split.rule) for spec in specs)
        self._one_kind = len({_kind(_first(line)) for line in self._lines.values()}) == 1
        self._most_epochs = max((spec.train.epochs for spec in specs), default=0)
        limits = {(spec.train.patience, spec.train.epochs) for spec in specs}
        self._patience = max((wait for wait, most in limits if wait and wait < most), default=0)
        self._epochs, self._tests, self._metric = _Mean(), _Mean(), ""

    def _take(self, row: RunResult) -> None:
        """Add a finished run to the running sums, so that an update does not visit all runs."""
        self.rows[row.key] = row
        line = self._line_of[row.key]
        self._latest.pop(line, None)
        self._latest[line] = None
        if row.epochs_run:
            self._epochs.add(row.epochs_run)
        if (value := reported_score(row)) is not None:
            self._tests.add(value)
            self._metric = row.metric

    def _in_view(self) -> list[_RunGroup]:
        """Return all table rows if they fit the console; else active rows, then the latest."""
        room = max(1, self.console.height - _FRAME)
        if len(self._lines) <= room:
            return list(self._lines.values())
        chosen: dict[str, None] = {}
        for line in chain((self._line_of[key] for key in self.at), reversed(self._latest)):
            chosen[line] = None
            if len(chosen) == room:
                break
        return [self._lines[line] for line in chosen]

    def _build_table(self, lines: Sequence[_RunGroup], caption: str, *, by_fold: bool) -> Table:
        """Return a table with one column per fold, or with the count of finished folds."""
        table = Table(caption=caption, caption_justify="left")
        for heading in ("data", "model"):
            table.add_column(_clipped(heading), justify="right")
        table.add_column("seed", justify="right", no_wrap=True)
        if self._folded:
            middle = [f"{fold + 1}" for fold in self._folds] if by_fold else ["folds", "epoch"]
        else:
            middle = ["test"] if by_fold else ["runs", "epoch"]
        for heading in (*middle, "mean"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=_CELL)
        for line in lines:
            first = _first(line)
            rows = [self.rows[spec.key] for spec in line.values() if spec.key in self.rows]
            done = [
                (value, row.metric) for row in rows if (value := reported_score(row)) is not None
            ]
            mean = format_metric(fmean(value for value, _ in done), done[0][1]) if done else ""
            if by_fold:
                cells = [self._cell(line.get(fold)) for fold in self._folds]
            else:
                cells = self._counts(line, len(rows), len(rows) - len(done))
            names = first.data.source, self._name(first)
            table.add_row(*map(_clipped, names), str(first.seed), *cells, mean)
        return table

    def _name(self, spec: RunSpec) -> str:
        share = "" if spec.split.share == 1 else f", {spec.split.share:g} of train"
        return self.names.get(spec.key) or f"{method_name(spec.model.to_json())}{share}"

    def _cell(self, spec: RunSpec | None) -> Text:
        if spec is None:
            return Text("")
        row = self.rows.get(spec.key)
        if row is None:
            return Text(f"e{self.at[spec.key]}" if spec.key in self.at else "·", "dim")
        value = reported_score(row)
        return Text("failed", "red") if value is None else Text(format_metric(value, row.metric))

    def _counts(self, line: _RunGroup, ended: int, failed: int) -> list[Text]:
        """Return the number of finished folds, and the epochs of the active ones."""
        folds = Text(f"{ended}/{len(line)}")
        if failed:
            folds.append(f", {failed} failed", "red")
        at = [self.at[spec.key] for spec in line.values() if spec.key in self.at]
        epochs = "-".join(f"e{number}" for number in sorted({min(at), max(at)})) if at else ""
        return [folds, Text(epochs, "dim")]

    def _draw(self) -> None:
        if self._live is not None and self.specs:
            self._live.update(self.table(), refresh=True)
        self._drawn = self.clock()  # after drawing, so that a slow terminal gets pauses

    def _say(self, line: str) -> None:
        if self._live is None:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


@dataclass
class _Mean:
    """Running mean."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count, self.total = self.count + 1, self.total + value

    @property
    def value(self) -> float:
        return self.total / self.count


class RowProgress:
    """Context manager that shows a line now and then, and what is kept after an interruption.

    A terminal shows the line in place.

    Args:
        resumes: Whether a repeated command continues after the rows that are done.
    """

    def __init__(self, *, resumes: bool) -> None:
        self._resumes, self._file, self._draws = resumes, sys.stderr, sys.stderr.isatty()
        self._first: int | None = None
        self._done = self._total = 0
        self._began = self._shown = monotonic()
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._drawn:
            self._file.write("\n")
        if kind is not None and self._resumes and 0 < self._done < self._total:
            kept = f"{self._done:,} of {self._total:,} rows are kept"
            self._file.write(f"gtpool: {kept}; repeat the command to resume\n")
        self._file.flush()

    def tell(self, done: int, total: int) -> None:
        """Take the number of finished rows, those of an earlier call included, and of all rows."""
        now = monotonic()
        if self._first is None:
            self._first, self._began, self._shown = done, now, now
            if done:
                self._file.write(f"gtpool: {done:,} of {total:,} rows are kept from before\n")
        self._done, self._total = done, total
        pause = _ROWS_PAUSE if self._draws else _ROWS_LINE_PAUSE
        if done == self._first or now - self._shown < pause:
            return
        self._shown = now
        rate = (done - self._first) / (now - self._began)
        left = format_seconds((total - done) / rate)
        line = f"gtpool: {done:,} of {total:,} rows, {rate:,.0f}/s, {left} left"
        self._file.write(f"\r{line}\x1b[K" if self._draws else f"{line}\n")
        self._file.flush()
        self._drawn = self._draws


def _result(row: RunResult) -> str:
    if reported_score(row) is None:
        return f"failed: {row.error or 'its test metric is not a number'}"
    return f"{metric_name(row.metric)} {format_metric(row.test, row.metric)} at epoch {row.epoch}"


def _first(line: _RunGroup) -> RunSpec:
    return next(iter(line.values()))


def _clipped(text: str) -> Text:
    """Return a one-line text, truncated to the width of its column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _kind(spec: RunSpec) -> str:
    """Return the name of a run without its fold, bag and seed."""
    return replace(spec, split=replace(spec.split, fold=0, bag=0), seed=0).key
