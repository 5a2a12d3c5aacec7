"""Columns of a table of SMILES: which hold what, and what their cells say."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from gtpool.data.delimited import NUMBER, read_csv_rows
from gtpool.data.schema import FLOAT32_MAX, TASKS, Task
from gtpool.spec import nearest

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


def read_features(row: TableRow, columns: Sequence[str], where: str) -> list[float]:
    """Return the numbers of the feature columns of a row, NaN where missing."""
    values: list[float] = []
    for name, cell in zip(columns, row.features, strict=True):
        try:
            values.append(math.nan if is_missing(cell) else _read_number(cell))
        except ValueError as error:
            raise ValueError(f"{where}column {name!r}: {cell[:60]!r} {error}") from None
    return values


def readable_features(
    rows: Sequence[TableRow], columns: Sequence[str]
) -> tuple[dict[int, str], list[list[float]]]:
    """Return why rows have unreadable features, by position, and the numbers of all others."""
    reasons, values = dict[int, str](), list[list[float]]()
    for position, row in enumerate(rows):
        try:
            values.append(read_features(row, columns, ""))
        except ValueError as error:
            reasons[position] = str(error)
    return reasons, values


def is_missing(cell: str) -> bool:
    """Whether a cell of a target column is blank or marks a missing value."""
    return cell.lower() in _BLANK


def _is_decimal(cell: str) -> bool:
    """Whether a cell is a number with a fraction or an exponent; 1.0 is an integer."""
    marked = any(mark in cell for mark in ".eE")  # a long integer may exceed _WHOLE
    return marked and bool(NUMBER.fullmatch(cell)) and not _WHOLE.fullmatch(cell)


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return names in quotes, the first ones of many."""
    shown = ", ".join(map(repr, names[:most])) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def choose_task(task: Task | None, names: list[str], rows: list[TableRow]) -> Task:
    """Return the given task, or the one that the cells of the targets suggest."""
    if task is None:
        if any(_is_decimal(cell) for row in rows for cell in row.cells):
            return "regression"
        return "classes" if len(names) == 1 else "binary" if names else "regression"
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; choose one of {', '.join(TASKS)}")
    if task == "classes" and len(names) > 1:
        raise ValueError(f"classes need one target column, got several: {listed(names)}")
    return task


def match_names(columns: Sequence[str], targets: Sequence[str]) -> Sequence[str]:
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
        f"the target, {_option('target_columns')}; beside the SMILES there are {listed(others)}"
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
            f"beside the SMILES there are {listed(others)}"
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
        f"{guess}its columns are {listed(header)}"
    )


def _option(name: str) -> str:
    """Return the name of an option in Python and on the command line."""
    if name == "feature_columns":  # a model that predicts reads those of its training
        return "feature_columns (--feature-columns of the training)"
    return f"{name} (--{name.replace('_', '-')})"


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
