"""Helpers of the benches: interleaved timing, tables and storage of rows."""

import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median, pstdev
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch_geometric
from rich.console import Console
from rich.table import Table

import gtpool
from gtpool.study.build_result import commit

Row = dict[str, Any]
ROOT = Path(gtpool.__file__).parents[2]
MIN_ROUNDS = 5
WIDTH = 140  # columns of a table in a file


class Timing(NamedTuple):
    """Duration of a call, in seconds."""

    median: float
    std: float
    rounds: int


def measure(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float = 1.0
) -> dict[str, float]:
    """Return the median seconds per call of each candidate; see ``measure_stages``."""
    stages = {name: (call,) for name, call in candidates.items()}
    return {
        name: taken[0].median for name, taken in measure_stages(stages, seconds=seconds).items()
    }


def measure_stages(
    candidates: Mapping[str, Sequence[Callable[[], object]]],
    *,
    seconds: float = 1.0,
    rounds: int = MIN_ROUNDS,
    enough: float = inf,
) -> dict[str, list[Timing]]:
    """Return the times of each stage of each candidate, such as a forward and a backward pass.

    Every round calls each candidate once, so that slow phases of the machine affect all of them.
    The first round is a warm-up and not counted, unless it takes long.

    Args:
        candidates: Stages of each candidate, called in order.
        seconds: Approximate total seconds per candidate.
        rounds: Minimum number of rounds.
        enough: If the first round takes more seconds than this, it is the only one and counts.
    """
    times = {name: [[_time_call(call) for call in stages]] for name, stages in candidates.items()}
    once = sum(sum(taken[0]) for taken in times.values()) > enough
    if not once:
        times = {name: list[list[float]]() for name in candidates}
    end, done = perf_counter() + seconds * len(candidates), int(once)
    while not once and (done < rounds or perf_counter() < end):
        for name, stages in candidates.items():
            times[name].append([_time_call(call) for call in stages])
        done += 1
    return {
        name: [Timing(median(stage), pstdev(stage), done) for stage in zip(*taken, strict=True)]
        for name, taken in times.items()
    }


def default_folder() -> Path:
    """Return the folder of rows: results/bench of a checkout, else a local folder."""
    checkout = (ROOT / "pyproject.toml").exists() and (ROOT / "results").is_dir()
    return ROOT / "results" / "bench" if checkout else Path("gtpool-bench")


def record(name: str, rows: Iterable[Mapping[str, Any]], folder: Path | None = None) -> list[Row]:
    """Append rows with machine and date to ``<folder>/<name>.jsonl``, and return them.

    ``device`` is the GPU if there is one; rows from another device have their own value.
    """
    folder = default_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    taken = _environment()
    whole = [{**taken, **row} for row in rows]
    with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in whole)
    return whole


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print rows under headers; the first column is text, the others are numbers."""
    shown = Table(title=title or None, title_justify="left")
    for place, header in enumerate(headers):
        shown.add_column(header, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(shown)


def _time_call(call: Callable[[], object]) -> float:
    _synchronize()
    start = perf_counter()
    call()
    _synchronize()
    return perf_counter() - start


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _environment() -> Row:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit() or "unknown",
        "device": "cuda" if gpu else "cpu",
        "cpu": _cpu(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


def _cpu() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
