"""Molecules that a table holds more than once: which rows, and whether their targets agree.

Copies are rows with equal canonical SMILES, which are equal graphs for a network. Stereoisomers,
salts and tautomers are other molecules.
"""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from gtpool.data.schema import Task

_LISTED = 5


def number_groups(keys: Sequence[Hashable]) -> Tensor:
    """Return the number of each key, in order of first occurrence, [G].

    Example:
        >>> number_groups(["CO", "CC", "CO"]).tolist()
        [0, 1, 0]
    """
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])


def merge_groups(one: Tensor, other: Tensor) -> Tensor:
    """Return the finest groups that separate no group of either argument, [G].

    Example:
        >>> merge_groups(torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2])).tolist()
        [0, 0, 0, 1]
    """
    label, before = torch.arange(one.numel()), None
    while before is None or not torch.equal(label, before):
        before = label
        for group in (one, other):
            least = torch.full((int(group.max()) + 1,), label.numel())
            label = least.scatter_reduce(0, group, label, "amin")[group]
    return label.unique(return_inverse=True)[1]


def count_copies(molecules: Sequence[str]) -> int:
    """Return the number of rows that repeat the molecule of an earlier row.

    Args:
        molecules: Canonical SMILES of each row.
    """
    return len(molecules) - len(set(molecules))


def contradictions(molecules: Sequence[str], y: Tensor, task: Task) -> list[list[int]]:
    """Return the rows of each molecule whose copies have contradicting targets.

    Classes and labels of 0 and 1 contradict each other if they differ, numbers if they differ by
    more than one standard deviation of their column. A missing target contradicts nothing.

    Args:
        molecules: Canonical SMILES of each row.
        y: Targets, as in ``GraphDataset``.
        task: Task of the targets.

    Example:
        >>> contradictions(["CO", "CC", "CO", "CC"], torch.tensor([0, 1, 1, 1]), "classes")
        [[0, 2]]
    """
    values = y.double().view(len(molecules), -1)
    allowed = torch.zeros(values.size(1))
    if task == "regression":
        known = (column[~column.isnan()] for column in values.T)
        allowed = torch.tensor(
            [float(column.std(correction=0)) if column.numel() else 0 for column in known]
        )
    rows: dict[str, list[int]] = {}
    for row, molecule in enumerate(molecules):
        rows.setdefault(molecule, []).append(row)
    copied = [group for group in rows.values() if len(group) > 1]
    return [group for group in copied if bool((_range(values[group]) > allowed).any())]


def describe_copies(
    molecules: Sequence[str],
    y: Tensor,
    task: Task,
    *,
    lines: Sequence[int],
    apart: bool = False,
) -> list[str]:
    """Return notes about copies and contradicting targets; none if there are no copies.

    Args:
        molecules: Canonical SMILES of each row.
        y: Targets, as in ``GraphDataset``.
        task: Task of the targets.
        lines: Line of each row in its file.
        apart: Whether the split may separate copies.

    Example:
        >>> y = torch.tensor([0, 1, 1])
        >>> describe_copies(["CO", "CC", "CO"], y, "classes", lines=[2, 3, 4])[0]
        '1 of 3 rows repeat a molecule of an earlier row; copies stay in one part of a split'
    """
    copies = count_copies(molecules)
    if not copies:
        return []
    side = "copies stay in one part of a split"
    if apart:
        side = "the test metric is too high if copies are in both training and test part"
    notes = [f"{copies} of {len(molecules)} rows repeat a molecule of an earlier row; {side}"]
    found = contradictions(molecules, y, task)
    if found:
        named = [_name(molecules[rows[0]], [lines[row] for row in rows]) for rows in found]
        more = "" if len(found) <= _LISTED else f"; and {len(found) - _LISTED} more"
        listed = "; ".join(named[:_LISTED])
        notes.append(
            f"molecules with contradicting targets: {len(found)} ({listed}{more}); "
            "all rows are kept, --contradictions drop leaves them out"
        )
    return notes


def _range(values: Tensor) -> Tensor:
    """Return the range of the present values of each column; NaN or below 0 without any, [T]."""
    high = values.nan_to_num(-torch.inf).amax(0)
    return high - values.nan_to_num(torch.inf).amin(0)


def _name(molecule: str, lines: Sequence[int]) -> str:
    listed = ", ".join(map(str, lines[:_LISTED]))
    more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    return f"{molecule[:60]} in lines {listed}{more}"
