"""`gtpool train`: from a name or a file to a tested, saved model."""

import os
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
from gtpool.commands.plan import make_plan, read_settings
from gtpool.report.table import printable
from gtpool.spec import Conv, Readout

if TYPE_CHECKING:
    from gtpool.commands.crossval import Finished


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
        from gtpool.study.unit import follow

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

    from gtpool.commands.crossval import Running, cross_validate, run_part
    from gtpool.report.cells import summary, titled
    from gtpool.report.table import runs_table

    folder = output_dir or Path("gtpool-runs", plan.folder)
    engine = choose_executor(executor, address, gpus_per_unit, unit_limit)
    how = Running(folder, data_dir, jobs, device, deterministic, together, engine)
    if shard is not None:
        rows = run_part(plan, how, shard)
        typer.echo(f"part {shard} is done, runs: {len(rows)}; when all parts are, {_WHOLE}")
        _say_failed(rows)
        return
    done = cross_validate(plan, how, folds_given=folds is not None, tell=_say)
    if several:
        from gtpool.train.parallel import joined

        joined().leave()
    cell = summary(done.rows)
    typer.echo(runs_table(done.rows).terminal())
    typer.echo(f"\n{titled(cell.metric)} on the test parts: {cell.text} ({cell.evidence})")
    _say_beside(done)
    for what, path in done.files.items():
        typer.echo(f"{what + ':':<13}{path}{_NOTES.get(what, '')}")
    _say_rows(done)
    _say_failed(done.rows)


_TWINS = "where one is trained on and its twin tested on, the figure flatters"
_NOTES = {"model": " (the run of the lowest validation loss)"}
_WHOLE = "the same command without --shard writes the results"


def _say(line: str) -> None:
    typer.echo(printable(line))


def _say_beside(done: "Finished") -> None:
    """Tell what the figure is to be seen beside: a guess, and the sizes of a single split."""
    from gtpool.commands.results import one_split

    if done.guess is not None:
        typer.echo(f"the largest class said to all: {100 * done.guess:.2f}")
    splits = {row["split"]["digest"]: row["split"] for row in done.rows if row["split"]}
    if len(splits) == 1:
        (split,) = splits.values()
        sizes = f"{split['train']} train, {split['valid']} validate, {split['test']} test"
        typer.echo(printable(f"{split['rule']}: {sizes}"))
        typer.echo(one_split(done.rows))


def _say_rows(done: "Finished") -> None:
    """Tell of rows of a table that were left out or stand in it twice."""
    notes = [f"line {row.line} is left out: {row.reason}" for row in done.skipped[:5]]
    if len(done.skipped) > 5:
        notes.append(f"and {len(done.skipped) - 5} more lines, all in {done.files['left out']}")
    if done.repeated:
        notes.append(f"rows that repeat a SMILES of the table: {done.repeated}; {_TWINS}")
    for note in notes:
        typer.secho(f"gtpool: {printable(note)}", err=True, fg="yellow")


def _say_failed(rows: list[dict[str, Any]]) -> None:
    failed = [row["error"] for row in rows if row["status"] == "failed"]
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
