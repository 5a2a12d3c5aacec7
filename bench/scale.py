"""Measure what docs/scale.md reckons with: reading molecules, the store, and the driver of a study.

Reader: B3DB from its table of SMILES, in one thread. Store: rows of 82 epochs (the mean of the runs
in results/bench/crossval.jsonl) in a folder of the system's temporary ones, which is filled without
waiting for the disk; what is timed waits. Units: ``run_many`` of units that do nothing but store a
row, with two jobs or two workers of Ray's; the driver's own seconds of a core bound what one driver
can do however many machines it has. Seconds are those of a core, which other programs on a machine
do not change, but for ``put``, which waits for the disk (the quickest of 200), and units a second.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch

from gtpool.bench.timing import print_table, record
from gtpool.data.formats.table import read_table
from gtpool.data.locate import EMBEDDED
from gtpool.data.molecule import read_molecules
from gtpool.spec import DataSpec, RunSpec
from gtpool.study.build_result import new_result
from gtpool.study.executor import Executor, ProcessExecutor, RunTask, Watcher
from gtpool.study.ray_executor import RayExecutor
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.store import Store
from gtpool.train.epoch import Epoch

B3DB = EMBEDDED / "B3DB" / "B3DB.tsv.gz"
SIZES = (1_000, 10_000, 100_000)
"""Rows of a store."""
TIMED = 200
EPOCHS = 82
UNITS = {"processes": 2_000, "ray": 500}
SPEC = RunSpec(data=DataSpec(source="MUTAG"))
CURVES = ("train_loss", "valid_loss", "valid_metric", "test_metric")


def main() -> None:
    """Measure, print a table, append the rows to results/bench/scale.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, help="folder of the rows (results/bench)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for part in given.parts:
        rows = [{"part": part, **row} for row in PARTS[part]()]
        print_table([part, "value"], [pair for row in rows for pair in row.items()])
        record("scale", rows, given.out)


def read() -> Iterator[dict[str, Any]]:
    """Read a table of molecules."""
    read_molecules(["C"])  # what rdkit sets up once
    before, start = _memory("VmRSS"), process_time()
    data = read_table(B3DB).dataset
    seconds = process_time() - start
    tensors = (data.x, data.edge_index, data.edge_attr, data.y, data.sizes, data.edge_counts)
    packed = sum(part.nbytes for part in tensors if part is not None)
    yield {
        "molecules": len(data),
        "seconds": round(seconds, 2),
        "molecules_a_second": round(len(data) / seconds),
        "packed_bytes_a_molecule": round(packed / len(data)),
        "peak_bytes_a_molecule": round(1e6 * (_memory("VmHWM") - before) / len(data)),
    }


def keep() -> Iterator[dict[str, Any]]:
    """Put rows into a store, and read them, as it grows."""
    with TemporaryDirectory() as folder:
        store, there = Store(folder), 0
        specs = (replace(SPEC, seed=seed) for seed in range(SIZES[-1] + TIMED * len(SIZES)))
        store.put(row_of(next(specs)))
        for size in SIZES:
            for _ in range(there + 1, size):
                row = row_of(next(specs))
                (Path(folder) / "runs" / f"{row.key}.json").write_text(written(row))
            os.sync()
            fresh = [row_of(next(specs)) for _ in range(TIMED)]
            put = [_seconds(store.put, row, clock=perf_counter) for row in fresh]
            get = [_seconds(store.get, row.key) for row in fresh]
            for row in fresh:
                (Path(folder) / "runs" / f"{row.key}.json").unlink()
            there, before = size, _memory("VmRSS")
            seconds = _seconds(store.rows)
            yield {
                "rows": size,
                "bytes_a_row": len(written(fresh[0])),
                "put_ms": round(1e3 * min(put), 3),
                "get_ms": round(1e3 * min(get), 3),
                "all_s": round(seconds, 2),
                "all_mb": round(_memory("VmHWM") - before),
                "sweep_s": round(_seconds(store.remove_stale_files), 3),
            }


def hand_out() -> Iterator[dict[str, Any]]:
    """Do units of no work in processes of this machine."""
    yield from _hand_out("processes", ProcessExecutor(2))


def hand_out_by_ray() -> Iterator[dict[str, Any]]:
    """Do units of no work on a cluster of this machine."""
    yield from _hand_out("ray", RayExecutor())


PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "reader": read,
    "store": keep,
    "units": hand_out,
    "units-ray": hand_out_by_ray,
}


def _hand_out(name: str, executor: Executor) -> Iterator[dict[str, Any]]:
    specs = [replace(SPEC, seed=seed) for seed in range(UNITS[name])]
    first = Clock()
    with TemporaryDirectory() as folder:
        run_many(specs, Store(folder), executor=Trivially(executor), watch=first)
        again = _seconds(lambda: run_many(specs, Store(folder)))
    wall, core = (end - start for start, end in zip(*first.span, strict=True))
    yield {
        "executor": name,
        "units": len(specs),
        "units_a_second": round((len(specs) - 1) / wall, 1),
        "driver_ms_a_unit": round(1e3 * core / (len(specs) - 1), 3),
        "key_ms": round(1e3 * _seconds(lambda: [spec.key for spec in specs]) / len(specs), 3),
        "resume_ms_a_unit": round(1e3 * again / len(specs), 3),
    }


def written(row: RunResult) -> str:
    """Give a row as a store writes it."""
    return json.dumps(row.to_json(), indent=1)


def row_of(spec: RunSpec) -> RunResult:
    """Give a row as long as that of a run."""
    curves = {name: [0.123456] * EPOCHS for name in CURVES}
    return new_result(spec).updated(epochs_run=EPOCHS, curves=curves)


class Trivial(RunTask):
    """A task that only stores a result."""

    def __call__(self, spec: RunSpec, on_epoch: Callable[[Epoch], None]) -> RunResult:
        """Store."""
        del on_epoch
        row = row_of(spec)
        self.store.put(row)
        return row


class Trivially:
    """An executor that has another do units of no work."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def __call__(
        self, task: RunTask, specs: Sequence[RunSpec], watch: Watcher
    ) -> Iterator[RunResult]:
        """Do them."""
        yield from self.executor(Trivial(*task), specs, watch)


class Clock:
    """A watcher that notes when the first row and the last came, on the wall and of a core."""

    def __init__(self) -> None:
        self.span: list[tuple[float, float]] = []

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None: ...  # noqa: D102
    def preparing(self, what: str, done: int, total: int) -> None: ...  # noqa: D102
    def started(self, spec: RunSpec) -> None: ...  # noqa: D102
    def epoch(self, spec: RunSpec, epoch: Epoch) -> None: ...  # noqa: D102

    def finished(self, row: RunResult) -> None:
        """Note the time."""
        del row
        self.span[1:] = [(perf_counter(), process_time())]


def _seconds(
    call: Callable[..., object],
    *arguments: object,
    clock: Callable[[], float] = process_time,
) -> float:
    start = clock()
    call(*arguments)
    return clock() - start


def _memory(what: str) -> float:
    """Give megabytes of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(what))


if __name__ == "__main__":
    main()
