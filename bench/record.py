"""What every bench shares: time candidates side by side, print a table, keep the rows."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch_geometric
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "bench"
MIN_ROUNDS = 5
WIDTH = 140  # of a table that goes to a file


def measure(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float = 1.0
) -> dict[str, float]:
    """Give the median seconds a call of each candidate takes.

    Every round calls each candidate once, so that a slow spell of the machine meets them all.
    Rounds go on for about ``seconds`` a candidate; a first round warms up and is not counted.
    """
    for call in candidates.values():
        _time(call)
    times: dict[str, list[float]] = {name: [] for name in candidates}
    end = perf_counter() + seconds * len(candidates)
    rounds = 0
    while rounds < MIN_ROUNDS or perf_counter() < end:
        for name, call in candidates.items():
            times[name].append(_time(call))
        rounds += 1
    return {name: median(taken) for name, taken in times.items()}


def record(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append the rows, with where and when they were taken, to results/bench/<name>.jsonl.

    ``device`` is the GPU where there is one; a row that ran on another device says so itself.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    taken = _circumstances()
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({**taken, **row}) + "\n" for row in rows)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headers; the first column is text, the others are numbers."""
    shown = Table()
    for place, header in enumerate(headers):
        shown.add_column(header, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(shown)


def _time(call: Callable[[], object]) -> float:
    _wait()
    start = perf_counter()
    call()
    _wait()
    return perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _circumstances() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "device": "cuda" if gpu else "cpu",
        "cpu": _cpu(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


def _commit() -> str:
    """Name the commit, '-dirty' when anything but results differs; a copy without git has none."""
    if not (ROOT / ".git").exists():
        return "unknown"
    changed = _git("status", "--porcelain", "--", ".", ":!results")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8"
    )
    return done.stdout.strip()


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
