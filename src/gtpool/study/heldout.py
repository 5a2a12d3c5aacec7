"""Predictions on the test parts of runs: reading, CSV export, confusion matrix, ROC curves."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from gtpool.data.delimited import format_csv, safe_cell
from gtpool.study.result import RunResult
from gtpool.study.store import write_atomic

Array = NDArray[Any]


_NOTED = 5


class HeldOut(NamedTuple):
    """Predictions and targets on the test part of one run, or of one ensemble of runs."""

    seed: int
    """Seed of the run, or the first seed of the ensemble."""
    fold: int
    """From 0."""
    graph: Array
    """Index of each graph in the dataset, [n]."""
    output: Array
    """Probabilities of the classes or tasks, or predicted values, [n, outputs]."""
    y: Array
    """Class of each graph, [n], or targets of the tasks, NaN where missing, [n, tasks]."""
    spread: Array | None = None
    """Standard deviation (n - 1) of ``output`` over the members, [n, outputs]; None for a run."""
    threshold: tuple[float, ...] = ()
    """Probability from which on each task is 1, or the second of two classes is predicted; empty
    for the most probable label."""


def read_held_out(
    rows: Iterable[RunResult], artifact: Callable[[str], Path], task: str
) -> list[HeldOut]:
    """Return the test predictions of each finished run, sorted by seed and fold.

    Args:
        rows: The runs; failed ones are skipped.
        artifact: Maps the key of a run to its artifact file.
        task: "classes", "binary" or "regression".
    """
    parts: list[HeldOut] = []
    for row in rows:
        if not row.done:
            continue
        tensors = load_file(artifact(row.key))
        output = _OUTPUTS[task](tensors["test_logits"].astype(np.float64))
        place = row.spec.seed, row.spec.split.fold
        parts.append(HeldOut(*place, tensors["test_index"], output, tensors["test_y"]))
    return sorted(parts, key=lambda part: (part.seed, part.fold))


def write_held_out(
    path: Path,
    parts: Sequence[HeldOut],
    task: str,
    targets: Sequence[str],
    names: Mapping[str, Sequence[object]],
) -> None:
    """Write a CSV file with one row per tested graph, atomically.

    Predictions of ensembles have a column ``spread`` (of the predicted class), or one per task.

    Args:
        path: The CSV file.
        parts: The predictions.
        task: "classes", "binary" or "regression".
        targets: Names of the classes or tasks.
        names: Further columns that identify a graph, such as its line in a table.
    """
    if task == "classes":
        heads = ["true", "prediction", *(f"p_{name}" for name in targets)]
    else:
        said = "p" if task == "binary" else "prediction"
        heads = [f"{what}_{name}" for name in targets for what in ("true", said)]
    if any(part.spread is not None for part in parts):
        heads += ["spread"] if task == "classes" else [f"spread_{name}" for name in targets]
    rows = (
        [part.seed, part.fold + 1, graph, *(column[graph] for column in names.values()), *cells]
        for part in parts
        for graph, cells in zip(part.graph.tolist(), _cells(part, task, targets), strict=True)
    )
    write_csv(path, ["seed", "fold", "graph", *names, *heads], rows)


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file atomically; text that a spreadsheet would run as a formula is escaped."""
    safe = ([safe_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    write_atomic(path, format_csv(chain([heads], safe)).encode())


def confusion(parts: Iterable[HeldOut], classes: int) -> Array:
    """Return the confusion matrix, [true classes, predicted classes]."""
    counts = np.zeros((classes, classes), np.int64)
    for part in parts:
        np.add.at(counts, (part.y, predicted_classes(part)), 1)
    return counts


def missing_labels(parts: Sequence[HeldOut], task: str, targets: Sequence[str]) -> list[str]:
    """Return notes on classes, or labels 0 and 1 of tasks, that test parts do not have.

    Args:
        parts: Test predictions of the runs, or of ensembles.
        task: "classes", "binary" or "regression".
        targets: Names of the classes or tasks.
    """
    if task == "regression":
        return []
    folds = {part.fold: part.y for part in parts}
    lacking: dict[str, int] = {}
    for y in folds.values():
        if task == "classes":
            there = np.isin(np.arange(len(targets)), y)
        else:
            there = (y == 0).any(0) & (y == 1).any(0)
        for name in np.flatnonzero(~there).tolist():
            lacking[targets[name]] = lacking.get(targets[name], 0) + 1
    what = "no graph of class" if task == "classes" else "no two labels of target"
    notes = [
        f"{count} of {len(folds)} test parts have {what} {name!r}: some metrics are undefined there"
        for name, count in lacking.items()
    ]
    more = [f"so it is for {len(notes) - _NOTED} more"] if len(notes) > _NOTED else []
    return notes[:_NOTED] + more


def predicted_classes(part: HeldOut) -> Array:
    """Return the predicted class of each graph: the most probable one, or by the threshold."""
    if part.threshold:
        return (part.output[:, 1] >= part.threshold[0]).astype(int)
    return part.output.argmax(1)


def roc_curves(parts: Iterable[HeldOut]) -> list[tuple[Array, Array]]:
    """Return false and true positive rates for each run and task.

    A task with a single class in the test part has no curve.
    """
    curves: list[tuple[Array, Array]] = []
    for part in parts:
        for score, label in zip(part.output.T, part.y.T, strict=True):
            known = ~np.isnan(label)
            yes = label[known] > 0.5
            if 0 < yes.sum() < yes.size:
                curves.append(_roc(score[known], yes))
    return curves


def _softmax(logits: Array) -> Array:
    power = np.exp(logits - logits.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


_OUTPUTS: dict[str, Callable[[Array], Array]] = {
    "classes": _softmax,
    "binary": lambda logits: 0.5 * (1 + np.tanh(logits / 2)),
    "regression": lambda values: values,
}


def _cells(part: HeldOut, task: str, targets: Sequence[str]) -> Iterator[list[str]]:
    """Yield the target, prediction and spread cells of each graph."""
    spreads = part.output[:, :0] if part.spread is None else part.spread
    places: list[int] = predicted_classes(part).tolist()
    for true, row, spread, place in zip(part.y, part.output, spreads, places, strict=True):
        if task == "classes":
            shares = (f"{share:.6f}" for share in row)
            apart = spread[place : place + 1]
            yield [targets[int(true)], targets[place], *shares, *(f"{part:.6g}" for part in apart)]
            continue
        pairs = zip(true.tolist(), row.tolist(), strict=True)
        values = [value for pair in pairs for value in pair] + spread.tolist()
        yield ["" if isnan(value) else f"{value:.6g}" for value in values]


def _roc(score: Array, yes: Array) -> tuple[Array, Array]:
    """Return false and true positive rates at each distinct score."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)
    rates = [np.append(0, np.cumsum(hit[order])[last]) / hit.sum() for hit in (~yes, yes)]
    return rates[0], rates[1]
