"""Graphs of networkx."""

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
    """Pack labelled networkx graphs.

    An edge of a ``Graph`` goes both ways, one of a ``DiGraph`` as it points. Nodes may be anything
    that networkx takes and are numbered in its order. Every node and edge must have the attributes
    that are named; a multigraph is refused, because two edges between the same nodes would be one.

    Args:
        graphs: ``Graph`` or ``DiGraph``.
        labels: One a graph: a text or whole number (a class), a number, or a list, one a task.
        node_features: Attributes of nodes that hold numbers, or lists of numbers.
        node_label: Attribute of nodes that holds a whole number, their kind.
        edge_features: Attributes of edges that hold numbers, or lists of numbers.
        edge_weight: Attribute of edges that holds their weight.
        features: How nodes become features, a key of ``FEATURES``.
        task: What the labels are for; if not given, the labels tell.

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
    """Pack networkx graphs as they are, for ``featurize`` with a recipe that was learned before.

    The arguments are those of ``from_networkx``; to predict, there need be no labels.
    """
    graphs = list(graphs)
    told = [None] * len(graphs) if labels is None else _plain(labels)
    if len(told) != len(graphs):
        raise ValueError(f"there are {len(graphs)} graphs, but {len(told)} labels")
    nodes = {"node_features": node_features, "node_labels": node_label}
    edges = {"edge_features": edge_features, "edge_weights": edge_weight}
    named = (
        (f"graph {number}", _record(graph, f"graph {number}", label, nodes, edges))
        for number, (graph, label) in enumerate(zip(graphs, told, strict=True))
    )
    return pack_records(named, "graphs", task=task, need_targets=labels is not None)


def _plain(labels: Iterable[Any]) -> list[Any]:
    """Turn arrays and tensors, or a list of them, into plain values."""
    return [label.tolist() if hasattr(label, "tolist") else label for label in labels]


def _record(
    graph: "nx.Graph[Any]",
    place: str,
    label: object,
    nodes: Mapping[str, Sequence[str] | str | None],
    edges: Mapping[str, Sequence[str] | str | None],
) -> dict[str, Any]:
    """Describe a graph by plain values, as a line of JSON would."""
    if graph.is_multigraph():
        raise ValueError(
            f"{place} is a multigraph, whose parallel edges would become one; make it a Graph "
            "first, as by nx.Graph(graph), and put what the edges held together into attributes"
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
    """Give the value of one attribute, or a row of the values of several, for each item."""
    for item, held in items:
        for name in [names] if isinstance(names, str) else names:
            if name not in held:
                raise ValueError(f"{place}: {what} {item!r} has no attribute {name!r}")
        if isinstance(names, str):
            yield held[names]
        else:
            yield [number for name in names for number in np.ravel(held[name]).tolist()]
