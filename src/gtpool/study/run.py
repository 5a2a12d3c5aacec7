"""The conductor: many runs by an executor, and their stored rows."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from gtpool.data.coarsening import with_chain
from gtpool.data.formats.reader import Loaded
from gtpool.model.classifier import chain_steps
from gtpool.spec import RunSpec
from gtpool.study.executor import (
    EnsembleExecutor,
    Executor,
    ProcessExecutor,
    RunTask,
    SerialExecutor,
    Watcher,
)
from gtpool.study.inputs import load_data
from gtpool.study.result import RunResult
from gtpool.study.run_one import choose_device
from gtpool.study.store import Store, check_writable
from gtpool.train.course import Epoch

ENSEMBLE_SIZE = 100
"""Runs that train side by side on a GPU."""


def run_many(
    specs: Sequence[RunSpec],
    store: Store,
    *,
    jobs: int = 1,
    together: int | None = None,
    executor: Executor | None = None,
    keep: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    watch: Watcher | None = None,
    loaded: Loaded | None = None,
) -> list[RunResult]:
    """Do the runs that the store does not have as done, and give the rows of all, in order.

    Each row is stored as soon as its run is over: after Ctrl-C, a crash or a loss of power the same
    call goes on where it stopped. Failed runs are tried again. A run on files of the user's counts
    as done only while those files are the same. On a CPU every executor gives the same numbers, bit
    for bit; runs side by side (``together``) give them up to rounding.

    Args:
        specs: The runs.
        store: Where rows are kept.
        jobs: How many at once, each in a process of its own if more than one.
        together: How many runs of one network may train side by side in one program; by default
            ``ENSEMBLE_SIZE`` on a GPU and one on a CPU. More than one excludes several ``jobs``.
        executor: Who does the runs in place of this machine's processes, such as
            ``gtpool.study.ray_executor.RayExecutor``; excludes ``jobs`` and ``together``.
        keep: Keep the weights and test logits of each run beside its row.
        data_dir: Where to look first for a dataset known by name.
        device: As for ``run_one``.
        deterministic: As for ``run_one``.
        watch: Who is told of the progress.
        loaded: Graphs of some of the runs, if they are loaded already.
    """
    if executor is None:
        executor = _local_executor(jobs, together, device)
    elif jobs != 1 or together is not None:
        raise ValueError(
            f"jobs and together are for this machine; with an executor leave them out, "
            f"got jobs={jobs} and together={together}"
        )
    check_writable(store.folder)
    store.sweep()
    watch = _SilentWatcher() if watch is None else watch
    unit = RunTask(store, keep, data_dir, device, deterministic, loaded)
    wanted = {spec.key: spec for spec in specs}
    rows = {key: unit.done(spec) for key, spec in wanted.items()}
    todo = [wanted[key] for key, row in rows.items() if row is None]
    watch.begin(list(wanted.values()), [row for row in rows.values() if row is not None])
    if todo:
        _prepare(todo, unit, watch)
        rows.update((row.key, row) for row in executor(unit, todo, watch))
    return [cast("RunResult", rows[spec.key]) for spec in specs]


def _local_executor(jobs: int, together: int | None, device: str) -> Executor:
    """Choose how to do runs on this machine."""
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    on_gpu = choose_device(device).type == "cuda"
    if together is None:
        together = ENSEMBLE_SIZE if on_gpu and jobs == 1 else 1
    if together < 1 or (together > 1 and jobs > 1):
        raise ValueError(
            f"together must be at least 1, and 1 with several jobs, got {together} and jobs={jobs}"
        )
    if together > 1:
        return EnsembleExecutor(together)
    return ProcessExecutor(jobs) if jobs > 1 else SerialExecutor()


def _prepare(specs: Sequence[RunSpec], unit: RunTask, watch: Watcher) -> None:
    """Compute once, and leave in the cache, what several runs need of the same graphs."""
    for data, steps in dict.fromkeys((spec.data, chain_steps(spec.model)) for spec in specs):
        if steps:
            dataset = load_data(data, unit.data_dir, unit.loaded).dataset
            told = partial(watch.preparing, f"clusterings of {dataset.schema.name}")
            with_chain(dataset, steps, tell=told)


class _SilentWatcher:
    """A watcher that does not look."""

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None: ...
    def preparing(self, what: str, done: int, total: int) -> None: ...
    def started(self, spec: RunSpec) -> None: ...
    def epoch(self, spec: RunSpec, epoch: Epoch) -> None: ...
    def finished(self, row: RunResult) -> None: ...
