"""`gtpool train`: cross-validate a network and save a model."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    Shard,
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
    metric_options,
)
from gtpool.report.result_tables import printable
from gtpool.spec import FOLD_RULES, Conv, Readout, RunSpec
from gtpool.study.plan import Handover, Plan, make_plan, read_settings
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
        typer.Argument(help="Dataset name (`gtpool data list`), CSV file, folder or .jsonl file."),
    ] = None,
    recipe: RecipeName = None,
    pool: Annotated[
        str | None, _model("Pooler or method, see `gtpool list`. (default: gtpool-v)")
    ] = None,
    conv: Annotated[
        Conv | None, _model("Convolution; with bonds for SMILES and OGB. (default: of the recipe)")
    ] = None,
    readout: Annotated[Readout | None, _model("Readout. (default: of the recipe)")] = None,
    width: Annotated[int | None, _model("Hidden channels. (default: 128)")] = None,
    levels: Annotated[
        int | None, _model("Number of pooling layers. (default: of the recipe)")
    ] = None,
    ratio: Annotated[
        str | None,
        _model("Fraction or number of nodes kept by a pooling layer. (default: of the recipe)"),
    ] = None,
    folds: Annotated[
        int | None, _training("Number of folds. (default: 10; 5 for own data)")
    ] = None,
    seeds: Annotated[
        int | None,
        _training("Number of seeds, starting at 42; of ensembles with --ensemble. (default: 1)"),
    ] = None,
    ensemble: Annotated[
        int | None,
        _training("Members that predict as one; they differ in the seed. (default: 1)"),
    ] = None,
    bag: Annotated[
        bool | None,
        _training(
            "Draw training and validation part anew for each member of an ensemble. (default: no)"
        ),
    ] = None,
    handover: Annotated[
        Handover | None,
        _training(
            "Saved model: an ensemble of all folds, or the best fold. (default: folds; best for "
            "--recipe paper)"
        ),
    ] = None,
    blend: Annotated[
        bool | None,
        _training(
            "Predict by networks and gradient boosting on descriptors together; needs SMILES and "
            "scikit-learn. (default: no)"
        ),
    ] = None,
    learning_curve: Annotated[
        bool | None,
        typer.Option(
            "--learning-curve",
            help="Also train on a quarter and a half of each training part: would more data help?",
            rich_help_panel="Training",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        _training(
            "Metric, such as mcc or balanced_accuracy, for which out-of-fold predictions choose "
            "the probability from which on a graph is positive. (default: none, 0.5)"
        ),
    ] = None,
    calibrate: Annotated[
        bool | None,
        _training(
            "Divide logits by a temperature that out-of-fold predictions choose. (default: no)"
        ),
    ] = None,
    split_type: SplitType = None,
    copies: Copies = None,
    epochs: Annotated[
        int | None,
        _training("Maximum number of epochs; a tenth is warm-up. (default: of the recipe)"),
    ] = None,
    batch_size: Annotated[
        int | None, _training("Graphs per batch. (default: of the recipe)")
    ] = None,
    lr: Annotated[float | None, _training("Learning rate. (default: of the recipe)")] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder of a trained model to start from: its network and weights, a new head.",
            rich_help_panel="Training",
        ),
    ] = None,
    freeze_encoder: Annotated[
        bool | None,
        typer.Option(
            "--freeze-encoder",
            help="With --from: train the head alone.",
            rich_help_panel="Training",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        _training(
            "Metric that chooses the epoch on validation parts and is the main figure, such as mcc "
            "or pr_auc. (default: loss chooses; accuracy, ROC-AUC or RMSE is the figure)"
        ),
    ] = None,
    class_weights: Annotated[
        bool | None,
        _training(
            "Weight classes, or the positives of each task, inversely to their frequency. "
            "(default: no)"
        ),
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
    data_dir: DataDir = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Output folder. (default: gtpool-runs/DATA-TARGET-TASK-POOL)"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file, TOML or JSON; command-line options override it."),
    ] = None,
    jobs: Jobs = 1,
    together: Together = None,
    device: Device = "auto",
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Use deterministic algorithms on a GPU, which are slower."
        ),
    ] = False,
    executor: ExecutorName = "local",
    address: Address = None,
    gpus_per_unit: GpusPerUnit = None,
    unit_limit: UnitLimit = None,
    shard: Shard = None,
) -> None:
    """Train and test a network by cross-validation.

    The output folder receives the model, the test predictions, plots, the
    settings and an HTML page. An interrupted command resumes when repeated.
    The model is an ensemble of the networks of all folds (--handover).

    The recipe `best` adds structural encodings, norm, residual connections and
    averaged weights; `--recipe paper` is the letter of the paper. Molecules use
    bonds (ogb-gcn for gcn, gine for gin). The output line `network:` shows the
    network, and config.json in the output folder holds all options.

    `torchrun --nproc-per-node N -m gtpool train …` trains each run on N processes.
    """
    alone = {
        "--jobs": jobs > 1,
        "--together": together is not None,
        "--executor": executor != "local",
        "--shard": shard is not None,
    }
    if several := _started_by_torchrun(alone):
        from gtpool.study.run_one import join_process_group

        together = 1
        if join_process_group():
            return
    options: dict[str, dict[str, Any]] = {
        "": {
            "recipe": recipe,
            "seeds": seeds,
            "ensemble": ensemble,
            "bag": bag,
            "handover": handover,
            "blend": blend,
            "learning_curve": learning_curve,
            "threshold": None if threshold is None else metric_options(threshold)["metric"],
            "calibrate": calibrate,
        },
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
        "model": {
            "pool": pool,
            "conv": conv,
            "readout": readout,
            "width": width,
            "levels": levels,
            "ratio": None if ratio is None else _number(ratio),
        },
        "train": {
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "start": None if start is None else str(start),
            "freeze_encoder": freeze_encoder,
            "class_weights": class_weights,
            **metric_options(metric),
        },
    }
    plan = make_plan({} if config is None else read_settings(config), options, "best")

    from gtpool.report.calibration import describe_calibration
    from gtpool.report.progress import Progress
    from gtpool.report.result_tables import runs_table
    from gtpool.report.results import describe_final, describe_trees, write_results
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
            ensemble=plan.ensemble,
            bag=plan.bag,
            handover=plan.handover,
            blend=plan.blend,
            threshold=plan.threshold,
            calibrate=plan.calibrate,
            boosting=True,
            learning_curve=plan.learning_curve,
            watch=watch,
            on_start=partial(_on_start, plan, folder, folds is not None),
            **how._asdict(),
        )
    done = replace(done, plan=done.plan._replace(searched=plan.searched))
    files = write_results(folder, done)
    if several:
        from gtpool.train.distributed import current_group

        current_group().close()
    typer.echo(runs_table(done.runs, done.ensembles).terminal())
    score = f"{done.cell.text} ({done.cell.evidence})"
    typer.echo(f"\ntest {metric_title(done.metric)}: {score}")
    if plan.ensemble > 1:
        typer.echo(f"single members: {done.single.text} ({done.single.evidence})")
    for line in (*describe_trees(done), *describe_calibration(done)):
        typer.echo(printable(line))
    _print_context(done)
    _print_scores(done)
    _print_curve(done)
    room = max(13, 2 + max(map(len, files)))
    for what, path in files.items():
        note = f" ({describe_final(done.chosen)})" if what == "model" and done.chosen else ""
        typer.echo(f"{what + ':':<{room}}{path}{note}")
    _warn_of_rows(done, files)
    _exit_if_failed(done.runs)


_NEXT = "repeat the command without --shard to write the results"


def _train_part(plan: Plan, how: "RunConfig", part: str) -> None:
    """Do the runs of one shard."""
    from gtpool.report.progress import Progress
    from gtpool.study.cross_validate import plan_runs
    from gtpool.study.learning_curve import curve_specs

    specs, loaded = plan_runs(plan, how.data_dir)
    if plan.learning_curve:
        specs += curve_specs(specs)
    with Progress() as watch:
        rows = how.run(shard_of(specs, part), keep=True, watch=watch, loaded=loaded)
    typer.echo(f"shard {part}: {len(rows)} runs done; after the last shard, {_NEXT}")
    _exit_if_failed(rows)


def _on_start(
    plan: Plan, folder: Path, folds_given: bool, loaded: "Loaded", specs: Sequence[RunSpec]
) -> None:
    """Check the folds, write the settings and print the dataset and network."""
    from gtpool.data.summary import describe_targets
    from gtpool.report.page import describe_network
    from gtpool.report.results import write_settings
    from gtpool.study.start import describe_start

    if folds_given and plan.run.split.folds > 1 and len(specs) == plan.seeds * plan.ensemble:
        raise ValueError(
            f"--folds requires a split type with folds ({', '.join(FOLD_RULES)}), but this dataset "
            f"has {specs[0].split.rule}; give --split-type folds, or use --seeds"
        )
    write_settings(folder, plan)
    gone = f"; rows skipped: {len(loaded.skipped)}" if loaded.skipped else ""
    targets = describe_targets(loaded.dataset, loaded.targets)
    typer.echo(printable(f"{plan.run.data.source}: {targets}{gone}"))
    typer.echo(printable(f"network: {describe_network(plan.run)}"))
    if (start := describe_start(specs[0], loaded.dataset)) is not None:
        typer.echo(printable(f"starts from: {start}"))


def _print_context(done: "CrossValidation") -> None:
    """Print the protocol, the majority-class baseline and the sizes of a single split."""
    from gtpool.report.results import (
        BAG_NOTE,
        SEARCHED_NOTE,
        chosen_on_test_parts,
        single_split_note,
    )
    from gtpool.study.summarize import split_name

    if done.plan.bag:
        typer.echo(BAG_NOTE)
    if chosen_on_test_parts(done):
        typer.echo(SEARCHED_NOTE)
    if done.majority is not None:
        typer.echo(f"majority-class baseline: {100 * done.majority:.2f}")
    if (note := single_split_note(done.runs)) is not None:
        split = next(row.split for row in done.runs if row.split.digest)
        sizes = f"{split.train} train, {split.valid} validation, {split.test} test"
        typer.echo(printable(f"{split_name(split.rule)}: {sizes}"))
        typer.echo(note)


def _print_scores(done: "CrossValidation") -> None:
    """Print the metrics beside the main one."""
    from gtpool.report.result_tables import scores_table
    from gtpool.report.results import positive_note

    if done.predictions:
        others = {name: cell for name, cell in done.scores.items() if name != done.metric}
        typer.echo(f"\n{scores_table(others).terminal()}")
        if note := positive_note(done.loaded.dataset.schema):
            typer.echo(printable(note))
        typer.echo()


def _print_curve(done: "CrossValidation") -> None:
    """Print the learning curve, if it was asked for."""
    from gtpool.report.result_tables import curve_table

    if done.curve is not None:
        typer.echo(curve_table(done.curve).terminal())
        typer.echo(f"learning curve: {done.curve.verdict}\n")
    elif done.plan.learning_curve:
        typer.echo("learning curve: all runs of one size failed\n")


def _warn_of_rows(done: "CrossValidation", files: dict[str, Path]) -> None:
    """Warn of rows of a table that were skipped or occur twice."""
    notes = [f"line {row.line} skipped: {row.reason}" for row in done.skipped[:5]]
    if len(done.skipped) > 5:
        notes.append(f"{len(done.skipped) - 5} more lines skipped, listed in {files['left out']}")
    for note in [*notes, *done.label_notes, *done.copy_notes]:
        typer.secho(f"gtpool: {printable(note)}", err=True, fg="yellow")


def _exit_if_failed(rows: "list[RunResult]") -> None:
    failed = [row.error for row in rows if row.status == "failed"]
    if failed:
        note = printable(f"gtpool: {len(failed)} runs failed: {failed[0]}")
        typer.secho(note, err=True, fg="red")
        raise typer.Exit(1)


def _started_by_torchrun(given: dict[str, bool]) -> bool:
    """Return whether torchrun started several processes; raise on options it excludes."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    refused = [option for option, is_given in given.items() if is_given]
    if processes > 1 and refused:
        raise ValueError(
            f"{' and '.join(refused)} cannot be combined with torchrun: its {processes} processes "
            "train one run at a time"
        )
    return processes > 1


def _number(text: str) -> float | int:
    """Return a ratio: 0.5 is a fraction, 5 a number of nodes."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"--ratio must be a number, got {text!r}") from None
