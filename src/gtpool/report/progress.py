"""How far many runs have come: a live table in a terminal, plain lines elsewhere; no torch."""

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

_RunGroup = dict[int, RunSpec]  # the runs of one line of the table, by fold
_PAUSE = 0.2  # seconds between two drawings of the table
_LINE_PAUSE = 5.0  # and between two lines where there is no terminal
_FRAME = 7  # lines of the table's borders and headings, and of its caption at most
_CELL = 5  # characters of a figure, so that folds keep their width from the start
_FEW = 3  # epochs after a run's first, which is slow, before its pace counts


class EpochLike(Protocol):
    """An epoch, as far as it is shown."""

    @property
    def number(self) -> int: ...  # noqa: D102


class Progress:
    """A watcher for ``run_many``, to be used in a ``with``.

    In a terminal it draws a table, folds across and seeds down, that shows the test metric of what
    is done, the epoch of what is on its way, the mean so far and the time left. Where the terminal
    is too low, it shows the lines under way and the last finished; where it is too narrow, how many
    folds are done. Elsewhere it prints one line a run.

    Args:
        console: Where to; the standard error if not given.
        clock: Seconds that go on.
        names: What to call a run, by its key; the method of its network if not given.
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
        """What is finished, by key."""
        self.at: dict[str, int] = {}
        """The epoch of what is on its way, by key."""
        self._since: dict[str, tuple[int, float]] = {}  # the first epoch heard of, and its time
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
        """Take note of all runs, and of the rows that are there from before."""
        if self._draws and self._live is None:  # not before: what is printed until then stays
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
        """Show how much is done of what runs wait for, now and then and at the end."""
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
        """Take note of a start."""
        self.at[spec.key] = 0

    def epoch(self, spec: RunSpec, epoch: EpochLike) -> None:
        """Take note of an epoch."""
        self.at[spec.key] = epoch.number
        self._since.setdefault(spec.key, (epoch.number, self.clock()))
        if self.clock() - self._drawn > _PAUSE:
            self._draw()

    def finished(self, row: RunResult) -> None:
        """Take note of a row."""
        self.at.pop(row.key, None)
        self._take(row)
        spec = row.spec
        name = f"{spec.data.source}, {self._name(spec)}"
        self._say(f"{name}, {run_label(spec)}: {_result(row)} ({self.summary()})")
        self._draw()

    def seconds_left(self) -> float | None:
        """Estimate how long the rest takes; None before a run has ended or made a few epochs.

        A run counts with the mean number of epochs of those that have ended; before one has, with
        all its epochs, which is an upper bound where runs may stop early.
        """
        usual = self._epochs.value if self._epochs.count else self._most_epochs
        late = self._patience / 2  # epochs that a run longer than usual may still take
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
        """Say how many runs are done, their mean if they are of one kind, and the time left."""
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
        """Give the table as it stands."""
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
        """Sort runs into lines, once, and forget what is finished."""
        self.specs, self.rows = list(specs), {}
        self._lines: dict[str, _RunGroup] = {}
        self._line_of: dict[str, str] = {}
        self._latest: dict[str, None] = {}  # lines with a finished run, the latest at the end
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
        """Add a row to what is finished; sums are kept, so that no drawing goes over all rows."""
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
        """Give all lines if the console holds them; else those under way, then the latest."""
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
        """Make a table with a column a fold, or with the count of folds done and their epochs."""
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
        return self.names.get(spec.key) or method_name(spec.model.to_json())

    def _cell(self, spec: RunSpec | None) -> Text:
        if spec is None:
            return Text("")
        row = self.rows.get(spec.key)
        if row is None:
            return Text(f"e{self.at[spec.key]}" if spec.key in self.at else "·", "dim")
        value = reported_score(row)
        return Text("failed", "red") if value is None else Text(format_metric(value, row.metric))

    def _counts(self, line: _RunGroup, ended: int, failed: int) -> list[Text]:
        """Give how many folds have ended, and the epochs of those under way."""
        folds = Text(f"{ended}/{len(line)}")
        if failed:
            folds.append(f", {failed} failed", "red")
        at = [self.at[spec.key] for spec in line.values() if spec.key in self.at]
        epochs = "-".join(f"e{number}" for number in sorted({min(at), max(at)})) if at else ""
        return [folds, Text(epochs, "dim")]

    def _draw(self) -> None:
        if self._live is not None and self.specs:
            self._live.update(self.table(), refresh=True)
        self._drawn = self.clock()  # after it, so that a slow terminal is not drawn on all the time

    def _say(self, line: str) -> None:
        if self._live is None:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


@dataclass
class _Mean:
    """A mean to which values are added."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        self.count, self.total = self.count + 1, self.total + value

    @property
    def value(self) -> float:
        return self.total / self.count


def _result(row: RunResult) -> str:
    if reported_score(row) is None:
        return f"failed: {row.error or 'its test metric is not a number'}"
    return f"{metric_name(row.metric)} {format_metric(row.test, row.metric)} at epoch {row.epoch}"


def _first(line: _RunGroup) -> RunSpec:
    return next(iter(line.values()))


def _clipped(text: str) -> Text:
    """Give a text that stays on one line, cut where its column is too narrow."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _kind(spec: RunSpec) -> str:
    """Name a run without its fold, bag and seed."""
    return replace(spec, split=replace(spec.split, fold=0, bag=0), seed=0).key
