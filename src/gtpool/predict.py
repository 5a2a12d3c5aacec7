"""A saved model and graphs of anyone's in, one answer a graph out."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpool.data.delimited import format_csv, safe_cell
from gtpool.data.formats.reader import InferenceData, RowUnit, true_targets
from gtpool.data.inference import check_fit, read_schema
from gtpool.data.schema import Schema, Task
from gtpool.data.sources import read_for_inference
from gtpool.model.bundle import Bundle
from gtpool.study.inputs import source_digest
from gtpool.study.run_one import choose_device
from gtpool.study.store import write_atomic
from gtpool.train.fit import predict
from gtpool.train.metric import METRICS

OVERFLOW = "its features are so large that the model gives no number"


class Prediction(NamedTuple):
    """The answer to one row of the input."""

    number: int
    """Line of the file, or number of the graph from 0."""
    id: str
    """The SMILES of a table, the id of JSON lines, else nothing."""
    value: str | tuple[float, ...] | None
    """The class by its name, or a number a task: 0 or 1, or what is regressed."""
    probabilities: tuple[float, ...]
    """Of each class, or that each task is 1; none for regression."""
    reason: str | None = None
    """Why there is no answer, where there is none."""
    record: tuple[str, ...] = ()
    """All cells of the row of a table, as written."""


class Predictions(NamedTuple):
    """The answers to all rows, in the order of the input."""

    unit: RowUnit
    """What a row's number counts."""
    task: Task
    targets: tuple[str, ...]
    """Names of the classes or tasks."""
    rows: tuple[Prediction, ...]
    columns: tuple[str, ...] = ()
    """Names of all columns of a table, as written; empty for other sources."""


def predict_source(
    bundle: Bundle,
    source: str | Path,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    device: str = "auto",
) -> Predictions:
    """Answer every row of a source; what cannot be predicted gets a reason.

    Features are made by the recipe that the model was trained with. A file that does not fit the
    model as a whole is an error.

    Args:
        bundle: What ``load_bundle`` gave.
        source: A name of ``DATASETS``, or a path: a table of SMILES, JSON lines, a folder in TU or
            OGB format, or a saved dataset. It needs no labels, and labels are not looked at.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: Of a table; None takes the one that the model was trained on if it is there,
            else the one called "smiles".
        device: "auto", "cpu" or "cuda".
    """
    schema = schema_of(bundle)
    read = read_for_inference(
        source,
        schema,
        data_dir=data_dir,
        smiles_column=smiles_column,
        trained_column=bundle.part("run", "data").get("smiles_column"),
    )
    logits, read = _drop_overflowed(_logits(bundle, read, device), read)
    told = decode_logits(schema, logits)
    rows = tuple(
        Prediction(row.number, row.id, *next(told), record=row.record)
        if row.reason is None
        else Prediction(row.number, row.id, None, (), row.reason, row.record)
        for row in read.rows
    )
    return Predictions(read.unit, schema.task, schema.targets, rows, read.columns)


def evaluate_source(
    bundle: Bundle,
    source: str | Path,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    target_columns: Sequence[str] = (),
    device: str = "auto",
) -> dict[str, Any]:
    """Compare the answers with the labels of a source, whose classes must be the model's.

    Args:
        bundle: What ``load_bundle`` gave.
        source: As for ``predict_source``, with labels.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: Of a table; None takes the one that the model was trained on if it is there,
            else the one called "smiles".
        target_columns: Of a table; by default those that the model was trained on. Where that is
            one column and it is missing, the only other. The names of the model's targets are
            matched in any order; columns of other names go by position.
        device: "auto", "cpu" or "cuda".

    Returns:
        ``metric``, its ``value``, ``higher_is_better``, the number of ``graphs`` that were
        compared, and what was ``left_out`` with a reason each; of classes also ``targets`` and the
        ``confusion`` matrix, a row for each true class; of several tasks also ``tasks``, each with
        its ``task``, its ``value`` (None where no figure can be computed) and number of ``labels``;
        of a table also ``compared``, a ``column`` and the model's ``target`` (None where its name
        is not known) for each.
    """
    schema = schema_of(bundle)
    trained, targets = bundle.part("run", "data"), _trained_targets(bundle, schema)
    read = read_for_inference(
        source,
        schema,
        data_dir=data_dir,
        smiles_column=smiles_column,
        trained_column=trained.get("smiles_column"),
        target_columns=target_columns,
        trained_targets=targets,
    )
    logits, read = _drop_overflowed(_logits(bundle, read, device), read)
    told = [row for row in read.rows if row.reason is None]
    labelled = [place for place, row in enumerate(told) if row.label is not None]
    if not labelled:
        raise ValueError(f"{source} has no graph that has a label and can be predicted")
    y = true_targets([told[place] for place in labelled], schema)
    logits = logits[labelled]
    metric = METRICS[schema.task]
    left_out = [(row.number, row.reason) for row in read.rows if row.reason is not None]
    left_out += [(row.number, "no label") for row in told if row.label is None]
    found: dict[str, Any] = {
        "metric": metric.name,
        "value": metric.measure(logits, y),
        "higher_is_better": metric.higher_is_better,
        "graphs": len(labelled),
        "left_out": [{read.unit: number, "reason": why} for number, why in sorted(left_out)],
    }
    if read.targets:
        pairs = zip(read.targets, targets or [None], strict=True)
        found["compared"] = [{"column": column, "target": target} for column, target in pairs]
    if schema.task == "classes":
        cells = y * schema.num_outputs + logits.argmax(1)
        counts = cells.bincount(minlength=schema.num_outputs**2)
        found["targets"] = list(schema.targets)
        found["confusion"] = counts.view(schema.num_outputs, -1).tolist()
    elif schema.num_outputs > 1:
        each = zip(schema.targets, metric.by_task(logits, y), (~y.isnan()).sum(0), strict=True)
        found["tasks"] = [
            {"task": name, "value": value, "labels": int(labels)} for name, value, labels in each
        ]
    return found


def _trained_targets(bundle: Bundle, schema: Schema) -> tuple[str, ...]:
    """Return the names of the target columns that a model was trained on; of classes maybe none."""
    wanted = 1 if schema.task == "classes" else schema.num_outputs
    for part in (("data",), ("run", "data")):
        names = bundle.part(*part).get("target_columns") or ()
        if len(names) == wanted:
            return tuple(names)
    return () if schema.task == "classes" else schema.targets


def write_predictions(path: Path, predictions: Predictions) -> None:
    """Write ``predictions_text`` to a file, whole or not at all; tabs for .tsv and .tab."""
    delimiter = "\t" if path.suffix.lower() in {".tsv", ".tab"} else ","
    write_atomic(path, predictions_text(predictions, delimiter).encode())


def predictions_text(predictions: Predictions, delimiter: str = ",") -> str:
    """Return one line for each row of the input as CSV.

    Of a table all columns come first, as written, and then ours; of other sources the graph or line
    and its id. Ours are the line, the prediction (one column for each task, where there are
    several), ``p_NAME`` for the probability of each class or task, and the reason. Where the table
    has a column of that name, ours is called ``gtpool_NAME``. Text in our columns that a
    spreadsheet could run as a formula has a single quote before it.
    """
    targets, unit = predictions.targets, predictions.unit
    single = predictions.task == "classes" or len(targets) == 1
    answers = ["prediction"] if single else [f"prediction_{name}" for name in targets]
    shares = [] if predictions.task == "regression" else [f"p_{name}" for name in targets]
    given = predictions.columns
    ours = [unit, *([] if given else ["id"]), *answers, *shares, "reason"]
    records: list[list[object]] = [[*given, *_free_names(ours, given)]]
    for row in predictions.rows:
        value = (safe_cell(row.value),) if isinstance(row.value, str) else row.value
        told = value or [""] * len(answers)
        chances = [f"{share:.6f}" for share in row.probabilities] or [""] * len(shares)
        known = [row.number] if given else [row.number, safe_cell(row.id)]
        records.append([*row.record, *known, *told, *chances, safe_cell(row.reason or "")])
    return format_csv(records, delimiter)


def _free_names(names: Sequence[str], given: Sequence[str]) -> list[str]:
    """Put ``gtpool_`` before the names that the user's columns have, until they differ."""
    taken, free = {name.strip() for name in given}, list[str]()
    for name in names:
        while name in taken:
            name = f"gtpool_{name}"  # noqa: PLW2901
        taken.add(name)
        free.append(name)
    return free


def was_trained_on(bundle: Bundle, source: str) -> bool:
    """Say whether a model was trained on a part of a source.

    It was if the source is the same dataset by name, or files of the same names and contents.

    Args:
        bundle: What ``load_bundle`` gave.
        source: As for ``predict_source``.
    """
    digest = source_digest(source)
    if digest is None or bundle.about.get("source_digest") is None:  # a name, or an older bundle
        return bundle.part("run", "data").get("source") == source
    return digest == bundle.about["source_digest"]


def schema_of(bundle: Bundle) -> Schema:
    """Read what a model predicts from which features; one that does not say is an error."""
    where = str(bundle.folder or "the model")
    schema = read_schema(bundle.about.get("schema"), where, bundle.model.shape)
    if schema.num_outputs != bundle.model.shape.outputs:
        raise ValueError(
            f"{where} names {schema.num_outputs} targets, but its network has "
            f"{bundle.model.shape.outputs} outputs"
        )
    return schema


def decode_logits(
    schema: Schema, logits: Tensor
) -> Iterator[tuple[str | tuple[float, ...], tuple[float, ...]]]:
    """Give the value and the probabilities of each graph, as in ``Prediction``.

    Args:
        schema: What the model predicts.
        logits: What it gave, [graphs, outputs].
    """
    if schema.task == "regression":
        yield from ((tuple(row), ()) for row in logits.tolist())
    elif schema.task == "binary":
        for row in logits.double().sigmoid().tolist():
            yield tuple(int(share >= 0.5) for share in row), tuple(row)
    else:
        for row in logits.double().softmax(1).tolist():
            yield schema.targets[row.index(max(row))], tuple(row)


def _drop_overflowed(logits: Tensor, read: InferenceData) -> tuple[Tensor, InferenceData]:
    """Leave out the graphs on which the network overflowed, and say so in their rows."""
    finite = logits.isfinite().all(1)
    answered = iter(finite.tolist())
    rows = [
        row._replace(reason=OVERFLOW) if row.reason is None and not next(answered) else row
        for row in read.rows
    ]
    return logits[finite], read._replace(rows=rows)


def _logits(bundle: Bundle, read: InferenceData, device: str) -> Tensor:
    """Run the model over the graphs that can be predicted, [graphs, outputs]."""
    if read.data is None:
        return torch.empty(0, bundle.model.shape.outputs)
    check_fit(read.data, bundle.model.shape, edges=bundle.model.uses_edge_features)
    chosen = choose_device(device)
    model, data = bundle.model.to(chosen), read.data.to(chosen)
    return predict(model, data, torch.arange(len(data))).cpu()
