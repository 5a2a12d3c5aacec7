"""Schema of a dataset: task, target names, and the recipe of its features.

Names of structural encodings, such as "rwse:16", belong to the recipe. Does not import torch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, Self

from gtpool.spec import AtomOrder, did_you_mean

Task = Literal["classes", "binary", "regression"]
TASKS = ("classes", "binary", "regression")
FLOAT32_MAX = 3.4028234663852886e38
"""The largest float32; features and targets must not exceed it."""
DEFAULT_CYCLE, LONGEST_CYCLE = 5, 8
ENCODINGS: dict[str, str] = {
    "rwse": "rwse:K, return probabilities of random walks of 2 to K steps",
    "lappe": "lappe:K, diagonals of projectors on K eigenspaces of the normalised Laplacian",
    "degree": "degree, log1p of the degree",
    "cycles": "cycles or cycles:K, log1p of the cycles of 3 to K nodes through a node",
}
"""Kinds of encodings, with the form of their names."""
_LATER = (  # fields of a recipe that version 0.1 does not know
    "label_columns",
    "edge_label_columns",
    "encode",
    "coded",
    "molecule_features",
    "descriptors",
    "feature_columns",
)


@dataclass(frozen=True)
class Recipe:
    """How features are made from a source; prediction repeats it.

    ``kind`` is a key of ``gtpool.data.features.FEATURES``, "given" for features of the source
    itself, or "molecule" for OGB's codes of atoms and bonds.
    """

    kind: str
    labels: tuple[int, ...] = ()
    """Node labels that have a one-hot column, in order."""
    attributes: int = 0
    """Number of continuous columns of the source, after the encodings; may be standardised."""
    degree: bool = False
    """Whether the one continuous column is the degree."""
    max_degree: int | None = None
    """Highest one-hot degree; higher degrees share its column."""
    edge_labels: tuple[int, ...] = ()
    """Edge labels that have a one-hot column, in order."""
    edge_attributes: int = 0
    """Continuous columns of the edges, before the one-hot labels."""
    edge_weighted: bool = False
    """Whether the first continuous column of the edges is their weight."""
    mean: tuple[float, ...] | None = None
    """Mean of each continuous column over the training nodes, once standardised."""
    std: tuple[float, ...] | None = None
    """Standard deviation of the same, 1 where a column is constant."""
    atom_order: AtomOrder = "given"
    """Atom order when a SMILES is read: "canonical", so that equivalent SMILES give equal graphs,
    or "given", as in the SMILES."""
    label_columns: tuple[int, ...] = ()
    """Number of ``labels`` of each column, where nodes have several columns of labels."""
    edge_label_columns: tuple[int, ...] = ()
    """The same for ``edge_labels``."""
    encode: tuple[str, ...] = ()
    """Structural encodings, such as "rwse:16": the leading columns, continuous as attributes."""
    coded: bool = False
    """Whether codes of categories follow the encodings, as floats."""
    molecule_features: tuple[str, ...] = ()
    """Sets of descriptors of whole molecules, such as "rdkit2d"."""
    descriptors: tuple[str, ...] = ()
    """Names of their columns, the leading ones of ``graph_features``."""
    feature_columns: tuple[str, ...] = ()
    """Columns of a table that follow the descriptors."""

    @property
    def encoded(self) -> int:
        """Number of columns of the encodings."""
        return count_columns(self.encode)

    @property
    def continuous(self) -> int:
        """Number of leading continuous columns: encodings, then attributes."""
        return self.encoded + self.attributes

    @property
    def graph_columns(self) -> tuple[str, ...]:
        """Names of the columns of ``graph_features``."""
        return self.descriptors + self.feature_columns

    @property
    def label_sets(self) -> tuple[tuple[int, ...], ...]:
        """Node labels that have a one-hot column, a tuple for each column of labels.

        Example:
            >>> Recipe("gmt", labels=(0, 1, 0, 7), label_columns=(2, 2)).label_sets
            ((0, 1), (0, 7))
        """
        return tuple(_divided(self.labels, self.label_columns))

    @property
    def edge_label_sets(self) -> tuple[tuple[int, ...], ...]:
        """Edge labels that have a one-hot column, a tuple for each column of labels."""
        return tuple(_divided(self.edge_labels, self.edge_label_columns))


@dataclass(frozen=True)
class Schema:
    """Name, task, targets and feature recipe of a dataset."""

    name: str
    task: Task
    targets: tuple[str, ...]
    """Names of the classes, or of the tasks."""
    recipe: Recipe

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model for this data: one per class or task."""
        return len(self.targets)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that ``from_json`` reads back."""
        value = asdict(self)
        for later in _LATER:
            if not value["recipe"][later]:
                del value["recipe"][later]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the schema that ``to_json`` wrote."""
        recipe = {key: _tuples(part) for key, part in value["recipe"].items()}
        rest = {key: _tuples(part) for key, part in value.items() if key != "recipe"}
        return cls(**rest, recipe=Recipe(**recipe))


def _divided(labels: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Return the labels of each column; without counts, all are of one column."""
    ends = accumulate(counts or (len(labels),), initial=0)
    return (labels[first:last] for first, last in pairwise(ends) if labels)


def _tuples(value: Any) -> Any:  # noqa: ANN401
    """Return a list as a tuple, anything else unchanged."""
    return tuple(value) if isinstance(value, list) else value


class Encoding(NamedTuple):
    """A structural encoding of nodes."""

    kind: str
    """A key of ``ENCODINGS``."""
    size: int
    """The number K of its name; 0 if it has none."""

    @property
    def columns(self) -> int:
        """Number of columns."""
        first = {"rwse": 2, "lappe": 1, "cycles": 3}
        return self.size - first[self.kind] + 1 if self.kind in first else 1


def parse_encodings(names: Iterable[str]) -> tuple[Encoding, ...]:
    """Return encodings by name; an unknown, incomplete or repeated one raises a ValueError.

    Example:
        >>> parse_encodings(["rwse:16", "cycles"])
        (Encoding(kind='rwse', size=16), Encoding(kind='cycles', size=5))
        >>> [encoding.columns for encoding in parse_encodings(["rwse:16", "cycles"])]
        [15, 3]
    """
    if isinstance(names, str):
        raise ValueError(f"encode must be a tuple of names, such as ({names!r},)")
    found = tuple(_parse(name) for name in names)
    kinds = [encoding.kind for encoding in found]
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise ValueError(f"encoding {kind!r} is given twice; keep one of them")
    return found


def count_columns(names: Iterable[str]) -> int:
    """Return the number of columns of some encodings."""
    return sum(encoding.columns for encoding in parse_encodings(names))


def _parse(name: str) -> Encoding:
    kind, colon, size = name.partition(":")
    if kind not in ENCODINGS:
        known = "; ".join(ENCODINGS.values())
        raise ValueError(
            f"unknown encoding {name!r}{did_you_mean(kind, ENCODINGS)} (known: {known})"
        )
    if kind == "degree" and colon:
        raise ValueError(f"encoding {name!r}: degree takes no number; write degree")
    if kind == "degree" or name == "cycles":
        return Encoding(kind, DEFAULT_CYCLE if kind == "cycles" else 0)
    least, most = (3, LONGEST_CYCLE) if kind == "cycles" else (2, None)
    number = int(size) if size.isascii() and size.isdecimal() and len(size) < 6 else 0
    if number < least or (most is not None and number > most):
        limit = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"encoding {name!r}: K of {kind}:K must be an integer, {limit}")
    return Encoding(kind, number)
