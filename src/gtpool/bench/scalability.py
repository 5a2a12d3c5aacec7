"""The paper's scalability table: Erdős–Rényi graphs, time and peak memory of forward and backward.

On a CPU each cell runs in a separate process with a time limit; its memory is the increase of the
peak of that process. On a GPU it is the peak of allocated memory, including batch and weights. A
cell is skipped if one with at most its nodes and density failed.
"""

import gc
import resource
import signal
from collections.abc import Iterable
from functools import lru_cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from gtpool.bench.baselines import ignore_asap_warnings
from gtpool.bench.networks import TimedNetwork, prepare_network, timing_fields
from gtpool.bench.paper_speed import scaled_models
from gtpool.bench.settings import BenchJob, BenchSettings
from gtpool.bench.timing import Row, measure_stages
from gtpool.data.dataset import GraphDataset
from gtpool.data.synthetic import erdos_renyi

MEMORY_FULL = "out of memory"
_BESIDE = 2  # graphs beside the batch: a captured step is made from a whole split
_ENOUGH = 3.0  # seconds of a pass that need not be repeated
_SECONDS = {"ASAP": 30.0, "GMT": 10.0}
"""Of a cell of a million edges on a CPU, roughly; the others need half as long as GMT."""


class ScalabilityCase(NamedTuple):
    """One cell of the table."""

    model: str
    nodes: int
    density: float
    cap_gb: float | None

    @property
    def title(self) -> str:
        """Name the cell."""
        cap = "" if self.cap_gb is None else f", {self.cap_gb:g} GB"
        return f"{self.nodes} nodes, {self.density:.0%}, {self.model}{cap}"


_Failed = dict[ScalabilityCase, str]


def scalability_jobs(settings: BenchSettings) -> list[BenchJob]:
    """List the cells of the table, from small to large."""
    failed: _Failed = {}
    cells = [
        ScalabilityCase(model, nodes, density, cap)
        for cap in settings.caps
        for nodes in settings.nodes
        for density in settings.densities
        for model in scaled_models(settings.device.type)
    ]
    return [
        BenchJob(
            "scalability",
            cell.title,
            _job_seconds(settings, cell),
            partial(_run_case, settings, cell, failed),
        )
        for cell in cells
    ]


def _job_seconds(settings: BenchSettings, cell: ScalabilityCase) -> float:
    million = settings.graphs * cell.density * cell.nodes**2 / 1e6
    return 1 + million * _SECONDS.get(cell.model, 5.0) / (
        30 if settings.device.type == "cuda" else 1
    )


def _run_case(settings: BenchSettings, cell: ScalabilityCase, failed: _Failed) -> Iterable[Row]:
    """Measure one cell, unless a cell of at most its size failed."""
    known: Row = {"device": settings.device.type, "graphs": settings.graphs, **cell._asdict()}
    known["width"] = settings.width
    for smaller, why in failed.items():
        same = smaller[::3] == cell[::3]  # network and cap
        if same and smaller.nodes <= cell.nodes and smaller.density <= cell.density:
            yield known | {"missing": why, "tried": False}
            return
    found = (_run_on_gpu if settings.device.type == "cuda" else _run_on_cpu)(settings, cell)
    if "missing" in found:
        failed[cell] = found["missing"]
    yield known | found


def _run_on_gpu(settings: BenchSettings, cell: ScalabilityCase) -> Row:
    gc.collect()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(settings.device).total_memory
    share = 1.0 if cell.cap_gb is None else min(1.0, 1e9 * cell.cap_gb / whole)
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        torch.cuda.reset_peak_memory_stats()
        entry = _prepare(settings, cell)
        for stage in entry.stages if isinstance(entry, TimedNetwork) else ():
            stage()  # kernels are compiled at their first use
        found = _time_case(settings, cell, entry, seconds=0.3)
    except (MemoryError, RuntimeError) as error:
        return {"missing": _reason(error)}
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return found | {"peak_mb": round(torch.cuda.max_memory_allocated() / 1e6, 1)}


def _run_on_cpu(settings: BenchSettings, cell: ScalabilityCase) -> Row:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_run_in_child, args=(there, settings, cell, torch.get_num_threads()), daemon=True
    )
    process.start()
    there.close()
    try:
        if not here.poll(settings.limit):
            return {"missing": f"over {settings.limit:g} s"}
        return here.recv()
    except EOFError:
        return {"missing": "its process died, perhaps for want of memory"}
    finally:
        process.kill()
        process.join()


def _run_in_child(
    end: Connection, settings: BenchSettings, cell: ScalabilityCase, threads: int
) -> None:
    """Measure a cell in this process, and send the result."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it
    ignore_asap_warnings()
    torch.set_num_threads(threads)
    _limit_memory()
    try:
        end.send(_measure_cpu(settings, cell))
    except (MemoryError, RuntimeError) as error:
        end.send({"missing": _reason(error)})


def _reason(error: MemoryError | RuntimeError) -> str:
    """Return why a cell failed; cuSPARSE, used by ASAP, reports lack of memory differently."""
    said = str(error).strip().partition("\n")[0]
    signs = ("out of memory", "allocate memory", "insufficient resources", "bad_alloc")
    full = isinstance(error, MemoryError) or any(sign in said for sign in signs)
    return MEMORY_FULL if full else f"failed: {said[:80]}"


def _measure_cpu(settings: BenchSettings, cell: ScalabilityCase) -> Row:
    small = cell._replace(nodes=30)
    _time_case(settings, small, _prepare(settings, small), seconds=0.0)  # what torch sets up once
    ready = _prepare(settings, cell)
    peak = Path("/proc/self/clear_refs")
    if peak.exists():
        peak.write_text("5", encoding="ascii")  # the peak starts from here
    before = _read_memory("VmHWM")
    found = _time_case(settings, cell, ready, seconds=1.0)
    after = _read_memory("VmHWM")
    if before is None or after is None:
        return found
    return found | {"peak_mb": round((after - before) / 1e6, 1)}


def _prepare(settings: BenchSettings, cell: ScalabilityCase) -> TimedNetwork | str:
    data = _graphs(settings.graphs + _BESIDE, cell.nodes, cell.density).to(settings.device)
    return prepare_network(cell.model, data, torch.arange(settings.graphs), settings.width)


def _time_case(
    settings: BenchSettings, cell: ScalabilityCase, entry: TimedNetwork | str, *, seconds: float
) -> Row:
    if isinstance(entry, str):
        return {"missing": entry}
    stages = {cell.model: entry.stages}
    taken = measure_stages(stages, seconds=seconds, rounds=2, enough=_ENOUGH)[cell.model]
    data = _graphs(settings.graphs + _BESIDE, cell.nodes, cell.density)
    edges = int(data.edge_counts[: settings.graphs].sum())
    return {"edges": edges, "parameters": entry.parameters, **timing_fields(taken)}


@lru_cache(1)
def _graphs(graphs: int, nodes: int, density: float) -> GraphDataset:
    return erdos_renyi(graphs, nodes, density)


def _limit_memory() -> None:
    """Limit the address space, so that allocations fail before the machine runs out of memory."""
    used, free = _read_memory("VmSize"), _read_memory("MemAvailable", Path("/proc/meminfo"))
    if used is not None and free is not None:
        most = used + int(0.9 * free)
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _read_memory(name: str, listing: Path = Path("/proc/self/status")) -> int | None:
    """Return a memory value of the system in bytes; None if missing, as on other than Linux."""
    lines = listing.read_text(encoding="ascii").splitlines() if listing.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return 1024 * found[0] if found else None
