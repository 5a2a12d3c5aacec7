"""What the reader of a format gives: graphs to learn from, or graphs that a model has not seen.

A format whose graphs become features by a recipe is a ``RawReader``; one that holds features of its
own is a ``DatasetReader``. The latter say how to read, and these two do the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.features import RawGraphs, featurize, learn_recipe
from gtpool.data.inference import apply_recipe, filter_graphs, unknown_labels
from gtpool.data.schema import Recipe, Schema, Task
from gtpool.data.targets import pack_targets
from gtpool.spec import DataSpec

RowUnit = Literal["line", "graph"]


class Skipped(NamedTuple):
    """A row that gave no graph."""

    line: int
    smiles: str
    reason: str


class Loaded(NamedTuple):
    """Graphs, and what else their source says of them."""

    dataset: GraphDataset
    name: str | None
    """The key of ``DATASETS``; None for graphs of the user's own."""
    smiles: tuple[str, ...] | None = None
    """Of a table: the SMILES of each graph."""
    lines: tuple[int, ...] | None = None
    """Of a table: the line of each graph."""
    split_values: tuple[str, ...] | None = None
    """Of a table with a split column: what it says of each graph."""
    skipped: tuple[Skipped, ...] = ()
    """Of a table: the rows that could not be used."""
    targets: tuple[str, ...] = ()
    """Of a table: the names of the target columns."""
    spec: DataSpec | None = None
    """What was asked for, by ``gtpool.study.inputs.load_data``."""
    digest: str | None = None
    """Of the user's own files as they were when they were read, by the same."""


class InputRow(NamedTuple):
    """One graph of a source, or the reason why it cannot be one."""

    number: int
    """Line of the file, or number of the graph from 0."""
    id: str
    """The SMILES of a table, the id of JSON lines, else nothing."""
    place: str
    """Where it stands, for messages."""
    label: Any
    """The class by its name, or a number or None a task; None where there is no label."""
    reason: str | None
    record: tuple[str, ...] = ()
    """All cells of the row of a table, as written."""


class InferenceData(NamedTuple):
    """What a source holds, each row of it exactly once and in order."""

    unit: RowUnit
    """What the numbers of rows count."""
    rows: list[InputRow]
    data: GraphDataset | None
    """The graphs of the rows that have no reason, in order; None where there are none."""
    columns: tuple[str, ...] = ()
    """Names of all columns of a table, as written."""
    targets: tuple[str, ...] = ()
    """The columns of a table that labels were read from, in the order of the model's targets."""


class InferenceOptions(NamedTuple):
    """What to read of a source for a model that is trained."""

    name: str | None = None
    """The key of ``DATASETS``, if that is what the user asks about."""
    smiles_column: str | None = None
    trained_column: str | None = None
    """The SMILES column of the table that the model was trained on."""
    target_columns: Sequence[str] | None = None
    """Where labels are wanted: their columns, or none for ``trained_targets``; else None."""
    trained_targets: Sequence[str] = ()
    """The names of the model's targets; of classes maybe none."""


class FormatReader(ABC):
    """Reads what lies at a path of one format."""

    @abstractmethod
    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        """Read labelled graphs to learn from.

        Args:
            path: Where they are.
            spec: Options, of which those of the format count.
            name: The key of ``DATASETS`` whose files these are; None for the user's own.
        """

    @abstractmethod
    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Read graphs for a model, labels or not; what cannot be predicted gets a reason.

        Args:
            path: Where they are.
            schema: What the model was trained on, with the recipe of its features.
            options: Which columns.
        """

    def smiles(self, path: Path, rows: Sequence[InputRow]) -> list[str] | None:
        """Give the SMILES of each graph, where the format has them.

        Args:
            path: Where they are.
            rows: What ``read_for_inference`` gave, without those that have a reason.
        """
        del path, rows
        return None


class RawReader(FormatReader):
    """Reads a format whose labels, attributes or degrees become features by a recipe."""

    @abstractmethod
    def raw(
        self, path: Path, *, name: str | None, task: Task | None, need_targets: bool
    ) -> RawGraphs:
        """Read graphs as they are.

        Args:
            path: Where they are.
            name: The key of ``DATASETS`` whose files these are; None for the user's own.
            task: What the labels are for; None if the labels tell, or the format does not ask.
            need_targets: Whether all graphs must have a label; to predict, none is needed, and
                ``y`` has no columns where there is none.
        """

    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        """Read graphs and learn the recipe of their features."""
        raw = self.raw(path, name=name, task=spec.task, need_targets=True)
        return Loaded(featurize(raw, learn_recipe(raw, spec.features)), name)

    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Read graphs and make features by the model's recipe."""
        raw = self.raw(path, name=options.name, task=None, need_targets=False)
        return inference_from_raw(raw, schema)


class DatasetReader(FormatReader):
    """Reads a format that holds features of its own."""

    @abstractmethod
    def dataset(self, path: Path) -> GraphDataset:
        """Read labelled graphs."""

    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        """Read graphs; no option changes them."""
        del spec
        return Loaded(self.dataset(path), name)

    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Read graphs whose features must be the model's."""
        del options
        return inference_from_dataset(self.dataset(path), schema)


def inference_from_dataset(data: GraphDataset, schema: Schema) -> InferenceData:
    """Take graphs that have their features already."""
    labels = _labels(data.y, data.schema.task, data.schema.targets)
    rows = [InputRow(at, "", f"graph {at}", label, None) for at, label in enumerate(labels)]
    return InferenceData("graph", rows, apply_recipe(data, schema.recipe))


def inference_from_raw(
    raw: RawGraphs, schema: Schema, notes: Sequence[InputRow] | None = None
) -> InferenceData:
    """Make features of graphs, except of those with labels that the recipe does not know.

    Args:
        raw: The graphs.
        schema: The model's.
        notes: What is known of each graph of a file, line by line; None numbers the graphs.
    """
    if schema.recipe.kind == "molecule":
        raise ValueError(f"the model was trained on molecules; {raw.name} is no table of SMILES")
    labels = _labels(raw.y, raw.task, raw.targets)
    rows = notes or [
        InputRow(at, "", f"graph {at}", label, None) for at, label in enumerate(labels)
    ]
    reasons, data = featurize_known(raw, schema.recipe)
    rows = [row._replace(reason=reasons.get(at)) for at, row in enumerate(rows)]
    return InferenceData("graph" if notes is None else "line", rows, data)


def featurize_known(raw: RawGraphs, recipe: Recipe) -> tuple[dict[int, str], GraphDataset | None]:
    """Make features of the graphs whose labels a recipe knows; say why not of the others."""
    reasons = unknown_labels(raw, recipe)
    known = torch.tensor([at not in reasons for at in range(raw.sizes.numel())])
    return reasons, featurize(filter_graphs(raw, known), recipe) if known.any() else None


def true_targets(rows: Sequence[InputRow], schema: Schema) -> Tensor:
    """Turn the labels of rows that have one into ``y``, counted as the schema does."""
    if schema.task == "classes":
        number = {name: place for place, name in enumerate(schema.targets)}
        for row in rows:
            if isinstance(row.label, bool | list) or str(row.label) not in number:
                known = ", ".join(schema.targets)
                raise ValueError(
                    f"{row.place}: class {row.label!r} is unknown to the model, which knows {known}"
                )
        return torch.tensor([number[str(row.label)] for row in rows])
    places = [row.place for row in rows]
    y, _, names = pack_targets(
        [row.label for row in rows], places, task=schema.task, need_targets=False
    )
    if len(names) != schema.num_outputs:
        raise ValueError(
            f"{rows[0].place}: {len(names)} labels a graph, but the model has "
            f"{schema.num_outputs} tasks"
        )
    return y


def _labels(y: Tensor, task: Task, targets: Sequence[str]) -> list[Any]:
    """Turn ``y`` back into names of classes or rows of numbers, None where there is nothing."""
    if task == "classes":
        return [targets[number] for number in y.tolist()]
    rows: list[list[float]] = y.tolist()
    missing = [[None if value != value else value for value in row] for row in rows]  # noqa: PLR0124
    return [row if any(value is not None for value in row) else None for row in missing]
