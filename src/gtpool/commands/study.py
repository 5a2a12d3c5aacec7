"""`gtpool study`: the tables and figures of the paper, listed, run, counted and collected."""

from collections import Counter
from functools import partial
from pathlib import Path
from shlex import join
from typing import Annotated, Literal

import typer

from gtpool.commands.options import (
    Address,
    DataDir,
    Device,
    ExecutorName,
    GpusPerUnit,
    Jobs,
    Shard,
    Together,
    UnitLimit,
    choose_executor,
    names,
    search_extra,
)

app = typer.Typer(no_args_is_help=True)
FOLDER = Path("gtpool-runs/study")
EVIDENCE = Path("results/runs")

Names = Annotated[list[str] | None, typer.Argument(help="Studies, see `gtpool study list`. (all)")]
Only = Annotated[
    str | None, typer.Option(help="Some cells: dataset=PROTEINS,pool=gtpool-v, or one of both.")
]
Seeds = Annotated[int | None, typer.Option(min=1, help="How many. (what the study should have)")]
Known = Annotated[
    list[Path] | None,
    typer.Option(help=f"Rows that count as done: files, folders, stores. ({EVIDENCE})"),
]
Choices = Annotated[
    Path | None,
    typer.Option(help="A tuned.json of `gtpool study tune`, for the study tuned. (ours)"),
]
Folder = Annotated[Path, typer.Option(help="The store of finished runs.")]


@app.command("list")
def list_studies() -> None:
    """Show the studies and their size."""
    from gtpool.report.table import Table
    from gtpool.reproduce.paper import STUDIES

    lines = [
        (name, study.title, str(len(study.lines)), str(len(study.datasets)), str(study.seeds))
        for name, study in STUDIES.items()
    ]
    heads = ("study", "title", "lines", "datasets", "seeds")
    typer.echo(Table(heads, tuple(lines)).terminal(text=(0, 1)))


@app.command()
def run(  # noqa: PLR0917 - an option each
    studies: Names = None,
    only: Only = None,
    seeds: Seeds = None,
    known: Known = None,
    choices: Choices = None,
    output_dir: Folder = FOLDER,
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    executor: ExecutorName = "local",
    address: Address = None,
    gpus_per_unit: GpusPerUnit = None,
    unit_limit: UnitLimit = None,
    shard: Shard = None,
) -> None:
    """Do the runs that are missing; stopped, the same command goes on where it was."""
    from gtpool.reproduce.status import known_rows, named_runs
    from gtpool.study.plan import shard as part_of

    named = named_runs(studies or (), only, seeds, choices)
    wanted = [spec for spec, _ in named]
    wanted = wanted if shard is None else part_of(wanted, shard)
    elsewhere = _evidence(known)
    rows = known_rows(elsewhere)
    sources = elsewhere if rows else []
    done = {key for key, row in rows.items() if row.done}
    todo = [spec for spec in wanted if spec.key not in done]
    known_already = len(wanted) - len(todo)
    if known_already:
        typer.echo(f"{known_already} of {len(wanted)} runs are known from elsewhere")
    shows = partial(_reader, sources, output_dir, choices)
    if not todo:
        typer.echo(f"nothing is left to do; `{shows()}` shows them")
        return

    from gtpool.report.progress import Progress
    from gtpool.study.run import run_many
    from gtpool.study.store import Store

    with Progress(names={spec.key: name for spec, name in named}) as watch:
        rows = run_many(
            todo,
            Store(output_dir),
            jobs=jobs,
            together=together,
            executor=choose_executor(executor, address, gpus_per_unit, unit_limit),
            data_dir=data_dir,
            device=device,
            watch=watch,
        )
    failed = [row for row in rows if row.status == "failed"]
    done = len(rows) - len(failed)
    typer.echo(f"{done} runs done, rows in {output_dir}; `{shows()}` shows them")
    if failed:
        typer.secho(f"gtpool: {len(failed)} runs failed: {failed[0].error}", err=True, fg="red")
        raise typer.Exit(1)


@app.command()
def status(
    studies: Names = None,
    only: Only = None,
    seeds: Seeds = None,
    known: Known = None,
    choices: Choices = None,
    output_dir: Folder = FOLDER,
    cells: Annotated[bool, typer.Option("--cells", help="A line for each cell.")] = False,
    on: Annotated[
        Literal["cpu", "gpu"] | None, typer.Option(help="Count the pace of runs there. (of all)")
    ] = None,
) -> None:
    """Say what is done, what is missing, and how long that would take."""
    from gtpool.reproduce.status import (
        known_rows,
        ran_on,
        standing_table,
        standing_total,
        standings,
    )

    sources = [*_evidence(known), *existing(output_dir)]
    rows = known_rows(sources)
    found = standings(studies or (), only, seeds, rows, choices=choices, on=on)
    typer.echo(standing_table(found, by_cell=cells).terminal(text=(0, 1, 2) if cells else (0,)))
    devices = Counter(row.device for row in ran_on(rows.values(), on))
    counts = ", ".join(f"{count:,} on {device}" for device, count in devices.most_common())
    if counts:
        typer.echo(
            f"time left: at the pace of the runs so far, side by side where they were: {counts}"
        )
    elif on is not None:
        typer.echo(f"time left: not known, since no run was done on a {on}")
    typer.echo(standing_total(found))
    if not sources:
        typer.secho(
            f"gtpool: no finished run is known here: there is neither the folder {EVIDENCE} of a "
            f"clone of the repository nor {output_dir}; call this inside a clone, or name the rows "
            "by --known",
            err=True,
            fg="yellow",
        )


@app.command()
def collect(
    sources: Annotated[list[Path], typer.Argument(help="Stores, folders and files of rows.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write; rows that it has stay.")
    ],
    curves: Annotated[bool, typer.Option(help="Keep the curves of every run.")] = False,
) -> None:
    """Merge rows into one file; two different rows of one run are refused and named."""
    from gtpool.study.store import collect as pack

    rows = pack(sources, output, curves=curves)
    typer.echo(f"{len(rows)} runs in {output}")


@app.command()
def tune(
    dataset: Annotated[str, typer.Argument(help="A name, see `gtpool data list`.")],
    pool: Annotated[str, typer.Option(help="A method, see `gtpool list`.")] = "gtpool-v",
    configs: Annotated[
        int,
        typer.Option(
            min=1, help="Configurations that start: a network, a learning rate, a weight decay."
        ),
    ] = 48,
    rounds: Annotated[
        str, typer.Option(help="Epochs of the short rounds; the whole protocol follows.")
    ] = "40,120",
    keep: Annotated[
        float, typer.Option(help="Share that each round lets go on.", show_default="1/3")
    ] = 1 / 3,
    convs: Annotated[
        str, typer.Option(help="Convolutions to try; its own, if here, starts unchanged.")
    ] = "gcn,gin,gat",
    output_dir: Annotated[Path | None, typer.Option(help="(gtpool-runs/tune-DATASET)")] = None,
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Choose a network on validation parts, for each fold by its own; no test part is looked at.

    Short trainings of many configurations, longer ones of the better, the protocol for the best.

    Stopped, the same command goes on where it was.
    """
    with search_extra("tune"):
        from gtpool.reproduce.tune import tune_dataset

    folder = output_dir or Path("gtpool-runs", f"tune-{dataset}")
    epochs = tuple(_whole(part) for part in rounds.split(",") if part)
    lines = tune_dataset(
        dataset,
        pool,
        folder,
        budget=(configs, epochs, keep),
        convs=tuple(names(convs)),
        running=(jobs, together, device, data_dir),
    )
    typer.echo("\n".join(lines))


def _whole(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"--rounds is numbers of epochs with commas between, got {text!r}")
    return int(text)


def existing(*paths: Path) -> list[Path]:
    """Leave out what is not there."""
    return [path for path in paths if path.exists()]


def _reader(known: list[Path], folder: Path, choices: Path | None) -> str:
    """Give the command that shows rows; it reads the usual places by itself."""
    sources = [*known, *existing(folder)]
    places = [] if sources == existing(EVIDENCE, FOLDER) else map(str, sources)
    more = () if choices is None else ("--choices", str(choices))
    return join(("gtpool", "report", *places, *more))


def _evidence(known: list[Path] | None) -> list[Path]:
    return known or existing(EVIDENCE)
