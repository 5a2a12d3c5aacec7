"""Merging tables of binary tasks by molecule, to train a base model on several sets at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gtpool.data.columns import open_rows, read_label
from gtpool.data.delimited import read_csv_rows
from gtpool.data.locate import find_raw
from gtpool.data.molecule import canonical_molecule
from gtpool.data.registry import DATASETS

_SKELETON = 14  # characters of an InChIKey that name the atoms and bonds without stereochemistry
_NO_TASKS = {"smiles", "mol_id"}


class MergedTable(NamedTuple):
    """Molecules of several tables, one row each."""

    header: list[str]
    """"smiles", then each task as SOURCE:TASK."""
    rows: list[list[str]]
    """The SMILES, then 1, 0 or a blank for each task."""
    excluded: int
    """Rows left out on request."""
    unreadable: int
    """Rows whose SMILES cannot be read."""
    contradictions: int
    """Labels left blank since copies of the molecule differ."""


def merge_tables(
    sources: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    smiles_column: str | None = None,
    data_dir: Path | None = None,
) -> MergedTable:
    """Return the molecules of several tables of binary tasks with the labels of all.

    Copies of a molecule, by InChIKey, become one row. Where their labels of a task differ, the
    label is missing.

    Args:
        sources: OGB's sets by name, or tables: SMILES in the column "smiles", and tasks of 0, 1 or
            blank in all others.
        exclude: Tables or sets whose molecules are left out, whatever their stereochemistry: the
            first block of the InChIKey decides.
        smiles_column: SMILES column of the tables that have it; by default the one called "smiles".
        data_dir: Folder searched first for a dataset known by name.
    """
    excluded = [_table_of(source, data_dir) for source in exclude]
    barred = _skeletons(excluded, smiles_column)
    header, molecules, left_out = ["smiles"], dict[str, _Molecule](), Counter[str]()
    for source in sources:
        path = _table_of(source, data_dir)
        name = source if source in DATASETS else path.name.partition(".")[0]
        for smiles, labels in _rows_of(path, name, header, smiles_column):
            key = inchikey(smiles)
            if key is None or key[:_SKELETON] in barred:
                left_out["unreadable" if key is None else "excluded"] += 1
                continue
            known = molecules.setdefault(key, _Molecule(smiles, {})).labels
            for task, label in labels.items():
                known.setdefault(task, set()).add(label)
    if not molecules:
        raise ValueError(f"no molecule of {', '.join(sources)} is left")
    wrong = sum(len(found) > 1 for one in molecules.values() for found in one.labels.values())
    rows = [_row(molecule, len(header)) for molecule in molecules.values()]
    return MergedTable(header, rows, left_out["excluded"], left_out["unreadable"], wrong)


class _Molecule(NamedTuple):
    smiles: str
    labels: dict[int, set[float]]
    """Labels of all copies by column."""


def _skeletons(paths: Sequence[Path], smiles_column: str | None) -> set[str]:
    """Return the first block of the InChIKey of every readable molecule."""
    tables = (
        open_rows(path, trained_column=smiles_column, need_targets=False)[2] for path in paths
    )
    keys = (inchikey(row.smiles) for table in tables for row in table)
    return {key[:_SKELETON] for key in keys if key is not None}


def _row(molecule: _Molecule, columns: int) -> list[str]:
    """Return the SMILES and the labels on which all copies agree."""
    known = {task: min(found) for task, found in molecule.labels.items() if len(found) == 1}
    single = {task: f"{label:.0f}" for task, label in known.items()}
    return [molecule.smiles, *(single.get(task, "") for task in range(1, columns))]


def inchikey(smiles: str) -> str | None:
    """Return the InChIKey of a molecule; None if rdkit cannot read or name it.

    Example:
        >>> inchikey("OCC"), inchikey("C1CC")
        ('LFQSCWFLJHTTHZ-UHFFFAOYSA-N', None)
    """
    from rdkit.Chem import MolToInchiKey  # noqa: PLC0415
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    try:
        molecule = canonical_molecule(smiles)
    except ValueError:
        return None
    with BlockLogs():
        return MolToInchiKey(molecule) or None


def _rows_of(
    path: Path, name: str, header: list[str], smiles_column: str | None
) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield SMILES and labels by column of a table; append its tasks to the header."""
    first, (_, written) = len(header), next(read_csv_rows(path))
    named = [column.strip() for column in written]
    beside = {smiles_column} if smiles_column in named else _NO_TASKS
    tasks = [column for column in named if column not in beside and column.lower() not in beside]
    columns = [f"{name}:{task}" for task in tasks]
    if twice := set(columns) & set(header):
        raise ValueError(f"column {min(twice)!r} occurs twice; name each table once")
    header += columns
    for row in open_rows(path, trained_column=smiles_column, target_columns=tasks)[2]:
        labels = read_label(path, row, tasks, "binary")
        found = dict(enumerate(labels, first)) if isinstance(labels, list) else {}
        yield row.smiles, {task: label for task, label in found.items() if label is not None}


def _table_of(source: str, data_dir: Path | None) -> Path:
    """Return the table of a source: of an OGB set the file that lists its SMILES."""
    if source not in DATASETS:
        return Path(source)
    if DATASETS[source].family != "OGB":
        raise ValueError(f"{source} has no table of binary tasks; name a set of OGB or a file")
    return find_raw(source, data_dir) / "mapping" / "mol.csv.gz"
