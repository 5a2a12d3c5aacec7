"""`gtpool reproduce`: repeat results of the studies and compare with the committed ones."""

from pathlib import Path
from typing import Annotated

import typer

from gtpool.commands.options import DataDir, Device, Jobs, Together
from gtpool.commands.study import Known, evidence

app = typer.Typer(no_args_is_help=True)


@app.callback()
def top() -> None:
    """Repeat results of the studies and compare with the committed ones."""


@app.command()
def cell(
    study: Annotated[str, typer.Argument(help="Study, see `gtpool study list`.")],
    dataset: Annotated[str, typer.Argument(help="Dataset: a column of the study.")],
    line: Annotated[str, typer.Argument(help="Method or variant: a row of the study.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to repeat.")] = 1,
    known: Known = None,
    output_dir: Annotated[Path, typer.Option(help="Store of repeated runs, for resuming.")] = Path(
        "gtpool-runs/reproduce"
    ),
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Repeat the runs of one cell of a table and compare with the committed rows.

    The last line is "equal" if all test metrics are equal to the last digit, as
    they are on the same device and commit. Otherwise it has the difference, and
    whether it lies within the spread of seeds: twice the deviation of the
    committed seeds, times the square root of 2 / SEEDS. The exit code is 1 if
    it lies outside or a run failed.
    """
    from gtpool.report.progress import Progress
    from gtpool.reproduce.repeat_cell import compare_with_stored, find_cell
    from gtpool.reproduce.status import read_rows
    from gtpool.study.run import run_many
    from gtpool.study.store import Store

    stored = read_rows(evidence(known))
    found, all_seeds = find_cell(study, dataset, line, seeds, stored)
    with Progress() as watch:
        rows = run_many(
            found.runs(seeds),
            Store(output_dir),
            jobs=jobs,
            together=together,
            data_dir=data_dir,
            device=device,
            watch=watch,
        )
    failed = [row.error for row in rows if not row.done]
    if failed:
        typer.secho(f"gtpool: {len(failed)} runs failed: {failed[0]}", err=True, fg="red")
        raise typer.Exit(1)
    lines = compare_with_stored(found, rows, stored, max(seeds, all_seeds))
    typer.echo("\n".join(lines))
    if "outside" in lines[-1]:
        raise typer.Exit(1)
