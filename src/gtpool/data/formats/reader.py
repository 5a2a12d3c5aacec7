"""Base classes of format readers, and what they return for training and for prediction.

A format whose features are made by a recipe subclasses ``RawReader``; a format with its own
features subclasses ``DatasetReader``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
    """A row that could not be read."""

    line: int
    smiles: str
    reason: str


class Loaded(NamedTuple):
    """Training graphs, and what else their source says about them."""

    dataset: GraphDataset
    name: str | None
    """The key of ``DATASETS``; None for the user's own graphs."""
    smiles: tuple[str, ...] | None = None
    """SMILES of each graph of a table."""
    lines: tuple[int, ...] | None = None
    """Line of each graph of a table."""
    split_values: tuple[str, ...] | None = None
    """Split column of a table, for each graph."""
    group_values: tuple[str, ...] | None = None
    """Group column of a table, for each graph."""
    time_values: tuple[str, ...] | None = None
    """Time column of a table, for each graph."""
    molecules: tuple[str, ...] | None = None
    """Canonical SMILES of each graph of a table."""
    skipped: tuple[Skipped, ...] = ()
    """Rows of a table that could not be used."""
    targets: tuple[str, ...] = ()
    """Names of the target columns of a table."""
    spec: DataSpec | None = None
    """The spec, set by ``gtpool.study.inputs.load_data``."""
    digest: str | None = None
    """Digest of the user's own files, set by the same function."""


class InputRow(NamedTuple):
    """One graph of a source, or the reason why it cannot be predicted."""

    number: int
    """Line of the file, or index of the graph."""
    id: str
    """The SMILES of a table, the id of JSON lines, else ""."""
    place: str
    """File and line, or index, for error messages."""
    label: Any
    """Class name, or a list with a number or None per task; None without a label."""
    reason: str | None
    record: tuple[str, ...] = ()
    """All cells of a table row, unchanged."""


class InferenceData(NamedTuple):
    """All rows of a source in order, and the graphs of those that a model can predict."""

    unit: RowUnit
    """Whether ``number`` of a row is a line or the index of a graph."""
    rows: list[InputRow]
    data: GraphDataset | None
    """The graphs of the rows without a reason, in order; None if there are none."""
    columns: tuple[str, ...] = ()
    """Names of all columns of a table, unchanged."""
    targets: tuple[str, ...] = ()
    """Target columns of a table, in the order of the model's targets."""


class InferenceStream(NamedTuple):
    """The rows of a file that is read in parts."""

    rows: Iterator[Any]
    """The rows in order, as the format holds them; a malformed file is an error when reached."""
    read: Callable[[Sequence[Any]], InferenceData]
    """Makes graphs of some of the rows. It can be pickled."""


class InferenceOptions(NamedTuple):
    """Which dataset or columns to read for a trained model."""

    name: str | None = None
    """The key of ``DATASETS``; None for the user's own graphs."""
    smiles_column: str | None = None
    trained_column: str | None = None
    """SMILES column of the table that the model was trained on."""
    target_columns: Sequence[str] | None = None
    """Target columns; empty for ``trained_targets``, None to read no labels."""
    trained_targets: Sequence[str] = ()
    """Names of the model's targets; may be empty for classes."""


class FormatReader(ABC):
    """Reads files or folders of one format."""

    @abstractmethod
    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        """Return labelled graphs for training.

        Args:
            path: The file or folder.
            spec: Options; those of the format apply.
            name: The key of ``DATASETS``; None for the user's own graphs.
        """

    @abstractmethod
    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Return graphs for a trained model; rows that it cannot predict get a reason.

        Args:
            path: The file or folder.
            schema: Schema of the model's training data, with the feature recipe.
            options: Which columns to read.
        """

    def stream_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceStream | None:
        """Return the rows of ``read_for_inference`` one by one, or None if they are read at once.

        Args:
            path: The file or folder.
            schema: Schema of the model's training data.
            options: Which columns to read; labels are not read.
        """
        del path, schema, options
        return None

    def smiles(self, path: Path, rows: Sequence[InputRow]) -> list[str] | None:
        """Return the SMILES of each graph, or None if the format has none.

        Args:
            path: The file or folder.
            rows: Rows of ``read_for_inference``, without those that have a reason.
        """
        del path, rows
        return None


class RawReader(FormatReader):
    """Reads a format whose features are made by a recipe, from labels, attributes or degrees."""

    @abstractmethod
    def raw(
        self, path: Path, *, name: str | None, task: Task | None, need_targets: bool
    ) -> RawGraphs:
        """Return graphs without features.

        Args:
            path: The file or folder.
            name: The key of ``DATASETS``; None for the user's own graphs.
            task: Task of the labels; None to infer it.
            need_targets: Whether every graph must have a label. If false and there are no labels,
                ``y`` has no columns.
        """

    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        """Return graphs with features of a recipe learned from them."""
        raw = self.raw(path, name=name, task=spec.task, need_targets=True)
        return Loaded(featurize(raw, learn_recipe(raw, spec.features)), name)

    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Return graphs with features of the model's recipe."""
        raw = self.raw(path, name=options.name, task=None, need_targets=False)
        return inference_from_raw(raw, schema)


class DatasetReader(FormatReader):
    """Reads a format that has its own features."""

    @abstractmethod
    def dataset(self, path: Path) -> GraphDataset:
        """Return labelled graphs."""

    def read(self, path: Path, spec: DataSpec, name: str | None = None) -> Loaded:
        """Return graphs; options do not apply."""
        del spec
        return Loaded(self.dataset(path), name)

    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Return graphs; their features must be those of the model."""
        del options
        return inference_from_dataset(self.dataset(path), schema)


def inference_from_dataset(data: GraphDataset, schema: Schema) -> InferenceData:
    """Return inference data from graphs that have features."""
    labels = _labels(data.y, data.schema.task, data.schema.targets)
    rows = [InputRow(at, "", f"graph {at}", label, None) for at, label in enumerate(labels)]
    return InferenceData("graph", rows, apply_recipe(data, schema.recipe))


def inference_from_raw(
    raw: RawGraphs, schema: Schema, notes: Sequence[InputRow] | None = None
) -> InferenceData:
    """Return inference data with features of the model's recipe.

    Graphs with labels that the recipe does not know get a reason.

    Args:
        raw: The graphs.
        schema: Schema of the model.
        notes: One row per graph, for a format of lines; by default graphs are numbered.
    """
    if schema.recipe.kind == "molecule":
        raise ValueError(f"the model was trained on molecules; {raw.name} is not a SMILES table")
    labels = _labels(raw.y, raw.task, raw.targets)
    rows = notes or [
        InputRow(at, "", f"graph {at}", label, None) for at, label in enumerate(labels)
    ]
    reasons, data = featurize_known(raw, schema.recipe)
    rows = [row._replace(reason=reasons.get(at)) for at, row in enumerate(rows)]
    return InferenceData("graph" if notes is None else "line", rows, data)


def featurize_known(raw: RawGraphs, recipe: Recipe) -> tuple[dict[int, str], GraphDataset | None]:
    """Return reasons for graphs with unknown labels, and the other graphs with features."""
    reasons = unknown_labels(raw, recipe)
    known = torch.tensor([at not in reasons for at in range(raw.sizes.numel())])
    return reasons, featurize(filter_graphs(raw, known), recipe) if known.any() else None


def true_targets(rows: Sequence[InputRow], schema: Schema) -> Tensor:
    """Return ``y`` of labelled rows, with the class indices of the schema."""
    if schema.task == "classes":
        number = {name: place for place, name in enumerate(schema.targets)}
        for row in rows:
            if isinstance(row.label, bool | list) or str(row.label) not in number:
                known = ", ".join(schema.targets)
                raise ValueError(
                    f"{row.place}: the model has no class {row.label!r}; its classes are {known}"
                )
        return torch.tensor([number[str(row.label)] for row in rows])
    places = [row.place for row in rows]
    y, _, names = pack_targets(
        [row.label for row in rows], places, task=schema.task, need_targets=False
    )
    if len(names) != schema.num_outputs:
        raise ValueError(
            f"{rows[0].place}: {len(names)} labels per graph, but the model has "
            f"{schema.num_outputs} tasks"
        )
    return y


def _labels(y: Tensor, task: Task, targets: Sequence[str]) -> list[Any]:
    """Return class names or rows of numbers from ``y``, None for missing labels."""
    if task == "classes":
        return [targets[number] for number in y.tolist()]
    rows: list[list[float]] = y.tolist()
    missing = [[None if value != value else value for value in row] for row in rows]  # noqa: PLR0124
    return [row if any(value is not None for value in row) else None for row in missing]
