"""A cluster that is made up: it stands for the module ``ray``, with nodes that fail and a clock.

The clock jumps from event to event. A node does one unit at a time, which takes the seconds that it
is said to take. A lost node is noticed NOTICE seconds later; what is sent to it until then is lost
as well. Each look of the driver takes LOOK seconds, and more by the units on their way if it is
slow.
"""

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Any

from gtpool.spec import RunSpec
from gtpool.study.build_result import new_result
from gtpool.study.ray_executor import _TaskResult
from gtpool.study.result import RunResult

NODES = 1_000
NOTICE = 22.0
"""Seconds from a cut link to the new beginning of its unit, as measured: docs/cluster.md."""
LOOK = 0.008
"""Seconds of the driver for a unit, as measured: results/bench/scale.jsonl."""
CRASH = 1.0
"""Seconds after which a bad node kills a unit."""
RESTART = 30.0
"""Seconds until a driver that died is started again."""


class DriverDied(BaseException):
    """The end of the driver, as of a kill."""


class Lost(Exception):  # noqa: N818 - a name of Ray's
    """What Ray raises for a unit whose process or node is lost."""


class Cluster:
    """Stands for the module ``ray``: nodes, the units on them, and a clock."""

    exceptions = SimpleNamespace(RayTaskError=type("RayTaskError", (Exception,), {}), RayError=Lost)
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda _, soft: soft,
        )
    )

    def __init__(self, seconds: dict[str, float], draw: random.Random) -> None:
        self.seconds, self.draw, self.now, self.numbers = seconds, draw, 0.0, count()
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.alive, self.known = [True] * NODES, [True] * NODES
        self.bad: set[int] = set()
        self.tasks: list[Task | None] = [None] * NODES
        self.begun, self.finished = Counter[str](), Counter[str]()
        self.deaths, self.lost, self.look_a_unit = 0, 0.0, 0.0
        self.restart(pause=0.0)
        sys.modules["ray"] = self  # pyright: ignore[reportArgumentType] - it quacks

    def restart(self, pause: float = RESTART) -> None:
        """Forget what a driver has sent: its units end with it."""
        self.lost += sum(self.now - task.since for task in self.tasks if task is not None)
        self.now += pause
        self.tasks, self.driver_dies = [None] * NODES, False
        self.free = deque(node for node in range(NODES) if self.known[node])
        self.queue, self.ready = deque[Task](), deque[Task]()
        self.reports: list[tuple[str, None]] = []

    # What the executor calls

    def is_initialized(self) -> bool:
        """Say that there is a cluster."""
        return True

    def get_runtime_context(self) -> Any:  # noqa: ANN401
        """Say where the driver is."""
        return SimpleNamespace(get_node_id=lambda: "driver")

    def cluster_resources(self) -> dict[str, float]:
        """Count the nodes that are thought to be there."""
        return {"CPU": sum(self.known)}

    def put(self, value: object) -> object:
        """Keep a value."""
        return value

    def remote(self, *actor: type, **_: object) -> Any:  # noqa: ANN401
        """Give what starts the board, or a unit."""
        if not actor:
            return lambda _: SimpleNamespace(remote=self.submit)
        board = SimpleNamespace(take=SimpleNamespace(remote=lambda: None))
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: board))

    def submit(self, spec: RunSpec, *_: object) -> "Task":
        """Begin a unit as soon as a node is free."""
        task = Task(spec)
        self.queue.append(task)
        self._send()
        return task

    def wait(self, refs: Sequence["Task"], timeout: float) -> tuple[list["Task"], list["Task"]]:
        """Let time pass until a unit is over, or the timeout."""
        self.now += LOOK + self.look_a_unit * len(refs)
        end = self.now + timeout
        while not self.ready and self.events and self.events[0][0] <= end:
            time, _, happen, what = heappop(self.events)
            self.now = max(self.now, time)
            happen(*what)
            if self.driver_dies:
                raise DriverDied
        if not self.ready:
            self.now = end
            return [], list(refs)
        return [self.ready.popleft()], []

    def get(self, task: "Task | None") -> Any:  # noqa: ANN401
        """Give what the board has, or the result of a unit."""
        if task is None:
            reports, self.reports = self.reports, []
            return reports
        if task.row is None:
            raise Lost
        return _TaskResult(task.row)

    def cancel(self, task: "Task", *, force: bool) -> None:
        """Stop a unit; those of a driver that is gone are forgotten anyway."""

    # What happens

    def at(self, time: float, happen: Callable[..., None], *what: object) -> None:
        """Let something happen at a time."""
        heappush(self.events, (time, next(self.numbers), happen, what))

    def _send(self) -> None:
        while self.queue and self.free:
            node, task = self.free.popleft(), self.queue.popleft()
            self.tasks[node], task.since = task, self.now
            if self.alive[node]:
                self.begun[task.spec.key] += 1
                self.reports.append((task.spec.key, None))
                bad = node in self.bad
                seconds = CRASH if bad else self.seconds[task.spec.key]
                self.at(self.now + seconds, self._end, node, task, bad)

    def _end(self, node: int, task: "Task", crash: bool) -> None:
        """A unit is over, unless its node or its driver is."""
        if self.tasks[node] is not task or not self.alive[node]:
            return
        if crash:
            self.lost += self.now - task.since
        else:
            task.row = new_result(task.spec)
            self.finished[task.spec.key] += 1
        self._release(node)
        self.free.append(node)
        self._send()

    def die(self, node: int, back: float | None = None) -> None:
        """A node is lost, and perhaps repaired later."""
        if not self.alive[node]:
            return
        self.alive[node] = False
        self.deaths += 1
        self.at(self.now + NOTICE, self._notice, node)
        if back is not None:
            self.at(self.now + back, self._come_back, node)

    def _notice(self, node: int) -> None:
        self.known[node] = False
        task = self.tasks[node]
        if task is None:
            self.free.remove(node)
        else:
            self.lost += self.now - task.since
            self._release(node)

    def _release(self, node: int) -> None:
        task, self.tasks[node] = self.tasks[node], None
        if task is not None:
            self.ready.append(task)

    def _come_back(self, node: int) -> None:
        self.alive[node] = self.known[node] = True
        self.free.append(node)
        self._send()

    def kill_driver(self) -> None:
        """The driver dies."""
        self.driver_dies = True


class Task:
    """A unit on its way; without a row it is lost."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.since = spec, 0.0
        self.row: RunResult | None = None
