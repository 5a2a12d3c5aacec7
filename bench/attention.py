"""Time the attention back-ends side by side, and weigh them: many small graphs to one large one.

A step is forward and backward through ``out`` in float32. Memory is the growth of the peak of a
process of its own that takes two such steps.
"""

import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from time import perf_counter

import torch
from torch import Tensor

from gtpool.bench.timing import measure, print_table, record
from gtpool.ops.attention import AttentionBackend, attend

NAMES = ("reference", "padded", "fused", "auto")
WIDTH = 128
HEADS = (1, 4)
SECONDS = 0.25
LARGE = 20_000
"""Nodes from which only two steps are timed, and the reference is left out."""
PROTEINS = torch.empty(128).log_normal_(3.38, 0.75, generator=torch.Generator().manual_seed(0))
CASES = {
    "225 graphs of 20": [20] * 225,
    "90 graphs of 50": [50] * 90,
    "45 graphs of 100": [100] * 45,
    "9 graphs of 500": [500] * 9,
    "1 graph of 2,000": [2_000],
    "1 graph of 20,000": [LARGE],
    "128 graphs like PROTEINS": PROTEINS.round().clamp(4, 620).int().tolist(),
}


def main() -> None:
    """Measure every case, print two tables, append the rows to results/bench/attention.jsonl."""
    kept, shown = [], []
    for case, sizes in CASES.items():
        for heads in HEADS:
            cells = _measure(sizes, heads)
            kept += [
                {"case": case, "nodes": sum(sizes), "heads": heads, "backend": name, **cell}
                for name, cell in cells.items()
            ]
            shown.append((case, heads, cells))
    record("attention", [{"width": WIDTH, "device": "cpu", **row} for row in kept])
    print("ms a step")
    rows = [(*key, *_columns(cells, "ms"), _ratio(cells)) for *key, cells in shown]
    print_table(["case", "heads", *NAMES, "auto / best"], rows)
    print("MB at the peak")
    print_table(
        ["case", "heads", *NAMES], [(*key, *_columns(cells, "mb")) for *key, cells in shown]
    )
    print(f"- left out: n x n weights of {LARGE:,} nodes, held by autograd, need several GB")


def _measure(sizes: list[int], heads: int) -> dict[str, dict[str, float]]:
    """Give the milliseconds and megabytes of each back-end; none for one left out."""
    large = max(sizes) >= LARGE
    names = [name for name in NAMES if not (large and name == "reference")]
    context = get_context("forkserver")
    context.set_forkserver_preload([attend.__module__, "torch_geometric"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        weighed = [processes.submit(_weigh, name, sizes, heads).result() for name in names]
    cells = {name: {"ms": ms, "mb": mb} for name, (ms, mb) in zip(names, weighed, strict=True)}
    if not large:
        batch = _batch(sizes, heads)
        taken = measure({name: partial(_step, name, *batch) for name in names}, seconds=SECONDS)
        for name, seconds in taken.items():
            cells[name]["ms"] = round(1e3 * seconds, 3)
    return cells


def _weigh(backend: AttentionBackend, sizes: list[int], heads: int) -> tuple[float, float]:
    """Give the milliseconds of the better of two steps, and the megabytes they add to the peak."""
    _step(backend, *_batch([30, 300], heads))  # what torch sets up once
    batch = _batch(sizes, heads)
    before, taken = _peak(), []
    for _ in range(2):
        start = perf_counter()
        _step(backend, *batch)
        taken.append(perf_counter() - start)
    return round(1e3 * min(taken), 3), round(_peak() - before, 1)


def _peak() -> float:
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _batch(sizes: list[int], heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k and v, [3, N, H, C], and the gradient of out; give them and ptr."""
    drawn = torch.randn(4, sum(sizes), heads, WIDTH // heads)
    return drawn[:3], drawn[3], torch.tensor([0, *sizes]).cumsum(0)


def _step(backend: AttentionBackend, heads_of: Tensor, d_out: Tensor, ptr: Tensor) -> None:
    q, k, v = (part.requires_grad_() for part in heads_of)
    out, _ = attend(q, k, v, ptr, backend=backend)
    torch.autograd.grad(out, (q, k, v), d_out)


def _columns(cells: dict[str, dict[str, float]], unit: str) -> list[str]:
    return [f"{cells[name][unit]:.1f}" if name in cells else "-" for name in NAMES]


def _ratio(cells: dict[str, dict[str, float]]) -> str:
    return f"{cells['auto']['ms'] / min(cell['ms'] for cell in cells.values()):.2f}"


if __name__ == "__main__":
    main()
