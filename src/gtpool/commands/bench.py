"""`gtpool bench`: measure the paper's speed and scalability tables on this machine."""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gtpool.commands.options import Device

if TYPE_CHECKING:
    from gtpool.bench.settings import BenchJob


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="Benchmarks: speed, step, scalability, roofline. (default: all)",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to append to. (default: results/bench if it exists, else gtpool-bench)"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, as a smoke test.")] = False,
) -> None:
    """Time GTPool-V and SAGPool_h, TopKPool, ASAP and GMT of PyG on this machine.

    Each measurement is stored at once, so Ctrl-C loses only the current one.
    Datasets are not downloaded; use `gtpool data get NAME`.
    """
    from gtpool.bench.baselines import ignore_asap_warnings
    from gtpool.bench.bench_tables import BENCH_TABLES
    from gtpool.bench.benches import plan_jobs, run_job
    from gtpool.bench.settings import BenchSettings
    from gtpool.bench.timing import Row, default_folder, print_table
    from gtpool.study.run_one import choose_device

    ignore_asap_warnings()
    jobs = plan_jobs(what or [], BenchSettings.of(choose_device(device), quick=quick))
    folder = default_folder() if out is None else out
    rows: dict[str, list[Row]] = {}
    stopped = False
    try:
        for job in _watched(jobs):
            for row in run_job(job, folder):
                rows.setdefault(job.what, []).append(row)
    except KeyboardInterrupt:
        stopped = True
    for name, measured in rows.items():
        for sheet in BENCH_TABLES[name](measured):
            print_table(sheet.headings, sheet.lines, sheet.title)
    typer.echo(f"{sum(map(len, rows.values()))} rows added to {folder}")
    if stopped:
        typer.secho("gtpool: interrupted; finished measurements are stored", err=True, fg="yellow")
        raise typer.Exit(1)


def _watched(jobs: "list[BenchJob]") -> "Generator[BenchJob]":
    """Yield the jobs with a progress bar, or one line per job outside a terminal."""
    from time import monotonic

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from gtpool.report.progress import format_seconds

    console, began, done = Console(stderr=True), monotonic(), 0.0
    total = sum(job.work for job in jobs)
    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        for number, job in enumerate(jobs, 1):
            # The first jobs also load data: 30 s at the expected pace steady the estimate.
            pace = (monotonic() - began + 30) / (done + 30)
            left = pace * (total - done)
            line = f"{number} of {len(jobs)}: {job.title}, about {format_seconds(left)} left"
            bar.update(task, completed=done, description=line)
            if not console.is_terminal:
                console.print(line, highlight=False, soft_wrap=True)
            yield job
            done += job.work
