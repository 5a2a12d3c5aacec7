"""A blend: networks and boosted trees that predict as one, and its JSON."""

from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.model.trees import BoostedTrees
from gtpool.ops.average import blend_outputs
from gtpool.spec import check_value

_KEYS = {"weight", "features", "columns", "trees", "members"}


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


def _require_equal(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ValueError(f"{what} must be {wanted}, got {found}")
