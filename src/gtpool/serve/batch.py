"""The thread that runs the model; waiting requests share a forward pass."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from threading import Condition, Thread
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import concatenate
from gtpool.graph import Coarsening, CoarseningStep
from gtpool.model.predictor import Predictor
from gtpool.ops.chains import coarsen_graphs
from gtpool.ops.segment import layout_from_sizes
from gtpool.train.fit import predict_members

WAIT = 0.03
"""Seconds that a pass waits for jobs that are being read, at most."""


class Batcher:
    """Runs a model on queued jobs, as many in one forward pass as are waiting and fit.

    A pass starts with what is queued once no expected job is missing, or after ``WAIT`` seconds.
    Jobs that arrive meanwhile share the next one.

    Args:
        model: Used by no other thread.
        graphs: Maximum number of graphs in a pass.
        nodes: Maximum number of nodes in a pass shared by several jobs.
        share: Whether jobs share passes.
        on_batch: Called with the number of graphs of each pass.
        device: Device of the model.
    """

    def __init__(
        self,
        model: Predictor,
        *,
        graphs: int,
        nodes: int,
        share: bool,
        on_batch: Callable[[int], None],
        device: torch.device,
    ) -> None:
        self._model, self._device = model.to(device).eval(), device
        self._graphs, self._nodes, self._share, self._on_batch = graphs, nodes, share, on_batch
        self._jobs: deque[_Job] = deque()
        self._changed = Condition()
        self._closed = False
        self._expected = 0
        self._since: float | None = None
        self._thread = Thread(target=self._work, name="gtpool-forward", daemon=True)
        self._thread.start()

    def submit(self, data: GraphDataset, rows: Sequence[int] | None = None) -> Future[Tensor]:
        """Queue graphs; the future returns the outputs of members, [graphs, members, outputs].

        Args:
            data: Holds the graphs.
            rows: Indices of the graphs; None for all.
        """
        chosen = torch.arange(len(data)) if rows is None else torch.tensor(rows)
        job = _Job(data, chosen, int(data.sizes[chosen].sum()), Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the service is stopping")
            self._jobs.append(job)
            if len(self._jobs) == 1:
                self._changed.notify()
        return job.answer

    @contextmanager
    def expect(self) -> Generator[None]:
        """Announce a job that is read, and queued or refused, inside the block."""
        with self._changed:
            self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                if not self._expected:
                    self._changed.notify()

    def waiting(self) -> int:
        """Return the number of queued graphs."""
        with self._changed:
            return sum(len(job.rows) for job in self._jobs)

    def busy_seconds(self) -> float:
        """Return how long the current pass has been running, 0 if there is none."""
        since = self._since
        return 0.0 if since is None else monotonic() - since

    def close(self) -> None:
        """Finish the queued jobs, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        # Matrices are small: more threads would mostly wait for each other.
        torch.set_num_threads(1)
        while jobs := self._next():
            self._since = monotonic()
            self._answer([job for job in jobs if job.answer.set_running_or_notify_cancel()])
            self._since = None

    def _next(self) -> "list[_Job]":
        """Wait for jobs and return those of the next pass; empty once closed."""
        taken: list[_Job] = []
        graphs = nodes = 0
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._share:  # a pass takes little longer with more graphs
                self._changed.wait_for(lambda: not self._expected or self._closed, WAIT)
            while self._jobs:
                job = self._jobs[0]
                graphs, nodes = graphs + len(job.rows), nodes + job.nodes
                full = graphs > self._graphs or nodes > self._nodes
                if taken and (full or not self._share):
                    break
                taken.append(self._jobs.popleft())
        return taken

    def _answer(self, jobs: "Sequence[_Job]") -> None:
        """Set the outputs of every job, or the error that it raises on its own."""
        if not jobs:
            return
        try:
            outputs = self._run(jobs)
        except Exception as error:  # noqa: BLE001 - the thread must survive any error
            self._one_by_one(jobs, error)
            return
        finite = bool(outputs.isfinite().all())
        for job, part in zip(jobs, outputs.split([len(job.rows) for job in jobs]), strict=True):
            # Rerun a job with overflow alone: it must not affect other requests.
            if finite or len(jobs) == 1 or part.isfinite().all():
                job.answer.set_result(part)
            else:
                self._answer([job])

    def _one_by_one(self, jobs: "Sequence[_Job]", error: Exception) -> None:
        if len(jobs) == 1:
            jobs[0].answer.set_exception(error)
            return
        for job in jobs:
            self._answer([job])

    def _run(self, jobs: "Sequence[_Job]") -> Tensor:
        shared = {id(job.data): job.data for job in jobs}
        data = concatenate([*shared.values()])
        if self._model.coarsening:
            data = replace(data, chain=chain_of(data, self._model.coarsening))
        firsts = accumulate(map(len, shared.values()), initial=0)
        first = dict(zip(shared, firsts, strict=False))
        rows = torch.cat([job.rows + first[id(job.data)] for job in jobs])
        for part in rows.split(self._graphs):
            self._on_batch(part.numel())
        return predict_members(self._model, data.to(self._device), rows, self._graphs).cpu()


def chain_of(data: GraphDataset, coarsening: Coarsening) -> tuple[CoarseningStep, ...]:
    """Return coarsening chains without caching them: clients must not fill the disk."""
    level = layout_from_sizes(data.sizes, torch.device("cpu"))
    first = data.node_ptr[:-1].repeat_interleave(data.edge_counts)
    return coarsen_graphs(data.edge_index.long() + first, level, coarsening)


class _Job(NamedTuple):
    data: GraphDataset
    rows: Tensor
    """Indices of the graphs in ``data``."""
    nodes: int
    answer: Future[Tensor]
