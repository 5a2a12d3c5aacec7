"""Targets ``y`` from labels as texts, numbers or lists."""

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, cast

import torch
from torch import Tensor

from gtpool.data.schema import FLOAT32_MAX, TASKS, Task

_LISTED = 5  # names in a message
_LONGEST_INT = 4000  # Python refuses to convert longer texts to int


def pack_targets(
    labels: Sequence[Any],
    places: Sequence[str],
    *,
    task: Task | None = None,
    need_targets: bool = True,
) -> tuple[Tensor, Task, tuple[str, ...]]:
    """Return ``y``, the task, and the names of its classes or tasks.

    Texts and integers are classes, other numbers regression targets. A list has one number per
    task: binary tasks if all are 0, 1 or None, else regression. None in a list is a missing label.

    Args:
        labels: One per graph: a text, a number, a list of numbers and None, or None for no label.
        places: Where each label comes from, for error messages.
        task: The task; inferred from the labels by default.
        need_targets: Whether every graph must have a label, and labels must differ. If false and
            no graph has a label, ``y`` has no columns.

    Example:
        >>> pack_targets(["toxic", "safe", "toxic"], ["a", "b", "c"])
        (tensor([1, 0, 1]), 'classes', ('safe', 'toxic'))
        >>> pack_targets([[1, None], [0, 1]], ["a", "b"])[1]
        'binary'
    """
    if task not in (None, *TASKS):
        raise ValueError(f"unknown task {task!r}; choose one of {', '.join(TASKS)}")
    if not need_targets and all(label is None for label in labels):
        return torch.empty(len(labels), 0), task or "regression", ()
    kinds = [_kind(label, place) for label, place in zip(labels, places, strict=True)]
    for kind, place in zip(kinds, places, strict=True):
        if kind != kinds[0]:
            raise ValueError(f"{place}: the label is {kind}, but that of {places[0]} is {kinds[0]}")
    if kinds[0] == "a number" and task is None:
        task = "classes" if all(isinstance(label, Integral) for label in labels) else "regression"
    if kinds[0] == "a text" or task == "classes":
        y, names = _classes(labels, places, kinds[0], task)
        task = "classes"
    else:
        y, task = _columns(labels, places, task)
        names = tuple(f"task {number}" for number in range(1, y.size(1) + 1))
    if need_targets:
        _refuse_one_class(y, task, names, places[0])
    return y, task, names


def check_varied(y: Tensor, task: Task, names: Sequence[str]) -> None:
    """Warn of tasks whose targets all have one value; raise a ValueError if no task has two.

    Args:
        y: Targets, as in ``GraphDataset``.
        task: Task of the targets; classes are not checked.
        names: Names of the tasks.
    """
    if task == "classes":
        return
    low, high = y.nan_to_num(torch.inf).amin(0), y.nan_to_num(-torch.inf).amax(0)
    alone = [name for name, one in zip(names, (low >= high).tolist(), strict=True) if one]
    listed = ", ".join(map(repr, alone[:_LISTED])) + " …" * (len(alone) > _LISTED)
    if len(alone) == len(names):
        raise ValueError(
            f"no target has two different values ({listed}): there is nothing to learn"
        )
    if alone:
        warnings.warn(
            f"{len(alone)} of {len(names)} targets have no two different values, so nothing is "
            f"learned of them: {listed}",
            stacklevel=3,
        )


def _kind(label: Any, place: str) -> str:  # noqa: ANN401
    if isinstance(label, str):
        return "a text"
    if isinstance(label, list):
        return f"a list of {len(label)}"
    if label is None:
        raise ValueError(f"{place}: there is no label")
    if not isinstance(label, bool) and isinstance(label, Real):
        return "a number"
    raise ValueError(
        f"{place}: a label is a text, a number or a list of numbers, not {_shown(label)}"
    )


def _shown(value: object) -> str:
    """Return a value, shortened, for an error message."""
    if isinstance(value, Real | str):
        text = str(value) if isinstance(value, Real) else repr(value[:60])
        return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"
    return f"a {type(value).__name__}"


def _classes(
    labels: Sequence[Any], places: Sequence[str], kind: str, task: Task | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return class indices, [G], and the class names, sorted; integers are sorted by value."""
    if task not in (None, "classes") or kind not in ("a text", "a number"):
        raise ValueError(f"{places[0]}: the label is {kind}, which does not fit task {task}")
    for label, place in zip(labels, places, strict=True):
        if not isinstance(label, str | Integral):
            raise ValueError(f"{place}: class {label!r} is neither a text nor an integer")
    texts = [str(label) for label in labels]
    distinct = set(texts)
    by_value = all(
        len(text) <= _LONGEST_INT and text.removeprefix("-").isdecimal() for text in distinct
    )
    names = sorted(distinct, key=(lambda text: (int(text), text)) if by_value else None)
    number = {text: place for place, text in enumerate(names)}
    return torch.tensor([number[text] for text in texts]), tuple(names)


def _columns(
    labels: Sequence[Any], places: Sequence[str], task: Task | None
) -> tuple[Tensor, Task]:
    """Return one row of numbers per graph, NaN where missing, float [G, T], and the task."""
    rows: list[list[Any]] = [label if isinstance(label, list) else [label] for label in labels]
    for row, place in zip(rows, places, strict=True):
        for value in row:
            if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
                raise ValueError(f"{place}: {_shown(value)} in the label is not a number")
            if value is not None and not -FLOAT32_MAX <= cast("float", value) <= FLOAT32_MAX:
                raise ValueError(f"{place}: label {_shown(value)} is not finite in float32")
        if not row:
            raise ValueError(f"{place}: the label is an empty list")
    values = [[float("nan") if value is None else float(value) for value in row] for row in rows]
    y = torch.tensor(values)
    told = torch.tensor([[value is not None for value in row] for row in rows])
    yes_or_no = (y == 0) | (y == 1) | ~told
    task = task or ("binary" if bool(yes_or_no.all()) else "regression")
    wrong = ~(yes_or_no if task == "binary" else y.isfinite() | ~told).all(1)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        wanted = "0, 1 or missing" if task == "binary" else "finite in float32"
        raise ValueError(f"{places[at]}: label {labels[at]!r} is not {wanted}")
    return y, task


def _refuse_one_class(y: Tensor, task: Task, names: tuple[str, ...], place: str) -> None:
    if task == "classes" and len(names) == 1:
        raise ValueError(
            f"{place} and all other graphs have class {names[0]!r}: there is nothing to learn"
        )
    if task == "binary" and not ((y == 0).any(0) & (y == 1).any(0)).any():
        raise ValueError(
            f"{place} and after: no task has both labels 0 and 1: there is nothing to learn"
        )
