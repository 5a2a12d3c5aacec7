"""Time and weigh the layer on one large graph, exact attention and linear, forward and backward.

Nodes have a mean degree of 20. Each case runs in a process of its own, so that its peak is its own,
and is given up after a time limit, which its row then says. A step is forward and backward through
the pooled features; memory is what a step adds to the peak. The exponents are those of a power of
the number of nodes, fitted to the cases of a kind.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from math import log
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import linear_regression
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpool.bench.timing import print_table, record
from gtpool.pool.gtpool import GTPool

WIDTH, DEGREE = 128, 20
LIMIT = 120.0
"""Seconds after which a case is given up."""
STEPS = 3
ENOUGH = 20.0
"""Seconds of steps after which a case takes no other."""
SIZES = {
    ("cpu", "exact"): (5_000, 10_000, 20_000),
    ("cpu", "linear"): (50_000, 100_000, 200_000),
    ("cuda", "exact"): (5_000, 20_000, 100_000),
    ("cuda", "linear"): (100_000, 300_000, 1_000_000),
}
HEADS = {
    ("cpu", "exact"): (1,),
    ("cpu", "linear"): (4,),
    ("cuda", "exact"): (1,),
    ("cuda", "linear"): (1, 4),
}
PRECISIONS = {"cpu": ("float32",), "cuda": ("float32", "bf16 autocast")}
MEGABYTE = 2**20


class Case(NamedTuple):
    """One graph and how the layer sees it."""

    device: str
    attention: str
    heads: int
    precision: str
    nodes: int


def main() -> None:
    """Measure every case, print a table, append the rows to results/bench/large.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--out", type=Path, help="folder of the rows (results/bench)")
    given = parser.parse_args()
    shared = {"width": WIDTH, "degree": DEGREE, "threads": given.threads}
    rows: list[dict[str, Any]] = []
    for cases in _kinds(given.device):
        kind = [case._asdict() | _in_own_process(case, given.threads) for case in cases]
        exponents = _exponents(kind)
        record("large", [shared | row | exponents for row in kind], given.out)
        rows += kind
        print(f"{_name(cases[0])}: memory ~ n^{exponents['memory_exponent']}, ", end="")
        print(f"time ~ n^{exponents['time_exponent']}", flush=True)
    print(f"one graph of mean degree {DEGREE}, width {WIDTH}, on {given.device}")
    headers = ["attention", "heads", "precision", "nodes", "forward, s", "backward, s", "peak, MB"]
    keys = ("attention", "heads", "precision", "nodes", "forward_s", "backward_s", "peak_mb")
    print_table([*headers, "note"], [[*(row[key] for key in keys), row["note"]] for row in rows])


def _kinds(device: str) -> Iterator[list[Case]]:
    """Give the cases that differ in nodes alone, together."""
    for attention in ("exact", "linear"):
        sizes = SIZES[device, attention]
        for heads, precision in product(HEADS[device, attention], PRECISIONS[device]):
            yield [Case(device, attention, heads, precision, nodes) for nodes in sizes]


def _name(case: Case) -> str:
    return f"{case.attention} attention, {case.heads} head(s), {case.precision}"


def _in_own_process(case: Case, threads: int) -> dict[str, Any]:
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_weigh, args=(case, threads, sender))
    nothing = {"forward_s": None, "backward_s": None, "peak_mb": None}
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    try:
        if not receiver.poll(LIMIT):
            return {**nothing, "note": f"more than {LIMIT:.0f} s"}
        return {**receiver.recv(), "note": ""}
    except EOFError:
        process.join()
        return {**nothing, "note": f"ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _weigh(case: Case, threads: int, sender: Connection) -> None:
    """Send the seconds of the quickest of a few steps, and the megabytes they add to the peak."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    pool = GTPool(WIDTH, heads=case.heads, attention=case.attention).to(case.device)
    _step(pool, case, *_graph(1_000, case.device))  # what torch sets up once
    graph = _graph(case.nodes, case.device)
    before, taken = _start_of_peak(case.device), []
    while len(taken) < STEPS and sum(map(sum, taken)) < ENOUGH:
        taken.append(_step(pool, case, *graph))
    forward, backward = min(taken, key=sum)
    peak = (_peak(case.device) - before) / MEGABYTE
    sender.send(
        {
            "forward_s": round(forward, 4),
            "backward_s": round(backward, 4),
            "peak_mb": round(peak, 1),
        }
    )


def _graph(nodes: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(nodes, (2, nodes * DEGREE // 2), generator=generator)
    x = torch.randn(nodes, WIDTH, generator=generator).to(device).requires_grad_()
    return x, torch.cat([half, half.flip(0)], 1).to(device)


def _step(pool: GTPool, case: Case, x: Tensor, edge_index: Tensor) -> tuple[float, float]:
    """Give the seconds of the forward and of the backward pass."""
    x.grad = None
    pool.zero_grad()
    start = _now(case.device)
    with torch.autocast(case.device, torch.bfloat16, enabled=case.precision != "float32"):
        out = pool(x, edge_index).x
    middle = _now(case.device)
    out.sum().backward()
    return middle - start, _now(case.device) - middle


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter()


def _start_of_peak(device: str) -> int:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak(device)


def _peak(device: str) -> int:
    """Give the most bytes so far; of a CPU Linux alone tells."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _exponents(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Fit powers of the number of nodes to the peaks and the times of a kind of case."""
    done = [row for row in rows if row["peak_mb"]]
    if len(done) < 2:
        return {"memory_exponent": None, "time_exponent": None}
    nodes = [log(row["nodes"]) for row in done]
    peaks = [log(row["peak_mb"]) for row in done]
    times = [log(row["forward_s"] + row["backward_s"]) for row in done]
    return {
        "memory_exponent": round(linear_regression(nodes, peaks).slope, 2),
        "time_exponent": round(linear_regression(nodes, times).slope, 2),
    }


if __name__ == "__main__":
    main()
