"""All benches by name."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gtpool.speed.clock import Row, record
from gtpool.speed.plan import Job, Settings
from gtpool.speed.roofline import roofline_jobs
from gtpool.speed.scalability import scalability_jobs
from gtpool.speed.table import speed_jobs, step_jobs

BENCHES: dict[str, Callable[[Settings], list[Job]]] = {
    "speed": speed_jobs,
    "step": step_jobs,
    "scalability": scalability_jobs,
    "roofline": roofline_jobs,
}


def plan_jobs(names: Sequence[str], settings: Settings) -> list[Job]:
    """List what is to be measured; no names mean all benches."""
    for name in names:
        if name not in BENCHES:
            raise ValueError(f"no bench {name!r}; there are {', '.join(BENCHES)}")
    return [job for name in dict.fromkeys(names or BENCHES) for job in BENCHES[name](settings)]


def run_job(job: Job, folder: Path) -> Iterable[Row]:
    """Measure, and give each row once it is in the job's file."""
    for row in job.run():
        yield from record(job.what, [row], folder)
