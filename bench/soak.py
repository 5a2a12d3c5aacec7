"""Soak the local executor: small runs, and every so often a process that is killed with -9.

A driver (this file with ``--drive``) does batch after batch of runs on MUTAG by ``run_many`` with
several jobs, until the time is over. Every so often one of its processes, drawn at random, is
killed: mostly a worker, at times the driver itself, which is then started again at once on the same
store, at times the process in which Python keeps account of shared resources. In the end every row
must be there and sound, a sample of rows must be what the same specs give one after the other, and
no process, temporary file, memory or file descriptor may be left over. Needs Linux's /proc.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import proc

from gtpool.bench.timing import print_table, record
from gtpool.spec import DataSpec, ModelSpec, RunSpec, TrainSpec
from gtpool.study.inputs import expand_folds
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.run_one import run_one
from gtpool.study.store import Store, write_atomic

EPOCHS, WIDTHS, SEEDS = 10, (8, 16), 20
"""Of a batch, which has ten folds besides: 400 runs."""
VICTIMS = {"worker": 7, "driver": 2, "tracker": 1}
"""How often which kind of process is drawn."""
SAMPLE = 20
"""Rows that are done again, one after the other, to compare."""
WARM = 60.0
"""Seconds of a process's life that do not count for its memory: it imports and fills caches."""
STALE = 61.0
"""Seconds after which the sweep of a store takes a temporary file for left over."""
MARK = "GTPOOL_SOAK"
NUMBERS = ("spec", "test", "valid_loss", "valid_metric", "epoch", "other_rules", "curves", "split")


def main() -> None:
    """Soak, print a table, append a row to results/bench/soak.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of kills")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--out", type=Path, help="folder of the row (results/bench)")
    parser.add_argument("--drive", nargs=2, metavar=("FOLDER", "UNTIL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.pop("GTPOOL_DATA", None)  # the embedded set will do
    if given.drive:
        drive(Path(given.drive[0]), given.jobs, float(given.drive[1]))
        return
    with TemporaryDirectory() as folder:
        soak = Soak(Path(folder), given)
        soak.work()
        row = {"minutes": given.minutes, "every_s": given.every, "jobs": given.jobs, **soak.check()}
    print_table(["soak", "value"], row.items())
    record("soak", [row], given.out)
    sys.exit(0 if row["sound"] else 1)


def drive(folder: Path, jobs: int, until: float) -> None:
    """Do batches; the last is the one that was begun before the time was over."""
    for batch in count():
        if batch == batches(folder):
            if time.time() > until:
                return
            write_atomic(folder / "batches", str(batch + 1).encode())
        run_many(batch_of(batch), Store(folder), jobs=jobs, device="cpu")


def batches(folder: Path) -> int:
    """Count the batches that were begun."""
    begun = folder / "batches"
    return int(begun.read_text()) if begun.exists() else 0


def batch_of(number: int) -> list[RunSpec]:
    """Give the runs of a batch: each has seeds of its own."""
    spec = RunSpec(
        data=DataSpec(source="MUTAG"),
        model=ModelSpec(levels=1),
        train=TrainSpec(epochs=EPOCHS, warmup=2),
        seed=number * SEEDS,
    )
    wide = (replace(spec, model=replace(spec.model, width=width)) for width in WIDTHS)
    return [run for one in wide for run in expand_folds(one, seeds=SEEDS)]


class Soak:
    """The driver, and what is seen of it."""

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.every, self.mark = folder, given.every, uuid4().hex
        self.draw = random.Random(given.seed)  # noqa: S311 - nobody guesses it
        self.until = time.time() + 60 * given.minutes
        self.words = ["--jobs", str(given.jobs), "--drive", str(folder), str(self.until)]
        self.next = self.draw_kind()
        self.kills, self.ends = Counter[str](), Counter[int]()
        self.orphans: dict[int, float] = {}
        """Workers of a killed driver that still run, and since when."""
        self.lingered: list[float] = []
        self.lives: dict[tuple[str, int], list[proc.Seen]] = {}
        self.written: dict[str, int] = {}
        self.rewritten: list[str] = []

    def work(self) -> None:
        """Start drivers, kill, and look, until a driver has done all."""
        self.start()
        killed = looked = time.time()
        while (code := self.driver.poll()) != 0:
            now = time.time()
            if code is not None:
                self.ends[code] += 1
                self.start()
            elif killed + self.every < now < self.until and self.kill():
                killed = now
            elif looked + 5 < now:
                looked = now
                self.look()
            for pid in [pid for pid in self.orphans if proc.gone(pid)]:
                self.lingered.append(now - self.orphans.pop(pid))
            time.sleep(0.2)

    def start(self) -> None:
        """Start a driver with a mark that all its processes inherit."""
        with (self.folder / "stderr").open("ab") as said:
            self.driver = subprocess.Popen(
                [sys.executable, __file__, *self.words],
                stderr=said,
                env={**os.environ, MARK: self.mark},
            )

    def kill(self) -> bool:
        """Kill a process of the kind that is next; False as long as there is none."""
        there, kind = self.processes(), self.next
        if kind not in there:
            return False
        if kind == "driver":
            self.orphans |= dict.fromkeys(there.get("worker", ()), time.time())
        with suppress(ProcessLookupError):
            os.kill(self.draw.choice(there[kind]), signal.SIGKILL)
            self.kills[kind] += 1
        print(f"{time.strftime('%X')} killed a {kind}, {len(self.written)} rows", flush=True)
        self.next = self.draw_kind()
        return True

    def draw_kind(self) -> str:
        """Draw whom to kill next."""
        return self.draw.choices(list(VICTIMS), list(VICTIMS.values()))[0]

    def processes(self) -> dict[str, list[int]]:
        """Give the driver and its children by kind."""
        found = {"driver": [self.driver.pid]}
        for pid in proc.children(self.driver.pid):
            words = proc.read(pid, "cmdline")
            if b"spawn_main" in words:
                found.setdefault("worker", []).append(pid)
            elif b"resource_tracker" in words:
                found.setdefault("tracker", []).append(pid)
        return found

    def look(self) -> None:
        """Note memory and file descriptors of all, and which rows were written."""
        for kind, pids in self.processes().items():
            for pid in pids:
                with suppress(FileNotFoundError, ProcessLookupError):
                    self.lives.setdefault((kind, pid), []).append(proc.look(pid))
        for path in (self.folder / "runs").glob("*.json"):
            stamp = path.stat().st_mtime_ns
            if self.written.get(path.stem, stamp) != stamp:
                self.rewritten.append(path.stem)
            self.written[path.stem] = stamp

    def check(self) -> dict[str, Any]:
        """Judge what is left."""
        self.look()
        store, runs = Store(self.folder), self.folder / "runs"
        specs = [spec for batch in range(batches(self.folder)) for spec in batch_of(batch)]
        wanted = {spec.key: spec for spec in specs}
        rows = {row.key: row for row in store.rows()}
        temporary = [path.stat().st_mtime for path in runs.glob(".*")]
        time.sleep(max(0.0, max(temporary, default=0.0) + STALE - time.time()))
        store.remove_stale_files()
        sample = dict.fromkeys([*self.rewritten, *self.draw.sample(sorted(rows), len(rows))])
        again = [run_one(wanted[key], device="cpu") for key in list(sample)[:SAMPLE]]
        faults = {
            "missing": len(wanted.keys() - rows.keys()),
            "unwanted": len(rows.keys() - wanted.keys()),
            "unsound": sum(not _sound(row) for row in rows.values()),
            "differ": sum(_numbers(row) != _numbers(rows[row.key]) for row in again),
            "temporary_left": len(list(runs.glob(".*"))),
            "processes_left": len(proc.marked(f"{MARK}={self.mark}")),
            "drivers_that_failed": sum(n for code, n in self.ends.items() if code != -9),
        }
        said = (self.folder / "stderr").read_text()
        print(said[-3000:], end="")
        return {
            "sound": not any(faults.values()),
            "kills": self.kills.total(),
            **{f"kills_{kind}": self.kills[kind] for kind in VICTIMS},
            "rows": len(rows),
            "compared": len(again),
            **faults,
            "written_twice": len(self.rewritten),
            "temporary_files": len(temporary),
            "orphans": len(self.lingered),
            "orphans_longest_s": round(max(self.lingered, default=0.0), 1),
            "stderr_lines": len(said.splitlines()),
            **self.flatness("driver"),
            **self.flatness("worker"),
        }

    def flatness(self, kind: str) -> dict[str, Any]:
        """Say of the processes of a kind whether they grow."""
        seen = (life for (its, _), life in self.lives.items() if its == kind)
        warm = ([one for one in life if one.time > life[0].time + WARM] for life in seen)
        told = proc.flatness([life for life in warm if life])
        return {f"{kind}_{name}": value for name, value in told.items()}


def _sound(row: RunResult) -> bool:
    whole = row.status == "done" and row.epochs_run == EPOCHS
    return whole and row.spec.key == row.key


def _numbers(row: RunResult) -> dict[str, Any]:
    return {name: getattr(row, name) for name in NUMBERS}


if __name__ == "__main__":
    main()
