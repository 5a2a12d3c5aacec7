"""Graphs in memory, for the estimators: a dataset, PyG graphs, networkx graphs or SMILES."""

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
from gtpool.data.encodings import with_encodings
from gtpool.data.features import featurize, learn_recipe
from gtpool.data.formats.nx import from_networkx_raw
from gtpool.data.graph_features import apply_graph_features, with_graph_features
from gtpool.data.inference import apply_recipe, unknown_labels
from gtpool.data.molecule import read_molecules
from gtpool.data.schema import FLOAT32_MAX, Recipe, Task

Array = NDArray[Any]
GraphInputs = GraphDataset | Sequence[Data] | Sequence["nx.Graph[Any]"] | Sequence[str]


class TargetEncoding(NamedTuple):
    """The task and its targets, learned from the labels of the training graphs."""

    task: Task
    names: tuple[str, ...]
    """Names of the classes, or of the tasks."""
    classes: Any = None
    """scikit-learn's ``classes_``: the sorted classes, a list of [0, 1] for several binary tasks,
    None for regression."""

    @classmethod
    def for_classification(cls, labels: Array) -> Self:
        """Return the encoding of labels from ``class_labels``."""
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
        """Return the encoding of numbers from ``regression_targets``."""
        return cls("regression", tuple(f"task {at + 1}" for at in range(numbers.shape[1])))

    def with_targets(self, data: GraphDataset, labels: Array) -> GraphDataset:
        """Return a dataset with ``y`` set to the encoded labels."""
        if self.task == "classes":
            check_columns(self.classes, labels)
            new = ~np.isin(labels, self.classes)
            if new.any():
                raise ValueError(f"no training graph has class {labels[new].tolist()[0]!r}")
            labels = np.searchsorted(self.classes, labels)
        else:
            check_columns(np.empty((0, len(self.names))), labels)
        schema = replace(data.schema, task=self.task, targets=self.names)
        return replace(data, y=torch.from_numpy(labels), schema=schema)


def check_columns(found: Array, wanted: Array) -> None:
    """Raise a ValueError if y has another number of columns than the fitted one."""
    made, given = (part.shape[1] if part.ndim == 2 else 1 for part in (found, wanted))
    if made != given:
        raise ValueError(f"y has {given} columns, but the estimator was fitted with {made}")


def as_graph_list(graphs: GraphInputs) -> GraphDataset | list[Any]:
    """Return graphs as a list of one type; a ``GraphDataset`` is returned unchanged.

    Args:
        graphs: A ``GraphDataset``; or PyG's ``Data``, networkx graphs or SMILES, in any iterable
            or a PyG or torch dataset.
    """
    if isinstance(graphs, GraphDataset):
        return graphs
    if isinstance(graphs, str | Path | Data):
        raise ValueError(f"graphs must be a list: pass {_instead(graphs)}")
    items = _items(graphs)
    if not items:
        raise ValueError("there are no graphs")
    for kind in IN_MEMORY:
        if all(isinstance(item, kind) and not isinstance(item, Batch) for item in items):
            return items
    found = ", ".join(sorted({type(item).__name__ for item in items}))
    held = getattr(graphs, "dataset", None)  # of a table, or of a DataLoader
    hint = "" if held is None else f"; pass the .dataset of this {type(graphs).__name__}"
    raise ValueError(f"{_KINDS}, got {found}{hint}")


_KINDS = "graphs must be a GraphDataset, or a list of PyG Data, of networkx graphs or of SMILES"


def _instead(one: object) -> str:
    """Return what to pass instead of one graph, a batch or a file name."""
    if isinstance(one, Data):
        return "batch.to_data_list()" if isinstance(one, Batch) else "[graph]"
    file = f"gtpool.load({str(one)!r}) of a file"
    return f"[{one!r}], or {file}" if isinstance(one, str) else file


def _items(graphs: object) -> list[Any]:
    """Return the items of an iterable, or of a torch ``Dataset`` by index."""
    if isinstance(graphs, Iterable):
        return list(cast("Iterable[Any]", graphs))
    if isinstance(graphs, Sized) and hasattr(graphs, "__getitem__"):
        return [cast("Any", graphs)[number] for number in range(len(graphs))]
    raise ValueError(f"{_KINDS}, got {type(graphs).__name__}")


def concatenate(parts: Sequence[GraphDataset]) -> GraphDataset:
    """Return datasets of one recipe as one dataset.

    Example:
        >>> concatenate([read_graphs(["CO"]), read_graphs(["CCO", "C"])]).sizes.tolist()
        [2, 3, 1]
    """
    if len(parts) == 1:
        return parts[0]
    edge_attrs = [part.edge_attr for part in parts if part.edge_attr is not None]
    features = [part.graph_features for part in parts if part.graph_features is not None]
    return GraphDataset(
        torch.cat([part.x for part in parts]),
        torch.cat([part.edge_index for part in parts], 1),
        torch.cat(edge_attrs) if edge_attrs else None,
        torch.cat([part.sizes for part in parts]),
        torch.cat([part.edge_counts for part in parts]),
        torch.cat([part.y for part in parts]),
        parts[0].schema,
        graph_features=torch.cat(features) if features else None,
    )


def read_graphs(
    graphs: GraphInputs,
    recipe: Recipe | None = None,
    *,
    features: str = "gmt",
    encode: Sequence[str] = (),
    molecule_features: Sequence[str] = (),
    node_features: Sequence[str] = (),
    node_label: str | None = None,
    edge_features: Sequence[str] = (),
    edge_weight: str | None = None,
) -> GraphDataset:
    """Return graphs as a dataset without labels: ``y`` has no columns, [G, 0].

    Args:
        graphs: The graphs; of PyG's ``Data``, ``x``, ``edge_index`` and ``edge_attr`` are used.
        recipe: Recipe of a trained model; by default it is learned from the graphs.
        features: For networkx graphs, as the arguments after ``encode``; see ``from_networkx``.
        encode: Structural encodings of nodes, if there is no ``recipe``.
        molecule_features: Descriptors of SMILES, keys of ``MOLECULE_FEATURES``, likewise.
        node_features: Numeric node attributes.
        node_label: Node attribute with an integer label.
        edge_features: Numeric edge attributes.
        edge_weight: Edge attribute with the weight.

    Example:
        >>> read_graphs(["CO", "CCO"]).sizes.tolist()
        [2, 3]
    """
    graphs = as_graph_list(graphs)
    if isinstance(graphs, GraphDataset):
        schema = replace(graphs.schema, task="regression", targets=())
        data = _follow(replace(graphs, y=torch.empty(len(graphs), 0), schema=schema), recipe)
    else:
        named = _Attributes(
            features, node_features, node_label, edge_features, edge_weight, molecule_features
        )
        data = next(
            read(graphs, recipe, named)
            for kind, read in IN_MEMORY.items()
            if isinstance(graphs[0], kind)
        )
    if recipe is not None:
        return data
    if tuple(molecule_features) not in {(), data.schema.recipe.molecule_features}:
        raise ValueError(
            f"molecule_features {', '.join(molecule_features)} can be computed only from a list of "
            "SMILES; a GraphDataset must have them already"
        )
    return with_encodings(data, encode)


def class_labels(graphs: GraphInputs, y: Any = None) -> Array:  # noqa: ANN401
    """Return the class of each graph, [G], or the labels 0, 1 or NaN of several tasks, [G, T].

    Args:
        graphs: The result of ``as_graph_list``.
        y: Classes or columns of binary labels; by default those of the graphs.
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
            "y with several columns must hold 0, 1, or NaN for a missing label: each column is a "
            "binary task; to predict numbers, use GraphRegressor"
        )
    return answers


def _single_labels(graphs: GraphInputs, y: Any = None) -> Array:  # noqa: ANN401
    """Return the class of each graph, from ``y`` or from the graphs, [G]."""
    labels = _carried(graphs) if y is None else np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(graphs),):
        raise ValueError(
            f"y must hold one class for each of {len(graphs)} graphs, got shape {labels.shape}"
        )
    if labels.dtype.kind not in "iufbUO":
        raise ValueError(f"the classes in y have the unsupported dtype {labels.dtype}")
    missing = [at for at, label in enumerate(labels.tolist()) if label is None or label != label]  # noqa: PLR0124
    if missing:
        raise ValueError(f"y[{missing[0]}] is missing")
    for at, label in enumerate(labels.tolist()):
        if isinstance(label, float) and not label.is_integer():
            raise ValueError(
                f"y looks like numbers, not classes: y[{at}] is {label:g}; to predict numbers, use "
                "GraphRegressor; for classes, pass texts or integers"
            )
    if labels.dtype.kind == "O" and len({type(label) for label in labels.tolist()}) > 1:
        raise ValueError("the classes in y must be all texts or all numbers")
    return labels


def regression_targets(graphs: GraphInputs, y: Any = None) -> Array:  # noqa: ANN401
    """Return the regression targets, from ``y`` or from the graphs, float32 [G, T]."""
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
    """Raise a ValueError if a column of y is all NaN."""
    empty = np.flatnonzero(np.isnan(y).all(0))
    if empty.size and y.shape[1] == 1:
        raise ValueError("y is NaN for all graphs: there is nothing to learn")
    if empty.size:
        raise ValueError(
            f"column {empty[0]} of y, counted from 0, is NaN for all graphs: remove this column"
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
    molecule_features: Sequence[str]


def _of_smiles(smiles: list[str], recipe: Recipe | None, named: _Attributes) -> GraphDataset:
    order = "canonical" if recipe is None else recipe.atom_order
    molecules = read_molecules(smiles, atom_order=order)
    for at, reason in molecules.failed:
        raise ValueError(f"molecule {at} cannot be read: {reason} ({smiles[at][:60]!r})")
    data = molecules.to_dataset(torch.empty(len(smiles), 0), "molecules", "regression", ())
    if recipe is None:
        return with_graph_features(data, smiles, named.molecule_features)
    return apply_recipe(apply_graph_features(data, smiles, recipe), recipe)


def _of_pyg(graphs: list[Data], recipe: Recipe | None, named: _Attributes) -> GraphDataset:
    del named
    for number, graph in enumerate(graphs):
        if graph.x is None:
            raise ValueError(
                f"graph {number} has no x; add node features, for example by "
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
    if recipe.molecule_features:
        sets = " and ".join(recipe.molecule_features)
        raise ValueError(f"the model reads descriptors of molecules ({sets}): pass SMILES")
    for number, reason in sorted(unknown_labels(raw, recipe).items()):
        raise ValueError(f"graph {number}: {reason}")
    return featurize(raw, recipe)


IN_MEMORY: dict[type, Callable[[list[Any], Recipe | None, _Attributes], GraphDataset]] = {
    str: _of_smiles,
    Data: _of_pyg,
    nx.Graph: _of_networkx,
}
"""Types of graphs in a list, and the functions that read them."""


def _carried(graphs: GraphInputs) -> Array:
    """Return the labels of the graphs: ``y`` of PyG graphs, class names of a dataset."""
    if isinstance(graphs, GraphDataset):
        if graphs.schema.task == "classes":
            return np.array(graphs.schema.targets)[graphs.y.cpu().numpy()]
        return graphs.y.cpu().numpy()
    items = list(cast("Sequence[Any]", graphs))
    if not items:
        raise ValueError("there are no graphs")
    if not all(isinstance(item, Data) and item.y is not None for item in items):
        raise ValueError("y is required: these graphs have no labels")
    return torch.stack([torch.as_tensor(item.y).flatten() for item in items]).numpy()
