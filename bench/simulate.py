"""Simulate a study on a thousand nodes that fail: the real driver on a cluster that is made up.

``run_many``, ``RayExecutor`` with its rules (how many units are on their way, who is begun
again and how often, what is stored) and the store are the real ones. Made up are Ray, in whose
place stands ``cluster.Cluster``, and time. A unit takes the seconds of a run drawn from those in
results/runs that had a process of their own, as units on a cluster do. Not modelled: the network,
loading data, start-up, nodes of different speed, a disk that is slow.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from cluster import LOOK, NODES, NOTICE, Cluster, DriverDied

from gtpool.bench.timing import ROOT, print_table, record
from gtpool.spec import DataSpec, RunSpec
from gtpool.study.process_pool import ATTEMPTS
from gtpool.study.ray_executor import QUEUED_AHEAD, RayExecutor
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.store import Store
from gtpool.train.epoch import Epoch

UNITS, SHARE, SEEDS = 10_000, 0.01, 3
Failure = Callable[[Cluster, float], None]
"""Lets a cluster fail, of which is known how many seconds all nodes have work."""
MOST = 0.99
"""The part of the units whose end does not depend on which is the longest."""
BACK = 300.0
"""Seconds until a node is repaired, where nodes are."""
KEY = 0.00031
"""Seconds that the key of a run takes, as measured: results/bench/scale.jsonl."""


def main() -> None:
    """Simulate every kind of failure, print a table, append the rows to results/bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=UNITS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, help="folder of the rows (results/bench)")
    given = parser.parse_args()
    shared = {"nodes": NODES, "units": given.units, "share": SHARE, "attempts": ATTEMPTS}
    shared |= {"spare": QUEUED_AHEAD, "notice_s": NOTICE, "look_s": LOOK, "seeds": given.seeds}
    shared |= {"runs": len(real_seconds()), "mean_s": round(fmean(real_seconds()), 1)}
    shared |= {"longest_s": max(real_seconds())}
    rows: list[dict[str, Any]] = []
    for fail in FAILURES:
        told = [simulate(fail, given.units, seed) for seed in range(given.seeds)]
        mean = {name: round(fmean(one[name] for one in told), 1) for name in told[0]}
        rows.append({"failure": fail.__name__, **mean})
        print(rows[-1], flush=True)
    for row, part in product(rows, ("makespan", "most")):
        row[f"{part}_overhead"] = round(row[f"{part}_s"] / rows[0][f"{part}_s"] - 1, 3)
    names, *values = zip(*(row.values() for row in rows), strict=True)
    keys = list(rows[0])[1:]
    print_table(["mean", *names], [[key, *row] for key, row in zip(keys, values, strict=True)])
    record("simulate", [shared | row for row in rows], given.out)


def simulate(fail: Failure, units: int, seed: int) -> dict[str, float]:
    """Do a study once, with failures of a kind, and count."""
    draw = random.Random(seed)  # noqa: S311 - nobody guesses it
    times = real_seconds()
    specs = [Spec(data=DataSpec(source="MUTAG"), seed=number) for number in range(units)]
    seconds = {spec.key: draw.choice(times) for spec in specs}
    busy = sum(seconds.values()) / NODES
    cluster = Cluster(seconds, draw)
    fail(cluster, busy)
    log = Log(cluster)
    with TemporaryDirectory() as folder:
        store = Store(folder)
        while True:  # the same command until it comes to its end
            try:
                run_many(specs, store, executor=RayExecutor(), watch=log)
            except DriverDied:
                cluster.restart()
            else:
                break
        makespan, failed = cluster.now, _failed(store)
        for _ in range(5 if failed else 0):  # and again for what is stored as failed
            run_many(specs, store, executor=RayExecutor(), watch=log)
        stored = {row.key for row in store.rows()}
        return {
            "makespan_s": makespan,
            "most_s": log.times[round(MOST * units) - 1],
            "busy_s": busy,
            "nodes_lost": cluster.deaths,
            "begun": cluster.begun.total(),
            "begun_again": sum(times > 1 for times in cluster.begun.values()),
            "done_twice": sum(times > 1 for times in cluster.finished.values()),
            "node_s_lost": cluster.lost,
            "failed_at_first": failed,
            "failed_in_the_end": _failed(store),
            "stored_twice": sum(times > 1 for times in log.done.values()),
            "lost": len(seconds.keys() - stored),
        }


def _failed(store: Store) -> int:
    return sum(row.status == "failed" for row in store.rows())


@cache
def real_seconds() -> list[float]:
    """Give the seconds that real runs took, each in a process of its own."""
    files = sorted((ROOT / "results" / "runs").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.open(encoding="utf-8")]
    return [row.seconds for row in rows if row.done and not row.together]


class Spec(RunSpec):
    """A run whose key is made once."""

    @cached_property
    def key(self) -> str:
        """The digest."""
        return RunSpec(**{field.name: getattr(self, field.name) for field in fields(self)}).key


class Log:
    """A watcher that counts the runs that were stored as done, and notes when."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.done, self.times = cluster, Counter[str](), list[float]()

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None: ...  # noqa: D102
    def preparing(self, what: str, done: int, total: int) -> None: ...  # noqa: D102
    def started(self, spec: RunSpec) -> None: ...  # noqa: D102
    def epoch(self, spec: RunSpec, epoch: Epoch) -> None: ...  # noqa: D102

    def finished(self, row: RunResult) -> None:
        """Count."""
        if row.status == "done":
            self.done[row.key] += 1
            self.times.append(self.cluster.now)


def _some(cluster: Cluster) -> list[int]:
    return cluster.draw.sample(range(NODES), round(SHARE * NODES))


def nothing(_: Cluster, __: float) -> None:
    """Nothing fails."""


def die(cluster: Cluster, busy: float) -> None:
    """Some nodes die for good, while all have work."""
    for node in _some(cluster):
        cluster.at(cluster.draw.uniform(0, busy), cluster.die, node)


def die_each_minute(cluster: Cluster, _: float) -> None:
    """Some nodes die every minute, and come back."""
    for minute in range(120):
        for node in _some(cluster):
            cluster.at(60 * (minute + cluster.draw.random()), cluster.die, node, BACK)


def kill_units(cluster: Cluster, _: float) -> None:
    """Some nodes kill every unit, soon after its start."""
    cluster.bad.update(_some(cluster))


def driver_dies(cluster: Cluster, busy: float) -> None:
    """The driver dies when about half is done."""
    cluster.at(busy / 2, cluster.kill_driver)


def slow_driver(cluster: Cluster, _: float) -> None:
    """Nothing fails, but the driver makes the key of each unit on its way at each look."""
    cluster.look_a_unit = KEY


FAILURES = (nothing, die, die_each_minute, kill_units, driver_dies, slow_driver)


if __name__ == "__main__":
    main()
