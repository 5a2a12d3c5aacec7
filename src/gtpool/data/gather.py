"""Graphs as a program holds them: a dataset, or a list of PyG graphs, networkx graphs or SMILES."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from gtpool.data.apply import follow, strange
from gtpool.data.dataset import GraphDataset
from gtpool.data.features import featurize, learn_recipe
from gtpool.data.molecule import read_molecules
from gtpool.data.nx import from_networkx_raw
from gtpool.data.schema import Recipe
from gtpool.spec import AtomOrder

Array = NDArray[Any]
GraphsOf = GraphDataset | Sequence[Data] | Sequence["nx.Graph[Any]"] | Sequence[str]


def read_graphs(
    graphs: GraphsOf,
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
    if isinstance(graphs, GraphDataset):
        schema = replace(graphs.schema, task="regression", targets=())
        return _follow(replace(graphs, y=torch.empty(len(graphs), 0), schema=schema), recipe)
    if isinstance(graphs, str):
        raise ValueError(f"graphs must be a list; to ask for one molecule, give [{graphs!r}]")
    items = list(cast("Sequence[Any]", graphs))
    if items and all(isinstance(item, str) for item in items):
        order = "canonical" if recipe is None else recipe.atom_order
        return _follow(_of_smiles(items, order), recipe)
    if items and all(isinstance(item, Data) for item in items):
        return _follow(_of_pyg(items), recipe)
    if items and all(isinstance(item, nx.Graph) for item in items):
        raw = from_networkx_raw(
            items,
            node_features=node_features,
            node_label=node_label,
            edge_features=edge_features,
            edge_weight=edge_weight,
        )
        recipe = learn_recipe(raw, features) if recipe is None else recipe
        for number, reason in sorted(strange(raw, recipe).items()):
            raise ValueError(f"graph {number}: {reason}")
        return featurize(raw, recipe)
    kinds = ", ".join(sorted({type(item).__name__ for item in items})) or "nothing"
    raise ValueError(
        "graphs must be a GraphDataset, or a list of PyG Data, of networkx graphs or of SMILES, "
        f"got {kinds}"
    )


def classes_of(graphs: GraphsOf, y: Any = None) -> Array:  # noqa: ANN401
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
    if labels.dtype.kind == "O" and len({type(label) for label in labels.tolist()}) > 1:
        raise ValueError("the classes in y must be all texts or all numbers")
    return labels


def numbers_of(graphs: GraphsOf, y: Any = None) -> Array:  # noqa: ANN401
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
    large = np.argwhere(np.abs(numbers) > np.finfo(np.float32).max)
    if large.size:
        row, task = large[0].tolist()
        raise ValueError(f"y[{row}, {task}] is {numbers[row, task]}; y must be finite in float32")
    if np.isnan(numbers).all(0).any():
        raise ValueError("y must hold numbers, NaN where one is missing, and not all missing")
    return numbers.astype(np.float32)


def _follow(data: GraphDataset, recipe: Recipe | None) -> GraphDataset:
    return data if recipe is None else follow(data, recipe)


def _of_smiles(smiles: list[str], atom_order: AtomOrder) -> GraphDataset:
    molecules = read_molecules(smiles, atom_order=atom_order)
    for at, reason in molecules.failed:
        raise ValueError(f"molecule {at} cannot be read: {reason} ({smiles[at][:60]!r})")
    return molecules.labelled(torch.empty(len(smiles), 0), "molecules", "regression", ())


def _of_pyg(graphs: list[Data]) -> GraphDataset:
    for number, graph in enumerate(graphs):
        if graph.x is None:
            raise ValueError(
                f"graph {number} has no x; give its nodes features, as by "
                "torch_geometric.transforms.OneHotDegree or Constant"
            )
    nothing = torch.empty(1, 0)
    bare = [Data(graph.x, graph.edge_index, graph.edge_attr, nothing) for graph in graphs]
    return GraphDataset.from_pyg(bare)


def _carried(graphs: GraphsOf) -> Array:
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
