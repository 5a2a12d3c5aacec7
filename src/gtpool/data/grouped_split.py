"""Splits that keep groups of graphs together: by a column, by scaffold, by copies, by time."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from re import ASCII, fullmatch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.data.delimited import NUMBER
from gtpool.data.schema import Task
from gtpool.data.split import Fractions, Split, fraction_bounds, splits_of

_OTHER_SEED = 1_000_003


def grouped_folds(
    groups: Tensor,
    folds: int = 10,
    seed: int = 0,
    *,
    strata: Tensor | None = None,
    rule: str = "group folds",
) -> list[Split]:
    """Return folds of nearly equal size that separate no group.

    Groups go to folds from the largest to the smallest, in random order within a size. Each goes
    to the fold in which the sum of squares of the sizes, and of the counts of each stratum, grows
    least. Fold k validates on the test fold of k - 1, as in ``stratified_folds``.

    Args:
        groups: Group of each graph, numbered from 0, [G].
        folds: Number of folds, at least 3.
        seed: Random seed.
        strata: Columns whose sums the folds share evenly, such as one-hot classes, [G, S].
        rule: Description of the rule.

    Example:
        >>> splits = grouped_folds(torch.tensor([0, 0, 1, 2, 2, 3]), folds=3)
        >>> sorted(split.test.tolist() for split in splits)
        [[0, 1], [2, 5], [3, 4]]
    """
    if folds < 3:
        raise ValueError(f"training, validation and test need at least 3 folds, got {folds}")
    found = int(groups.max()) + 1
    if found < folds:
        raise ValueError(
            f"{rule}: {folds} folds need at least {folds} groups, got {found}; use fewer folds "
            "or another split type (--copies apart separates copies of a molecule)"
        )
    fold = _deal(groups, folds, seed, strata)
    if strata is not None:
        _warn_of_missing(torch.from_numpy(fold), folds, strata, rule)
    return splits_of(fold, folds, f"{rule}, seed {seed}")


def grouped_bag(split: Split, bag: int, groups: Tensor, strata: Tensor | None = None) -> Split:
    """Return a split whose training and validation part are drawn anew, separating no group.

    Args:
        split: The split; its test part stays as it is.
        bag: Seed of the draw, from 1.
        groups: Group of each graph of the dataset, [G].
        strata: As for ``grouped_folds``.

    Example:
        >>> split = Split(torch.arange(6), torch.tensor([6, 7]), torch.tensor([8, 9]), "mine", 10)
        >>> bagged = grouped_bag(split, 1, torch.arange(10) // 2)
        >>> bagged.train.numel(), bagged.valid.numel(), bagged.test.tolist(), bagged.rule
        (6, 2, [8, 9], 'mine, bag 1')
    """
    both = torch.cat([split.train, split.valid]).sort().values
    group = groups[both].unique(return_inverse=True)[1]
    parts = min(max(2, round(both.numel() / split.valid.numel())), int(group.max()) + 1)
    fold = _deal(group, parts, bag, None if strata is None else strata[both])
    drawn = torch.from_numpy(fold == 0)
    return replace(split, train=both[~drawn], valid=both[drawn], rule=f"{split.rule}, bag {bag}")


def halve_validation(
    split: Split, seed: int = 0, *, groups: Tensor, strata: Tensor | None = None
) -> Split:
    """Return a split in which half of the validation part trains.

    Args:
        split: The split.
        seed: Random seed.
        groups: Group of each graph of the dataset, [G]; no group is separated.
        strata: As for ``grouped_folds``.

    Example:
        >>> split = Split(torch.arange(6), torch.tensor([6, 7]), torch.tensor([8, 9]), "mine", 10)
        >>> half = halve_validation(split, groups=torch.arange(10))
        >>> half.train.numel(), half.valid.numel(), half.test.tolist(), half.rule
        (7, 1, [8, 9], 'mine, half of a fold validates')
    """
    group = groups[split.valid].unique(return_inverse=True)[1]
    if int(group.max()) == 0:
        return split
    fold = _deal(group, 2, seed, None if strata is None else strata[split.valid])
    half = torch.from_numpy(fold == 0)
    train = torch.cat([split.train, split.valid[~half]]).sort().values
    rule = f"{split.rule}, half of a fold validates"
    return replace(split, train=train, valid=split.valid[half], rule=rule)


def grouped_split(
    groups: Tensor,
    fractions: Fractions = (0.8, 0.1, 0.1),
    seed: int = 0,
    *,
    rule: str = "random split",
) -> Split:
    """Return a random split that separates no group.

    Args:
        groups: Group of each graph, numbered from 0, [G].
        fractions: Fractions of the three parts, reached as nearly as the groups allow.
        seed: Random seed.
        rule: Description of the rule.

    Example:
        >>> split = grouped_split(torch.arange(10) // 2, (0.6, 0.2, 0.2))
        >>> split.train.numel(), split.valid.tolist(), split.test.tolist()
        (6, [6, 7], [4, 5])
    """
    order = torch.randperm(int(groups.max()) + 1, generator=torch.Generator().manual_seed(seed))
    return _cut(order.argsort()[groups], fractions, f"{rule}, seed {seed}")


def hold_out(
    split: Split, seed: int = 0, *, groups: Tensor, strata: Tensor | None = None, test: bool = False
) -> Split:
    """Return a split without a fifth of the graphs, or with this fifth as its test part.

    The fifth is the same for all folds of a rule; of large groups it is the nearest to a fifth of
    five parts. With ``test``, the former test part trains.

    Args:
        split: The split.
        seed: Seed of the draw.
        groups: Group of each graph of the dataset, [G]; the fifth separates none.
        strata: As for ``grouped_folds``.
        test: Test on the fifth instead of leaving it out.

    Example:
        >>> split = Split(torch.arange(6), torch.tensor([6, 7]), torch.tensor([8, 9]), "mine", 10)
        >>> held = hold_out(split, groups=torch.arange(10))
        >>> tested = hold_out(split, groups=torch.arange(10), test=True)
        >>> torch.equal(held.uncovered, tested.test), tested.test.numel(), tested.rule
        (True, 2, 'mine, a fifth held out and tested')
    """
    # Another seed than that of the folds, which a draw with the same one would follow.
    fold = torch.from_numpy(_deal(groups, 5, seed + _OTHER_SEED, strata))
    # The first fold has the largest group, which can be most of the graphs.
    held = fold == int((5 * fold.bincount(minlength=5) - fold.numel()).abs().argmin())
    train, valid, inner = (part[~held[part]] for part in (split.train, split.valid, split.test))
    rule = f"{split.rule}, a fifth held out"
    if not (train.numel() and valid.numel() and inner.numel()):
        raise ValueError(
            f"{rule}: no graph is left in a part of this fold; use fewer folds (--folds), or hold "
            "out none (--no-hold-out)"
        )
    if not test:
        return replace(split, train=train, valid=valid, test=inner, rule=rule)
    both, fifth = torch.cat([train, inner]), held.nonzero().flatten()
    return replace(split, train=both, valid=valid, test=fifth, rule=f"{rule} and tested")


def train_subset(
    split: Split,
    share: float,
    seed: int = 0,
    *,
    groups: Tensor | None = None,
    strata: Tensor | None = None,
) -> Split:
    """Return a split with a random part of its training part; the other parts stay as they are.

    A smaller share is a subset of a larger one with the same seed. Groups stay whole. Groups of the
    same classes or labels are spread evenly over the order in which groups are added.

    Args:
        split: The split.
        share: Fraction of the training part, above 0 and at most 1, reached as nearly as the groups
            allow.
        seed: Seed of the draw.
        groups: Group of each graph of the dataset, [G]; by default all are apart.
        strata: As for ``grouped_folds``.

    Example:
        >>> split = Split(torch.arange(8), torch.tensor([8]), torch.tensor([9]), "mine", 10)
        >>> half = train_subset(split, 0.5, strata=strata_of(torch.arange(10) % 2, "classes"))
        >>> half.train.numel(), int((half.train % 2).sum()), half.valid.tolist(), half.rule
        (4, 2, [8], 'mine, 0.5 of train')
    """
    if not 0 < share <= 1:
        raise ValueError(f"split.share must be above 0 and at most 1, got {share}")
    train = split.train
    group = torch.arange(train.numel()) if groups is None else groups[train]
    group = group.unique(return_inverse=True)[1]
    found = int(group.max()) + 1
    kind = torch.zeros(found, dtype=torch.long)
    if strata is not None:
        counts = torch.zeros(found, strata.size(1), dtype=torch.long)
        counts = counts.index_add(0, group, strata[train].long())
        kind = (counts > 0).unique(dim=0, return_inverse=True)[1]
    order = torch.randperm(found, generator=torch.Generator().manual_seed(seed))
    order = order[_evenly(kind[order]).argsort(stable=True)]
    ends = group.bincount()[order].cumsum(0)
    last = int((ends - share * train.numel()).abs().argmin())
    kept = torch.isin(group, order[: last + 1])
    return replace(split, train=train[kept], rule=f"{split.rule}, {share:g} of train")


def time_split(
    times: Sequence[float],
    fractions: Fractions = (0.8, 0.1, 0.1),
    *,
    groups: Tensor | None = None,
    rule: str = "time split",
) -> Split:
    """Return a split that trains on the oldest graphs and tests on the newest.

    Graphs of equal time stay together. A group has the time of its newest graph.

    Args:
        times: Time of each graph.
        fractions: Fractions of the three parts, reached as nearly as equal times allow.
        groups: Group of each graph, such as copies of one molecule; by default all are apart.
        rule: Description of the rule.

    Example:
        >>> split = time_split([2019, 2021, 2020, 2018, 2018], (0.6, 0.2, 0.2))
        >>> split.train.tolist(), split.valid.tolist(), split.test.tolist()
        ([0, 3, 4], [2], [1])
    """
    when = torch.tensor(times, dtype=torch.double)
    if groups is not None:
        newest = torch.full((int(groups.max()) + 1,), -math.inf, dtype=torch.double)
        when = newest.scatter_reduce(0, groups, when, "amax")[groups]
    return _cut(when, fractions, rule)


def read_times(values: Sequence[str], lines: Sequence[int]) -> list[float]:
    """Return the times of a column: all numbers, or all ISO dates such as 2024-05-31.

    Args:
        values: Cells of the column.
        lines: Line of each cell, for error messages.

    Example:
        >>> read_times(["1970-01-01", "1970-01-02"], [2, 3]), read_times(["1.5", "2"], [2, 3])
        ([0.0, 86400.0], [1.5, 2.0])
    """
    numeric = NUMBER.fullmatch(values[0]) is not None
    times: list[float] = []
    for value, line in zip(values, lines, strict=True):
        try:
            times.append(_number(value) if numeric else _timestamp(value))
        except ValueError:
            kind = "a number" if numeric else "an ISO date such as 2024-05-31"
            raise ValueError(
                f"line {line} of the time column holds {value[:60]!r}, which is not {kind}; all "
                "rows need a number, or all an ISO date"
            ) from None
    return times


def strata_of(y: Tensor, task: Task) -> Tensor | None:
    """Return the columns that folds should share evenly: classes or labels; None for numbers.

    Args:
        y: Targets, as in ``GraphDataset``.
        task: Task of the targets.
    """
    if task == "regression":
        return None
    if task == "classes":
        return torch.nn.functional.one_hot(y)
    return torch.cat([y == 0, y == 1], 1)


def _deal(groups: Tensor, folds: int, seed: int, strata: Tensor | None) -> NDArray[np.int64]:
    """Return the fold of each graph, as ``grouped_folds`` says, [G]."""
    columns = torch.ones(groups.numel(), 1, dtype=torch.double)
    if strata is not None:
        columns = torch.cat([columns, strata.double()], 1)
    sizes = groups.bincount().numpy()
    counts = torch.zeros(sizes.size, columns.size(1), dtype=torch.double)
    counts = counts.index_add(0, groups, columns).numpy()
    weighted = counts / np.maximum(counts.sum(0), 1) ** 2
    order = np.random.RandomState(seed).permutation(sizes.size)
    held = np.zeros((folds, counts.shape[1]))
    fold_of = np.empty(sizes.size, np.int64)
    for group in order[np.argsort(-sizes[order], kind="stable")]:
        # A square grows by 2 * held * count + count ** 2: the second term is that of any fold.
        fold = int((held @ weighted[group]).argmin())
        fold_of[group] = fold
        held[fold] += counts[group]
    return fold_of[groups.numpy()]


def _evenly(kind: Tensor) -> Tensor:
    """Return the fraction of its kind that comes before each element, [n]."""
    sizes, by_kind = kind.bincount(), kind.argsort(stable=True)
    first = (sizes.cumsum(0) - sizes)[kind[by_kind]]
    before = torch.empty(kind.numel(), dtype=torch.double)
    before[by_kind] = (torch.arange(kind.numel()) - first).double()
    return before / sizes[kind]


def _warn_of_missing(fold: Tensor, folds: int, strata: Tensor, rule: str) -> None:
    """Warn if test folds have none of a class or label that occurs."""
    counts = torch.zeros(folds, strata.size(1), dtype=torch.long)
    counts = counts.index_add(0, fold, strata.long())
    lacking = int(((counts == 0) & (counts.sum(0) > 0)).any(1).sum())
    if lacking:
        warnings.warn(
            f"{rule}: {lacking} of {folds} test folds have none of a class or label; use fewer "
            "folds or smaller groups",
            stacklevel=3,
        )


def _cut(rank: Tensor, fractions: Fractions, rule: str) -> Split:
    """Return the split of graphs in order of ``rank``, cut between ranks near the fractions."""
    _, place, sizes = rank.unique(return_inverse=True, return_counts=True)
    if sizes.numel() < 3:
        raise ValueError(
            f"{rule}: training, validation and test need at least 3 groups or distinct times, "
            f"got {sizes.numel()}"
        )
    ends = sizes.cumsum(0).double()
    train_end, valid_end = fraction_bounds(rank.numel(), fractions)
    last_train = int((ends[:-2] - float(train_end)).abs().argmin())
    last_valid = last_train + 1 + int((ends[last_train + 1 : -1] - float(valid_end)).abs().argmin())
    part = (place > last_train).long() + (place > last_valid).long()
    train, valid, test = ((part == number).nonzero().flatten() for number in range(3))
    return Split(train, valid, test, rule, rank.numel())


def _number(text: str) -> float:
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError
    return float(text)


def _timestamp(text: str) -> float:
    """Return seconds since 1970; a date without a zone is UTC, a month its first day."""
    month = fullmatch(r"\d{4}-\d{2}", text, ASCII)
    found = datetime.fromisoformat(f"{text}-01" if month else text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
