"""One thread runs the model; requests that wait together share a forward pass."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Condition, Thread
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import concatenate
from gtpool.graph import CoarseningStep
from gtpool.model.classifier import Classifier
from gtpool.ops.chain import build_chain
from gtpool.ops.segment import plan
from gtpool.train.fit import predict

Seen = Callable[[int], None]


class Batcher:
    """Answers sets of graphs, as many of them in one forward pass as wait and fit.

    It never waits for more to come: while one pass runs, the next one gathers.

    Args:
        model: Used by no other thread.
        graphs: In a pass, at most.
        nodes: In a pass that several sets share, at most.
        share: Whether sets share a pass at all.
        seen: Called with the number of graphs of each pass.
        device: Where the model runs.
    """

    def __init__(
        self,
        model: Classifier,
        *,
        graphs: int,
        nodes: int,
        share: bool,
        seen: Seen,
        device: torch.device,
    ) -> None:
        self._model, self._device = model.to(device).eval(), device
        self._graphs, self._nodes, self._share, self._seen = graphs, nodes, share, seen
        self._jobs: deque[_Job] = deque()
        self._changed = Condition()
        self._closed = False
        self._since: float | None = None
        self._thread = Thread(target=self._work, name="gtpool-forward", daemon=True)
        self._thread.start()

    def submit(self, data: GraphDataset) -> Future[Tensor]:
        """Queue graphs; the future gives their logits, [graphs, outputs]."""
        job = _Job(data, Future())
        with self._changed:
            if self._closed:
                raise RuntimeError("the service is stopping")
            self._jobs.append(job)
            self._changed.notify()
        return job.answer

    def waiting(self) -> int:
        """Count the graphs that no pass has taken up yet."""
        with self._changed:
            return sum(len(job.data) for job in self._jobs)

    def busy_seconds(self) -> float:
        """Say how long the pass that runs now has been running, 0 if there is none."""
        since = self._since
        return 0.0 if since is None else monotonic() - since

    def close(self) -> None:
        """Answer what is queued, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        # Small matrices: threads would spend their time waiting for one another.
        torch.set_num_threads(1)
        while jobs := self._next():
            self._since = monotonic()
            self._answer([job for job in jobs if job.answer.set_running_or_notify_cancel()])
            self._since = None

    def _next(self) -> "list[_Job]":
        """Wait for work and take as much as fits into a pass; nothing means the end."""
        taken: list[_Job] = []
        graphs = nodes = 0
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            while self._jobs:
                data = self._jobs[0].data
                graphs, nodes = graphs + len(data), nodes + data.x.size(0)
                full = graphs > self._graphs or nodes > self._nodes
                if taken and (full or not self._share):
                    break
                taken.append(self._jobs.popleft())
        return taken

    def _answer(self, jobs: "Sequence[_Job]") -> None:
        """Give every job its logits or the error that it alone makes."""
        if not jobs:
            return
        try:
            logits = self._run(concatenate([job.data for job in jobs]))
        except Exception as error:  # noqa: BLE001 - the thread must outlive whatever a graph does
            self._one_by_one(jobs, error)
            return
        for job, part in zip(jobs, logits.split([len(job.data) for job in jobs]), strict=True):
            # Numbers that overflow must not reach beyond the request that sent them.
            if len(jobs) == 1 or part.isfinite().all():
                job.answer.set_result(part)
            else:
                self._answer([job])

    def _one_by_one(self, jobs: "Sequence[_Job]", error: Exception) -> None:
        if len(jobs) == 1:
            jobs[0].answer.set_exception(error)
            return
        for job in jobs:
            self._answer([job])

    def _run(self, data: GraphDataset) -> Tensor:
        if self._model.chain_steps:
            data = replace(data, chain=chain_of(data, self._model.chain_steps))
        data, everyone = data.to(self._device), torch.arange(len(data))
        for part in everyone.split(self._graphs):
            self._seen(part.numel())
        return predict(self._model, data, everyone, self._graphs).cpu()


def chain_of(data: GraphDataset, steps: int) -> tuple[CoarseningStep, ...]:
    """Cluster graphs in memory: what a stranger sent is not to fill the user's cache."""
    level = plan(data.sizes, torch.device("cpu"))
    first = data.node_ptr[:-1].repeat_interleave(data.edge_counts)
    return tuple(build_chain(data.edge_index.long() + first, level, steps))


class _Job(NamedTuple):
    data: GraphDataset
    answer: Future[Tensor]
