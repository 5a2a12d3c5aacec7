"""Graphs as mappings, one per graph: checked and packed into ``RawGraphs``.

The keys are those of JSON lines, described in ``docs/data-format.md``.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.data.features import RawGraphs
from gtpool.data.schema import FLOAT32_MAX, Task
from gtpool.data.targets import pack_targets

Array = NDArray[Any]

KEYS = (
    "nodes",
    "edges",
    "undirected",
    "node_features",
    "node_labels",
    "edge_features",
    "edge_labels",
    "edge_weights",
    "label",
    "id",
)
_MOST_NODES = np.iinfo(np.int32).max


def pack_records(
    records: Iterable[tuple[str, Mapping[str, Any]]],
    name: str,
    *,
    task: Task | None = None,
    need_targets: bool = True,
) -> RawGraphs:
    """Return graphs, checked and packed.

    Args:
        records: One graph each, with its place for error messages, such as file and line.
        name: Name of the dataset.
        task: Task of the labels; inferred from them by default.
        need_targets: Whether every graph must have a label, and labels must differ.

    Example:
        >>> path = {"nodes": 3, "edges": [[0, 1], [1, 2]], "undirected": True, "label": 0.5}
        >>> raw = pack_records([("first", path)], "paths")
        >>> raw.edge_index.tolist(), raw.task, raw.y.tolist()
        ([[0, 1, 1, 2], [1, 2, 0, 1]], 'regression', [[0.5]])
    """
    graphs = [_graph(place, record) for place, record in records]
    if not graphs:
        raise ValueError(f"{name} has no graphs")
    places = [graph.place for graph in graphs]
    y, found, targets = pack_targets(
        [graph.label for graph in graphs], places, task=task, need_targets=need_targets
    )
    weights = _joined(graphs, "edge_weights")
    features = _joined(graphs, "edge_features")
    edge_attributes = [
        part.reshape(part.shape[0], -1) for part in (weights, features) if part is not None
    ]
    edges = _Edges(
        np.concatenate([graph.edges for graph in graphs]),
        np.repeat(np.arange(len(graphs)), [graph.edges.shape[0] for graph in graphs]),
        _joined(graphs, "edge_labels"),
        np.concatenate(edge_attributes, 1) if edge_attributes else None,
    )
    sizes = np.array([graph.nodes for graph in graphs])
    edges = _distinct(edges, sizes, places)
    return RawGraphs(
        torch.from_numpy(sizes),
        torch.from_numpy(np.bincount(edges.graph, minlength=len(graphs))),
        torch.from_numpy(edges.ends.T.copy()),
        y,
        name,
        found,
        targets,
        _tensor(_joined(graphs, "node_labels")),
        _tensor(_joined(graphs, "node_features")),
        _tensor(edges.labels),
        _tensor(edges.attributes),
        weights is not None,
    )


class _Graph(NamedTuple):
    place: str
    nodes: int
    edges: Array  # [E, 2]
    label: object
    node_features: Array | None
    node_labels: Array | None
    edge_features: Array | None
    edge_labels: Array | None
    edge_weights: Array | None


class _Edges(NamedTuple):
    ends: Array  # [E, 2]
    graph: Array  # [E]
    labels: Array | None
    attributes: Array | None


def _graph(place: str, record: Mapping[str, Any]) -> _Graph:
    """Check one graph; an undirected one gets the reverse of each edge."""
    for key in record:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(KEYS)}"
            raise ValueError(f"{place}: unknown key {key!r}; {hint}")
    given = {
        key: _array(place, key, record[key], columns="features" in key, whole="labels" in key)
        for key in KEYS[3:8]
        if record.get(key) is not None
    }
    nodes = _count_nodes(place, record.get("nodes"), given)
    if record.get("edges") is None:
        raise ValueError(f'{place}: edges are missing; write "edges": [] for a graph without edges')
    edges = _array(place, "edges", record["edges"], columns=True, whole=True)
    edges = _check_ends(place, edges, nodes)
    of_edges = {key: values for key, values in given.items() if key.startswith("edge")}
    for key, values in of_edges.items():
        _check_rows(place, key, values, edges.shape[0], "edges")
    undirected = record.get("undirected", False)
    if not isinstance(undirected, bool):
        raise ValueError(f"{place}: undirected must be true or false, not {undirected!r}")
    if undirected:
        edges = np.concatenate([edges, edges[:, ::-1]])
        given |= {key: np.concatenate([values, values]) for key, values in of_edges.items()}
    parts = (given.get(key) for key in KEYS[3:8])
    return _Graph(place, nodes, edges, record.get("label"), *parts)


def _array(place: str, key: str, value: object, *, columns: bool, whole: bool) -> Array:
    """Return lists of finite numbers as an array, [rows] or with columns [rows, columns].

    Labels may be either: several integers per row are labels in several columns.
    """
    several = "labels" in key
    kind = "integers" if whole else "numbers"
    wanted = f"a list of lists of {kind}, all of one length" if columns else f"a list of {kind}"
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        raise ValueError(f"{place}: {key} must be {wanted}") from None
    if isinstance(value, list) and not value:
        return np.empty((0, 0) if columns else 0, np.int64 if whole else np.double)
    if (
        array.dtype.kind not in ("i" if whole else "iuf")
        or (array.ndim != 1 + columns and not (several and array.ndim == 2 and array.shape[1] > 1))
        or not array.size
    ):
        raise ValueError(f"{place}: {key} must be {wanted}")
    sound = np.abs(array) <= FLOAT32_MAX
    if not sound.all():
        raise ValueError(f"{place}: {key} has {array[~sound][0]}, which is not a finite float32")
    return array.astype(np.double) if array.dtype.kind == "u" else array


def _count_nodes(place: str, nodes: object, given: Mapping[str, Array]) -> int:
    """Return the number of nodes, from ``nodes`` or from the rows of node features or labels."""
    rows = {key: values.shape[0] for key, values in given.items() if key.startswith("node")}
    if nodes is None and not rows:
        raise ValueError(f"{place}: give the number of nodes, by nodes or by node_features")
    count = next(iter(rows.values())) if nodes is None else nodes
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"{place}: nodes must be an integer, not {nodes!r}")
    if not 0 < count <= _MOST_NODES:
        what = "no nodes" if count == 0 else f"more than {_MOST_NODES} nodes"
        raise ValueError(f"{place}: the graph has {what}")
    for key, values in given.items():
        if key in rows:
            _check_rows(place, key, values, count, "nodes")
    return count


def _check_rows(place: str, key: str, values: Array, expected: int, what: str) -> None:
    if values.shape[0] != expected:
        raise ValueError(
            f"{place}: {key} has {values.shape[0]} entries, but there are {expected} {what}"
        )


def _check_ends(place: str, edges: Array, nodes: int) -> Array:
    if not edges.size:
        return np.empty((0, 2), np.int64)
    if edges.shape[1] != 2:
        raise ValueError(f"{place}: an edge is [source, target], not {edges[0].tolist()}")
    outside = ((edges < 0) | (edges >= nodes)).any(1)
    if outside.any():
        raise ValueError(
            f"{place}: edge {edges[outside][0].tolist()} is out of range, "
            f"the nodes are 0 to {nodes - 1}"
        )
    return edges


def _joined(graphs: list[_Graph], key: str) -> Array | None:
    """Concatenate a key of all graphs; all or none must have it, except graphs without edges."""
    asked = [graph for graph in graphs if not key.startswith("edge") or graph.edges.size]
    parts: list[Array | None] = [getattr(graph, key) for graph in asked]
    kinds = [None if part is None else part.shape[1:] for part in parts]
    for graph, kind in zip(asked, kinds, strict=True):
        if kind != kinds[0]:
            first, other = (_width(key, one) for one in (kinds[0], kind))
            raise ValueError(
                f"{graph.place}: {other}, but {asked[0].place} {first}; all graphs must be alike"
            )
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _width(key: str, shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return f"has no {key}"
    return f"has {key}" + (f" of {shape[0]} columns" if shape else "")


def _distinct(edges: _Edges, sizes: Array, places: list[str]) -> _Edges:
    """Drop duplicate edges; duplicates with different labels or attributes are an error."""
    nodes = np.cumsum(sizes)
    source = edges.ends[:, 0] + (nodes - sizes)[edges.graph]  # numbered over all graphs
    keys = source * nodes[-1] + edges.ends[:, 1]
    _, first, same = np.unique(keys, return_index=True, return_inverse=True)
    for values in (edges.labels, edges.attributes):
        if values is None:
            continue
        differs = (values != values[first][same]).reshape(len(values), -1).any(1)
        if differs.any():
            at = int(differs.argmax())
            raise ValueError(
                f"{places[edges.graph[at]]}: edge {edges.ends[at].tolist()} is listed again with "
                "another label, weight or features; parallel edges are not supported"
            )
    kept = np.sort(first)
    labels, attributes = (
        None if part is None else part[kept] for part in (edges.labels, edges.attributes)
    )
    return _Edges(edges.ends[kept], edges.graph[kept], labels, attributes)


def _tensor(values: Array | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values)
