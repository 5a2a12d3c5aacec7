"""`gtpool predict` and `gtpool evaluate`: apply a saved model to new graphs."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gtpool.commands.options import DataDir, Device, check_output, split_names
from gtpool.report.result_tables import printable

if TYPE_CHECKING:
    from gtpool.model.bundle import Bundle

Model = Annotated[
    Path, typer.Argument(help="Folder of a saved model, such as DIR/model of `gtpool train`.")
]
Data = Annotated[str, typer.Argument(help="Dataset name, CSV file, folder or .jsonl file.")]
SmilesColumn = Annotated[
    str | None,
    typer.Option(help="CSV column of SMILES. (default: as in training, or smiles)"),
]


Coverage = Annotated[
    float | None,
    typer.Option(
        help="Coverage of conformal sets of labels, or of intervals of values, such as 0.9. "
        "(default: none)"
    ),
]


def predict(
    model: Model,
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="CSV or TSV file to write; - for stdout.")
    ],
    coverage: Coverage = None,
    smiles_column: SmilesColumn = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Predict the class or value of each graph and write a table.

    Each row has a prediction and its probabilities, or the reason why not.
    Columns of an input table are kept. A long table takes all cores; repeat
    an interrupted command to continue.
    """
    from gtpool.predict_stream import predict_file
    from gtpool.report.progress import RowProgress

    to_stdout = str(output) in {"-", "/dev/stdout"}
    if not to_stdout:
        check_output(output, data)
    with RowProgress(resumes=not to_stdout) as progress:
        found = predict_file(
            model,
            data,
            sys.stdout.buffer if to_stdout else output,
            data_dir=data_dir,
            smiles_column=smiles_column,
            device=device,
            coverage=coverage,
            tell=progress.tell,
        )
    sys.stdout.flush()
    where = "" if to_stdout else printable(f": {output}")
    typer.echo(f"{found.predicted} of {found.rows} predicted{where}", err=to_stdout)
    for reason, count in Counter(found.reasons).most_common(5):
        note = printable(f"gtpool: {count} not predicted: {reason}")
        typer.secho(note, err=True, fg="yellow")


def evaluate(
    model: Model,
    data: Data,
    smiles_column: SmilesColumn = None,
    target_columns: Annotated[
        str | None,
        typer.Option(help="CSV columns of targets, separated by commas. (default: as in training)"),
    ] = None,
    coverage: Coverage = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Compare the predictions of a model with known targets."""
    from gtpool.model.bundle import load_bundle
    from gtpool.predict import evaluate_source, was_trained_on
    from gtpool.report.result_tables import TextTable, tasks_table
    from gtpool.study.summarize import format_metric, metric_title

    bundle = load_bundle(model)
    found = evaluate_source(
        bundle,
        data,
        data_dir=data_dir,
        smiles_column=smiles_column,
        target_columns=() if target_columns is None else split_names(target_columns),
        device=device,
        coverage=coverage,
    )
    other = [pair for pair in found.get("compared", ()) if pair["target"] != pair["column"]]
    for column, target in (pair.values() for pair in other if pair["target"] is not None):
        typer.echo(printable(f"column {column!r} is evaluated as target {target!r} of the model"))
    value = format_metric(found["value"], found["metric"])
    typer.echo(f"{metric_title(found['metric'])}: {value} ({found['graphs']} graphs)")
    shown = dict.fromkeys([found["metric"], *found["scores"]])
    lines = [(metric_title(name), format_metric(found["scores"][name], name)) for name in shown]
    typer.echo(TextTable(("metric", "value"), tuple(lines[1:])).terminal())
    if coverage is not None:
        typer.echo(f"stated coverage {100 * coverage:g} %, measured {100 * found['covered']:.2f} %")
    if "confusion" in found:
        rows = zip(found["targets"], found["confusion"], strict=True)
        cells = tuple((name, *map(str, counts)) for name, counts in rows)
        typer.echo(TextTable(("true \\ predicted", *found["targets"]), cells).terminal())
    if tasks := found.get("tasks"):
        targets, labels = ([task[what] for task in tasks] for what in ("task", "labels"))
        by_task = {name: {(0, 0): [task["scores"][name] for task in tasks]} for name in shown}
        typer.echo(tasks_table(targets, labels, by_task).terminal())
    if was_trained_on(bundle, data):
        which = _trained_part(bundle)
        note = f"gtpool: the model was trained on {which} of these graphs: the figure is too high"
        typer.secho(note, err=True, fg="yellow")
    if found["left_out"]:
        (first, *_) = found["left_out"]
        count, unit = len(found["left_out"]), next(iter(first))
        rows = f"{'row' if unit == 'line' else 'graph'}{'s' * (count > 1)}"
        such = ", e.g." if count > 1 else ":"
        at = f"{such} {unit} {first[unit]}: {first['reason']}"
        note = printable(f"gtpool: {count} {rows} skipped{at}")
        typer.secho(note, err=True, fg="yellow")


def _trained_part(bundle: "Bundle") -> str:
    """Return "all" for an ensemble of folds, whose members saw every part; else "some"."""
    members = bundle.about.get("members", [])
    return "all" if len({member.get("fold") for member in members}) > 1 else "some"
