"""Settings and jobs of the benchmarks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch

from gtpool.bench.paper_speed import CAP_GB, DENSITIES, NODES, SPEED_DATASETS
from gtpool.bench.timing import Row


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The sizes of a bench; the defaults are those of the paper's tables."""

    device: torch.device
    sets: tuple[str, ...] = SPEED_DATASETS
    batch: int = 128
    width: int = 128
    seconds: float = 1.5
    """Seconds per candidate."""
    rounds: int = 5
    """Least number of rounds of a race."""
    nodes: tuple[int, ...] = NODES
    densities: tuple[float, ...] = DENSITIES
    graphs: int = 1
    """Graphs of a batch of the scalability table; the paper does not say how many it took."""
    limit: float = 60.0
    """Seconds after which a cell of the scalability table is given up, on a CPU."""
    caps: tuple[float | None, ...] = (None,)
    """Gigabytes that the scalability table may have, on a GPU; None: all there are."""

    @classmethod
    def of(cls, device: torch.device, *, quick: bool = False) -> Self:
        """Choose the sizes for a device; ``quick`` takes small ones that show that all works.

        A GPU gets eight graphs a batch, with which PyG's SAGPool_h leaves the paper's 11 GB about
        where the paper says so.
        """
        gpu = device.type == "cuda"
        if quick:
            return cls(
                device=device,
                sets=("MUTAG",),
                batch=16,
                width=16,
                seconds=0.0,
                rounds=2,
                nodes=(20, 30),
                densities=(0.2,),
                caps=(None, CAP_GB) if gpu else (None,),
            )
        return cls(device=device, graphs=8, caps=(None, CAP_GB)) if gpu else cls(device=device)


class BenchJob(NamedTuple):
    """A part of a bench that is measured in one call."""

    what: str
    """Name of the file of its rows, without suffix."""
    title: str
    work: float
    """Approximate seconds, to estimate the time left."""
    run: Callable[[], Iterable[Row]]
