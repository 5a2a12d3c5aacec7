"""Executors: serial, ensemble, processes. Each yields the results of many runs."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from gtpool.data.formats.reader import Loaded
from gtpool.spec import RunSpec
from gtpool.study.build_result import lost_result
from gtpool.study.inputs import source_digest
from gtpool.study.process_pool import run_in_processes
from gtpool.study.result import RunResult
from gtpool.study.run_one import group_by_network, has_artifact, run_ensemble, run_one
from gtpool.study.store import Store
from gtpool.train.epoch import Epoch


class Watcher(Protocol):
    """Receives the progress events of many runs."""

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None:
        """Called first, with all runs and the results that are already stored."""
        ...

    def preparing(self, what: str, done: int, total: int) -> None:
        """Called while data that the runs need is computed."""
        ...

    def started(self, spec: RunSpec) -> None:
        """Called when a run starts."""
        ...

    def epoch(self, spec: RunSpec, epoch: Epoch) -> None:
        """Called after an epoch of a run."""
        ...

    def finished(self, row: RunResult) -> None:
        """Called when the result of a run is stored."""
        ...


Keep = bool | Literal["predictions"]
"""What is stored beside a result: weights and test logits, the logits alone, or nothing."""


class RunTask(NamedTuple):
    """Callable that does a run and stores its result, or returns the stored one."""

    store: Store
    keep: Keep = False
    data_dir: Path | None = None
    device: str = "auto"
    deterministic: bool = False
    loaded: Loaded | None = None
    """Data that is already loaded; other processes load their own."""

    @property
    def artifact(self) -> Callable[[str], Path] | None:
        """Maps the key of a run to the file of what is kept; None if nothing is."""
        if self.keep == "predictions":
            return self.store.predictions
        return self.store.artifact if self.keep else None

    def __call__(self, spec: RunSpec, on_epoch: Callable[[Epoch], None]) -> RunResult:
        """Return the result of a run; do the run unless another process has stored it."""
        with warnings.catch_warnings():  # the caller has already warned
            warnings.simplefilter("ignore")
            row = self.done(spec)
        if row is None:
            row = run_one(
                spec,
                data_dir=self.data_dir,
                device=self.device,
                deterministic=self.deterministic,
                artifact=self.artifact and self.artifact(spec.key),
                weights=self.keep is True,
                on_epoch=on_epoch,
                loaded=self.loaded,
            )
            row = self.stored(spec, row)
        return row

    def stored(self, spec: RunSpec, row: RunResult) -> RunResult:
        """Store a result and return it; a failed one does not replace a finished one."""
        there = self.done(spec) if row.status == "failed" else None
        if there is not None:
            return there
        self.store.put(row)
        return row

    def done(self, spec: RunSpec) -> RunResult | None:
        """Return the stored result of a run, or None if the run must be done."""
        row = self.store.get(spec.key)
        if row is None or not row.done:
            return None
        if self.keep is True and not has_artifact(self.store.artifact(spec.key), row):
            return None
        same = row.source_digest == source_digest(spec.data.source)
        return row if same else None


class Executor(Protocol):
    """Does runs in any order and yields each result when it is stored."""

    def __call__(
        self, task: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Call ``task`` for each run and report progress to ``watch``."""
        ...


class SerialExecutor:
    """Does one run after the other in this process."""

    def __call__(
        self, task: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Yield the results."""
        for spec in specs:
            watch.started(spec)
            row = task(spec, partial(watch.epoch, spec))
            watch.finished(row)
            yield row


class EnsembleExecutor:
    """Trains runs of one network as ensembles, and all others one by one.

    Args:
        max_size: Maximum number of runs in an ensemble.
    """

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size

    def __call__(
        self, task: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Yield the results, group by group."""
        groups, alone = group_by_network(specs, self.max_size, task.data_dir, task.loaded)
        for several in groups:
            for spec in several:
                watch.started(spec)
            known = {spec.key: spec for spec in several}
            for found in run_ensemble(
                several,
                data_dir=task.data_dir,
                device=task.device,
                deterministic=task.deterministic,
                artifact=task.artifact,
                weights=task.keep is True,
                on_epoch=watch.epoch,
                loaded=task.loaded,
            ):
                row = task.stored(known[found.key], found)
                watch.finished(row)
                yield row
        yield from SerialExecutor()(task, alone, watch)


class ProcessExecutor:
    """Does several runs at once in worker processes, which store their results themselves.

    Args:
        jobs: Number of worker processes.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def __call__(
        self, task: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Yield the results; a single run is done in this process."""
        if len(specs) == 1:
            yield from SerialExecutor()(task, specs, watch)
            return
        remote_task = task._replace(loaded=None)
        with closing(run_in_processes(remote_task, specs, self.jobs)) as events:
            for spec, kind, value in events:
                if kind == "started":
                    watch.started(spec)
                elif kind == "report":
                    watch.epoch(spec, value)
                else:
                    row = value
                    if kind == "died":
                        row = task.stored(spec, lost_result(spec, f"exit code {value}"))
                    watch.finished(row)
                    yield row
