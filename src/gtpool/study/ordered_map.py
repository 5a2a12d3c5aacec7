"""A function mapped over an iterator by worker processes, with results in order."""

import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from threading import Thread
from typing import Any, TypeVar

import torch

from gtpool.study.process_pool import interrupts_blocked

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_SHAPES = "32"  # matrix shapes whose kernels oneDNN keeps; its default of 1,024 takes 100 MB
_AHEAD = 2  # tasks per process that are handed out before the oldest result is needed


def limit_kernel_cache() -> None:
    """Bound the memory of kernels that oneDNN compiles for each shape of a matrix on a CPU.

    Batches of graphs nearly always have new sizes, so kept kernels grow memory without use. To be
    called before the first forward pass; the processes that this one starts inherit it.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _SHAPES)


def ordered_map(
    work: Callable[[_Task], _Result], tasks: Iterable[_Task], processes: int
) -> Generator[_Result, None, None]:
    """Yield ``work(task)`` for each task, in order, by spawned processes.

    Each process has one torch thread. Tasks are read when they are needed, so that an iterator of
    any length takes little memory.
    Closing the iterator or an exception ends the workers at once; they also end with this process.

    Args:
        work: An importable function, or a ``partial`` of one.
        tasks: Arguments of ``work``.
        processes: Number of worker processes; with 1, this process does the work.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    context = get_context("spawn")  # a fork would copy the locks of torch's threads
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, _start, (theirs,))
    try:
        yield from _in_order(pool, work, tasks, _AHEAD * processes)
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process died, perhaps for want of memory; repeat the command, on fewer cores "
            "if it happens again (`taskset -c 0,1 gtpool ...`)"
        ) from error
    finally:
        # A worker that ends while it sends a result leaves half of it in the pipe. Its reader waits
        # for the rest as long as any process can write, this one too.
        with suppress(AttributeError, OSError):
            pool._result_queue._writer.close()  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
        ours.close()  # ends the workers
        pool.shutdown(wait=True, cancel_futures=True)
        theirs.close()


def _in_order(
    pool: ProcessPoolExecutor,
    work: Callable[[_Task], _Result],
    tasks: Iterable[_Task],
    ahead: int,
) -> Generator[_Result, None, None]:
    waiting: deque[Future[_Result]] = deque()
    for task in tasks:
        with interrupts_blocked():  # inherited by a worker that this call starts
            waiting.append(pool.submit(work, task))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _start(life: Any) -> None:  # noqa: ANN401 - the type differs between systems
    """Prepare a worker process, which exits when the other end of ``life`` closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=_exit_at_end, args=(life,), daemon=True).start()


def _exit_at_end(life: Any) -> None:  # noqa: ANN401
    with suppress(EOFError, OSError):
        life.recv()
    os._exit(0)
