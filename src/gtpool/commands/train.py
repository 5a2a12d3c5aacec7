"""`gtpool train`: from a name or a file to a tested, saved model."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gtpool.commands.options import (
    Address,
    DataDir,
    Device,
    ExecutorName,
    Features,
    GpusPerUnit,
    Jobs,
    Shard,
    SmilesColumn,
    SplitColumn,
    SplitType,
    TargetColumns,
    TaskName,
    Together,
    UnitLimit,
    choose_executor,
    data_options,
)
from gtpool.report.table import printable
from gtpool.spec import FOLD_RULES, Conv, Readout, RunSpec
from gtpool.study.plan import Plan, make_plan, read_settings
from gtpool.study.plan import shard as shard_of

if TYPE_CHECKING:
    from gtpool.study.cross_validate import CrossValidation, RunConfig
    from gtpool.study.inputs import Loaded
    from gtpool.study.result import RunResult


def _model(text: str) -> Any:  # noqa: ANN401 - typer's own return type
    return typer.Option(help=text, rich_help_panel="Model")


def _training(text: str) -> Any:  # noqa: ANN401
    return typer.Option(help=text, rich_help_panel="Training")


def train(  # noqa: PLR0917 - an option each
    data: Annotated[
        str | None,
        typer.Argument(help="A name (`gtpool data list`), a CSV, a folder or a .jsonl file."),
    ] = None,
    pool: Annotated[str | None, _model("A pooler or method, see `gtpool list`. (gtpool-v)")] = None,
    conv: Annotated[
        Conv | None, _model("The convolution. (gcn; SMILES and OGB sets: ogb-gcn)")
    ] = None,
    readout: Annotated[Readout | None, _model("From nodes to one vector. (mean-max)")] = None,
    width: Annotated[int | None, _model("Channels. (128)")] = None,
    levels: Annotated[int | None, _model("Pooling steps. (3)")] = None,
    ratio: Annotated[str | None, _model("Share of nodes kept a step, or number. (0.5)")] = None,
    folds: Annotated[int | None, _training("Parts of the cross-validation. (10)")] = None,
    seeds: Annotated[int | None, _training("How many, from 42 on. (1)")] = None,
    split_type: SplitType = None,
    epochs: Annotated[int | None, _training("At most; a tenth warms up. (500)")] = None,
    batch_size: Annotated[int | None, _training("Graphs a step. (128)")] = None,
    lr: Annotated[float | None, _training("Learning rate. (5e-4; OGB sets 1e-3)")] = None,
    features: Features = None,
    smiles_column: SmilesColumn = None,
    target_columns: TargetColumns = None,
    split_column: SplitColumn = None,
    task: TaskName = None,
    data_dir: DataDir = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Where all goes. (gtpool-runs/DATA-TARGET-TASK-POOL)")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings, TOML or JSON; options here go before them.")
    ] = None,
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bit for bit on a GPU too, if slower.")
    ] = False,
    executor: ExecutorName = "local",
    address: Address = None,
    gpus_per_unit: GpusPerUnit = None,
    unit_limit: UnitLimit = None,
    shard: Shard = None,
) -> None:
    """Train and test by cross-validation; stopped, the same command goes on where it was.

    Without options, sets known by name are trained by the protocol of the paper.
    A table of SMILES differs: convolutions use bonds (ogb-gcn for gcn, gine for
    gin), atoms are in canonical order, and the roulette wheel goes by score.
    The line `network:` of the output says what is used.

    The output folder gets the model, the predictions on the test parts, pictures,
    the settings, and a page that shows it all. Started by `torchrun
    --nproc-per-node N -m gtpool train …`, N processes do each run together.
    """
    alone = {
        "--jobs": jobs > 1,
        "--together": together is not None,
        "--executor": executor != "local",
        "--shard": shard is not None,
    }
    if several := _started_by_torchrun(alone):
        from gtpool.study.run_one import follow

        together = 1
        if follow():
            return
    options: dict[str, dict[str, Any]] = {
        "": {"seeds": seeds},
        "data": data_options(data, features, smiles_column, target_columns, split_column, task),
        "split": {"rule": split_type, "folds": folds},
        "model": {
            "pool": pool,
            "conv": conv,
            "readout": readout,
            "width": width,
            "levels": levels,
            "ratio": None if ratio is None else _number(ratio),
        },
        "train": {"epochs": epochs, "batch_size": batch_size, "lr": lr},
    }
    plan = make_plan({} if config is None else read_settings(config), options)

    from gtpool.report.progress import Progress
    from gtpool.report.results import write_results
    from gtpool.report.table import runs_table
    from gtpool.study.cross_validate import RunConfig, cross_validate
    from gtpool.study.summarize import metric_title

    folder = output_dir or Path("gtpool-runs", plan.folder)
    engine = choose_executor(executor, address, gpus_per_unit, unit_limit)
    how = RunConfig(folder, data_dir, jobs, device, deterministic, together, engine)
    if shard is not None:
        _train_part(plan, how, shard)
        return
    with Progress() as watch:
        done = cross_validate(
            plan.run.data.source,
            plan.run,
            seeds=plan.seeds,
            watch=watch,
            on_start=partial(_begin, plan, folder, folds is not None),
            **how._asdict(),
        )
    files = write_results(folder, done)
    if several:
        from gtpool.train.distributed import current_group

        current_group().close()
    typer.echo(runs_table(done.runs).terminal())
    said = f"{done.cell.text} ({done.cell.evidence})"
    typer.echo(f"\n{metric_title(done.metric)} on the test parts: {said}")
    _say_beside(done)
    for what, path in files.items():
        typer.echo(f"{what + ':':<13}{path}{_NOTES.get(what, '')}")
    _say_rows(done, files)
    _say_failed(done.runs)


_TWINS = "where one is trained on and its twin tested on, the figure flatters"
_NOTES = {"model": " (the run of the lowest validation loss)"}
_WHOLE = "the same command without --shard writes the results"


def _train_part(plan: Plan, how: "RunConfig", part: str) -> None:
    """Do the runs of one shard, and leave the rest to others."""
    from gtpool.report.progress import Progress
    from gtpool.study.cross_validate import plan_runs

    specs, loaded = plan_runs(plan, how.data_dir)
    with Progress() as watch:
        rows = how.do(shard_of(specs, part), keep=True, watch=watch, loaded=loaded)
    typer.echo(f"part {part} is done, runs: {len(rows)}; when all parts are, {_WHOLE}")
    _say_failed(rows)


def _begin(
    plan: Plan, folder: Path, folds_given: bool, loaded: "Loaded", specs: Sequence[RunSpec]
) -> None:
    """Check the folds, write the settings, and tell what the data was taken for."""
    from gtpool.data.summary import describe_targets
    from gtpool.report.results import write_settings
    from gtpool.report.site import describe_network

    if folds_given and plan.run.split.folds > 1 and len(specs) == plan.seeds:
        raise ValueError(
            f"--folds is for split types that have folds, {', '.join(FOLD_RULES)}; this one is "
            f"{specs[0].split.rule}; say --split-type folds, or train on it repeatedly by --seeds"
        )
    write_settings(folder, plan)
    gone = f"; rows left out: {len(loaded.skipped)}" if loaded.skipped else ""
    targets = describe_targets(loaded.dataset, loaded.targets)
    typer.echo(printable(f"{plan.run.data.source}: {targets}{gone}"))
    typer.echo(printable(f"network: {describe_network(plan.run)}"))


def _say_beside(done: "CrossValidation") -> None:
    """Tell what the figure is to be seen beside: a guess, and the sizes of a single split."""
    from gtpool.report.results import one_split

    if done.majority is not None:
        typer.echo(f"the largest class said to all: {100 * done.majority:.2f}")
    splits = {row.split.digest: row.split for row in done.runs if row.split.digest}
    if len(splits) == 1:
        (split,) = splits.values()
        sizes = f"{split.train} train, {split.valid} validate, {split.test} test"
        typer.echo(printable(f"{split.rule}: {sizes}"))
        typer.echo(one_split(done.runs))


def _say_rows(done: "CrossValidation", files: dict[str, Path]) -> None:
    """Tell of rows of a table that were left out or stand in it twice."""
    notes = [f"line {row.line} is left out: {row.reason}" for row in done.skipped[:5]]
    if len(done.skipped) > 5:
        notes.append(f"and {len(done.skipped) - 5} more lines, all in {files['left out']}")
    if done.repeated:
        notes.append(f"rows that repeat a SMILES of the table: {done.repeated}; {_TWINS}")
    for note in notes:
        typer.secho(f"gtpool: {printable(note)}", err=True, fg="yellow")


def _say_failed(rows: "list[RunResult]") -> None:
    failed = [row.error for row in rows if row.status == "failed"]
    if failed:
        note = printable(f"gtpool: {len(failed)} runs failed: {failed[0]}")
        typer.secho(note, err=True, fg="red")
        raise typer.Exit(1)


def _started_by_torchrun(given: dict[str, bool]) -> bool:
    """Say whether this is one of several processes; options that are not for them are refused."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    refused = [option for option, is_given in given.items() if is_given]
    if processes > 1 and refused:
        raise ValueError(
            f"{' and '.join(refused)} cannot be had with torchrun, whose {processes} processes do "
            "one run after the other together; leave one of the two out"
        )
    return processes > 1


def _number(text: str) -> float | int:
    """Read a ratio: 0.5 is a share, 5 a number of nodes."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"--ratio must be a number, got {text!r}") from None
