"""Ways to do many runs: here, side by side, in processes. All call one unit and yield rows."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from gtpool.data.formats.reader import Loaded
from gtpool.spec import RunSpec
from gtpool.study.build_result import lost_result
from gtpool.study.ensemble import group_by_network, run_ensemble
from gtpool.study.inputs import source_digest
from gtpool.study.process_pool import run_in_processes
from gtpool.study.result import RunResult
from gtpool.study.run_one import has_artifact, run_one
from gtpool.study.store import Store
from gtpool.train.course import Epoch


class Watcher(Protocol):
    """Whoever wants to see how far many runs have come."""

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None:
        """All runs are known, and the rows of those that were done before."""
        ...

    def preparing(self, what: str, done: int, total: int) -> None:
        """So much is done of what the runs wait for."""
        ...

    def started(self, spec: RunSpec) -> None:
        """A run has started."""
        ...

    def epoch(self, spec: RunSpec, epoch: Epoch) -> None:
        """A run has come to the end of an epoch."""
        ...

    def finished(self, row: RunResult) -> None:
        """A run is stored."""
        ...


class RunTask(NamedTuple):
    """The work unit: does a run and stores its row, or gives the row that is there."""

    store: Store
    keep: bool = False
    """Keep the weights and test logits of each run beside its row."""
    data_dir: Path | None = None
    device: str = "auto"
    deterministic: bool = False
    loaded: Loaded | None = None
    """Graphs of some of the runs; other processes load their own."""

    def __call__(self, spec: RunSpec, on_epoch: Callable[[Epoch], None]) -> RunResult:
        """Do a run, unless another process on the store has done it by now."""
        with warnings.catch_warnings():  # whoever asked for the run has said what is damaged
            warnings.simplefilter("ignore")
            row = self.done(spec)
        if row is None:
            row = run_one(
                spec,
                data_dir=self.data_dir,
                device=self.device,
                deterministic=self.deterministic,
                artifact=self.store.artifact(spec.key) if self.keep else None,
                on_epoch=on_epoch,
                loaded=self.loaded,
            )
            row = self.stored(spec, row)
        return row

    def stored(self, spec: RunSpec, row: RunResult) -> RunResult:
        """Store a row and give it; one that failed gives way to what another process has done."""
        there = self.done(spec) if row.status == "failed" else None
        if there is not None:
            return there
        self.store.put(row)
        return row

    def done(self, spec: RunSpec) -> RunResult | None:
        """Give the row of a run that need not be repeated."""
        row = self.store.get(spec.key)
        if row is None or not row.done:
            return None
        if self.keep and not has_artifact(self.store.artifact(spec.key), row):
            return None
        same = row.source_digest == source_digest(spec.data.source)
        return row if same else None


class Executor(Protocol):
    """Does runs, in any order, and yields the row of each as soon as it is stored."""

    def __call__(
        self, unit: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Call the unit for each run, wherever, and tell the watcher."""
        ...


class SerialExecutor:
    """One run after the other in this process."""

    def __call__(
        self, unit: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Do the runs."""
        for spec in specs:
            watch.started(spec)
            row = unit(spec, partial(watch.epoch, spec))
            watch.finished(row)
            yield row


class EnsembleExecutor:
    """Runs of one network side by side in one program, and those that cannot, one by one.

    Args:
        most: How many at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(
        self, unit: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Do the runs group after group."""
        groups, alone = group_by_network(specs, self.most, unit.data_dir, unit.loaded)
        for several in groups:
            for spec in several:
                watch.started(spec)
            known = {spec.key: spec for spec in several}
            for found in run_ensemble(
                several,
                data_dir=unit.data_dir,
                device=unit.device,
                deterministic=unit.deterministic,
                artifact=unit.store.artifact if unit.keep else None,
                on_epoch=watch.epoch,
                loaded=unit.loaded,
            ):
                row = unit.stored(known[found.key], found)
                watch.finished(row)
                yield row
        yield from SerialExecutor()(unit, alone, watch)


class ProcessExecutor:
    """Several runs at once, in processes of their own that store what they finish themselves.

    Args:
        jobs: How many.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def __call__(
        self, unit: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Do the runs; one alone needs no other process."""
        if len(specs) == 1:
            yield from SerialExecutor()(unit, specs, watch)
            return
        there = unit._replace(loaded=None)
        with closing(run_in_processes(there, specs, self.jobs)) as heard:
            for spec, kind, value in heard:
                if kind == "started":
                    watch.started(spec)
                elif kind == "report":
                    watch.epoch(spec, value)
                else:
                    row = value
                    if kind == "died":
                        row = unit.stored(spec, lost_result(spec, f"exit code {value}"))
                    watch.finished(row)
                    yield row
