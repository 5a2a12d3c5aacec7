"""Do many runs with an executor and store their results."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

from gtpool.data.coarsening import with_chain
from gtpool.data.formats.reader import Loaded
from gtpool.data.parallel import watched_by
from gtpool.model.classifier import coarsening_of
from gtpool.spec import RunSpec
from gtpool.study.executor import (
    EnsembleExecutor,
    Executor,
    Keep,
    ProcessExecutor,
    RunTask,
    SerialExecutor,
    Watcher,
)
from gtpool.study.inputs import load_data
from gtpool.study.result import RunResult
from gtpool.study.run_one import choose_device
from gtpool.study.store import Store, check_writable
from gtpool.train.epoch import Epoch

ENSEMBLE_SIZE = 100
"""Default number of runs that train as one ensemble on a GPU."""


def run_many(
    specs: Sequence[RunSpec],
    store: Store,
    *,
    jobs: int = 1,
    together: int | None = None,
    executor: Executor | None = None,
    keep: Keep = False,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    watch: Watcher | None = None,
    loaded: Loaded | None = None,
) -> list[RunResult]:
    """Return the results of all runs, in order; only runs that the store lacks are done.

    Each result is stored as soon as its run ends, so the same call resumes after Ctrl-C, a crash or
    a power loss. Failed runs are retried. A run on user files is repeated if the files change. On
    a CPU all executors give bitwise equal results; ensembles (``together``) agree up to rounding.

    Args:
        specs: The runs.
        store: Holds the results.
        jobs: Number of worker processes.
        together: Maximum number of runs of one network that train as one ensemble. The default is
            ``ENSEMBLE_SIZE`` on a GPU and 1 on a CPU. Requires ``jobs=1`` if above 1.
        executor: Does the runs instead of local processes, such as
            ``gtpool.study.ray_executor.RayExecutor``. Excludes ``jobs`` and ``together``.
        keep: Store the weights and test logits of each run; "predictions" stores the logits alone,
            of the runs that are done.
        data_dir: Folder searched first for a dataset known by name.
        device: As for ``run_one``.
        deterministic: As for ``run_one``.
        watch: Receives progress events.
        loaded: Data that is already loaded.
    """
    if executor is None:
        executor = _local_executor(jobs, together, device)
    elif jobs != 1 or together is not None:
        raise ValueError(
            "jobs and together apply to local runs and cannot be combined with an executor, "
            f"got jobs={jobs} and together={together}"
        )
    check_writable(store.folder)
    store.remove_stale_files()
    watch = _SilentWatcher() if watch is None else watch
    task = RunTask(store, keep, data_dir, device, deterministic, loaded)
    wanted = {spec.key: spec for spec in specs}
    rows = {key: task.done(spec) for key, spec in wanted.items()}
    todo = [wanted[key] for key, row in rows.items() if row is None]
    watch.begin(list(wanted.values()), [row for row in rows.values() if row is not None])
    if todo:
        with watched_by(watch):
            _prepare(todo, task, watch)
            rows.update((row.key, row) for row in executor(task, todo, watch))
    return [cast("RunResult", rows[spec.key]) for spec in specs]


def _local_executor(jobs: int, together: int | None, device: str) -> Executor:
    """Return the executor for runs on this machine."""
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    on_gpu = choose_device(device).type == "cuda"
    if together is None:
        together = ENSEMBLE_SIZE if on_gpu and jobs == 1 else 1
    if together < 1 or (together > 1 and jobs > 1):
        raise ValueError(
            f"together must be at least 1, or 1 if jobs > 1, got together={together}, jobs={jobs}"
        )
    if together > 1:
        return EnsembleExecutor(together)
    return ProcessExecutor(jobs) if jobs > 1 else SerialExecutor()


def _prepare(specs: Sequence[RunSpec], task: RunTask, watch: Watcher) -> None:
    """Compute and cache what several runs need of the same graphs."""
    for data, chain in dict.fromkeys((spec.data, coarsening_of(spec.model)) for spec in specs):
        if chain:
            dataset = load_data(data, task.data_dir, task.loaded).dataset
            told = partial(watch.preparing, f"clusterings of {dataset.schema.name}")
            with_chain(dataset, *chain, tell=told)


class _SilentWatcher:
    """Ignores all events."""

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None: ...
    def preparing(self, what: str, done: int, total: int) -> None: ...
    def started(self, spec: RunSpec) -> None: ...
    def epoch(self, spec: RunSpec, epoch: Epoch) -> None: ...
    def finished(self, row: RunResult) -> None: ...
