"""Train on a saved dataset that is larger than the memory of the process, and on one that fits.

A process of its own loads the saved folder, which is memory-mapped, and trains GTPool-V for an
epoch on graphs in random order. It does so in turn without a limit and the file in the page cache,
and in a control group of Linux whose limit holds the process and its share of the page cache. The
file is dropped from the cache before, so that every page counts. Needs the right to make a control
group (root in most containers). The seconds are those of the epoch, without loading.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gtpool.bench.timing import print_table, record
from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import Recipe, Schema
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, TrainSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import fit

GRAPHS, COLUMNS, BATCH = 300_000, 64, 128
TRAINED, HELD_OUT = 50 * BATCH, 640
LIMIT = 640 * 2**20
"""Bytes of the process and its page cache; the process alone takes 400 MiB."""
ROUNDS = 3
FILE = "graphs.safetensors"


def main() -> None:
    """Measure, print a table, append the rows to results/bench/mapped.jsonl."""
    if len(sys.argv) > 1:
        print(json.dumps(_train(Path(sys.argv[1]), int(sys.argv[2]))))
        return
    with TemporaryDirectory(dir=os.environ.get("GTPOOL_SCRATCH")) as scratch:
        folder = Path(scratch) / "made"
        _make(folder)
        cases: dict[str, list[dict[str, Any]]] = {"fits": [], "larger": []}
        for number in range(ROUNDS):
            (folder / FILE).read_bytes()  # into the page cache
            cases["fits"].append(_run(folder, number, None))
            _drop_cache(folder / FILE)
            with _limited(LIMIT) as group:
                cases["larger"].append(_run(folder, number, group))
        size = (folder / FILE).stat().st_size
    rows = [_row(name, size, runs) for name, runs in cases.items()]
    print_table([*rows[0]], [list(row.values()) for row in rows])
    record("mapped", rows)


def _make(folder: Path) -> None:
    """Save rings of 15 to 35 nodes with random features, which count as standardised."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(15, 36, (GRAPHS,), generator=random)
    many = sizes.repeat_interleave(sizes)
    own = torch.arange(len(many)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    after = (own + 1) % many
    edges = torch.stack([torch.stack([own, after], 1), torch.stack([after, own], 1)])
    recipe = Recipe("given", attributes=COLUMNS, mean=(0.0,) * COLUMNS, std=(1.0,) * COLUMNS)
    GraphDataset(
        torch.randn(len(many), COLUMNS, generator=random),
        edges.view(2, -1).int(),
        None,
        sizes,
        2 * sizes,
        torch.randint(0, 2, (GRAPHS,), generator=random),
        Schema("made", "classes", ("0", "1"), recipe),
    ).save(folder)


def _train(folder: Path, seed: int) -> dict[str, float]:
    """Train for an epoch on graphs of the whole file, other ones for each seed."""
    torch.set_num_threads(1)
    begin = time.monotonic()
    data = GraphDataset.load(folder)
    loaded = time.monotonic() - begin
    order = torch.randperm(GRAPHS, generator=torch.Generator().manual_seed(seed))
    parts = order.split([TRAINED, HELD_OUT, HELD_OUT, GRAPHS - TRAINED - 2 * HELD_OUT])
    torch.manual_seed(0)
    model = Classifier(ModelSpec(width=64), shape_of(data))
    before = resource.getrusage(resource.RUSAGE_SELF)
    spec = TrainSpec(epochs=1, batch_size=BATCH)
    (epoch,) = fit(model, data, Split(*parts[:3], "random", GRAPHS), spec, seed=0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    told = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "load_s": round(loaded, 1),
        "epoch_s": round(epoch.seconds, 2),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "faults": after.ru_majflt - before.ru_majflt,
        "own_mb": round(int(told["RssAnon"].split()[0]) / 1024),
    }


def _run(folder: Path, seed: int, group: Path | None) -> dict[str, float]:
    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, __file__, str(folder), str(seed)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=enter)
    return {**json.loads(said.stdout), "load": round(os.getloadavg()[0], 1)}


def _drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _limited(limit: int) -> Generator[Path]:
    """Yield a new control group with a limit on memory, inside that of this process."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    mine = {kinds: path.lstrip("/") for _, kinds, path in (line.split(":", 2) for line in lines)}
    if "memory" in mine:
        parent, name = Path("/sys/fs/cgroup/memory") / mine["memory"], "memory.limit_in_bytes"
    else:
        parent, name = Path("/sys/fs/cgroup") / mine[""], "memory.max"
    group = parent / f"gtpool-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def _row(name: str, size: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    middle = {key: median(run[key] for run in runs) for key in runs[0]}
    return {
        "case": name,
        "data_mb": round(size / 2**20),
        "limit_mb": None if name == "fits" else LIMIT >> 20,
        **middle,
        "graphs_a_second": round(TRAINED / middle["epoch_s"]),
        "graphs_a_cpu_second": round(TRAINED / middle["cpu_s"]),
        "graphs": GRAPHS,
        "trained": TRAINED,
        "width": 64,
        "rounds": len(runs),
    }


if __name__ == "__main__":
    main()
