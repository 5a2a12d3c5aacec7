"""All benches by name; the paper's speed table, and the training steps of its networks."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from gtpool.bench.networks import (
    TimedNetwork,
    choose_widths,
    load_batch,
    prepare_network,
    speedup,
    timing_fields,
)
from gtpool.bench.paper_speed import SIZINGS, models
from gtpool.bench.roofline import roofline_jobs
from gtpool.bench.scalability import scalability_jobs
from gtpool.bench.settings import BenchJob, BenchSettings
from gtpool.bench.timing import Row, measure_stages, record
from gtpool.study.inputs import shape_of


def speed_jobs(settings: BenchSettings) -> list[BenchJob]:
    """Return the jobs of the speed table, one per dataset and sizing."""
    return [
        BenchJob(
            "speed",
            f"{name}, {sizing}",
            _job_seconds(settings),
            partial(_speed, name, sizing, settings),
        )
        for sizing in SIZINGS
        for name in settings.sets
    ]


def step_jobs(settings: BenchSettings) -> list[BenchJob]:
    """Return the jobs of training steps at equal width, one per dataset."""
    return [
        BenchJob(
            "step", f"{name}, training step", _job_seconds(settings), partial(_step, name, settings)
        )
        for name in settings.sets
    ]


BENCHES: dict[str, Callable[[BenchSettings], list[BenchJob]]] = {
    "speed": speed_jobs,
    "step": step_jobs,
    "scalability": scalability_jobs,
    "roofline": roofline_jobs,
}


def plan_jobs(names: Sequence[str], settings: BenchSettings) -> list[BenchJob]:
    """Return the jobs of benches by name; all benches without names."""
    for name in names:
        if name not in BENCHES:
            raise ValueError(f"no bench {name!r}; there are {', '.join(BENCHES)}")
    return [job for name in dict.fromkeys(names or BENCHES) for job in BENCHES[name](settings)]


def run_job(job: BenchJob, folder: Path) -> Iterable[Row]:
    """Run the jobs, and yield each row after it is stored in the job's file."""
    for row in job.run():
        yield from record(job.what, [row], folder)


def _job_seconds(settings: BenchSettings) -> float:
    return 1 + settings.seconds * len(models(settings.device.type))


def _speed(name: str, sizing: str, settings: BenchSettings) -> Iterable[Row]:
    """Measure forward and backward; for captured networks, the step including the optimiser."""
    for row in _compare(name, settings, similar=sizing == SIZINGS[0], whole=False):
        yield {"sizing": sizing, **row}


def _step(name: str, settings: BenchSettings) -> Iterable[Row]:
    """Measure forward, backward, clip and Adam."""
    return _compare(name, settings, similar=False, whole=True)


def _compare(name: str, settings: BenchSettings, *, similar: bool, whole: bool) -> Iterable[Row]:
    known: Row = {"device": settings.device.type, "dataset": name, "batch": settings.batch}
    found = load_batch(name, settings)
    if found is None:
        why = f"not on this machine: gtpool data get {name}"
        yield from (
            known | {"model": model, "missing": why} for model in models(settings.device.type)
        )
        return
    data, index = found
    widths = choose_widths(shape_of(data), settings, similar=similar)
    entries = {
        model: prepare_network(model, data, index, width, whole=whole)
        for model, width in widths.items()
    }
    stages = {
        model: entry.stages for model, entry in entries.items() if isinstance(entry, TimedNetwork)
    }
    taken = measure_stages(stages, seconds=settings.seconds, rounds=settings.rounds)
    known |= {
        "batch": index.numel(),
        "nodes": int(data.sizes[index].sum()),
        "edges": int(data.edge_counts[index].sum()),
    }
    for model, entry in entries.items():
        row = known | {"model": model}
        if isinstance(entry, str):
            yield row | {"missing": entry}
            continue
        yield (
            row
            | {"width": entry.width, "parameters": entry.parameters}
            | timing_fields(taken[model])
            | {"speedup": speedup(model, taken)}
        )
