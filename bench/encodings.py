"""Time structural encodings: all graphs of each dataset, and one large graph with its memory.

Nothing comes from the cache. The number of threads may be given; it is one by default.
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from gtpool.bench.timing import print_table, record
from gtpool.data.encodings import encode_nodes
from gtpool.data.registry import DATASETS
from gtpool.data.sources import load

ENCODINGS = ("rwse:16", "lappe:8", "cycles", "degree")
SPARSE = "cycles:8"
"""Timed on molecules alone: other datasets are too dense."""
SETS = tuple(DATASETS) if "GTPOOL_DATA" in os.environ else ("MUTAG", "B3DB", "long-range")
LARGE, DEGREE = 100_000, 4
MEGABYTE = 1024**2


def main() -> None:
    """Measure, print a table, append the rows to results/bench/encodings.jsonl."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    rows = [row for name in SETS for row in _time_dataset(name)]
    rows += [_weigh_alone(encode) for encode in ("rwse:16", "cycles", "degree")]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    record("encodings", rows)


def _time_dataset(name: str) -> list[dict[str, object]]:
    data = load(name)
    molecules = DATASETS[name].family in {"OGB", "embedded"}
    encodings = (*ENCODINGS, SPARSE) if molecules else ENCODINGS
    rows: list[dict[str, object]] = []
    for encode in encodings:
        spent = _seconds(encode, data.edge_index, data.sizes, data.edge_counts)
        rows.append(
            {
                "dataset": name,
                "encode": encode,
                "graphs": len(data),
                "cpu_seconds": round(spent, 3),
                "peak_mb": None,
            }
        )
    return rows


def _seconds(encode: str, edges: Tensor, sizes: Tensor, counts: Tensor) -> float:
    """Return the processor seconds of one encoding."""
    start = process_time()
    with catch_warnings():
        simplefilter("ignore")  # that a large graph gets an estimate
        encode_nodes([encode], edges, sizes, counts, "bench")
    return process_time() - start


def _weigh_alone(encode: str) -> dict[str, object]:
    with ProcessPoolExecutor(1, get_context("spawn")) as own:
        return own.submit(_weigh, encode, torch.get_num_threads()).result()


def _weigh(encode: str, threads: int) -> dict[str, object]:
    """Return time and growth of the peak of this process, for a random graph."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(LARGE, (2, LARGE * DEGREE // 2), generator=generator)
    edges = torch.cat([half, half.flip(0)], 1)
    _seconds(encode, edges[:, :8] % 8, torch.tensor([8]), torch.tensor([8]))  # loads what it needs
    before = _peak()
    spent = _seconds(encode, edges, torch.tensor([LARGE]), torch.tensor([edges.size(1)]))
    return {
        "dataset": f"random graph, {LARGE:,} nodes, mean degree {DEGREE}",
        "encode": encode,
        "graphs": 1,
        "cpu_seconds": round(spent, 3),
        "peak_mb": round((_peak() - before) / MEGABYTE, 1),
    }


def _peak() -> int:
    """Return the most bytes of this process so far; Linux alone tells."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
