"""Tables of SMILES in CSV or TSV files: one molecule per row, targets in columns."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpool.data.columns import (
    Label,
    TableRow,
    choose_task,
    is_missing,
    listed,
    match_names,
    open_rows,
    read_features,
    read_label,
    readable_features,
)
from gtpool.data.dataset import GraphDataset
from gtpool.data.delimited import name_without_gz
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
from gtpool.data.schema import Schema, Task
from gtpool.data.targets import pack_targets
from gtpool.spec import AtomOrder, DataSpec

_OPTIONS = (
    *("smiles_column", "split_column", "group_column", "time_column", "feature_columns"),
    *("task", "atom_order", "molecule_features", "contradictions"),
)
"""Fields of a ``DataSpec`` that are options of ``read_table``."""


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
    kind = choose_task(task, names, found)
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
        options: dict[str, Any] = {name: getattr(spec, name) for name in _OPTIONS}
        found = read_table(path, target_columns=spec.target_columns or None, **options)
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
        columns = options.target_columns
        header, names, reading = _open(path, schema, options, columns)
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
        header, names, rows = _open(path, schema, options, None)
        return InferenceStream(rows, partial(_inference_data, path, header, names, schema))

    def smiles(self, path: Path, rows: Sequence[InputRow]) -> list[str] | None:
        del path
        return [row.id for row in rows]


READER = _TableReader()


def _open(
    path: Path, schema: Schema, options: InferenceOptions, target_columns: Sequence[str] | None
) -> tuple[list[str], list[str], Iterator[TableRow]]:
    """Return what ``open_rows`` does, without targets if ``target_columns`` is None."""
    if schema.recipe.kind != "molecule":
        raise ValueError(f"{path} is a table of SMILES, but the model was not trained on molecules")
    wanted = match_names(target_columns or (), options.trained_targets)
    return open_rows(
        path,
        smiles_column=options.smiles_column,
        trained_column=options.trained_column,
        target_columns=wanted or None,
        trained_targets=options.trained_targets,
        need_targets=target_columns is not None,
        keep_records=True,
        feature_columns=schema.recipe.feature_columns,
    )


def _inference_data(
    path: Path, header: list[str], names: list[str], schema: Schema, found: Sequence[TableRow]
) -> InferenceData:
    """Return the graphs of some rows with the features of the model's recipe."""
    reasons, values = readable_features(found, schema.recipe.feature_columns)
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


def _feature_values(path: Path, rows: Sequence[TableRow], columns: Sequence[str]) -> Tensor:
    """Return the numbers of the feature columns, [G, columns]; raise if a column has none."""
    values = torch.tensor(
        [read_features(row, columns, f"{path}, line {row.line}, ") for row in rows]
    )
    blank = [name for name, column in zip(columns, values.T, strict=True) if column.isnan().all()]
    if blank:
        raise ValueError(f"{path}, column {listed(blank)}: blank in all rows that can be used")
    return values


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
        raise ValueError(f"{path}, column {listed(names)}: {error}") from error
    if kind == "classes":
        return y, classes
    if y.isnan().all():
        raise ValueError(f"{path}, column {listed(names)}: blank in all rows that can be used")
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
