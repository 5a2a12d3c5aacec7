"""How far the rounds of `gtpool study tune` have come; never a test figure, no torch."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from rich.console import Console

from gtpool.report.progress import Numbered, spell_time
from gtpool.spec import RunSpec

_PAUSE = 5.0  # seconds between two lines
_QUIET = 30.0  # seconds without a line after which an epoch is worth one


class Rounds:
    """A watcher for the rounds of a search; prints a line now and then.

    Args:
        console: Where to; the standard error if not given.
        clock: Seconds that go on.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.clock = clock
        self.round = self.total = self.done = self._before = 0
        self._began = self._said = clock()

    def begin(self, specs: Sequence[RunSpec], done: Sequence[Mapping[str, Any]]) -> None:
        """Say how large a round is."""
        self.round += 1
        self.total, self.done, self._before = len(specs), len(done), len(done)
        self._began = self._said = self.clock()
        count = len({(spec.model, spec.train) for spec in specs})
        configs = f"{count} configuration{'s' * (count > 1)}"
        known = f", {len(done)} of them done before" if done else ""
        runs = f"{len(specs)} run{'s' * (len(specs) > 1)}"
        self._say(f"{configs}, {specs[0].train.epochs} epochs: {runs}{known}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Say how much is done of what runs wait for."""
        self._now_and_then(f"{what}: {done} of {total}")

    def started(self, spec: RunSpec) -> None: ...  # noqa: D102

    def epoch(self, spec: RunSpec, epoch: Numbered) -> None:
        """Say how far a run is when no line has come for a while."""
        if self.clock() - self._said >= _QUIET:
            at = f"a run at epoch {epoch.number} of {spec.train.epochs}"
            self._say(f"{at}, {self.done} of {self.total} runs done")

    def finished(self, row: Mapping[str, Any]) -> None:
        """Count a run."""
        self.done += 1
        new, left = self.done - self._before, self.total - self.done
        seconds = (self.clock() - self._began) / new * left
        text = f"{self.done} of {self.total} run{'s' * (self.total > 1)}"
        if row["status"] == "failed":
            self._say(f"{text}; one failed: {row['error']}")
        elif left:
            self._now_and_then(f"{text}, about {spell_time(seconds)} left in this round")
        else:
            self._say(text)

    def _now_and_then(self, text: str) -> None:
        if self.clock() - self._said >= _PAUSE:
            self._say(text)

    def _say(self, text: str) -> None:
        self._said = self.clock()
        line = f"round {self.round}: {text}"
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)
