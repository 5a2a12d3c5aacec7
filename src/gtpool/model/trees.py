"""Boosted trees as arrays, their blend with networks, and the JSON of both.

No pickle, no scikit-learn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.ops.average import blend_outputs
from gtpool.spec import check_value

Array = NDArray[Any]
MAX_DEPTH = 64
"""Largest depth of a tree that ``BoostedTrees.from_json`` reads."""
_CELLS = 1 << 21  # pairs of a graph and a tree that are evaluated at once
_LARGEST = 2**31 - 1
_INTEGERS = ("roots", "output", "feature", "left", "right")
_NUMBERS = ("baseline", "value")
_FLAGS = "missing_left"
_KEYS = {"weight", "features", "columns", "trees", "members"}


@dataclass(frozen=True, eq=False, kw_only=True)
class BoostedTrees:
    """Boosted regression trees with one or several outputs.

    The nodes of all trees lie one after the other. A leaf is its own left and right child; other
    nodes have children of higher numbers in the same tree.

    Example:
        >>> stump = BoostedTrees(
        ...     columns=1,
        ...     baseline=np.zeros(1),
        ...     roots=np.array([0]),
        ...     output=np.array([0]),
        ...     feature=np.array([0, 0, 0]),
        ...     value=np.array([0.5, -1.0, 2.0]),
        ...     missing_left=np.array([True, False, False]),
        ...     left=np.array([1, 1, 2]),
        ...     right=np.array([2, 1, 2]),
        ... )
        >>> stump.predict(np.array([[0.0], [1.0], [np.nan]])).tolist()
        [[-1.0], [2.0], [-1.0]]
    """

    columns: int
    """Number of features."""
    baseline: Array
    """Prediction before the first tree, [K]."""
    roots: Array
    """First node of each tree, [T]."""
    output: Array
    """The output that each tree adds to, [T]."""
    feature: Array
    """Feature that a node splits on, [N]; 0 for a leaf."""
    value: Array
    """Highest feature that goes to the left, or the value of a leaf, float64 [N]."""
    missing_left: Array
    """Whether NaN goes to the left, [N]."""
    left: Array
    """Left child, [N]."""
    right: Array
    """Right child, [N]."""

    def predict(self, x: Array) -> Array:
        """Return the sum of baseline and leaves, float64 [G, K].

        Args:
            x: Features, [G, columns], NaN where missing.
        """
        if x.ndim != 2 or x.shape[1] != self.columns:
            raise ValueError(f"the trees take {self.columns} features, got {list(x.shape)}")
        rows = max(1, _CELLS // max(1, len(self.roots)))
        parts = [self._predict(x[at : at + rows]) for at in range(0, len(x), rows)]
        return np.concatenate([np.empty((0, len(self.baseline))), *parts])

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that ``from_json`` reads back."""
        arrays = {name: getattr(self, name).tolist() for name in (*_INTEGERS, *_NUMBERS)}
        return {"columns": self.columns, **arrays, _FLAGS: self.missing_left.astype(int).tolist()}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:  # noqa: ANN401 - untrusted JSON
        """Return the trees that ``to_json`` wrote, or raise a ValueError that names ``where``.

        Args:
            value: Parsed JSON, untrusted.
            where: File and key, for error messages.
        """
        names = {"columns", *_INTEGERS, *_NUMBERS, _FLAGS}
        if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != names:
            raise ValueError(f"{where} must be an object with the keys {', '.join(sorted(names))}")
        columns = value["columns"]
        if type(columns) is not int or not 0 < columns <= _LARGEST:
            raise ValueError(f"{where}.columns must be a positive integer, got {columns!r:.60}")
        arrays = {name: _integers(value[name], f"{where}.{name}") for name in _INTEGERS}
        arrays |= {name: _numbers(value[name], f"{where}.{name}") for name in _NUMBERS}
        flags = _integers(value[_FLAGS], f"{where}.{_FLAGS}")
        _check(arrays, flags, columns, where)
        return cls(columns=columns, **arrays, missing_left=flags.astype(bool))

    def _predict(self, x: Array) -> Array:
        rows, at = np.arange(len(x))[:, None], np.tile(self.roots, (len(x), 1))
        while True:
            held = x[rows, self.feature[at]]
            to_left = np.where(np.isnan(held), self.missing_left[at], held <= self.value[at])
            child = np.where(to_left, self.left[at], self.right[at])
            if (child == at).all():
                break
            at = child
        adds_to = self.output[:, None] == np.arange(len(self.baseline))
        return self.baseline + self.value[at] @ adds_to


@dataclass(frozen=True, eq=False, kw_only=True)
class Blend:
    """Boosted trees beside the members of a network or ensemble.

    A member predicts ``weight`` times its probability or value plus ``1 - weight`` times that of
    the trees with the same training part. The prediction of the blend is the mean over the members.
    """

    weight: float
    """Weight of the network, from 0 to 1."""
    features: tuple[str, ...]
    """Sets of descriptors that the trees take, in order."""
    columns: tuple[str, ...]
    """Name of each column of these descriptors."""
    trees: tuple[BoostedTrees, ...]
    """Trees of each training part, usually of each fold."""
    members: tuple[int, ...]
    """Index in ``trees`` for each member."""

    @property
    def outputs(self) -> int:
        """Number of classes or tasks."""
        return len(self.trees[0].baseline)

    def apply(self, outputs: Tensor, x: NDArray[Any], task: str) -> Tensor:
        """Return the outputs of each member of the blend, [G, M, K].

        Args:
            outputs: Outputs of each network, [G, M, K].
            x: Descriptors of each molecule, [G, columns].
            task: "classes", "binary" or "regression".
        """
        found = [torch.from_numpy(part.predict(x)) for part in self.trees]
        beside = torch.stack([found[place] for place in self.members], 1)
        return blend_outputs(outputs, beside.to(outputs.device), self.weight, task)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that ``from_json`` reads back."""
        return {
            "weight": self.weight,
            "features": list(self.features),
            "columns": list(self.columns),
            "trees": [part.to_json() for part in self.trees],
            "members": list(self.members),
        }

    @classmethod
    def from_json(cls, value: Any, members: int, outputs: int) -> Self:  # noqa: ANN401 - untrusted
        """Return the blend that ``to_json`` wrote, or raise a ValueError that names what is wrong.

        Args:
            value: Parsed JSON, untrusted.
            members: Number of networks of the model.
            outputs: Number of classes or tasks of the model.
        """
        if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != _KEYS:
            raise ValueError(f"it must be an object with the keys {', '.join(sorted(_KEYS))}")
        weight = check_value(float, value["weight"], "weight")
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must be from 0 to 1, got {weight}")
        features = check_value(tuple[str, ...], value["features"], "features")
        columns = check_value(tuple[str, ...], value["columns"], "columns")
        listed = check_value(list, value["trees"], "trees")
        trees = tuple(BoostedTrees.from_json(one, f"trees[{at}]") for at, one in enumerate(listed))
        for at, one in enumerate(trees):
            _require_equal(f"trees[{at}].columns", one.columns, len(columns))
            _require_equal(f"the outputs of trees[{at}]", len(one.baseline), outputs)
        of = check_value(tuple[int, ...], value["members"], "members")
        _require_equal("the length of members", len(of), members)
        if not all(0 <= place < len(trees) for place in of):
            raise ValueError(f"members must number the {len(trees)} trees")
        return cls(weight=weight, features=features, columns=columns, trees=trees, members=of)


def _integers(values: Any, where: str) -> Array:  # noqa: ANN401
    """Return a list of integers from 0 to ``_LARGEST`` as an array."""
    if not isinstance(values, list) or not set(map(type, cast("list[Any]", values))) <= {int}:
        raise ValueError(f"{where} must be a list of integers")
    if values and (min(values) < 0 or max(values) > _LARGEST):
        raise ValueError(f"{where} must hold integers from 0 to {_LARGEST}")
    return np.array(values, np.int64)


def _numbers(values: Any, where: str) -> Array:  # noqa: ANN401
    """Return a list of finite numbers as an array."""
    if not isinstance(values, list) or not set(map(type, cast("list[Any]", values))) <= {
        int,
        float,
    }:
        raise ValueError(f"{where} must be a list of numbers")
    try:
        found = np.array([float(part) for part in cast("list[float]", values)])
    except OverflowError:
        found = np.array([np.inf])
    if not np.isfinite(found).all():
        raise ValueError(f"{where} must hold finite numbers")
    return found


def _check(arrays: Mapping[str, Array], flags: Array, columns: int, where: str) -> None:
    """Raise a ValueError unless the arrays describe trees that end."""
    nodes, trees, roots = len(arrays["value"]), len(arrays["output"]), arrays["roots"]
    for name in ("feature", "left", "right"):
        _require(len(arrays[name]) == nodes, f"{where}.{name} must have {nodes} items")
    _require(len(flags) == nodes, f"{where}.{_FLAGS} must have {nodes} items")
    _require(not flags.size or flags.max() < 2, f"{where}.{_FLAGS} must hold 0 and 1")
    outputs = len(arrays["baseline"])
    _require(outputs > 0, f"{where}.baseline must not be empty")
    _require(len(roots) == trees, f"{where}.output must have one item for each of the roots")
    for name, top in (("feature", columns), ("output", outputs)):
        _require((arrays[name] < top).all(), f"{where}.{name} must hold integers below {top}")
    ends = np.append(roots, nodes)
    rising = ends[0] == 0 and (np.diff(ends) > 0).all()
    _require(rising, f"{where}.roots must rise from 0 to below {nodes}")
    own, last = np.arange(nodes), np.repeat(ends[1:], np.diff(ends))
    leaf = (arrays["left"] == own) & (arrays["right"] == own)
    for name in ("left", "right"):
        below = (arrays[name] > own) & (arrays[name] < last)
        _require((leaf | below).all(), f"{where}.{name} must number later nodes of the same tree")
    _check_depth(arrays, where)


def _check_depth(arrays: Mapping[str, Array], where: str) -> None:
    """Raise a ValueError if a path from a root is longer than ``MAX_DEPTH``."""
    left, right, at = arrays["left"], arrays["right"], arrays["roots"]
    for _ in range(MAX_DEPTH + 1):
        at = at[left[at] != at]  # those that are no leaves
        if not at.size:
            return
        at = np.unique(np.concatenate([left[at], right[at]]))
    raise ValueError(f"{where} has a tree that is deeper than {MAX_DEPTH}")


def _require(is_met: bool | np.bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)


def _require_equal(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ValueError(f"{what} must be {wanted}, got {found}")
