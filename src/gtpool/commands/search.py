"""`gtpool search`: hyperparameter search with Optuna."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gtpool.commands.options import (
    Address,
    Contradictions,
    Copies,
    DataDir,
    Device,
    Encode,
    ExecutorName,
    FeatureColumns,
    Features,
    GpusPerUnit,
    GroupColumn,
    Jobs,
    MoleculeFeatures,
    RecipeName,
    SmilesColumn,
    SplitColumn,
    SplitType,
    TargetColumns,
    TaskName,
    TimeColumn,
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
        typer.Argument(help="Dataset name (`gtpool data list`), CSV file, folder or .jsonl file."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Total number of trials.")] = 100,
    space: Annotated[
        Path | None, typer.Option(help="Search space, TOML or JSON. (default: that of the paper)")
    ] = None,
    recipe: RecipeName = None,
    pool: Annotated[
        str | None, typer.Option(help="Pooler or method, see `gtpool list`. (default: gtpool-v)")
    ] = None,
    folds: Annotated[
        int | None, typer.Option(help="Number of folds. (default: 10; 5 for own data)")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, starting at 42. (default: 1)")
    ] = None,
    split_type: SplitType = None,
    copies: Copies = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Maximum number of epochs; a tenth is warm-up. (default: of the recipe)"),
    ] = None,
    features: Features = None,
    encode: Encode = None,
    molecule_features: MoleculeFeatures = None,
    feature_columns: FeatureColumns = None,
    smiles_column: SmilesColumn = None,
    target_columns: TargetColumns = None,
    split_column: SplitColumn = None,
    group_column: GroupColumn = None,
    time_column: TimeColumn = None,
    contradictions: Contradictions = None,
    task: TaskName = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file for all other options, TOML or JSON.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler.")] = 0,
    rung: Annotated[
        int | None,
        typer.Option(min=1, help="Folds per pruning step. (default: --jobs; all on a GPU or Ray)"),
    ] = None,
    prune: Annotated[bool, typer.Option(help="Stop trials that are worse than the median.")] = True,
    hold_out: Annotated[
        bool | None,
        typer.Option(
            "--hold-out/--no-hold-out",
            help="Keep a fifth of the graphs from all trials and test the best options on it. "
            "(default: for own data with folds)",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="URL of an Optuna database. (default: a journal in the output folder)"),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Output folder. (default: gtpool-runs/DATA-TARGET-TASK-POOL-search)"),
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
    """Search for the options with the best validation score. Test parts are not used.

    The best settings are written to a file for `gtpool train --config`. A fifth
    of your own data is kept from all trials, and tests the best settings.
    An interrupted command resumes when repeated. Several processes that run the
    same command share the trials.
    """
    options: dict[str, dict[str, Any]] = {
        "": {"seeds": seeds, "recipe": recipe},
        "data": data_options(
            data,
            features,
            smiles_column,
            target_columns,
            split_column,
            task,
            encode,
            group_column=group_column,
            time_column=time_column,
            contradictions=contradictions,
            molecule_features=molecule_features,
            feature_columns=feature_columns,
        ),
        "split": {"rule": split_type, "folds": folds, "copies": copies},
        "model": {"pool": pool},
        "train": {"epochs": epochs},
    }
    plan = make_plan({} if config is None else read_settings(config), options, "best")
    table = None if space is None else read_settings(space)
    with search_extra("search"):
        from gtpool.report.search_report import SearchConfig, search_options
        from gtpool.study.cross_validate import RunConfig

    folder = output_dir or Path("gtpool-runs", f"{plan.folder}-search")
    who = choose_executor(executor, address, gpus_per_unit, unit_limit)
    how = RunConfig(folder, data_dir, jobs, device, together=together, executor=who)
    wanted = SearchConfig(trials, seed, rung, prune, storage, folds is not None, hold_out)
    for line in search_options(plan, table, how, wanted):
        typer.echo(line)
