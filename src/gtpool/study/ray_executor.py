"""Executor that does runs as tasks of a Ray cluster and stores their results locally."""

import logging
import os
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from socket import create_connection
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

import torch

from gtpool.spec import RunSpec
from gtpool.study.build_result import failed_result, lost_result
from gtpool.study.executor import RunTask, Watcher
from gtpool.study.process_pool import ATTEMPTS
from gtpool.study.result import RunResult
from gtpool.study.store import Store, write_atomic
from gtpool.train.epoch import Epoch

QUEUED_AHEAD = 2
"""Tasks submitted to Ray beyond those that can run, so that no core waits for work."""

_POLL_SECONDS = 1.0  # between two polls of the tasks, and between two reports of a run
_CONNECT_SECONDS = 10.0  # timeout of the first connection
_ENVIRONMENT = {
    # Detect a lost connection in seconds; the defaults of Ray take minutes.
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class RayExecutor:
    """Executor for ``run_many`` on a Ray cluster: each run is one task.

    Workers need gtpool and the data, but no shared disk: only this process writes the store. A run
    whose worker or node is lost is retried, up to ``ATTEMPTS`` attempts. Ray reuses its processes,
    so each loads a dataset once.

    Args:
        address: "auto" for the cluster of this machine, or HOST:PORT. None starts a local cluster
            that ends with the runs.
        gpus_per_unit: Fraction of a GPU per run, such as 0.1; 0 runs on the CPU.
        unit_limit: Seconds after which a run is cancelled and stored as failed; None for no limit.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        gpus_per_unit: float = 0.0,
        unit_limit: float | None = None,
    ) -> None:
        if gpus_per_unit < 0:
            raise ValueError(f"gpus_per_unit must not be negative, got {gpus_per_unit}")
        if unit_limit is not None and unit_limit <= 0:
            raise ValueError(f"unit_limit must be more than 0 seconds, got {unit_limit}")
        self.address = address
        self.gpus_per_unit = gpus_per_unit
        self.unit_limit = unit_limit

    def __call__(
        self, task: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Yield the results."""
        kind = "cuda" if self.gpus_per_unit > 0 else "cpu"
        if task.device not in {"auto", kind}:
            share = f"gpus_per_unit={self.gpus_per_unit:g}"
            raise ValueError(f"with {share} the device must be auto or {kind}, got {task.device!r}")
        remote_task = task._replace(device=kind, loaded=None)
        with _connected(self.address) as ray:
            scheduler = _Scheduler(ray, remote_task, self.gpus_per_unit, watch)
            try:
                for spec, sent in scheduler.run(specs, self.unit_limit):
                    if sent.artifact is not None and task.artifact is not None:
                        write_atomic(task.artifact(spec.key), sent.artifact)
                    row = task.stored(spec, sent.row)
                    watch.finished(row)
                    yield row
            finally:
                scheduler.cancel(list(scheduler.pending))


class _TaskResult(NamedTuple):
    """Result of a task, with the content of its artifact."""

    row: RunResult
    artifact: bytes | None = None


@contextmanager
def _connected(address: str | None) -> Generator[Any]:
    """Connect to a cluster within the context, unless the caller is already connected.

    Ray reads the token of the cluster from RAY_AUTH_TOKEN or from its file.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    if address is None:
        ray.init("local", include_dashboard=False, logging_level=logging.WARNING)
    else:
        _check_reachable(address)
        ray.init(address, logging_level=logging.WARNING)
    try:
        yield ray
    finally:
        ray.shutdown()


def import_ray() -> Any:  # noqa: ANN401 - a module
    """Set the environment of Ray and import it."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        hint = "--executor ray requires Ray: run pip install '.[cluster]' in a clone"
        raise ValueError(hint) from error
    return ray


def _check_reachable(address: str) -> None:
    """Raise if the address does not answer; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster answers at address {address!r} ({error}); use auto or HOST:PORT"
        ) from error


class _Scheduler:
    """Submits tasks to Ray and collects their results."""

    def __init__(self, ray: Any, task: RunTask, gpus: float, watch: Watcher) -> None:  # noqa: ANN401
        self.ray, self.watch, self.gpus = ray, watch, gpus
        self.pending: dict[Any, RunSpec] = {}
        self.since: dict[str, float] = {}
        """Start time of a run, by its key."""
        if gpus > 0 and not ray.cluster_resources().get("GPU"):
            raise ValueError(f"gpus_per_unit is {gpus:g}, but the Ray cluster has no GPU")
        # Retries are counted here: Ray would retry a task that runs out of memory forever. Without
        # max_calls=0 each task on a GPU would start a new process and load its data again.
        self.task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, max_calls=0)(_run_task)
        self.shared = ray.put((task, Path.cwd()))
        self.queue = _on_driver_node(ray, ray.remote(ProgressQueue)).remote()

    def run(
        self, specs: Sequence[RunSpec], limit: float | None
    ) -> Iterator[tuple[RunSpec, _TaskResult]]:
        """Yield the result of each run."""
        waiting, deaths = deque(specs), Counter[str]()
        while waiting or self.pending:
            for _ in range(min(len(waiting), self._max_pending() - len(self.pending))):
                spec = waiting.popleft()
                self.pending[self.task.remote(spec, self.shared, self.queue)] = spec
            ready, _ = self.ray.wait(list(self.pending), timeout=_POLL_SECONDS)
            self._forward_progress()
            for ref in ready:
                spec = self.pending.pop(ref)
                self.since.pop(spec.key, None)
                try:
                    sent = self.ray.get(ref)
                except self.ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except self.ray.exceptions.RayError as error:
                    deaths[spec.key] += 1
                    if deaths[spec.key] < ATTEMPTS:
                        waiting.append(spec)
                        continue
                    sent = _TaskResult(lost_result(spec, f"{type(error).__name__} of Ray"))
                yield spec, sent
            yield from self._cancel_overdue(limit)

    def cancel(self, refs: Sequence[Any]) -> None:
        """Cancel tasks by killing their processes."""
        for ref in refs:
            del self.pending[ref]
            self.ray.cancel(ref, force=True)

    def _max_pending(self) -> int:
        """Return how many tasks may be submitted to the nodes that are there now."""
        there = self.ray.cluster_resources()
        slots = there.get("CPU", 0)
        if self.gpus > 0:
            slots = min(slots, there.get("GPU", 0) / self.gpus)
        return int(slots) + QUEUED_AHEAD

    def _forward_progress(self) -> None:
        """Pass reports of tasks on to the watcher."""
        running = {spec.key: spec for spec in self.pending.values()}
        for key, epoch in self.ray.get(self.queue.take.remote()):
            if key in running and epoch is None:
                self.since[key] = monotonic()
                self.watch.started(running[key])
            elif key in running:
                self.watch.epoch(running[key], Epoch(*epoch))

    def _cancel_overdue(self, limit: float | None) -> Iterator[tuple[RunSpec, _TaskResult]]:
        """Cancel tasks that exceed the limit and yield failed results for them."""
        if limit is None:
            return
        late = {key for key, since in self.since.items() if monotonic() - since > limit}
        overdue = {ref: spec for ref, spec in self.pending.items() if spec.key in late}
        if overdue:  # a task that has just ended counts as in time
            ended, _ = self.ray.wait(list(overdue), num_returns=len(overdue), timeout=0)
            overdue = {ref: spec for ref, spec in overdue.items() if ref not in ended}
        self.cancel(list(overdue))
        for spec in overdue.values():
            seconds = monotonic() - self.since.pop(spec.key)
            why = f"cancelled at the limit of {limit:g} s per run"
            yield spec, _TaskResult(failed_result(spec, why, seconds))


def _on_driver_node(ray: Any, actor: Any) -> Any:  # noqa: ANN401 - Ray has types of its own at run time
    """Pin an actor to the node of the driver, without a core, restarted if it dies."""
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return actor.options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)


def _run_task(spec: RunSpec, shared: tuple[RunTask, Path], queue: Any) -> _TaskResult:  # noqa: ANN401
    """Do a run in a process of Ray, with a temporary store."""
    import ray  # noqa: PLC0415 - it runs there

    (task, home), key = shared, spec.key
    torch.set_num_threads(1)
    ray.get(queue.add.remote((key, None)))  # wait, so that the start is reported before the end
    reported = monotonic()

    def report(epoch: Epoch) -> None:
        nonlocal reported
        if monotonic() - reported >= _POLL_SECONDS:
            reported = monotonic()
            queue.add.remote((key, tuple(epoch)))

    # Relative paths are relative to the working directory of the driver.
    working_dir = chdir(home) if home.is_dir() else nullcontext()
    with TemporaryDirectory() as folder, working_dir:
        task = task._replace(store=Store(folder))
        row = task(spec, report)
        kept = None if task.artifact is None else task.artifact(key)
        return _TaskResult(row, kept.read_bytes() if kept and kept.exists() else None)


Report = tuple[str, tuple[float, ...] | None]
"""Key of a run and the values of an epoch; None reports the start."""


class ProgressQueue:
    """Actor on the node of the driver that collects progress reports."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def add(self, report: Report) -> None:
        """Append a report."""
        self.reports.append(report)

    def take(self) -> list[Report]:
        """Return the reports since the last call."""
        reports, self.reports = self.reports, []
        return reports
