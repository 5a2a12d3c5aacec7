"""What Linux's /proc tells of processes; of one that is gone, nothing."""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """What is seen of a process at a time."""

    time: float
    megabytes: float
    files: int
    """That it has open."""


def children(parent: int) -> list[int]:
    """List the processes that a process has started and that still run."""
    return [pid for pid in _all() if _parent(pid) == parent and not gone(pid)]


def marked(entry: str) -> list[int]:
    """List the processes that were started with a variable, given as NAME=value."""
    return [pid for pid in _all() if entry.encode() in read(pid, "environ").split(b"\0")]


def gone(pid: int) -> bool:
    """Say whether a process has ended, waited for or not."""
    stat = _stat(pid)
    return not stat or stat[0] == b"Z"


def look(pid: int) -> Seen:
    """Look at a process; raises a FileNotFoundError or ProcessLookupError where there is none."""
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    for line in read(pid, "status").decode().splitlines():
        if line.startswith("VmRSS"):
            return Seen(time.time(), int(line.split()[1]) * 1024 / 1e6, files)
    raise ProcessLookupError(pid)


def flatness(lives: Sequence[Sequence[Seen]]) -> dict[str, Any]:
    """Say how much processes have, and by how much that grows in a minute of their lives."""
    if not lives:
        return {"lives": 0}
    _, sizes, files = zip(*(seen for life in lives for seen in life), strict=True)
    seconds, *values = zip(*(seen for life in lives for seen in _centred(life)), strict=True)
    slopes = [linear_regression(seconds, part, proportional=True).slope for part in values]
    return {
        "lives": len(lives),
        "longest_s": round(max(life[-1].time - life[0].time for life in lives)),
        "mb": [round(min(sizes)), round(max(sizes))],
        "mb_a_minute": round(60 * slopes[0], 3),
        "files": [min(files), max(files)],
        "files_a_minute": round(60 * slopes[1], 3),
    }


def _centred(life: Sequence[Seen]) -> list[list[float]]:
    """Take off the means of a life, so that lives of different levels have one slope."""
    means = [fmean(column) for column in zip(*life, strict=True)]
    return [[value - mean for value, mean in zip(seen, means, strict=True)] for seen in life]


def read(pid: int, name: str) -> bytes:
    """Read a file of /proc about a process."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _all() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _parent(pid: int) -> int | None:
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def _stat(pid: int) -> list[bytes]:
    """Give state, parent and more of a process."""
    return read(pid, "stat").rpartition(b")")[2].split()
