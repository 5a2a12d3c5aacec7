"""Training, validation and test splits: one function per rule."""

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.data.numbers import read_numbers

Fractions = tuple[float, float, float]

_PART_NAMES = {
    "train": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "test": "test",
}


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint training, validation and test indices; each part is sorted and not empty.

    Example:
        >>> split = Split(torch.tensor([3, 0]), torch.tensor([1]), torch.tensor([4]), "mine", 5)
        >>> split.train.tolist(), split.uncovered.tolist(), split.digest
        ([0, 3], [2], '6c3119fdcd27')
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    rule: str
    """Description of the rule that made the split."""
    num_graphs: int
    """Number of graphs in the dataset."""

    def __post_init__(self) -> None:
        """Sort the parts; an index that is duplicate or out of range is a ValueError."""
        for name in ("train", "valid", "test"):
            part = torch.as_tensor(getattr(self, name), dtype=torch.long).sort().values
            object.__setattr__(self, name, part)
            if part.numel() == 0:
                raise ValueError(
                    f"{self.rule}: the {name} part of {self.num_graphs} graphs is empty"
                )
            if int(part[0]) < 0 or int(part[-1]) >= self.num_graphs:
                wrong = int(part[0]) if int(part[0]) < 0 else int(part[-1])
                raise ValueError(
                    f"{self.rule}: the {name} part names graph {wrong}, "
                    f"but the graphs are 0 to {self.num_graphs - 1}"
                )
        taken = self._times_taken()
        if int(taken.max()) > 1:
            raise ValueError(f"{self.rule}: graph {int(taken.argmax())} is in the split twice")

    @property
    def uncovered(self) -> Tensor:
        """Indices of the graphs that are in no part."""
        return (self._times_taken() == 0).nonzero().flatten()

    @property
    def digest(self) -> str:
        """Short hash of the three parts."""
        parts = [part.tolist() for part in (self.train, self.valid, self.test)]
        return hashlib.sha256(str(parts).encode()).hexdigest()[:12]

    def _times_taken(self) -> Tensor:
        return torch.cat([self.train, self.valid, self.test]).bincount(minlength=self.num_graphs)


def fixed_folds(folder: Path, num_graphs: int, folds: int = 10) -> list[Split]:
    """Return the fixed folds of the GMT protocol.

    Fold k tests on the indices of ``test_idx-k.txt``, validates on those of fold k - 1 (fold 1 on
    the last) and trains on the rest of ``train_idx-k.txt``. A few graphs of some datasets (8 of
    MUTAG) are in no test fold; they are in every training part.

    Args:
        folder: The folder with ``train_idx-1.txt`` to ``test_idx-10.txt``.
        num_graphs: Number of graphs in the dataset.
        folds: Number of folds.
    """
    tests = [read_numbers(folder / f"test_idx-{k}.txt", 1).flatten() for k in range(1, folds + 1)]
    trains = [read_numbers(folder / f"train_idx-{k}.txt", 1).flatten() for k in range(1, folds + 1)]
    return [
        Split(
            train[~torch.isin(train, tests[k - 1])],
            tests[k - 1],
            tests[k],
            f"fixed folds of {folder.name}, fold {k + 1} of {folds}",
            num_graphs,
        )
        for k, train in enumerate(trains)
    ]


def stratified_folds(y: Tensor, folds: int = 10, seed: int = 0) -> list[Split]:
    """Return folds with the classes evenly distributed, for datasets without fixed folds.

    The test folds are those of scikit-learn's ``StratifiedKFold(folds, shuffle=True,
    random_state=seed)``; fold k validates on the test fold of k - 1, as in ``fixed_folds``.
    Warns if a class has fewer members than there are folds.

    Args:
        y: Class of each graph, [G] or [G, 1].
        folds: Number of folds, at least 3.
        seed: Random seed.
    """
    if y.dim() == 2 and y.size(1) == 1:
        y = y.flatten()
    if y.dim() != 1 or y.isnan().any():
        raise ValueError(
            "stratified folds need one class for each graph; "
            "for several tasks or missing labels use random_folds or random_split"
        )
    fold = _assign_folds(y.cpu().numpy(), folds, seed)
    return splits_of(fold, folds, f"stratified folds, seed {seed}")


def random_folds(num_graphs: int, folds: int = 10, seed: int = 0) -> list[Split]:
    """Return random folds of equal size, without regard to targets.

    Fold k validates on the test fold of k - 1, as in ``stratified_folds``.

    Args:
        num_graphs: Number of graphs.
        folds: Number of folds, at least 3.
        seed: Random seed.

    Example:
        >>> [split.test.tolist() for split in random_folds(5, folds=3)]
        [[1, 2], [0, 3], [4]]
    """
    if num_graphs < folds:
        raise ValueError(f"{folds} folds need at least {folds} graphs, got {num_graphs}")
    fold = _assign_folds(np.zeros(num_graphs), folds, seed)
    return splits_of(fold, folds, f"random folds, seed {seed}")


def ogb_split(folder: Path) -> Split:
    """Return OGB's scaffold split, from ``split/scaffold/{train,valid,test}.csv.gz``."""
    names = ("train", "valid", "test")
    train, valid, test = (
        read_numbers(folder / "split" / "scaffold" / f"{name}.csv.gz", 1).flatten()
        for name in names
    )
    total = train.numel() + valid.numel() + test.numel()
    return Split(train, valid, test, f"scaffold split of {folder.name}", total)


def scaffold_split(scaffolds: Sequence[str], fractions: Fractions = (0.8, 0.1, 0.1)) -> Split:
    """Return a split that keeps molecules of one scaffold together.

    As in OGB, groups sorted by size and then by first molecule, both descending, go to the first of
    train, valid and test that has room for the whole group.

    Args:
        scaffolds: Scaffold of each molecule, from ``gtpool.data.molecule.scaffolds``.
        fractions: Fractions of the three parts.

    Example:
        >>> split = scaffold_split(["a"] * 8 + ["b", "c"])
        >>> split.train.tolist(), split.valid.tolist(), split.test.tolist()
        ([0, 1, 2, 3, 4, 5, 6, 7], [9], [8])
    """
    groups: dict[str, list[int]] = {}
    for index, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(index)
    train_room, rest_room = fraction_bounds(len(scaffolds), fractions)
    train: list[int] = []
    valid: list[int] = []
    test: list[int] = []
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0]), reverse=True):
        if len(train) + len(group) <= train_room:
            train.extend(group)
        elif len(train) + len(valid) + len(group) <= rest_room:
            valid.extend(group)
        else:
            test.extend(group)
    train_part, valid_part, test_part = map(_indices, (train, valid, test))
    return Split(train_part, valid_part, test_part, "scaffold split", len(scaffolds))


def random_split(num_graphs: int, fractions: Fractions = (0.8, 0.1, 0.1), seed: int = 0) -> Split:
    """Return a random split.

    Example:
        >>> split = random_split(10, seed=1)
        >>> split.train.numel(), split.valid.numel(), split.test.numel()
        (8, 1, 1)
    """
    train_end, valid_end = map(math.floor, fraction_bounds(num_graphs, fractions))
    order = torch.randperm(num_graphs, generator=torch.Generator().manual_seed(seed))
    train, valid, test = order.tensor_split((train_end, valid_end))
    return Split(train, valid, test, f"random split, seed {seed}", num_graphs)


def column_split(values: Sequence[str]) -> Split:
    """Return the split of a column that holds train, valid (val, validation) or test.

    Without validation rows, a random tenth of the training rows (seed 0, at least one) is used for
    validation, and ``rule`` says so.

    Example:
        >>> split = column_split(["train", "Test", "val", "train"])
        >>> split.train.tolist(), split.valid.tolist(), split.test.tolist()
        ([0, 3], [2], [1])
    """
    parts = [_PART_NAMES.get(str(value).strip().lower()) for value in values]
    if None in parts:
        row = parts.index(None)
        raise ValueError(
            f"row {row} of the split column (counted from 0) holds {values[row]!r}; "
            "it must hold train, valid or test"
        )
    train, valid, test = (
        _indices([row for row, found in enumerate(parts) if found == part])
        for part in ("train", "valid", "test")
    )
    rule = "split column"
    if valid.numel() == 0 and train.numel() > 1:
        order = torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))
        train, valid = train[order].tensor_split((-max(1, train.numel() // 10),))
        rule = "split column, a random tenth of train for validation"
    return Split(train, valid, test, rule, len(parts))


def bag_split(split: Split, bag: int, y: Tensor | None = None) -> Split:
    """Return a split whose training and validation part are drawn anew from both, by a seed.

    The parts keep their sizes, and the test part stays as it is. The shuffled graphs are ordered by
    class, and evenly spaced ones validate, so each part has its share of every class.

    Args:
        split: The split.
        bag: Seed of the draw, from 1.
        y: Class of each graph of the dataset, [G]; None to draw without classes.

    Example:
        >>> split = Split(torch.arange(6), torch.tensor([6, 7]), torch.tensor([8, 9]), "mine", 10)
        >>> bagged = bag_split(split, 1)
        >>> bagged.train.numel(), bagged.valid.numel(), bagged.test.tolist(), bagged.rule
        (6, 2, [8, 9], 'mine, bag 1')
    """
    both = torch.cat([split.train, split.valid]).sort().values
    both = both[torch.randperm(both.numel(), generator=torch.Generator().manual_seed(bag))]
    if y is not None:
        both = both[y.cpu()[both].argsort(stable=True)]
    count = split.valid.numel()
    drawn = (2 * torch.arange(count) + 1) * both.numel() // (2 * count)
    train = torch.ones(both.numel(), dtype=torch.bool).index_fill(0, drawn, value=False)
    return replace(split, train=both[train], valid=both[drawn], rule=f"{split.rule}, bag {bag}")


def _indices(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long)


def _assign_folds(y: NDArray[np.generic], folds: int, seed: int) -> NDArray[np.int64]:
    """Return the test fold of each graph, as scikit-learn's ``StratifiedKFold`` assigns it, [G]."""
    _, first, code, counts = np.unique(
        y, return_index=True, return_inverse=True, return_counts=True
    )
    if folds < 3:
        raise ValueError(f"training, validation and test need at least 3 folds, got {folds}")
    if counts.max(initial=0) < folds:
        raise ValueError(
            f"{folds} stratified folds need a class of at least {folds} graphs, and the largest of "
            f"{counts.size} classes has {counts.max(initial=0)}; use fewer folds"
        )
    if counts.min() < folds:
        warnings.warn(
            f"the smallest class has fewer graphs ({counts.min()}) than there are folds ({folds}): "
            "some test folds have none of it",
            stacklevel=3,
        )
    random = np.random.RandomState(seed)
    fold = np.empty(y.size, np.int64)
    start = 0
    for kind in first.argsort():
        end = start + int(counts[kind])
        assigned = np.sort(np.arange(start, end) % folds)
        random.shuffle(assigned)
        fold[code == kind] = assigned
        start = end
    return fold


def splits_of(test_fold: NDArray[np.int64], folds: int, rule: str) -> list[Split]:
    """Return the splits: fold k is tested, fold k - 1 validates, the others train."""
    fold = torch.from_numpy(test_fold)
    return [
        Split(
            ((fold != k) & (fold != (k - 1) % folds)).nonzero().flatten(),
            (fold == (k - 1) % folds).nonzero().flatten(),
            (fold == k).nonzero().flatten(),
            f"{rule}, fold {k + 1} of {folds}",
            fold.numel(),
        )
        for k in range(folds)
    ]


def fraction_bounds(num_graphs: int, fractions: Fractions) -> tuple[Fraction, Fraction]:
    """Return the exact ends of the training and the validation part."""
    if not math.isclose(sum(fractions), 1) or min(fractions) <= 0:
        raise ValueError(f"fractions must be positive and sum to 1, got {fractions}")
    train, valid, _ = (Fraction(str(share)) for share in fractions)
    return train * num_graphs, (train + valid) * num_graphs
