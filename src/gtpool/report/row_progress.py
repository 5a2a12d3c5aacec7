"""Progress of a long table on standard error: rows, rate and time left. No torch."""

import sys
from collections.abc import Callable
from time import monotonic
from typing import Self, TextIO

from gtpool.study.summarize import format_seconds

_PAUSE, _LINE_PAUSE = 1.0, 30.0  # seconds between two updates: of a terminal's line, else of lines


class RowProgress:
    """Context manager that shows a line now and then, and what is kept after an interruption.

    A terminal shows the line in place.

    Args:
        resumes: Whether a repeated command continues after the rows that are done.
        file: Where to write; by default standard error.
        clock: Function that returns seconds.
    """

    def __init__(
        self, *, resumes: bool, file: TextIO | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._file = sys.stderr if file is None else file
        self._resumes, self._clock, self._draws = resumes, clock, self._file.isatty()
        self._first: int | None = None
        self._done = self._total = 0
        self._began = self._shown = clock()
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
        now = self._clock()
        if self._first is None:
            self._first, self._began, self._shown = done, now, now
            if done:
                self._file.write(f"gtpool: {done:,} of {total:,} rows are kept from before\n")
        self._done, self._total = done, total
        if done == self._first or now - self._shown < (_PAUSE if self._draws else _LINE_PAUSE):
            return
        self._shown = now
        rate = (done - self._first) / (now - self._began)
        left = format_seconds((total - done) / rate)
        line = f"gtpool: {done:,} of {total:,} rows, {rate:,.0f}/s, {left} left"
        self._file.write(f"\r{line}\x1b[K" if self._draws else f"{line}\n")
        self._file.flush()
        self._drawn = self._draws
