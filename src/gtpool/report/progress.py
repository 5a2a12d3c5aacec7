"""How far many runs have come: a live table in a terminal, plain lines elsewhere; no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from time import monotonic
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gtpool.model import method_name
from gtpool.report.cells import shown
from gtpool.spec import RunSpec

_Row = dict[str, Any]
_PAUSE = 0.2  # seconds between two drawings of the table
_LINE_PAUSE = 5.0  # and between two lines where there is no terminal


class _Epoch(Protocol):
    @property
    def number(self) -> int: ...


class Progress:
    """A watcher for ``run_many``, to be used in a ``with``.

    In a terminal it draws a table, folds across and seeds down, that shows the test metric of what
    is done, the epoch of what is on its way, the mean so far and the time left. Elsewhere it prints
    one line a run.

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
        self.rows: dict[str, _Row] = {}
        """What is finished, by key."""
        self.at: dict[str, int] = {}
        """The epoch of what is on its way, by key."""
        self._began, self._before, self._drawn = clock(), 0, clock()
        self._preparing: dict[str, float] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def begin(self, specs: Sequence[RunSpec], done: Sequence[_Row]) -> None:
        """Take note of all runs, and of the rows that are there from before."""
        self.specs, self.rows = list(specs), {row["key"]: row for row in done}
        self._began, self._before = self.clock(), len(done)
        if done:
            self._say(f"{len(done)} of {len(specs)} runs are done already")
        self._draw()

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how much is done of what runs wait for, now and then and at the end."""
        late = self.clock() - self._drawn
        if done < total and late < (_LINE_PAUSE if self._live is None else _PAUSE):
            return
        began, self._drawn = self._preparing.setdefault(what, self.clock()), self.clock()
        left = (self._drawn - began) * (total - done) / max(1, done)
        line = f"{what}: {done} of {total}"
        line += f", about {spell_time(left)} left" if done < total else ""
        self._say(line)
        if self._live is not None:
            self._live.update(Text(line), refresh=True)

    def started(self, spec: RunSpec) -> None:
        """Take note of a start."""
        self.at[spec.key] = 0

    def epoch(self, spec: RunSpec, epoch: _Epoch) -> None:
        """Take note of an epoch."""
        self.at[spec.key] = epoch.number
        if self.clock() - self._drawn > _PAUSE:
            self._draw()

    def finished(self, row: _Row) -> None:
        """Take note of a row."""
        self.at.pop(row["key"], None)
        self.rows[row["key"]] = row
        spec = row["spec"]
        name = f"{spec['data']['source']}, {self._name(row['key'], spec['model'])}"
        place = f"seed {spec['seed']}, fold {spec['split']['fold'] + 1}"
        self._say(f"{name}, {place}: {_result(row)} ({self.summary()})")
        self._draw()

    def seconds_left(self) -> float | None:
        """Estimate how long the rest takes; None before the first epoch.

        A run counts with the mean number of epochs of those that are done; before one is, with the
        most that there may be.
        """
        ended = [row["epochs_run"] for row in self.rows.values() if row["epochs_run"]]
        usual = fmean(ended) if ended else max(spec.train.epochs for spec in self.specs)
        on_the_way = sum(min(0.95, number / usual) for number in self.at.values())
        made = len(self.rows) - self._before + on_the_way
        if made == 0:
            return None
        return (self.clock() - self._began) * (len(self.specs) - self._before - made) / made

    def summary(self) -> str:
        """Say how many runs are done, their mean if they are of one kind, and the time left."""
        done = [row for row in self.rows.values() if _fine(row)]
        failed = len(self.rows) - len(done)
        parts = [f"{len(self.rows)} of {len(self.specs)} runs"]
        if failed:
            parts.append(f"{failed} failed")
        if done and len({_kind(spec) for spec in self.specs}) == 1:
            metric = done[0]["metric"]
            parts.append(f"mean {metric} {shown(fmean(row['test'] for row in done), metric)}")
        left = self.seconds_left() if self.specs else None
        if left is not None and len(self.rows) < len(self.specs):
            parts.append(f"about {spell_time(left)} left")
        return ", ".join(parts)

    def table(self) -> Table:
        """Give the table as it stands."""
        folds = sorted({spec.split.fold for spec in self.specs})
        lines: dict[str, dict[int, RunSpec]] = {}
        for spec in self.specs:
            line = replace(spec, split=replace(spec.split, fold=0))
            lines.setdefault(line.key, {})[spec.split.fold] = spec
        table = Table(caption=self.summary(), caption_justify="left")
        for heading in ("data", "model", "seed", *(f"{fold + 1}" for fold in folds), "mean"):
            table.add_column(heading, justify="right", no_wrap=True)
        for runs in lines.values():
            line = next(iter(runs.values()))
            rows = [self.rows[spec.key] for spec in runs.values() if spec.key in self.rows]
            done = [row for row in rows if _fine(row)]
            mean = shown(fmean(row["test"] for row in done), done[0]["metric"]) if done else ""
            cells = (self._cell(runs.get(fold)) for fold in folds)
            table.add_row(
                line.data.source,
                self._name(line.key, line.model.to_json()),
                str(line.seed),
                *cells,
                mean,
            )
        return table

    def _name(self, key: str, model: dict[str, Any]) -> str:
        return self.names.get(key) or method_name(model)

    def _cell(self, spec: RunSpec | None) -> Text:
        if spec is None:
            return Text("")
        row = self.rows.get(spec.key)
        if row is None:
            return Text(f"e{self.at[spec.key]}" if spec.key in self.at else "·", "dim")
        return Text(shown(row["test"], row["metric"])) if _fine(row) else Text("failed", "red")

    def _draw(self) -> None:
        self._drawn = self.clock()
        if self._live is not None and self.specs:
            self._live.update(self.table(), refresh=True)

    def _say(self, line: str) -> None:
        if self._live is None:
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)


def spell_time(seconds: float) -> str:
    """Write a time as a person says it.

    Example:
        >>> spell_time(8), spell_time(200), spell_time(9000)
        ('8 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _fine(row: _Row) -> bool:
    return row["status"] == "done" and row["test"] is not None


def _result(row: _Row) -> str:
    if not _fine(row):
        return f"failed: {row['error']}"
    return f"{row['metric']} {shown(row['test'], row['metric'])} at epoch {row['epoch']}"


def _kind(spec: RunSpec) -> str:
    """Name a run without its fold and seed."""
    return replace(spec, split=replace(spec.split, fold=0), seed=0).key
