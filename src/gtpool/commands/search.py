"""`gtpool search`: which options validate best, by Optuna."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gtpool.commands.options import (
    Address,
    DataDir,
    Device,
    ExecutorName,
    Features,
    GpusPerUnit,
    Jobs,
    SmilesColumn,
    SplitColumn,
    SplitType,
    TargetColumns,
    TaskName,
    Together,
    UnitLimit,
    choose_executor,
    data_options,
    search_extra,
)
from gtpool.study.plan import make_plan, read_settings


def search(  # noqa: PLR0917 - an option each
    data: Annotated[
        str | None,
        typer.Argument(help="A name (`gtpool data list`), a CSV, a folder or a .jsonl file."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Combinations to try in all.")] = 100,
    space: Annotated[
        Path | None, typer.Option(help="What to choose from, TOML or JSON. (the paper's space)")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="A pooler or method, see `gtpool list`. (gtpool-v)")
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Parts of the cross-validation. (10)")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each fold, from 42 on. (1)")] = None,
    split_type: SplitType = None,
    epochs: Annotated[int | None, typer.Option(help="At most; a tenth warms up. (500)")] = None,
    features: Features = None,
    smiles_column: SmilesColumn = None,
    target_columns: TargetColumns = None,
    split_column: SplitColumn = None,
    task: TaskName = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings of what is not searched, TOML or JSON.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of combinations.")] = 0,
    rung: Annotated[
        int | None,
        typer.Option(
            min=1, help="Folds between two looks at pruning. (--jobs; all on a GPU or Ray)"
        ),
    ] = None,
    prune: Annotated[bool, typer.Option(help="Whether to stop what is worse than others.")] = True,
    storage: Annotated[
        str | None, typer.Option(help="URL of a database. (a journal in the output folder)")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Where all goes. (gtpool-runs/DATA-TARGET-TASK-POOL-search)")
    ] = None,
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    executor: ExecutorName = "local",
    address: Address = None,
    gpus_per_unit: GpusPerUnit = None,
    unit_limit: UnitLimit = None,
) -> None:
    """Search for the options that validate best; stopped, the same command goes on where it was.

    Several of the same command share the work. The test parts are not looked at.
    The best settings become a file that `gtpool train --config` takes.
    """
    options: dict[str, dict[str, Any]] = {
        "": {"seeds": seeds},
        "data": data_options(data, features, smiles_column, target_columns, split_column, task),
        "split": {"rule": split_type, "folds": folds},
        "model": {"pool": pool},
        "train": {"epochs": epochs},
    }
    plan = make_plan({} if config is None else read_settings(config), options)
    table = None if space is None else read_settings(space)
    with search_extra("search"):
        from gtpool.report.searching import Wanted, search_options
        from gtpool.study.cross_validate import RunConfig

    folder = output_dir or Path("gtpool-runs", f"{plan.folder}-search")
    who = choose_executor(executor, address, gpus_per_unit, unit_limit)
    how = RunConfig(folder, data_dir, jobs, device, together=together, executor=who)
    wanted = Wanted(trials, seed, rung, prune, storage, folds is not None)
    for line in search_options(plan, table, how, wanted):
        typer.echo(line)
