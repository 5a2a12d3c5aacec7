"""Products of stacked matrices on a GPU: torch's beside the Triton kernels, by tile.

Run on a GPU: `python bench/products.py`. Errors are relative to float64.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gtpool.bench.timing import print_table, record
from gtpool.ops.kernels.product import ProductConfig, multiply, multiply_split

SHAPES = ((30, 7168, 128, 384), (30, 3648, 256, 128), (1, 6400, 128, 384), (1, 3264, 128, 256))
"""Runs, rows, inputs, outputs."""
TILES = (
    ProductConfig(128, 64, 32, 4, 3),
    ProductConfig(64, 128, 32, 4, 3),
    ProductConfig(128, 128, 32, 8, 3),
    ProductConfig(64, 64, 32, 4, 3),
)
HEADINGS = ["product", "shape", "by", "ms", "T/s", "error"]


def main() -> None:
    """Measure, print a table, append the rows to results/bench/products.jsonl."""
    rows: list[dict[str, object]] = []
    for runs, count, inputs, outputs in SHAPES:
        torch.manual_seed(runs)
        x = torch.randn(runs, count, inputs, device="cuda")
        weight = torch.randn(runs, outputs, inputs, device="cuda") / inputs**0.5
        sent = torch.randn(runs, count, outputs, device="cuda")
        for name, left, right, ours in (
            ("output", x, weight.mT, multiply),
            ("gradient of rows", sent, weight, multiply),
            ("gradient of weights", sent.mT, x, multiply_split),
        ):
            calls: dict[str, Callable[[], Tensor]] = {"torch": partial(torch.bmm, left, right)}
            calls |= {
                f"{tile.rows} x {tile.columns}": partial(ours, left, right, tile) for tile in TILES
            }
            exact = torch.bmm(left[:2].double(), right[:2].double())
            work = 2 * runs * count * inputs * outputs
            for by, call in calls.items():
                error = (call()[:2] - exact).norm() / exact.norm()
                taken = _time(call)
                rows.append(
                    {
                        "device": "cuda",
                        "product": name,
                        "shape": f"{runs} x {count} x {inputs} x {outputs}",
                        "by": by,
                        "ms": round(taken, 4),
                        "tera": round(work / taken / 1e9, 1),
                        "error": float(f"{error.item():.2g}"),
                    }
                )
    print_table(HEADINGS, [[row[key] for key in list(row)[1:]] for row in rows])
    record("products", rows)


def _time(call: Callable[[], Tensor], seconds: float = 0.05) -> float:
    """Return the milliseconds of a call in a CUDA graph of ten, the median of replays."""
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    times: list[float] = []
    while sum(times) < 1e3 * seconds or len(times) < 5:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2] / 10


if __name__ == "__main__":
    main()
