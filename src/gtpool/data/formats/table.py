"""Tables of SMILES in CSV or TSV files: one molecule per row, targets in columns."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.delimited import NUMBER, name_without_gz, read_csv_rows
from gtpool.data.duplicates import contradictions as contradictions_of
from gtpool.data.formats.reader import (
    FormatReader,
    InferenceData,
    InferenceOptions,
    InferenceStream,
    InputRow,
    Loaded,
    Skipped,
)
from gtpool.data.graph_features import apply_graph_features, with_graph_features
from gtpool.data.inference import apply_recipe
from gtpool.data.molecule import read_molecules
from gtpool.data.schema import FLOAT32_MAX, TASKS, Schema, Task
from gtpool.data.targets import pack_targets
from gtpool.spec import AtomOrder, DataSpec, nearest

_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"([+-]?\d{1,18})(\.0*)?", re.ASCII)
_BLANK = ("", "na", "<na>", "nan", "n/a", "#n/a", "null")
"""Lower-case cells that mark a missing target, as R and pandas write it."""
Label = int | str | list[float | None]


class TableRow(NamedTuple):
    """A row of a table, before parsing."""

    line: int
    """First line of the row; the header is line 1."""
    smiles: str
    cells: list[str]
    """The targets."""
    split: str = ""
    group: str = ""
    time: str = ""
    record: tuple[str, ...] = ()
    """All cells, not stripped, if requested."""
    features: tuple[str, ...] = ()
    """Cells of the feature columns."""


class Table(NamedTuple):
    """The molecules of a table, and the rows that were skipped."""

    dataset: GraphDataset
    smiles: tuple[str, ...]
    """SMILES of each graph."""
    lines: tuple[int, ...]
    """Line of each graph; the header is line 1."""
    split: tuple[str, ...] | None
    """Split column, for each graph."""
    skipped: tuple[Skipped, ...]
    """Rows that could not be used, sorted by line."""
    targets: tuple[str, ...] = ()
    """Names of the target columns."""
    groups: tuple[str, ...] | None = None
    """Group column, for each graph."""
    times: tuple[str, ...] | None = None
    """Time column, for each graph."""
    molecules: tuple[str, ...] = ()
    """Canonical SMILES of each graph."""


def read_table(
    path: Path | str,
    *,
    smiles_column: str | None = None,
    target_columns: Sequence[str] | None = None,
    split_column: str | None = None,
    task: Task | None = None,
    strict: bool = False,
    need_targets: bool = True,
    atom_order: AtomOrder = "canonical",
    group_column: str | None = None,
    time_column: str | None = None,
    contradictions: Literal["keep", "drop"] = "keep",
    molecule_features: Sequence[str] = (),
    feature_columns: Sequence[str] = (),
) -> Table:
    """Return the molecules of a table and their targets.

    Rows with an unreadable SMILES, or without a class in a classification table, are skipped and
    listed. Blank lines are ignored; cells are stripped.

    Args:
        path: A UTF-8 file ending in .csv (commas, or semicolons if the header has no comma), .tsv
            or .tab, or one of these and .gz.
        smiles_column: By default the column called "smiles", in any case.
        target_columns: By default the only other column; ``["*"]`` for all others.
        split_column: Column that assigns each row to train, valid or test.
        task: "classes": one column of words or integers. "binary": columns of 0, 1 or missing.
            "regression": columns of numbers or missing. Missing is a blank, NA, <NA>, N/A, #N/A,
            NaN or null, in any case. By default regression if a target has decimals, else classes
            for one column and binary for several.
        strict: Raise an error if a row cannot be used.
        need_targets: If false, no target column is read: ``y`` has no columns, [G, 0].
        atom_order: Atom order, as in ``read_molecules``.
        group_column: Column whose equal cells stay in one part of a split.
        time_column: Column of numbers or ISO dates, for a split by time.
        contradictions: "drop" leaves out all rows of a molecule with contradicting targets, as
            ``gtpool.data.duplicates.contradictions`` finds them.
        molecule_features: Descriptors of each molecule, keys of ``MOLECULE_FEATURES``.
        feature_columns: Columns of numbers that are features of the whole molecule; a missing
            value, marked as in targets, is NaN.
    """
    path = Path(path)
    if not need_targets and (target_columns or task):
        raise ValueError("need_targets=False does not accept target_columns or task")
    _, names, reading = open_rows(
        path,
        smiles_column=smiles_column,
        target_columns=target_columns,
        split_column=split_column,
        group_column=group_column,
        time_column=time_column,
        need_targets=need_targets,
        feature_columns=feature_columns,
    )
    found = list(reading)
    kind = _task(task, names, found)
    unlabelled = [row for row in found if kind == "classes" and is_missing(row.cells[0])]
    rows = [row for row in found if kind != "classes" or not is_missing(row.cells[0])]
    labels = [read_label(path, row, names, kind) for row in rows]
    if rows and kind == "classes":  # report mixed labels before reading molecules, which is slow
        _pack(path, rows, labels, names, kind)
    molecules = read_molecules([row.smiles for row in rows], atom_order=atom_order)
    skipped = [Skipped(row.line, row.smiles, f"no class in {names[0]!r}") for row in unlabelled]
    for position, reason in molecules.failed:
        skipped.append(Skipped(rows[position].line, rows[position].smiles, reason))
    rows, labels = molecules.select_rows(rows), molecules.select_rows(labels)
    if rows and contradictions == "drop":
        gone = _contradicting(
            rows, molecules.canonical, _pack(path, rows, labels, names, kind)[0], kind
        )
        skipped += gone.values()
        kept = [at for at in range(len(rows)) if at not in gone]
        rows, labels = [rows[at] for at in kept], [labels[at] for at in kept]
        molecules = read_molecules([row.smiles for row in rows], atom_order=atom_order)
    skipped.sort()
    if not rows or (strict and skipped):
        raise ValueError(_refusal(path, skipped, len(found)))
    y, targets = _pack(path, rows, labels, names, kind)
    data = molecules.to_dataset(y, Path(name_without_gz(path)).stem, kind, targets)
    smiles, numbers = [row.smiles for row in rows], _feature_values(path, rows, feature_columns)
    data = with_graph_features(data, smiles, molecule_features, feature_columns, numbers)
    return Table(
        data,
        tuple(smiles),
        tuple(row.line for row in rows),
        None if split_column is None else tuple(row.split for row in rows),
        tuple(skipped),
        tuple(names),
        None if group_column is None else tuple(row.group for row in rows),
        None if time_column is None else tuple(row.time for row in rows),
        molecules.canonical,
    )


class _TableReader(FormatReader):
    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        found = read_table(
            path,
            smiles_column=spec.smiles_column,
            target_columns=spec.target_columns or None,
            split_column=spec.split_column,
            task=spec.task,
            atom_order=spec.atom_order,
            molecule_features=spec.molecule_features,
            feature_columns=spec.feature_columns,
            group_column=spec.group_column,
            time_column=spec.time_column,
            contradictions=spec.contradictions,
        )
        return Loaded(
            found.dataset,
            name,
            found.smiles,
            found.lines,
            found.split,
            found.groups,
            found.times,
            found.molecules,
            found.skipped,
            found.targets,
        )

    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        _check_molecular(path, schema)
        columns = options.target_columns
        if columns is not None:
            columns = _match_names(columns, options.trained_targets)
        header, names, reading = open_rows(
            path,
            smiles_column=options.smiles_column,
            trained_column=options.trained_column,
            target_columns=columns or None,
            trained_targets=options.trained_targets,
            need_targets=columns is not None,
            keep_records=True,
            feature_columns=schema.recipe.feature_columns,
        )
        found = list(reading)
        tasks = 1 if schema.task == "classes" else schema.num_outputs
        if columns is not None and len(names) != tasks:
            raise ValueError(
                f"{path}: target columns given: {len(names)}; the model has {tasks} "
                f"target{'s' * (tasks > 1)}"
            )
        return _inference_data(path, header, names, schema, found)

    def stream_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceStream:
        _check_molecular(path, schema)
        header, names, rows = open_rows(
            path,
            smiles_column=options.smiles_column,
            trained_column=options.trained_column,
            need_targets=False,
            keep_records=True,
            feature_columns=schema.recipe.feature_columns,
        )
        return InferenceStream(rows, partial(_inference_data, path, header, names, schema))

    def smiles(self, path: Path, rows: Sequence[InputRow]) -> list[str] | None:
        del path
        return [row.id for row in rows]


READER = _TableReader()


def _check_molecular(path: Path, schema: Schema) -> None:
    if schema.recipe.kind != "molecule":
        raise ValueError(f"{path} is a table of SMILES, but the model was not trained on molecules")


def _inference_data(
    path: Path, header: list[str], names: list[str], schema: Schema, found: Sequence[TableRow]
) -> InferenceData:
    """Return the graphs of some rows with the features of the model's recipe."""
    reasons, values = _readable_features(found, schema.recipe.feature_columns)
    left = [at for at in range(len(found)) if at not in reasons]
    smiles, order = [found[at].smiles for at in left], schema.recipe.atom_order
    molecules = read_molecules(smiles, atom_order=order)
    reasons |= {left[position]: reason for position, reason in molecules.failed}
    rows = [
        InputRow(
            row.line,
            row.smiles,
            f"{path}, line {row.line}",
            read_label(path, row, names, schema.task) if names else None,
            reasons.get(position),
            row.record,
        )
        for position, row in enumerate(found)
    ]
    graphs = molecules.sizes.numel()
    data = None
    if graphs:
        data = molecules.to_dataset(torch.empty(graphs, 0), path.stem, "regression", ())
        smiles, values = molecules.select_rows(smiles), molecules.select_rows(values)
        numbers = torch.tensor(values) if schema.recipe.feature_columns else None
        data = apply_graph_features(data, smiles, schema.recipe, numbers)
        data = apply_recipe(data, schema.recipe)
    return InferenceData("line", rows, data, tuple(header), tuple(names))


def _match_names(columns: Sequence[str], targets: Sequence[str]) -> Sequence[str]:
    """Return target columns in the order of the model's targets; other names keep their order."""
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


def open_rows(
    path: Path,
    *,
    smiles_column: str | None = None,
    target_columns: Sequence[str] | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    time_column: str | None = None,
    need_targets: bool = True,
    trained_column: str | None = None,
    trained_targets: Sequence[str] = (),
    keep_records: bool = False,
    feature_columns: Sequence[str] = (),
) -> tuple[list[str], list[str], Iterator[TableRow]]:
    """Return the names of all columns, unchanged, the names of the target columns, and the rows.

    The rows are an iterator that reads the file. The arguments are those of ``read_table``.
    ``trained_column``, if it exists, is the default of ``smiles_column``, and ``trained_targets``
    of ``target_columns``; with ``keep_records`` rows hold all their cells.
    """
    records = read_csv_rows(path)
    _, written = next(records)
    header = [name.strip() for name in written]
    smiles_column = smiles_column or _smiles_column(path, header, trained_column)
    if need_targets and target_columns is None and trained_targets:
        taken = {smiles_column, *feature_columns}
        target_columns = _target_columns(path, header, taken, trained_targets)
    special = {
        "smiles_column": smiles_column,
        "split_column": split_column,
        "group_column": group_column,
        "time_column": time_column,
    }
    columns = _choose(path, header, special, target_columns, need_targets, feature_columns)
    first = next(records, None)
    if first is None:
        raise ValueError(f"{path} has a header, but no row below it")
    rows = (columns.row(line, cells, keep_records) for line, cells in chain([first], records))
    return written, [header[column] for column in columns.targets], rows


def read_label(path: Path, row: TableRow, names: list[str], kind: Task) -> Label:
    """Return the class of a row (1.0 is the class 1), or one number per target column."""
    read = _read_class if kind == "classes" else _read_bit if kind == "binary" else _read_number
    values: list[Any] = []
    for name, cell in zip(names, row.cells, strict=True):
        try:
            values.append(None if is_missing(cell) else read(cell))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {row.line}, column {name!r}: {cell[:60]!r} {error}"
            ) from None
    return values[0] if kind == "classes" else values


def _read_features(row: TableRow, columns: Sequence[str], where: str) -> list[float]:
    """Return the numbers of the feature columns of a row, NaN where missing."""
    values: list[float] = []
    for name, cell in zip(columns, row.features, strict=True):
        try:
            values.append(math.nan if is_missing(cell) else _read_number(cell))
        except ValueError as error:
            raise ValueError(f"{where}column {name!r}: {cell[:60]!r} {error}") from None
    return values


def _readable_features(
    rows: Sequence[TableRow], columns: Sequence[str]
) -> tuple[dict[int, str], list[list[float]]]:
    """Return why rows have unreadable features, by position, and the numbers of all others."""
    reasons, values = dict[int, str](), list[list[float]]()
    for position, row in enumerate(rows):
        try:
            values.append(_read_features(row, columns, ""))
        except ValueError as error:
            reasons[position] = str(error)
    return reasons, values


def _feature_values(path: Path, rows: Sequence[TableRow], columns: Sequence[str]) -> Tensor:
    """Return the numbers of the feature columns, [G, columns]; raise if a column has none."""
    values = torch.tensor(
        [_read_features(row, columns, f"{path}, line {row.line}, ") for row in rows]
    )
    blank = [name for name, column in zip(columns, values.T, strict=True) if column.isnan().all()]
    if blank:
        raise ValueError(f"{path}, column {_listed(blank)}: blank in all rows that can be used")
    return values


def is_missing(cell: str) -> bool:
    """Whether a cell of a target column is blank or marks a missing value."""
    return cell.lower() in _BLANK


class _Columns(NamedTuple):
    special: list[int | None]
    """Columns of SMILES, split, group and time."""
    targets: list[int]
    features: list[int]

    def row(self, line: int, cells: list[str], keep: bool) -> TableRow:
        smiles, *others = ("" if at is None else cells[at].strip() for at in self.special)
        targets = [cells[column].strip() for column in self.targets]
        record = tuple(cells) if keep else ()
        features = tuple(cells[column].strip() for column in self.features)
        return TableRow(line, smiles, targets, *others, record=record, features=features)


def _smiles_column(path: Path, header: list[str], trained: str | None) -> str:
    """Return the default SMILES column: the model's own if there, else the one called "smiles"."""
    if trained in header:
        return trained
    named = [name for name in header if name.lower() == "smiles"]
    if len(named) > 1:
        raise ValueError(
            f"{path}: say which is the {_option('smiles_column')}, {' or '.join(named)}"
        )
    return named[0] if named else trained or "smiles"


def _target_columns(
    path: Path, header: list[str], taken: set[str], trained: Sequence[str]
) -> Sequence[str]:
    """Return the default target columns: the model's own, or for a missing one the only other."""
    others = [name for name in header if name not in taken]
    if len(trained) > 1 or trained[0] in others:
        return trained
    if len(others) == 1:
        return others
    raise ValueError(
        f"{path} has no column {trained[0]!r}, the target of the model; say which column holds "
        f"the target, {_option('target_columns')}; beside the SMILES there are {_listed(others)}"
    )


def _choose(
    path: Path,
    header: list[str],
    special: Mapping[str, str | None],
    target_columns: Sequence[str] | None,
    need_targets: bool,
    feature_columns: Sequence[str],
) -> _Columns:
    """Return the indices of the given or default columns."""
    places = [
        None if name is None else _find(path, header, name, option)
        for option, name in special.items()
    ]
    features = [_find(path, header, name, "feature_columns") for name in feature_columns]
    taken = {*special.values(), *feature_columns}
    others = [name for name in header if name not in taken]
    if isinstance(target_columns, str):
        target_columns = [target_columns]
    wanted = others if target_columns is None or list(target_columns) == ["*"] else target_columns
    if not need_targets:
        wanted = []
    elif not wanted or (target_columns is None and len(others) > 1):
        raise ValueError(
            f"{path}: say which columns hold the targets, {_option('target_columns')}; "
            f"beside the SMILES there are {_listed(others)}"
        )
    targets = [_find(path, header, name, "target_columns") for name in wanted]
    chosen = [*targets, *(place for place in places if place is not None), *features]
    twice = [header[column] for column in chosen if chosen.count(column) > 1]
    if twice:
        raise ValueError(
            f"{path}: column {twice[0]!r} is chosen twice; "
            "SMILES, targets, split, group, time and features need a column each"
        )
    return _Columns(places, targets, features)


def _find(path: Path, header: list[str], name: str, option: str) -> int:
    """Return the index of a column; the error for an unknown name suggests the nearest one."""
    if name in header:
        return header.index(name)
    near = nearest(name, header)
    guess = "" if near is None else f"did you mean {near!r}? "
    raise ValueError(
        f"{path} has no column {name!r} for {_option(option)}; "
        f"{guess}its columns are {_listed(header)}"
    )


def _option(name: str) -> str:
    """Return the name of an option in Python and on the command line."""
    if name == "feature_columns":  # a model that predicts reads those of its training
        return "feature_columns (--feature-columns of the training)"
    return f"{name} (--{name.replace('_', '-')})"


def _listed(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(map(repr, names[:most])) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _task(task: Task | None, names: list[str], rows: list[TableRow]) -> Task:
    if task is None:
        if any(_is_decimal(cell) for row in rows for cell in row.cells):
            return "regression"
        return "classes" if len(names) == 1 else "binary" if names else "regression"
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose one of {', '.join(TASKS)}")
    if task == "classes" and len(names) > 1:
        raise ValueError(f"classes need one target column, got several: {_listed(names)}")
    return task


def _is_decimal(cell: str) -> bool:
    """Whether a cell is a number with a fraction or an exponent; 1.0 is an integer."""
    marked = any(mark in cell for mark in ".eE")  # a long integer may exceed _WHOLE
    return marked and bool(NUMBER.fullmatch(cell)) and not _WHOLE.fullmatch(cell)


def _read_class(cell: str) -> int | str:
    whole = _WHOLE.fullmatch(cell)
    if whole:
        return int(whole[1])
    if NUMBER.fullmatch(cell) or _COMMA.fullmatch(cell):
        point = " and write decimal points" if "," in cell else ""
        raise ValueError(
            "is not a class, neither a word nor an integer; "
            f'to predict numbers, use task="regression" (--task regression){point}'
        )
    return cell


def _read_bit(cell: str) -> float:
    if not _WHOLE.fullmatch(cell) or float(cell) not in (0, 1):
        raise ValueError("is neither 0 nor 1 nor blank; to predict numbers, use --task regression")
    return float(cell)


def _read_number(cell: str) -> float:
    if _COMMA.fullmatch(cell):
        raise ValueError("is not a number; write a decimal point")
    if not NUMBER.fullmatch(cell):
        raise ValueError("is not a number; leave the cell blank if it is missing")
    if abs(float(cell)) > FLOAT32_MAX:
        raise ValueError(f"is beyond {FLOAT32_MAX:.4g}, the largest number of float32")
    return float(cell)


def _pack(
    path: Path, rows: list[TableRow], labels: list[Label], names: list[str], kind: Task
) -> tuple[Tensor, tuple[str, ...]]:
    """Return ``y`` and the names of its classes or columns."""
    if not names:
        return torch.empty(len(rows), 0), ()
    places = [f"line {row.line}" for row in rows]
    try:
        y, _, classes = pack_targets(labels, places, task=kind)
    except ValueError as error:
        raise ValueError(f"{path}, column {_listed(names)}: {error}") from error
    if kind == "classes":
        return y, classes
    if y.isnan().all():
        raise ValueError(f"{path}, column {_listed(names)}: blank in all rows that can be used")
    return y, tuple(names)


def _contradicting(
    rows: Sequence[TableRow], molecules: Sequence[str], y: Tensor, kind: Task
) -> dict[int, Skipped]:
    """Return the rows with contradicting targets by index, with the lines that contradict them."""
    gone: dict[int, Skipped] = {}
    for group in contradictions_of(molecules, y, kind):
        lines = ", ".join(str(rows[at].line) for at in group)
        reason = f"contradicting targets of one molecule in lines {lines}"
        gone |= {at: Skipped(rows[at].line, rows[at].smiles, reason) for at in group}
    return gone


def _refusal(path: Path, skipped: list[Skipped], total: int) -> str:
    first = [f"line {row.line}: {row.reason} ({row.smiles[:60]!r})" for row in skipped[:5]]
    more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return f"{path}: {len(skipped)} of {total} rows cannot be used: {'; '.join(first)}{more}"
