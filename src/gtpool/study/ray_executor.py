"""Runs on a cluster: tasks of Ray, whose rows come back to be stored here."""

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

from gtpool.deprecated import old_names
from gtpool.spec import RunSpec
from gtpool.study.build_result import failed_result, lost_result
from gtpool.study.executor import RunTask, Watcher
from gtpool.study.process_pool import ATTEMPTS
from gtpool.study.result import RunResult
from gtpool.study.store import Store, write_atomic
from gtpool.train.course import Epoch

QUEUED_AHEAD = 2
"""Units that wait at Ray beyond those that run, so that no core is idle between two."""

_POLL_SECONDS = 1.0  # between two polls of the tasks, and between two reports of a run
_CONNECT_SECONDS = 10.0  # timeout of the first connection
_ENVIRONMENT = {
    # A cut link is noticed in seconds; Ray's own settings take minutes.
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class RayExecutor:
    """An executor for ``run_many``: each run is a task of Ray's, wherever there is room.

    A worker needs gtpool and the data, but no disk in common with this process, which alone writes
    the store. A run whose worker or node is lost is begun again, ``ATTEMPTS`` times in all. Ray's
    processes are reused, so each loads a dataset once.

    Args:
        address: Of the cluster: "auto" for the one that this machine belongs to, or HOST:PORT; None
            starts one of this machine alone, which ends with the runs.
        gpus_per_unit: Share of a GPU that a run gets, such as 0.1; with 0 it runs on a CPU.
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
        self, unit: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Do the runs."""
        kind = "cuda" if self.gpus_per_unit > 0 else "cpu"
        if unit.device not in {"auto", kind}:
            share = f"gpus_per_unit={self.gpus_per_unit:g}"
            raise ValueError(f"with {share} the device is {kind}, not {unit.device!r}")
        there = unit._replace(device=kind, loaded=None)
        with _connected(self.address) as ray:
            crew = _Scheduler(ray, there, self.gpus_per_unit, watch)
            try:
                for spec, sent in crew.work(specs, self.unit_limit):
                    if sent.artifact is not None:
                        write_atomic(unit.store.artifact(spec.key), sent.artifact)
                    row = unit.stored(spec, sent.row)
                    watch.finished(row)
                    yield row
            finally:
                crew.cancel(list(crew.flying))


class _TaskResult(NamedTuple):
    """What a task gives back."""

    row: RunResult
    artifact: bytes | None = None


@contextmanager
def _connected(address: str | None) -> Generator[Any]:
    """Connect to a cluster, unless the caller has, and leave it again; the cluster stays.

    Ray reads a cluster's token itself, from RAY_AUTH_TOKEN or its file.
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
    """Import Ray with what must be set before."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        hint = "to run on a cluster, Ray is needed: pip install '.[cluster]' in a clone"
        raise ValueError(hint) from error
    return ray


def _check_reachable(address: str) -> None:
    """Say at once where nobody listens; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto":
        return
    try:
        create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"address must be auto or the HOST:PORT of a Ray cluster, and {address!r} cannot be "
            f"reached ({error})"
        ) from error


class _Scheduler:
    """The units that are on their way."""

    def __init__(self, ray: Any, unit: RunTask, gpus: float, watch: Watcher) -> None:  # noqa: ANN401
        self.ray, self.watch, self.gpus = ray, watch, gpus
        self.flying: dict[Any, RunSpec] = {}
        self.since: dict[str, float] = {}
        """When a unit was begun, by its key."""
        if gpus > 0 and not ray.cluster_resources().get("GPU"):
            raise ValueError("gpus_per_unit is more than 0, and the Ray cluster has no GPU")
        # Deaths are counted here: Ray would begin a unit that fills the memory again for ever. And
        # without max_calls each unit on a GPU would have a new process, and load its data anew.
        self.task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, max_calls=0)(_run_task)
        self.shared = ray.put((unit, Path.cwd()))
        self.board = _on_driver_node(ray, ray.remote(ProgressQueue)).remote()

    def work(
        self, specs: Sequence[RunSpec], limit: float | None
    ) -> Iterator[tuple[RunSpec, _TaskResult]]:
        """Have runs done, and give what comes back."""
        waiting, deaths = deque(specs), Counter[str]()
        while waiting or self.flying:
            for _ in range(min(len(waiting), self._room() - len(self.flying))):
                spec = waiting.popleft()
                self.flying[self.task.remote(spec, self.shared, self.board)] = spec
            ready, _ = self.ray.wait(list(self.flying), timeout=_POLL_SECONDS)
            self._tell()
            for ref in ready:
                spec = self.flying.pop(ref)
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
            yield from self._overdue(limit)

    def cancel(self, refs: Sequence[Any]) -> None:
        """Stop units with their processes, which may hear of nothing else."""
        for ref in refs:
            del self.flying[ref]
            self.ray.cancel(ref, force=True)

    def _room(self) -> int:
        """Count how many units may be on their way, as nodes come and go."""
        there = self.ray.cluster_resources()
        slots = there.get("CPU", 0)
        if self.gpus > 0:
            slots = min(slots, there.get("GPU", 0) / self.gpus)
        return int(slots) + QUEUED_AHEAD

    def _tell(self) -> None:
        """Pass on what units have reported."""
        flying = {spec.key: spec for spec in self.flying.values()}
        for key, epoch in self.ray.get(self.board.take.remote()):
            if key in flying and epoch is None:
                self.since[key] = monotonic()
                self.watch.started(flying[key])
            elif key in flying:
                self.watch.epoch(flying[key], Epoch(*epoch))

    def _overdue(self, limit: float | None) -> Iterator[tuple[RunSpec, _TaskResult]]:
        """Give up units that take too long."""
        if limit is None:
            return
        late = {key for key, since in self.since.items() if monotonic() - since > limit}
        given = {ref: spec for ref, spec in self.flying.items() if spec.key in late}
        if given:  # what has ended meanwhile was in time, as far as is known, and comes next
            over, _ = self.ray.wait(list(given), num_returns=len(given), timeout=0)
            given = {ref: spec for ref, spec in given.items() if ref not in over}
        self.cancel(list(given))
        for spec in given.values():
            seconds = monotonic() - self.since.pop(spec.key)
            why = f"it was cancelled at the limit of {limit:g} s a run"
            yield spec, _TaskResult(failed_result(spec, why, seconds))


def _on_driver_node(ray: Any, actor: Any) -> Any:  # noqa: ANN401 - Ray has types of its own at run time
    """Keep an actor on the driver's node, where it costs no core and comes back if it dies."""
    node = ray.get_runtime_context().get_node_id()
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return actor.options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1)


def _run_task(spec: RunSpec, shared: tuple[RunTask, Path], board: Any) -> _TaskResult:  # noqa: ANN401
    """Do a unit in a process of Ray's, with a store of its own that lasts as long."""
    import ray  # noqa: PLC0415 - it runs there

    (unit, home), key = shared, spec.key
    torch.set_num_threads(1)
    ray.get(board.add.remote((key, None)))  # so that its start is known before its end
    told = monotonic()

    def tell(epoch: Epoch) -> None:
        nonlocal told
        if monotonic() - told >= _POLL_SECONDS:
            told = monotonic()
            board.add.remote((key, tuple(epoch)))

    # A path that a spec or an option names is one from where the driver was started.
    there = chdir(home) if home.is_dir() else nullcontext()
    with TemporaryDirectory() as folder, there:
        store = Store(folder)
        row = unit._replace(store=store)(spec, tell)
        weights = store.artifact(key)
        return _TaskResult(row, weights.read_bytes() if weights.exists() else None)


Report = tuple[str, tuple[float, ...] | None]
"""The key of a unit, and the values of an epoch; None says that it has started."""


class ProgressQueue:
    """An actor beside the driver."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def add(self, report: Report) -> None:
        """Leave a report."""
        self.reports.append(report)

    def take(self) -> list[Report]:
        """Give all that came since the last call."""
        reports, self.reports = self.reports, []
        return reports


__getattr__ = old_names(__name__, {"Ray": "RayExecutor"})
