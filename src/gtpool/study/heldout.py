"""What the runs said of graphs that they had not seen: read, written as CSV, counted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from gtpool.data.delimited import safe_cell, write_records
from gtpool.study.result import RunResult
from gtpool.study.store import write_atomic

Array = NDArray[Any]


class HeldOut(NamedTuple):
    """The test part of one run."""

    seed: int
    fold: int
    """From 0."""
    graph: Array
    """Number of each graph in the dataset, from 0, [n]."""
    output: Array
    """Probability of each class, of each task, or the predicted values, [n, outputs]."""
    y: Array
    """Class of each graph, [n], or one value a task, NaN where missing, [n, tasks]."""


def read_held_out(
    rows: Iterable[RunResult], artifact: Callable[[str], Path], task: str
) -> list[HeldOut]:
    """Read the test part of each finished run, by seed and fold.

    Args:
        rows: The runs; those that failed have none.
        artifact: Gives the file of a run by its key.
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
    """Write one line a tested graph, whole or not at all.

    Args:
        path: The CSV file.
        parts: What the runs said.
        task: "classes", "binary" or "regression".
        targets: Names of the classes or tasks.
        names: Further columns that say which graph it is, such as its line in a table.
    """
    if task == "classes":
        heads = ["true", "prediction", *(f"p_{name}" for name in targets)]
    else:
        said = "p" if task == "binary" else "prediction"
        heads = [f"{what}_{name}" for name in targets for what in ("true", said)]
    rows = (
        [part.seed, part.fold + 1, graph, *(column[graph] for column in names.values()), *cells]
        for part in parts
        for graph, cells in zip(part.graph.tolist(), _cells(part, task, targets), strict=True)
    )
    write_csv(path, ["seed", "fold", "graph", *names, *heads], rows)


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, whole or not at all; text is made safe for spreadsheets."""
    safe = ([safe_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    write_atomic(path, write_records(chain([heads], safe)).encode())


def confusion(parts: Iterable[HeldOut], classes: int) -> Array:
    """Count true classes (rows) against predicted ones (columns), [classes, classes]."""
    counts = np.zeros((classes, classes), np.int64)
    for part in parts:
        np.add.at(counts, (part.y, part.output.argmax(1)), 1)
    return counts


def roc_curves(parts: Iterable[HeldOut]) -> list[tuple[Array, Array]]:
    """Give the shares of false and of true alarms, from 0 to 1, for each run and task.

    A task whose test part has one class only has no curve.
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
    """Write what is known and what was said of each graph."""
    if task == "classes":
        for true, row in zip(part.y, part.output, strict=True):
            said = targets[int(row.argmax())]
            yield [targets[int(true)], said, *(f"{share:.6f}" for share in row)]
        return
    for true, row in zip(part.y, part.output, strict=True):
        pairs = zip(true.tolist(), row.tolist(), strict=True)
        yield ["" if isnan(value) else f"{value:.6g}" for pair in pairs for value in pair]


def _roc(score: Array, yes: Array) -> tuple[Array, Array]:
    """Lower the threshold past one score after the other; equal scores fall together."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)
    alarms = [np.append(0, np.cumsum(hit[order])[last]) / hit.sum() for hit in (~yes, yes)]
    return alarms[0], alarms[1]
