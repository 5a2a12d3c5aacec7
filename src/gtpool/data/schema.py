"""Schema of a dataset: task, target names, and the recipe of its features."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Self

from gtpool.data.encoding_names import count_columns
from gtpool.spec import AtomOrder

Task = Literal["classes", "binary", "regression"]
TASKS = ("classes", "binary", "regression")
FLOAT32_MAX = 3.4028234663852886e38
"""The largest float32; features and targets must not exceed it."""
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
