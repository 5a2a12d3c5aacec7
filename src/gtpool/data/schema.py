"""What the tensors of a dataset mean: the recipe of the features, the task, the names."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, Self

from gtpool.spec import AtomOrder

Task = Literal["classes", "binary", "regression"]
TASKS = ("classes", "binary", "regression")
FLOAT32_MAX = 3.4028234663852886e38
"""The largest number of float32, for features and targets."""


@dataclass(frozen=True)
class Recipe:
    """How node features were made from what a source holds; predicting repeats it.

    ``kind`` is a key of ``gtpool.data.features.FEATURES``, or "given" for features taken as they
    are, or "molecule" for OGB's codes of atoms and bonds.
    """

    kind: str
    labels: tuple[int, ...] = ()
    """Node labels that have a one-hot column, in order."""
    attributes: int = 0
    """Leading continuous columns: those that may be standardised."""
    degree: bool = False
    """Whether the one continuous column is the degree, for want of attributes."""
    max_degree: int | None = None
    """Width of a one-hot degree less one; higher degrees share the last column."""
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
    """How the atoms of a SMILES are numbered when it is read: "canonical", so that every way to
    write a molecule gives the same graph, or "given", as the SMILES lists them."""
    label_columns: tuple[int, ...] = ()
    """Where nodes have labels in several columns: how many of ``labels`` are of each."""
    edge_label_columns: tuple[int, ...] = ()
    """The same of ``edge_labels``."""

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
    """What the tensors of a dataset mean."""

    name: str
    task: Task
    targets: tuple[str, ...]
    """Names of the classes, or of the tasks where each has its own column."""
    recipe: Recipe

    @property
    def num_outputs(self) -> int:
        """Logits that a model of this data has: one a class or one a task."""
        return len(self.targets)

    def to_json(self) -> dict[str, Any]:
        """Give plain values that ``from_json`` reads back."""
        value = asdict(self)
        for later in ("label_columns", "edge_label_columns"):  # unknown to 0.1, and rare
            if not value["recipe"][later]:
                del value["recipe"][later]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read back what ``to_json`` gave."""
        recipe = {key: _tuples(part) for key, part in value["recipe"].items()}
        rest = {key: _tuples(part) for key, part in value.items() if key != "recipe"}
        return cls(**rest, recipe=Recipe(**recipe))


def _divided(labels: tuple[int, ...], counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Give the labels of each column; one column has all."""
    ends = accumulate(counts or (len(labels),), initial=0)
    return (labels[first:last] for first, last in pairwise(ends) if labels)


def _tuples(value: Any) -> Any:  # noqa: ANN401
    """Turn the lists that JSON knows back into the tuples that a frozen value holds."""
    return tuple(value) if isinstance(value, list) else value
