"""Time batches by ``take`` beside PyG's DataLoader, and weigh a packed dataset beside PyG's graphs.

Both go through all graphs once in random order, 128 at a time; ``take`` also plans three poolings,
which PyG does not. Memory is what a fresh process grows by when it holds the data in memory of its
own: packed, and as a list of ``Data`` whose tensors are their own, as a reader of files makes them.
Numbers of threads may be given; without, one and two are timed.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from gtpool.bench.timing import measure, print_table, record
from gtpool.data.dataset import GraphDataset
from gtpool.data.sources import load

BATCH = 128
RATIOS = (0.5, 0.5, 0.5)
SECONDS = 1.0
FULL, EMBEDDED = ("PROTEINS", "ogbg-molhiv"), ("MUTAG", "B3DB")


def main() -> None:
    """Measure, print two tables, append the rows to results/bench/take.jsonl."""
    names = FULL if "GTPOOL_DATA" in os.environ else EMBEDDED
    if names is EMBEDDED:
        print(f"GTPOOL_DATA is not set: {' and '.join(EMBEDDED)} stand for {' and '.join(FULL)}")
    datasets = {name: load(name) for name in names}
    asked = [int(word) for word in sys.argv[1:]] or [1, 2]
    times = [row for threads in asked for row in _time(datasets, threads)]
    print_table(
        ["dataset", "threads", "take, ms a batch", "PyG, ms a batch", "PyG / take"],
        [
            [row[key] for key in ("dataset", "threads", "take_ms", "pyg_ms", "ratio")]
            for row in times
        ],
    )
    weights = [_weigh(name, data) for name, data in datasets.items()]
    keys = ("dataset", "packed_mb", "pyg_mb", "packed_tensors_mb", "pyg_tensors_mb", "share")
    print_table(
        ["dataset", "packed, MB", "PyG, MB", "tensors alone", "PyG's tensors", "packed / PyG"],
        [[row[key] for key in keys] for row in weights],
    )
    record("take", [*times, *weights])


def _time(datasets: dict[str, GraphDataset], threads: int) -> list[dict[str, object]]:
    torch.set_num_threads(threads)
    rows: list[dict[str, object]] = []
    for name, data in datasets.items():
        loader = DataLoader(own_graphs(data), BATCH, shuffle=True)
        taken = measure(
            {"take": partial(_take_all, data), "pyg": partial(_load_all, loader)}, seconds=SECONDS
        )
        rows.append(
            {
                "dataset": name,
                "threads": threads,
                "batch": BATCH,
                "take_ms": round(1e3 * taken["take"] / len(loader), 3),
                "pyg_ms": round(1e3 * taken["pyg"] / len(loader), 3),
                "ratio": round(taken["pyg"] / taken["take"], 1),
            }
        )
    return rows


def _take_all(data: GraphDataset) -> None:
    for indices in torch.randperm(len(data)).split(BATCH):
        data.take(indices, RATIOS)


def _load_all(loader: DataLoader) -> None:
    for _ in loader:
        pass


def own_graphs(data: GraphDataset) -> list[Data]:
    """Give PyG's graphs, each with tensors of its own."""
    return [graph.clone() for graph in data.to_pyg()]


def own_tensors(data: GraphDataset) -> dict[str, torch.Tensor]:
    """Copy what a dataset holds out of the mapped file."""
    names = ("x", "edge_index", "edge_attr", "y", "sizes", "edge_counts", "node_ptr", "edge_ptr")
    parts = {name: getattr(data, name) for name in names}
    return {name: part.clone() for name, part in parts.items() if part is not None}


HOLD: dict[str, Callable[[GraphDataset], object]] = {"packed": own_tensors, "pyg": own_graphs}


def _weigh(name: str, data: GraphDataset) -> dict[str, object]:
    """Hold the data in one fresh process each way, and ask how much each grew."""
    with TemporaryDirectory() as scratch:
        data.save(Path(scratch, "data"))
        grown = {
            how: float(
                subprocess.run(
                    [sys.executable, "-W", "ignore", __file__, how, str(Path(scratch, "data"))],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
            )
            for how in HOLD
        }
    graphs = data.to_pyg()
    tensors = [part for graph in graphs for part in graph.to_dict().values()]
    return {
        "dataset": name,
        "packed_mb": round(grown["packed"], 1),
        "pyg_mb": round(grown["pyg"], 1),
        "packed_tensors_mb": round(sum(p.nbytes for p in own_tensors(data).values()) / 1e6, 1),
        "pyg_tensors_mb": round(sum(part.nbytes for part in tensors) / 1e6, 1),
        "share": round(grown["packed"] / grown["pyg"], 3),
    }


def hold(how: str, folder: Path) -> None:
    """Print by how many MB this process grows when it holds a dataset.

    Pages of the mapped file are not counted: they belong to the file, in both cases.
    """
    process = psutil.Process()
    before = process.memory_info()
    held = HOLD[how](GraphDataset.load(folder))
    after = process.memory_info()
    print((after.rss - after.shared - before.rss + before.shared) / 1e6)
    del held


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in HOLD:
        hold(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
