"""Memory estimates of pooling steps, to raise an error instead of running out of memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from gtpool.ops.attention_linear import ALIGN
from gtpool.ops.entry import no_compile

CHECK_FROM_NODES, CHECK_FROM_EDGES = 50_000, 2_000_000
"""Batches below both limits are not checked, because a query of free memory takes time."""
_CHECK_FROM_BYTES = 100_000_000  # smaller requests are not checked

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def memory_needed(
    nodes: int,
    edges: int,
    width: int,
    heads: int,
    *,
    attention: Literal["exact", "linear"],
    training: bool,
    itemsize: int = 4,
) -> int:
    """Return an estimate of GTPool's peak memory in bytes, without its input and weights.

    Both kinds of attention are linear in nodes and edges; "linear" is faster, not smaller.

    Args:
        nodes: N, of the whole batch.
        edges: E, of the whole batch.
        width: D.
        heads: H.
        attention: Kind of attention.
        training: Whether a backward pass follows.
        itemsize: Bytes per number; the layer computes with at least 4.

    Example:
        >>> memory_needed(20_000, 400_000, 128, 1, attention="exact", training=True) // 2**20
        167
    """
    columns = width if attention == "exact" else width + ALIGN * heads
    # Tensors [N, D] and [E, H], and pairs of int64 for the ends of edges. Fitted to peak memory of
    # a step on a CPU in float32: 5,000 to 200,000 nodes of degree 20, 100 and 200, width 64 and
    # 128, 1 and 4 heads, both kinds, with and without a gate. The estimate is 0.7 to 1.7 times the
    # measurement: too low with a gate, too high without.
    of_nodes, of_edges = (15, 6) if training else (9, 3)
    number = max(itemsize, 4)
    return number * (of_nodes * nodes * columns + of_edges * edges * heads) + 2 * 16 * edges


@no_compile
def check_fits(
    nodes: int,
    edges: int,
    width: int,
    heads: int,
    *,
    attention: Literal["exact", "linear"],
    training: bool,
    device: torch.device,
    itemsize: int = 4,
) -> None:
    """Raise a ValueError if ``memory_needed`` exceeds free memory; small batches always pass."""
    if nodes < CHECK_FROM_NODES and edges < CHECK_FROM_EDGES:
        return
    free = free_memory(device)
    wanted = memory_needed(
        nodes, edges, width, heads, attention=attention, training=training, itemsize=itemsize
    )
    if free is None or wanted <= free:
        return
    least = ", or run it without gradients" if training else ""
    raise ValueError(
        f"pooling {nodes:,} nodes and {edges:,} edges at width {width} with {heads} head(s) needs "
        f"about {_gigabytes(wanted)}, but {_gigabytes(free)} are free on {device}; take fewer "
        f"graphs at a time, drop edges, make the layer narrower{least}"
    )


def free_memory(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if unknown.

    On a GPU this queries the driver.
    """
    if device.type == "cuda":
        return _free_on_cuda(device)
    if device.type != "cpu":
        return None
    rooms = [*_available(), *_cgroup_free()]
    return min(rooms) if rooms else None


def check_memory(wanted: int, what: str, instead: str, device: torch.device | None = None) -> None:
    """Raise a ValueError "``what`` … GB of memory …; ``instead``" if too few bytes are free."""
    free = free_memory(device or torch.device("cpu")) if wanted >= _CHECK_FROM_BYTES else None
    if free is not None and wanted > free:
        raise ValueError(
            f"{what} {wanted / 1e9:,.1f} GB of memory, but {free / 1e9:.1f} GB are free; {instead}"
        )


def _free_on_cuda(device: torch.device) -> int | None:
    if torch.cuda.is_current_stream_capturing():
        return None  # a captured step has already run in warm-up
    # "cuda" without an index is the current device; the memory fraction needs an index.
    number = torch.cuda.current_device() if str(device) == "cuda" else device.index
    free, total = torch.cuda.mem_get_info(number)
    held = torch.cuda.memory_allocated(number)
    free += torch.cuda.memory_reserved(number) - held  # torch's cache
    share = torch.cuda.get_per_process_memory_fraction(number)
    return min(free, int(share * total) - held)


def _available() -> Iterator[int]:
    """Yield the memory available without swapping, on Linux."""
    listing = PROC / "meminfo"
    lines = listing.read_text(encoding="ascii").splitlines() if listing.exists() else []
    yield from (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _cgroup_free() -> Iterator[int]:
    """Yield the free memory under the limits of this process's control group and its parents."""
    listing = PROC / "self" / "cgroup"
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):  # version 1
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = CGROUPS / "memory"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for part in (group, *group.parents):
            yield from _free_in_cgroup(root / part, *names)


def _free_in_cgroup(folder: Path, limit: str, usage: str, cached: str) -> Iterator[int]:
    """Yield the limit of a group minus its usage, without reclaimable page cache."""
    try:
        most = (folder / limit).read_text(encoding="ascii").strip()
        used = int((folder / usage).read_text(encoding="ascii"))
        stats = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:  # a group without limits, or not visible inside a container
        return
    if most != "max":
        spare = sum(int(line.split()[1]) for line in stats if line.split()[0] == cached)
        yield max(0, int(most) - used + spare)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
