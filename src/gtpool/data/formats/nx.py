"""Graphs from networkx."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np

from gtpool.data.dataset import GraphDataset
from gtpool.data.features import RawGraphs, featurize, learn_recipe
from gtpool.data.records import pack_records
from gtpool.data.schema import Task


def from_networkx(
    graphs: Iterable["nx.Graph[Any]"],
    labels: Iterable[Any],
    *,
    node_features: Sequence[str] = (),
    node_label: str | None = None,
    edge_features: Sequence[str] = (),
    edge_weight: str | None = None,
    features: str = "gmt",
    task: Task | None = None,
) -> GraphDataset:
    """Return a dataset of labelled networkx graphs.

    An edge of a ``Graph`` becomes two directed edges, an edge of a ``DiGraph`` one. Nodes are
    indexed in the order of networkx. Every node and edge must have the named attributes. A
    multigraph is an error, since parallel edges are not supported.

    Args:
        graphs: ``Graph`` or ``DiGraph``.
        labels: One per graph: a text or integer (a class), a number, or a list with one per task.
        node_features: Node attributes that hold numbers or lists of numbers.
        node_label: Node attribute with an integer label.
        edge_features: Edge attributes that hold numbers or lists of numbers.
        edge_weight: Edge attribute with the weight.
        features: How node features are made, a key of ``FEATURES``.
        task: Task of the labels; inferred from them by default.

    Example:
        >>> data = from_networkx([nx.path_graph(3), nx.cycle_graph(3)], ["path", "ring"])
        >>> data.edge_counts.tolist(), data.schema.targets
        ([4, 6], ('path', 'ring'))
    """
    raw = from_networkx_raw(
        graphs,
        labels,
        node_features=node_features,
        node_label=node_label,
        edge_features=edge_features,
        edge_weight=edge_weight,
        task=task,
    )
    return featurize(raw, learn_recipe(raw, features))


def from_networkx_raw(
    graphs: Iterable["nx.Graph[Any]"],
    labels: Iterable[Any] | None = None,
    *,
    node_features: Sequence[str] = (),
    node_label: str | None = None,
    edge_features: Sequence[str] = (),
    edge_weight: str | None = None,
    task: Task | None = None,
) -> RawGraphs:
    """Return networkx graphs without features, for ``featurize`` with a trained model's recipe.

    The arguments are those of ``from_networkx``; labels are optional.
    """
    graphs = list(graphs)
    known = [None] * len(graphs) if labels is None else _python_values(labels)
    if len(known) != len(graphs):
        raise ValueError(f"there are {len(graphs)} graphs, but {len(known)} labels")
    nodes = {"node_features": node_features, "node_labels": node_label}
    edges = {"edge_features": edge_features, "edge_weights": edge_weight}
    named = (
        (f"graph {number}", _record(graph, f"graph {number}", label, nodes, edges))
        for number, (graph, label) in enumerate(zip(graphs, known, strict=True))
    )
    return pack_records(named, "graphs", task=task, need_targets=labels is not None)


def _python_values(labels: Iterable[Any]) -> list[Any]:
    """Return a list of Python values from arrays, tensors or a list of them."""
    return [label.tolist() if hasattr(label, "tolist") else label for label in labels]


def _record(
    graph: "nx.Graph[Any]",
    place: str,
    label: object,
    nodes: Mapping[str, Sequence[str] | str | None],
    edges: Mapping[str, Sequence[str] | str | None],
) -> dict[str, Any]:
    """Return a graph as a mapping with the keys of JSON lines."""
    if graph.is_multigraph():
        raise ValueError(
            f"{place} is a multigraph, and parallel edges are not supported; convert it by "
            "nx.Graph(graph), with edge attributes that combine those of parallel edges"
        )
    number = {node: place for place, node in enumerate(graph.nodes)}
    record: dict[str, Any] = {
        "nodes": len(number),
        "edges": [[number[source], number[target]] for source, target in graph.edges],
        "undirected": not graph.is_directed(),
        "label": list(label) if isinstance(label, tuple) else label,
    }
    for key, names in nodes.items():
        if names:
            record[key] = list(_values(place, "node", graph.nodes.items(), names))
    for key, names in edges.items():
        if names:
            record[key] = list(_values(place, "edge", graph.edges.items(), names))
    return record


def _values(
    place: str,
    what: str,
    items: Iterable[tuple[Any, Mapping[str, Any]]],
    names: Sequence[str] | str,
) -> Iterator[Any]:
    """Yield the value of one attribute, or a row of several, for each node or edge."""
    for item, held in items:
        for name in [names] if isinstance(names, str) else names:
            if name not in held:
                raise ValueError(f"{place}: {what} {item!r} has no attribute {name!r}")
        if isinstance(names, str):
            yield held[names]
        else:
            yield [number for name in names for number in np.ravel(held[name]).tolist()]
