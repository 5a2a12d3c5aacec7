"""Work in several processes, and its progress."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing import get_context
from typing import Protocol, TypeVar

import torch


class Watcher(Protocol):
    """Receives the progress of long work on data."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Receive what is being done, how much of it is done, and how much there is."""
        ...


_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher | None) -> Generator[None]:
    """Report the progress of long work on data within the context."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def tell_progress(what: str, done: int, total: int) -> None:
    """Report progress to the watcher, if there is one."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher.preparing(what, done, total)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    function: Callable[[_Task], _Result], tasks: Iterable[_Task], jobs: int, what: str
) -> Iterator[_Result]:
    """Yield the results in the order of the tasks.

    Args:
        function: Can be pickled, as can its argument and result.
        tasks: Its arguments.
        jobs: Number of processes; 1 works in this one.
        what: What a worker does, for the error if one dies, such as "describes molecules".
    """
    if jobs == 1:
        yield from map(function, tasks)
        return
    # Not fork, which would copy the locks of torch's threads.
    context, one = get_context("spawn"), (1,)
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, one) as pool:
        futures = [pool.submit(function, task) for task in tasks]
        try:
            yield from (future.result() for future in futures)
        except BrokenProcessPool as error:
            raise RuntimeError(
                f"a worker that {what} has died; a script that starts workers must do so below "
                '`if __name__ == "__main__":`'
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
