"""`gtpool data`: list, describe and download datasets."""

from pathlib import Path
from typing import Annotated

import typer

from gtpool.commands.options import (
    Contradictions,
    DataDir,
    EncodeGiven,
    FeatureColumns,
    Features,
    GroupColumn,
    MoleculeFeatures,
    SmilesColumn,
    SplitColumn,
    TargetColumns,
    TaskName,
    TimeColumn,
    data_options,
)

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_datasets(data_dir: DataDir = None) -> None:
    """List the datasets known by name, their sizes and where they are."""
    from rich.console import Console
    from rich.table import Table

    from gtpool.data.locate import locate
    from gtpool.data.registry import DATASETS

    table = Table()
    for heading in ("name", "family", "graphs", "outputs", "mean nodes", "mean edges", "from"):
        table.add_column(heading, justify="left" if heading in {"name", "family"} else "right")
    for name, source in DATASETS.items():
        means = f"{source.mean_nodes:.2f}", f"{source.mean_edges:.2f}"
        origin = locate(name, data_dir).origin
        table.add_row(name, source.family, str(source.graphs), source.outputs, *means, origin)
    Console(width=100).print(table)


@app.command("info")
def describe_dataset(  # noqa: PLR0917 - an option each
    data: Annotated[str, typer.Argument(help="Dataset name, CSV file, folder or .jsonl file.")],
    features: Features = None,
    encode: EncodeGiven = None,
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
) -> None:
    """Load a dataset and describe it."""
    from gtpool.data.duplicates import count_copies
    from gtpool.data.summary import describe, describe_splits
    from gtpool.report.result_tables import printable
    from gtpool.spec import DataSpec, RunSpec
    from gtpool.study.inputs import expand_folds, load_data
    from gtpool.study.plan import make_plan
    from gtpool.study.split_rules import rule_text

    options = data_options(
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
    )
    given = {name: value for name, value in options.items() if value is not None}
    spec = DataSpec.from_json(given)
    loaded = load_data(spec, data_dir)
    facts = describe(loaded.dataset, loaded.targets)
    if loaded.name is not None:
        facts |= describe_splits(loaded.dataset, data_dir) | _origin(loaded.name, data_dir)
    else:
        plan = make_plan({}, {"data": options}, "best")
        run = RunSpec(data=spec, split=plan.run.split)
        runs = expand_folds(run, data_dir=data_dir, loaded=loaded)
        rule = rule_text(runs[0].split, loaded)
        facts["split"] = f"{len(runs)} {rule}" if len(runs) > 1 else rule
    if loaded.lines is not None:
        facts["skipped"] = (
            f"{len(loaded.skipped)} of {len(loaded.lines) + len(loaded.skipped)} rows"
        )
    if loaded.molecules is not None:
        facts["copies"] = (
            f"{count_copies(loaded.molecules)} rows repeat the molecule of an earlier row"
        )
    for what, value in facts.items():
        typer.echo(printable(f"{what + ':':<15}{value}"))
    notes = [f"line {row.line} skipped: {row.reason}" for row in loaded.skipped[:5]]
    if len(loaded.skipped) > 5:
        notes.append(f"{len(loaded.skipped) - 5} more lines skipped")
    for note in notes:
        typer.secho(f"gtpool: {printable(note)}", err=True, fg="yellow")


def _origin(name: str, data_dir: Path | None) -> dict[str, str]:
    """Return licence, citation and location of a dataset known by name."""
    from gtpool.data.locate import locate
    from gtpool.data.registry import dataset_info

    source, origin = dataset_info(name), locate(name, data_dir).origin
    facts = {"licence": source.licence, "citation": source.citation}
    facts |= {"published at": source.url} if source.url else {}
    return facts | {"location": "generated" if origin == "made" else origin}


@app.command("merge")
def merge_datasets(
    sources: Annotated[
        list[str], typer.Argument(help="OGB sets by name, or tables of 0, 1 and blanks.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.")],
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Table or OGB set whose molecules are left out; may be repeated."),
    ] = None,
    smiles_column: SmilesColumn = None,
    data_dir: DataDir = None,
) -> None:
    """Merge sets of molecules with binary tasks into one table, to train a base model.

    Copies of a molecule become one row with the labels of all sets. Train on the
    table with `gtpool train TABLE --target-columns '*'`.
    """
    from gtpool.data.delimited import format_csv
    from gtpool.data.merge import merge_tables
    from gtpool.report.result_tables import printable
    from gtpool.study.store import write_atomic

    found = merge_tables(
        sources, exclude=exclude or (), smiles_column=smiles_column, data_dir=data_dir
    )
    write_atomic(output, format_csv([found.header, *found.rows]).encode())
    facts = f"{len(found.rows)} molecules, {len(found.header) - 1} tasks"
    typer.echo(printable(f"{output}: {facts}"))
    typer.echo(
        f"rows left out: {found.excluded} excluded, {found.unreadable} unreadable; "
        f"contradicting labels left blank: {found.contradictions}"
    )


@app.command("get")
def get_dataset(
    name: Annotated[str, typer.Argument(help="Dataset name, or all.")], data_dir: DataDir = None
) -> None:
    """Download a dataset, or `all`, with its fixed folds, unless it is already here."""
    from gtpool.data.locate import download_folds, find_raw, splits_folder
    from gtpool.data.registry import DATASETS, dataset_info

    for one in DATASETS if name == "all" else (name,):
        source = dataset_info(one)
        if source.family == "synthetic":
            typer.echo(f"{one}: generated, nothing to download")
            continue
        typer.echo(f"{one}: {find_raw(one, data_dir)}")
        if source.folds_sha256 is None:
            continue
        try:
            folds = splits_folder(one, data_dir) or download_folds(one, source)
            typer.echo(f"{one}, fixed folds: {folds}")
        except (OSError, ValueError) as error:
            typer.secho(
                f"gtpool: fixed folds of {one} not available: {error}", err=True, fg="yellow"
            )
