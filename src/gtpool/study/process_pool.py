"""A pool of worker processes that replaces dead workers and exits with its parent."""

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread
from time import monotonic
from traceback import format_exc
from typing import Any, NamedTuple

import torch

from gtpool.study.store import remove_temp_files

ATTEMPTS = 3
"""Attempts per task before it is recorded as failed."""

Work = Callable[[Any, Callable[[object], None]], object]
"""Function of a task and a callback that sends progress reports to the parent."""

_CONTEXT = get_context("spawn")  # a fork would copy the locks of torch's threads
_EXIT_SECONDS = 5.0  # for workers to exit before they are killed


class WorkerEvent(NamedTuple):
    """An event in the life of a task."""

    task: Any
    kind: str
    """One of "started", "report", "result" and "died"."""
    value: Any = None
    """The report, the result, or the exit code of the last worker that died."""


def run_in_processes(
    work: Work, tasks: Sequence[Hashable], processes: int
) -> Generator[WorkerEvent, None, None]:
    """Run tasks in spawned processes with one torch thread each and yield their events.

    A task whose worker dies is retried, up to ``ATTEMPTS`` attempts. An exception in ``work`` is
    raised in this process. Closing the iterator or pressing Ctrl-C terminates the workers. If this
    process is killed, the workers exit on their own.

    Args:
        work: An importable function, or a ``partial`` of one.
        tasks: First arguments of ``work``, all different, one per call.
        processes: Maximum number of worker processes.
    """
    waiting, deaths = deque(tasks), Counter[Hashable]()
    workers = [_Worker(work) for _ in range(min(processes, len(tasks)))]
    try:
        while workers:
            worker = _first_ready(workers)
            kind, value = worker.receive()
            if kind == "ready":
                del deaths[None]  # count only consecutive deaths at startup
            if kind == "died":
                workers[workers.index(worker)] = _Worker(work)
                if _count_death(worker, deaths, waiting):
                    continue
            if kind != "ready":
                yield WorkerEvent(worker.task, kind, value)
            if kind not in {"ready", "result"}:
                continue
            worker.send(waiting.popleft() if waiting else None)
            if worker.task is None:
                workers.remove(worker)
            else:
                yield WorkerEvent(worker.task, "started")
    finally:
        _terminate(workers)


class _Worker:
    """A worker process, the pipe to it and its current task."""

    def __init__(self, work: Work) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_worker_main, args=(work, theirs), daemon=True)
        with interrupts_blocked():  # inherited: only the parent handles Ctrl-C
            self.process.start()
        theirs.close()
        self.task: Any = None

    def send(self, task: Hashable | None) -> None:
        """Send a task; None tells the worker to exit."""
        self.task = task
        with suppress(BrokenPipeError):  # receive() reports a dead worker
            self.pipe.send(task)

    def receive(self) -> tuple[str, Any]:
        """Receive a message; raise an exception that the worker sent."""
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of a message
            self.process.join()
            return "died", self.process.exitcode
        if kind == "error":
            raise value
        return kind, value


def _first_ready(workers: Sequence[_Worker]) -> _Worker:
    ready = wait([worker.pipe for worker in workers])
    return next(worker for worker in workers if worker.pipe in ready)


def _count_death(worker: _Worker, deaths: Counter[Hashable], waiting: deque[Any]) -> bool:
    """Count a death and queue its task again; return whether it may be retried."""
    deaths[worker.task] += 1
    retry = deaths[worker.task] < ATTEMPTS
    if worker.task is None and not retry:
        raise RuntimeError(
            f"worker processes exit at startup with code {worker.process.exitcode}; a script "
            'that starts jobs must do so below `if __name__ == "__main__":`'
        )
    if worker.task is not None and retry:
        waiting.append(worker.task)
    return retry


def _terminate(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    deadline = monotonic() + _EXIT_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - monotonic()))
        worker.process.kill()  # no effect on a process that has exited
        worker.process.join()


@contextmanager
def interrupts_blocked() -> Generator[None]:
    """Block Ctrl-C in this thread and in the processes that it starts inside the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing.resource_tracker import ensure_running  # noqa: PLC0415 - POSIX alone

    ensure_running()  # else the first process starts it with signals blocked, and it unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(work: Work, pipe: Connection) -> None:
    """Run tasks from the pipe until None arrives or the parent exits."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, _exit_now)
    Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(("ready", None))
        while (task := pipe.recv()) is not None:
            pipe.send(_attempt(work, task, pipe))


def _exit_with_parent() -> None:
    """Exit when the parent exits for any reason."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        _exit_now()


def _exit_now(*_: object) -> None:
    """Delete temporary files and exit, as on SIGTERM."""
    remove_temp_files()
    os._exit(128 + signal.SIGTERM)


def _attempt(work: Work, task: Hashable, pipe: Connection) -> tuple[str, object]:
    try:
        return "result", work(task, lambda report: pipe.send(("report", report)))
    except Exception as error:  # noqa: BLE001 - the parent raises it
        error.add_note(format_exc())
        return "error", error
