"""Graphs that a model has not seen, read with the recipe that it was trained with."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpool.data.apply import follow, pick, strange
from gtpool.data.dataset import GraphDataset
from gtpool.data.delimited import TABLES, ending_of
from gtpool.data.features import Raw, featurize
from gtpool.data.jsonl import Line, jsonl_name, read_lines
from gtpool.data.locate import find_raw
from gtpool.data.molecule import read_molecules
from gtpool.data.records import pack
from gtpool.data.registry import DATASETS
from gtpool.data.schema import Schema, Task
from gtpool.data.sources import load
from gtpool.data.table import read_label, read_rows
from gtpool.data.targets import pack_targets
from gtpool.data.tu import read_tu, tu_name

Unit = Literal["line", "graph"]


class Row(NamedTuple):
    """One graph of a source, or the reason why it cannot be one."""

    number: int
    """Line of the file, or number of the graph from 0."""
    id: str
    """The SMILES of a table, the id of JSON lines, else nothing."""
    place: str
    """Where it stands, for messages."""
    label: Any
    """The class by its name, or a number or None a task; None where there is no label."""
    reason: str | None
    record: tuple[str, ...] = ()
    """All cells of the row of a table, as written."""


class Unseen(NamedTuple):
    """What a source holds, each row of it exactly once and in order."""

    unit: Unit
    """What the numbers of rows count."""
    rows: list[Row]
    data: GraphDataset | None
    """The graphs of the rows that have no reason, in order; None where there are none."""
    columns: tuple[str, ...] = ()
    """Names of all columns of a table, as written."""
    targets: tuple[str, ...] = ()
    """The columns of a table that labels were read from, in the order of the model's targets."""


def read_unseen(
    source: str | Path,
    schema: Schema,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    trained_column: str | None = None,
    target_columns: Sequence[str] | None = None,
    trained_targets: Sequence[str] = (),
) -> Unseen:
    """Read a source and make features by the recipe of a schema.

    Args:
        source: A name of ``DATASETS`` or a path, as for ``load``.
        schema: What the model was trained on.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: Of a table; None takes ``trained_column`` if it is there, else the one
            called "smiles".
        trained_column: The SMILES column of the table that the model was trained on.
        target_columns: Of a table, where labels are wanted: their columns, or none for
            ``trained_targets``; without (None) no labels are read.
        trained_targets: The names of the model's targets. Where there is one, and no such column,
            the only other column is taken.
    """
    path = Path(source)
    ending = ending_of(path)
    if isinstance(source, str) and source in DATASETS:
        return _read_named(source, schema, data_dir)
    if path.is_dir() and any(path.glob("*_A.txt")):
        return _of_raw(read_tu(path, tu_name(path), need_targets=False), schema)
    if path.is_file() and ending == ".jsonl":
        return _read_jsonl(path, schema)
    if path.is_file() and ending in TABLES:
        columns = None
        if target_columns is not None:
            columns = _match_names(target_columns, trained_targets)
        smiles = smiles_column, trained_column
        return _read_table(path, schema, smiles, columns, trained_targets)
    return _of_dataset(load(source, data_dir=data_dir), schema)


def truth(rows: Sequence[Row], schema: Schema) -> Tensor:
    """Turn the labels of rows that have one into ``y``, counted as the schema does."""
    if schema.task == "classes":
        number = {name: place for place, name in enumerate(schema.targets)}
        for row in rows:
            if isinstance(row.label, bool | list) or str(row.label) not in number:
                known = ", ".join(schema.targets)
                raise ValueError(
                    f"{row.place}: class {row.label!r} is unknown to the model, which knows {known}"
                )
        return torch.tensor([number[str(row.label)] for row in rows])
    places = [row.place for row in rows]
    y, _, names = pack_targets(
        [row.label for row in rows], places, task=schema.task, need_targets=False
    )
    if len(names) != schema.num_outputs:
        raise ValueError(
            f"{rows[0].place}: {len(names)} labels a graph, but the model has "
            f"{schema.num_outputs} tasks"
        )
    return y


def _read_named(name: str, schema: Schema, data_dir: Path | None) -> Unseen:
    if DATASETS[name].family == "TU":
        return _of_raw(read_tu(find_raw(name, data_dir), name, need_targets=False), schema)
    data = load(name, data_dir=data_dir, atom_order=schema.recipe.atom_order)
    return _of_dataset(data, schema)


def _of_dataset(data: GraphDataset, schema: Schema) -> Unseen:
    """Take graphs that have their features already."""
    labels = _labels(data.y, data.schema.task, data.schema.targets)
    rows = [Row(at, "", f"graph {at}", label, None) for at, label in enumerate(labels)]
    return Unseen("graph", rows, follow(data, schema.recipe))


def _of_raw(raw: Raw, schema: Schema, notes: Sequence[Row] | None = None) -> Unseen:
    """Make features of graphs, except of those with labels that the recipe does not know."""
    if schema.recipe.kind == "molecule":
        raise ValueError(f"the model was trained on molecules; {raw.name} is no table of SMILES")
    labels = _labels(raw.y, raw.task, raw.targets)
    rows = notes or [Row(at, "", f"graph {at}", label, None) for at, label in enumerate(labels)]
    reasons = strange(raw, schema.recipe)
    rows = [row._replace(reason=reasons.get(at)) for at, row in enumerate(rows)]
    wanted = torch.tensor([row.reason is None for row in rows])
    data = featurize(pick(raw, wanted), schema.recipe) if wanted.any() else None
    return Unseen("graph" if notes is None else "line", rows, data)


def _read_jsonl(path: Path, schema: Schema) -> Unseen:
    """Read graphs, and their labels as they are written: the classes are the model's to tell."""
    notes: list[Row] = []

    def records(lines: Iterator[Line]) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in lines:
            name = line.record.get("id")
            label = line.record.get("label")
            known = "" if name is None else str(name)
            notes.append(Row(line.number, known, line.place, label, None))
            yield line.place, {**line.record, "label": None}

    raw = pack(records(read_lines(path)), jsonl_name(path), need_targets=False)
    return _of_raw(raw, schema, notes)


def _read_table(
    path: Path,
    schema: Schema,
    smiles: tuple[str | None, str | None],
    columns: Sequence[str] | None,
    trained_targets: Sequence[str],
) -> Unseen:
    if schema.recipe.kind != "molecule":
        raise ValueError(f"{path} is a table of SMILES, and the model was not trained on molecules")
    header, names, found = read_rows(
        path,
        smiles_column=smiles[0],
        trained_column=smiles[1],
        target_columns=columns or None,
        trained_targets=trained_targets,
        need_targets=columns is not None,
        keep_records=True,
    )
    wanted = 1 if schema.task == "classes" else schema.num_outputs
    if columns is not None and len(names) != wanted:
        raise ValueError(
            f"{path}: target columns given: {len(names)}; the model has {wanted} "
            f"target{'s' * (wanted > 1)}"
        )
    written, order = [row.smiles for row in found], schema.recipe.atom_order
    molecules = read_molecules(written, atom_order=order)
    reasons = dict(molecules.failed)
    rows = [
        Row(
            row.line,
            row.smiles,
            f"{path}, line {row.line}",
            read_label(path, row, names, schema.task) if names else None,
            reasons.get(position),
            row.record,
        )
        for position, row in enumerate(found)
    ]
    if not molecules.sizes.numel():
        return Unseen("line", rows, None, tuple(header), tuple(names))
    data = molecules.labelled(torch.empty(molecules.sizes.numel(), 0), path.stem, "regression", ())
    return Unseen("line", rows, data, tuple(header), tuple(names))


def _match_names(columns: Sequence[str], targets: Sequence[str]) -> Sequence[str]:
    """Order target columns as the model's targets are; columns of other names stay in place."""
    if sorted(columns) == sorted(targets):
        return targets
    for place, name in enumerate(columns):
        if name in targets and targets.index(name) != place:
            raise ValueError(
                f"target column {name!r} is number {place + 1} of target_columns "
                f"(--target-columns) and number {targets.index(name) + 1} of the model's targets; "
                f"name one column for each of {', '.join(targets)}, in this order"
            )
    return columns


def _labels(y: Tensor, task: Task, targets: Sequence[str]) -> list[Any]:
    """Turn ``y`` back into names of classes or rows of numbers, None where there is nothing."""
    if task == "classes":
        return [targets[number] for number in y.tolist()]
    rows: list[list[float]] = y.tolist()
    missing = [[None if value != value else value for value in row] for row in rows]  # noqa: PLR0124
    return [row if any(value is not None for value in row) else None for row in missing]
