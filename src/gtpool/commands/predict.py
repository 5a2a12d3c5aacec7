"""`gtpool predict` and `gtpool evaluate`: a saved model on other graphs."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gtpool.commands.options import DataDir, Device, check_output, names

Model = Annotated[
    Path, typer.Argument(help="A folder that `gtpool train` wrote, such as DIR/model.")
]
Data = Annotated[str, typer.Argument(help="A name, a CSV, a folder or a .jsonl file.")]
SmilesColumn = Annotated[
    str | None, typer.Option(help="Of a CSV. (the one that the model was trained on)")
]


def predict(
    model: Model,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="The CSV file to write.")],
    smiles_column: SmilesColumn = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Predict every row: class or value, probabilities, or the reason why there is none."""
    from gtpool.model.bundle import load_bundle
    from gtpool.predict import predict_source, write_predictions

    check_output(output, data)
    found = predict_source(
        load_bundle(model), data, data_dir=data_dir, smiles_column=smiles_column, device=device
    )
    write_predictions(output, found)
    reasons = Counter(row.reason for row in found.rows if row.reason is not None)
    typer.echo(f"{len(found.rows) - reasons.total()} of {len(found.rows)} predicted: {output}")
    for reason, count in reasons.most_common(5):
        typer.secho(f"gtpool: {count} not predicted: {reason}", err=True, fg="yellow")


def evaluate(
    model: Model,
    data: Data,
    smiles_column: SmilesColumn = None,
    target_columns: Annotated[
        str | None,
        typer.Option(help="Of a CSV, with commas between. (as trained, or the only other)"),
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Compare a model's predictions with labels that are known."""
    from gtpool.model.bundle import load_bundle
    from gtpool.predict import evaluate_source, was_trained_on
    from gtpool.report.cells import shown, titled
    from gtpool.report.table import Table

    bundle = load_bundle(model)
    found = evaluate_source(
        bundle,
        data,
        data_dir=data_dir,
        smiles_column=smiles_column,
        target_columns=() if target_columns is None else names(target_columns),
        device=device,
    )
    value = shown(found["value"], found["metric"])
    typer.echo(f"{titled(found['metric'])}: {value} ({found['graphs']} graphs)")
    if "confusion" in found:
        lines = zip(found["targets"], found["confusion"], strict=True)
        cells = tuple((name, *map(str, counts)) for name, counts in lines)
        typer.echo(Table(("true \\ predicted", *found["targets"]), cells).terminal())
    if was_trained_on(bundle, data):
        typer.secho(
            "gtpool: the model was trained on a part of these graphs", err=True, fg="yellow"
        )
    if found["left_out"]:
        (first, *_) = found["left_out"]
        more = f"{len(found['left_out'])} left out; "
        at = ", ".join(f"{what} {value}" for what, value in first.items() if what != "reason")
        typer.secho(f"gtpool: {more}{at}: {first['reason']}", err=True, fg="yellow")
