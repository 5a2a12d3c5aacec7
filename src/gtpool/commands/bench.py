"""`gtpool bench`: the paper's speed and scalability tables, measured on this machine."""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gtpool.commands.options import Device

if TYPE_CHECKING:
    from gtpool.bench.plan import Job


def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="speed, step, scalability or roofline. (all)", show_default=False),
    ] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Where rows are appended. (results/bench, else gtpool-bench)"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes that show that all works: no figures.")
    ] = False,
) -> None:
    """Time GTPool-V beside PyG's SAGPool_h, TopKPool, ASAP and GMT, on this machine.

    Rows are kept as they are measured, so Ctrl-C loses only what is on its way.
    Datasets are not downloaded: `gtpool data get NAME` does that.
    """
    from gtpool.bench.benches import plan_jobs, run_job
    from gtpool.bench.clock import Row, default_folder, table
    from gtpool.bench.plan import Settings
    from gtpool.bench.rivals import hush_asap
    from gtpool.bench.show import SHEETS
    from gtpool.study.run_one import choose_device

    hush_asap()
    jobs = plan_jobs(what or [], Settings.of(choose_device(device), quick=quick))
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
        for sheet in SHEETS[name](measured):
            table(sheet.headings, sheet.lines, sheet.title)
    typer.echo(f"{sum(map(len, rows.values()))} rows added to {folder}")
    if stopped:
        typer.secho("gtpool: interrupted; the rows above are kept", err=True, fg="yellow")
        raise typer.Exit(1)


def _watched(jobs: "list[Job]") -> "Generator[Job]":
    """Give the jobs one by one; a bar in a terminal, a line each elsewhere, and the time left."""
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
            # The first jobs also load what all need: half a minute as expected steadies the pace.
            pace = (monotonic() - began + 30) / (done + 30)
            left = pace * (total - done)
            line = f"{number} of {len(jobs)}: {job.title}, about {format_seconds(left)} left"
            bar.update(task, completed=done, description=line)
            if not console.is_terminal:
                console.print(line, highlight=False, soft_wrap=True)
            yield job
            done += job.work
