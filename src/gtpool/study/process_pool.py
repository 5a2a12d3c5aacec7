"""Work in several processes: one that dies is replaced, and none outlives its parent for long."""

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
"""How often a task is begun before it is blamed for the death of its worker."""

Work = Callable[[Any, Callable[[object], None]], object]
"""Does a task and gives its result; what it reports on the way reaches the parent at once."""

_CONTEXT = get_context("spawn")  # a fork would copy the locks of torch's threads
_EXIT_SECONDS = 5.0  # seconds for workers to put away what they have in hand


class WorkerEvent(NamedTuple):
    """What is heard of a task."""

    task: Any
    kind: str
    """started, report, result or died."""
    value: Any = None
    """The report or the result; of a task that died, the exit code of its last worker."""


def run_in_processes(
    work: Work, tasks: Sequence[Hashable], processes: int
) -> Generator[WorkerEvent, None, None]:
    """Do tasks in fresh processes of one torch thread each, and yield what is heard of them.

    A task whose worker dies is begun again, ``ATTEMPTS`` times in all, while the others go on. An
    exception in ``work`` is raised here. When the iterator is closed, or left by Ctrl-C, the
    workers are ended; when this process is killed, they end by themselves.

    Args:
        work: A function that a new process can import, or a ``partial`` of one.
        tasks: Its first arguments, all different, one call each.
        processes: How many at once.
    """
    waiting, deaths = deque(tasks), Counter[Hashable]()
    workers = [_Worker(work) for _ in range(min(processes, len(tasks)))]
    try:
        while workers:
            worker = _first_ready(workers)
            kind, value = worker.listen()
            if kind == "ready":
                del deaths[None]  # workers do come up: only one after another is a bad sign
            if kind == "died":
                workers[workers.index(worker)] = _Worker(work)
                if _count_death(worker, deaths, waiting):
                    continue
            if kind != "ready":
                yield WorkerEvent(worker.task, kind, value)
            if kind not in {"ready", "result"}:
                continue
            worker.begin(waiting.popleft() if waiting else None)
            if worker.task is None:
                workers.remove(worker)
            else:
                yield WorkerEvent(worker.task, "started")
    finally:
        _terminate(workers)


class _Worker:
    """A process, the pipe to it, and the task it has."""

    def __init__(self, work: Work) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_worker_main, args=(work, theirs), daemon=True)
        with _interrupts_blocked():  # which the process inherits: Ctrl-C is the parent's business
            self.process.start()
        theirs.close()
        self.task: Any = None

    def begin(self, task: Hashable | None) -> None:
        """Hand over a task; None is the end."""
        self.task = task
        with suppress(BrokenPipeError):  # a dead worker is noticed when it is listened to
            self.pipe.send(task)

    def listen(self) -> tuple[str, Any]:
        """Hear what the process says; an exception of its is raised here."""
        try:
            kind, value = self.pipe.recv()
        except (EOFError, OSError):  # the latter if it ended in the middle of a message
            self.process.join()
            return "died", self.process.exitcode
        if kind == "error":
            raise value
        return kind, value


def _first_ready(workers: Sequence[_Worker]) -> _Worker:
    ready = wait([worker.pipe for worker in workers])
    return next(worker for worker in workers if worker.pipe in ready)


def _count_death(worker: _Worker, deaths: Counter[Hashable], waiting: deque[Any]) -> bool:
    """Count a death, and let its task wait again unless there were too many."""
    deaths[worker.task] += 1
    again = deaths[worker.task] < ATTEMPTS
    if worker.task is None and not again:
        raise RuntimeError(
            f"worker processes end at their start, with exit code {worker.process.exitcode}; "
            'a script that starts jobs must do so below `if __name__ == "__main__":`'
        )
    if worker.task is not None and again:
        waiting.append(worker.task)
    return again


def _terminate(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    deadline = monotonic() + _EXIT_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - monotonic()))
        worker.process.kill()  # of one that has ended nothing is left to kill
        worker.process.join()


@contextmanager
def _interrupts_blocked() -> Generator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing.resource_tracker import ensure_running  # noqa: PLC0415 - POSIX alone

    ensure_running()  # which the first process starts otherwise, and which unblocks what it can
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _worker_main(work: Work, pipe: Connection) -> None:
    """Do what comes through the pipe until the end is sent, or the parent is gone."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, _exit_now)
    Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(("ready", None))
        while (task := pipe.recv()) is not None:
            pipe.send(_attempt(work, task, pipe))


def _exit_with_parent() -> None:
    """Wait for the parent to end, however it ends, and end as well."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        _exit_now()


def _exit_now(*_: object) -> None:
    """End at once, but leave no file half-written."""
    remove_temp_files()
    os._exit(128 + signal.SIGTERM)


def _attempt(work: Work, task: Hashable, pipe: Connection) -> tuple[str, object]:
    try:
        return "result", work(task, lambda report: pipe.send(("report", report)))
    except Exception as error:  # noqa: BLE001 - the parent raises it
        error.add_note(format_exc())
        return "error", error
