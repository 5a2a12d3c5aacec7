"""Graphs as a program holds them: a dataset, or a list of PyG graphs, networkx graphs or SMILES."""

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.features import featurize, learn_recipe
from gtpool.data.formats.nx import from_networkx_raw
from gtpool.data.inference import apply_recipe, unknown_labels
from gtpool.data.molecule import read_molecules
from gtpool.data.schema import FLOAT32_MAX, Recipe, Task

Array = NDArray[Any]
GraphInputs = GraphDataset | Sequence[Data] | Sequence["nx.Graph[Any]"] | Sequence[str]


class TargetEncoding(NamedTuple):
    """What is to be predicted, as the labels of the training graphs say it."""

    task: Task
    names: tuple[str, ...]
    """Of the classes, or of the tasks."""
    classes: Any = None
    """The classes in order; of several yes-or-no tasks a list of 0 and 1 for each, as scikit-learn
    has it; None for a regression."""

    @classmethod
    def for_classification(cls, labels: Array) -> Self:
        """Learn to classify by what ``class_labels`` gave."""
        if labels.ndim == 2:
            _refuse_missing(labels)
            if not ((labels == 0).any(0) & (labels == 1).any(0)).any():
                raise ValueError("no column of y has both a 0 and a 1: nothing to learn")
            return cls.for_regression(labels)._replace(
                task="binary", classes=[np.array([0, 1])] * labels.shape[1]
            )
        classes = np.unique(labels)
        if len(classes) < 2:
            raise ValueError(f"y holds one class only, {classes.tolist()}: nothing to learn")
        return cls("classes", tuple(map(str, classes.tolist())), classes)

    @classmethod
    def for_regression(cls, numbers: Array) -> Self:
        """Learn to predict what ``regression_targets`` gave."""
        return cls("regression", tuple(f"task {at + 1}" for at in range(numbers.shape[1])))

    def with_targets(self, data: GraphDataset, labels: Array) -> GraphDataset:
        """Label graphs, those to train on or others, with what is known of them."""
        if self.task == "classes":
            check_columns(self.classes, labels)
            new = ~np.isin(labels, self.classes)
            if new.any():
                raise ValueError(f"no graph to train on is of class {labels[new].tolist()[0]!r}")
            labels = np.searchsorted(self.classes, labels)
        else:
            check_columns(np.empty((0, len(self.names))), labels)
        schema = replace(data.schema, task=self.task, targets=self.names)
        return replace(data, y=torch.from_numpy(labels), schema=schema)


def check_columns(found: Array, wanted: Array) -> None:
    """Refuse a y of other columns than the one that was fitted."""
    made, given = (part.shape[1] if part.ndim == 2 else 1 for part in (found, wanted))
    if made != given:
        raise ValueError(f"y is {given} numbers a graph, fitted were {made}")


def as_graph_list(graphs: GraphInputs) -> GraphDataset | list[Any]:
    """Give graphs as a list of one kind; a ``GraphDataset`` stays what it is.

    Args:
        graphs: A ``GraphDataset``; or PyG's ``Data``, networkx graphs or SMILES, in a list, in any
            other iterable, or in a dataset of PyG or torch.
    """
    if isinstance(graphs, GraphDataset):
        return graphs
    if isinstance(graphs, str | Path | Data):
        raise ValueError(f"graphs must be a list: give {_instead(graphs)}")
    items = _items(graphs)
    if not items:
        raise ValueError("there are no graphs")
    for kind in IN_MEMORY:
        if all(isinstance(item, kind) and not isinstance(item, Batch) for item in items):
            return items
    found = ", ".join(sorted({type(item).__name__ for item in items}))
    held = getattr(graphs, "dataset", None)  # of a table, or of a DataLoader
    hint = "" if held is None else f"; give the .dataset of this {type(graphs).__name__}"
    raise ValueError(f"{_KINDS}, got {found}{hint}")


_KINDS = "graphs must be a GraphDataset, or a list of PyG Data, of networkx graphs or of SMILES"


def _instead(one: object) -> str:
    """Say what to give in place of one graph, a batch or the name of a file."""
    if isinstance(one, Data):
        return "batch.to_data_list()" if isinstance(one, Batch) else "[graph]"
    file = f"gtpool.load({str(one)!r}) of a file"
    return f"[{one!r}], or {file}" if isinstance(one, str) else file


def _items(graphs: object) -> list[Any]:
    """List what an iterable holds, or what can be had by number, as from a Dataset of torch."""
    if isinstance(graphs, Iterable):
        return list(cast("Iterable[Any]", graphs))
    if isinstance(graphs, Sized) and hasattr(graphs, "__getitem__"):
        return [cast("Any", graphs)[number] for number in range(len(graphs))]
    raise ValueError(f"{_KINDS}, got {type(graphs).__name__}")


def concatenate(parts: Sequence[GraphDataset]) -> GraphDataset:
    """Put sets of graphs that one recipe made behind one another.

    Example:
        >>> concatenate([read_graphs(["CO"]), read_graphs(["CCO", "C"])]).sizes.tolist()
        [2, 3, 1]
    """
    if len(parts) == 1:
        return parts[0]
    edge_attrs = [part.edge_attr for part in parts if part.edge_attr is not None]
    return GraphDataset(
        torch.cat([part.x for part in parts]),
        torch.cat([part.edge_index for part in parts], 1),
        torch.cat(edge_attrs) if edge_attrs else None,
        torch.cat([part.sizes for part in parts]),
        torch.cat([part.edge_counts for part in parts]),
        torch.cat([part.y for part in parts]),
        parts[0].schema,
    )


def read_graphs(
    graphs: GraphInputs,
    recipe: Recipe | None = None,
    *,
    features: str = "gmt",
    node_features: Sequence[str] = (),
    node_label: str | None = None,
    edge_features: Sequence[str] = (),
    edge_weight: str | None = None,
) -> GraphDataset:
    """Pack graphs without their labels: ``y`` has no columns, [G, 0].

    Args:
        graphs: Of PyG's ``x``, ``edge_index`` and ``edge_attr`` are taken.
        recipe: How features were made of the graphs that a model was trained on; without it, it is
            learned here.
        features: Of networkx graphs, as the others below: arguments of ``from_networkx``.
        node_features: Attributes of nodes that hold numbers.
        node_label: Attribute of nodes that holds their kind.
        edge_features: Attributes of edges that hold numbers.
        edge_weight: Attribute of edges that holds their weight.

    Example:
        >>> read_graphs(["CO", "CCO"]).sizes.tolist()
        [2, 3]
    """
    graphs = as_graph_list(graphs)
    if isinstance(graphs, GraphDataset):
        schema = replace(graphs.schema, task="regression", targets=())
        return _follow(replace(graphs, y=torch.empty(len(graphs), 0), schema=schema), recipe)
    named = _Attributes(features, node_features, node_label, edge_features, edge_weight)
    return next(
        read(graphs, recipe, named)
        for kind, read in IN_MEMORY.items()
        if isinstance(graphs[0], kind)
    )


def class_labels(graphs: GraphInputs, y: Any = None) -> Array:  # noqa: ANN401
    """Give the class of each graph, [G], or where y has several columns, 0, 1 or NaN, [G, T].

    Args:
        graphs: What ``as_graph_list`` gave.
        y: Classes or columns of answers; None takes what the graphs carry.
    """
    given = _carried(graphs) if y is None else np.asarray(y)
    if given.ndim != 2 or given.shape[1] < 2:
        return _single_labels(graphs, given)
    try:
        answers = given.astype(np.float32)
    except (TypeError, ValueError):
        answers = np.full(given.shape, np.inf, np.float32)
    if len(answers) != len(graphs):
        raise ValueError(
            f"y must hold one row for each of {len(graphs)} graphs, got {len(answers)}"
        )
    if not (np.isin(answers, (0, 1)) | np.isnan(answers)).all():
        raise ValueError(
            "y of several columns must hold 0, 1, or NaN where an answer is missing: a column is a "
            "yes-or-no task; to predict numbers, use GraphRegressor"
        )
    return answers


def _single_labels(graphs: GraphInputs, y: Any = None) -> Array:  # noqa: ANN401
    """Give the class of each graph, from ``y`` or as the graphs carry it, [G]."""
    labels = _carried(graphs) if y is None else np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(graphs),):
        raise ValueError(
            f"y must hold one class for each of {len(graphs)} graphs, got shape {labels.shape}"
        )
    if labels.dtype.kind not in "iufbUO":
        raise ValueError(f"the classes in y are of no known kind, {labels.dtype}")
    missing = [at for at, label in enumerate(labels.tolist()) if label is None or label != label]  # noqa: PLR0124
    if missing:
        raise ValueError(f"y[{missing[0]}] is missing")
    for at, label in enumerate(labels.tolist()):
        if isinstance(label, float) and not label.is_integer():
            raise ValueError(
                f"y looks like numbers, not classes: y[{at}] is {label:g}; to predict numbers, use "
                "GraphRegressor; as classes, give texts or whole numbers"
            )
    if labels.dtype.kind == "O" and len({type(label) for label in labels.tolist()}) > 1:
        raise ValueError("the classes in y must be all texts or all numbers")
    return labels


def regression_targets(graphs: GraphInputs, y: Any = None) -> Array:  # noqa: ANN401
    """Give the targets of each graph, from ``y`` or as the graphs carry them, float32 [G, T]."""
    try:
        numbers = np.asarray(_carried(graphs) if y is None else y, dtype=np.double)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"y must hold numbers: {error}") from error
    if numbers.ndim == 1:
        numbers = numbers[:, None]
    if numbers.ndim != 2 or numbers.shape[0] != len(graphs):
        raise ValueError(
            f"y must hold one row for each of {len(graphs)} graphs, got shape {numbers.shape}"
        )
    if numbers.size == 0:
        raise ValueError("there are no graphs, or no numbers to predict")
    large = np.argwhere(np.abs(numbers) > FLOAT32_MAX)
    if large.size:
        row, task = large[0].tolist()
        raise ValueError(f"y[{row}, {task}] is {numbers[row, task]}; y must be finite in float32")
    _refuse_missing(numbers)
    return numbers.astype(np.float32)


def _refuse_missing(y: Array) -> None:
    """Raise a ValueError that names the first column of NaN alone."""
    empty = np.flatnonzero(np.isnan(y).all(0))
    if empty.size and y.shape[1] == 1:
        raise ValueError("y is NaN for all graphs: there is nothing to learn")
    if empty.size:
        raise ValueError(
            f"column {empty[0]} of y, counted from 0, is NaN for all graphs: leave this column out"
        )


def _follow(data: GraphDataset, recipe: Recipe | None) -> GraphDataset:
    return data if recipe is None else apply_recipe(data, recipe)


class _Attributes(NamedTuple):
    """Arguments of ``from_networkx``."""

    features: str
    node_features: Sequence[str]
    node_label: str | None
    edge_features: Sequence[str]
    edge_weight: str | None


def _of_smiles(smiles: list[str], recipe: Recipe | None, named: _Attributes) -> GraphDataset:
    del named
    order = "canonical" if recipe is None else recipe.atom_order
    molecules = read_molecules(smiles, atom_order=order)
    for at, reason in molecules.failed:
        raise ValueError(f"molecule {at} cannot be read: {reason} ({smiles[at][:60]!r})")
    data = molecules.to_dataset(torch.empty(len(smiles), 0), "molecules", "regression", ())
    return _follow(data, recipe)


def _of_pyg(graphs: list[Data], recipe: Recipe | None, named: _Attributes) -> GraphDataset:
    del named
    for number, graph in enumerate(graphs):
        if graph.x is None:
            raise ValueError(
                f"graph {number} has no x; give its nodes features, as by "
                "torch_geometric.transforms.OneHotDegree or Constant"
            )
    nothing = torch.empty(1, 0)
    bare = [Data(graph.x, graph.edge_index, graph.edge_attr, nothing) for graph in graphs]
    return _follow(GraphDataset.from_pyg(bare), recipe)


def _of_networkx(
    graphs: list["nx.Graph[Any]"], recipe: Recipe | None, named: _Attributes
) -> GraphDataset:
    raw = from_networkx_raw(
        graphs,
        node_features=named.node_features,
        node_label=named.node_label,
        edge_features=named.edge_features,
        edge_weight=named.edge_weight,
    )
    recipe = learn_recipe(raw, named.features) if recipe is None else recipe
    for number, reason in sorted(unknown_labels(raw, recipe).items()):
        raise ValueError(f"graph {number}: {reason}")
    return featurize(raw, recipe)


IN_MEMORY: dict[type, Callable[[list[Any], Recipe | None, _Attributes], GraphDataset]] = {
    str: _of_smiles,
    Data: _of_pyg,
    nx.Graph: _of_networkx,
}
"""What a list of graphs may hold, and what packs it."""


def _carried(graphs: GraphInputs) -> Array:
    """Give the labels that graphs carry: ``y`` of PyG's, names of classes of a dataset."""
    if isinstance(graphs, GraphDataset):
        if graphs.schema.task == "classes":
            return np.array(graphs.schema.targets)[graphs.y.cpu().numpy()]
        return graphs.y.cpu().numpy()
    items = list(cast("Sequence[Any]", graphs))
    if not items:
        raise ValueError("there are no graphs")
    if not all(isinstance(item, Data) and item.y is not None for item in items):
        raise ValueError("y is needed: these graphs do not carry what is to be predicted")
    return torch.stack([torch.as_tensor(item.y).flatten() for item in items]).numpy()
