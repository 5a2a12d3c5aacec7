"""Node features from labels, attributes or degrees.

A reader returns ``RawGraphs``. ``learn_recipe`` derives a ``Recipe`` from the training data, and
``featurize`` applies it, both in training and in prediction.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset, edges_to_int32, standardize_columns
from gtpool.data.encodings import encode_nodes
from gtpool.data.schema import Recipe, Schema, Task
from gtpool.ops.memory import check_memory

MAX_DEGREE = 1000
"""Highest degree with a one-hot column of its own; higher degrees share it."""


class RawGraphs(NamedTuple):
    """Graphs as read from a source, packed; edges have node indices inside their graph."""

    sizes: Tensor
    """Nodes of each graph, [G]."""
    edge_counts: Tensor
    """Edges of each graph, [G]."""
    edge_index: Tensor
    """Edges without duplicates, [2, E]."""
    y: Tensor
    """Class of each graph, int64 [G], or one float per task, NaN where missing, [G, T]."""
    name: str
    task: Task
    targets: tuple[str, ...]
    """Names of the classes or tasks."""
    node_labels: Tensor | None = None
    """One integer per node, [N], or several, [N, L]."""
    node_attributes: Tensor | None = None
    """Continuous features, float [N, A]."""
    edge_labels: Tensor | None = None
    """One integer per edge, [E], or several, [E, L]."""
    edge_attributes: Tensor | None = None
    """Continuous edge features, float [E, B]; the weight, if any, comes first."""
    edge_weighted: bool = False
    """Whether the first edge attribute is a weight."""


def gmt(raw: RawGraphs) -> Recipe:
    """Attributes and one-hot labels; the one-hot degree if there is neither."""
    if raw.node_labels is None and raw.node_attributes is None:
        return degree(raw)
    return _recipe("gmt", raw, raw.node_labels, _width(raw))


def fair(raw: RawGraphs) -> Recipe:
    """One-hot labels, else attributes, else the degree as a number; both for ENZYMES."""
    if raw.node_labels is None and raw.node_attributes is None:
        return replace(_recipe("fair", raw, attributes=1), degree=True)
    both = raw.name == "ENZYMES" or raw.node_labels is None
    return _recipe("fair", raw, raw.node_labels, _width(raw) if both else 0)


def degree(raw: RawGraphs) -> Recipe:
    """The one-hot degree, up to the highest of the data or ``MAX_DEGREE``."""
    return _recipe("degree", raw, max_degree=min(int(_degrees(raw).max()), MAX_DEGREE))


def constant(raw: RawGraphs) -> Recipe:
    """The constant 1 for every node."""
    return _recipe("constant", raw)


FEATURES: dict[str, Callable[[RawGraphs], Recipe]] = {
    "gmt": gmt,
    "fair": fair,
    "degree": degree,
    "constant": constant,
}


def learn_recipe(raw: RawGraphs, kind: str = "gmt") -> Recipe:
    """Return the recipe for the features of ``raw``; ``kind`` is a key of ``FEATURES``."""
    if kind not in FEATURES:
        raise ValueError(f"unknown features {kind!r}; choose one of {', '.join(FEATURES)}")
    return FEATURES[kind](raw)


def featurize(raw: RawGraphs, recipe: Recipe) -> GraphDataset:
    """Return the dataset that ``recipe`` makes from ``raw``, standardised if the recipe is."""
    degrees = 0 if recipe.max_degree is None else recipe.max_degree + 1
    width = recipe.attributes + len(recipe.labels) + degrees
    nodes = int(raw.sizes.sum())
    attributes = _attributes(raw, recipe) if recipe.attributes else None
    _check_room(raw.name, "node", nodes, max(width, 1), 4)
    x = torch.zeros(nodes, width) if width else torch.ones(nodes, 1)
    if attributes is not None:
        x[:, : recipe.attributes] = attributes
    if recipe.labels:
        place = _label_indices("node label", raw.node_labels, recipe.label_sets)
        x.scatter_(1, place + recipe.attributes, 1.0)
    if recipe.max_degree is not None:
        place = _degrees(raw).clamp(max=recipe.max_degree) + (width - degrees)
        x.scatter_(1, place.unsqueeze(1), 1.0)
    schema = Schema(raw.name, raw.task, raw.targets, recipe)
    edge_index = edges_to_int32(raw.edge_index)
    if recipe.encode:
        parts = (raw.edge_index, raw.sizes, raw.edge_counts, raw.name)
        x = torch.cat([encode_nodes(recipe.encode, *parts), x], 1)
    return GraphDataset(
        standardize_columns(x, recipe),
        edge_index,
        _edge_features(raw, recipe),
        raw.sizes,
        raw.edge_counts,
        raw.y,
        schema,
    )


def _recipe(
    kind: str,
    raw: RawGraphs,
    labels: Tensor | None = None,
    attributes: int = 0,
    max_degree: int | None = None,
) -> Recipe:
    words, edge_words = _vocabularies(labels), _vocabularies(raw.edge_labels)
    return Recipe(
        kind,
        labels=tuple(label for part in words for label in part),
        attributes=attributes,
        max_degree=max_degree,
        edge_labels=tuple(label for part in edge_words for label in part),
        edge_attributes=0 if raw.edge_attributes is None else raw.edge_attributes.size(1),
        edge_weighted=raw.edge_weighted,
        label_columns=tuple(map(len, words)) if len(words) > 1 else (),
        edge_label_columns=tuple(map(len, edge_words)) if len(edge_words) > 1 else (),
    )


def _width(raw: RawGraphs) -> int:
    return 0 if raw.node_attributes is None else raw.node_attributes.size(1)


def _vocabularies(labels: Tensor | None) -> list[list[int]]:
    """Return the sorted labels of each column."""
    return [] if labels is None else [part.unique().tolist() for part in label_columns(labels)]


def label_columns(labels: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of labels of shape [N] or [N, L]."""
    return (labels,) if labels.dim() == 1 else labels.unbind(1)


def _attributes(raw: RawGraphs, recipe: Recipe) -> Tensor:
    """Return the continuous columns, [N, A]."""
    if recipe.degree:
        return _degrees(raw)[:, None]
    found = _width(raw)
    if raw.node_attributes is None or found != recipe.attributes:
        raise ValueError(
            f"{raw.name} has {found} node attributes, but the model was trained on "
            f"{recipe.attributes}"
        )
    return raw.node_attributes


def _edge_features(raw: RawGraphs, recipe: Recipe) -> Tensor | None:
    """Return the continuous columns of the edges and their one-hot labels, [E, F]."""
    width, edges = recipe.edge_attributes + len(recipe.edge_labels), raw.edge_index.size(1)
    if not width:
        return None
    found = 0 if raw.edge_attributes is None else raw.edge_attributes.size(1)
    if recipe.edge_attributes and found != recipe.edge_attributes:
        raise ValueError(
            f"{raw.name} has {found} edge attributes, but the model was trained on "
            f"{recipe.edge_attributes}"
        )
    dtype = torch.float if recipe.edge_attributes else torch.uint8
    _check_room(raw.name, "edge", edges, width, dtype.itemsize)
    features = torch.zeros(edges, width, dtype=dtype)
    if raw.edge_attributes is not None and recipe.edge_attributes:
        features[:, : recipe.edge_attributes] = raw.edge_attributes
    if recipe.edge_labels:
        place = _label_indices("edge label", raw.edge_labels, recipe.edge_label_sets)
        features.scatter_(1, place + recipe.edge_attributes, 1)
    return features


def _label_indices(what: str, labels: Tensor | None, known: tuple[tuple[int, ...], ...]) -> Tensor:
    """Return the index of each label in the vocabularies, [N, L]; unknown labels are an error."""
    if labels is None:
        raise ValueError(f"the model was trained on graphs with {what}s, but these have none")
    columns = label_columns(labels)
    if len(columns) != len(known):
        raise ValueError(
            f"the model was trained on graphs with {len(known)} columns of {what}s, but these have "
            f"{len(columns)}"
        )
    places: list[Tensor] = []
    first = 0
    for column, vocabulary in zip(columns, known, strict=True):
        words = torch.tensor(vocabulary)
        place = torch.searchsorted(words, column.contiguous()).clamp(max=words.numel() - 1)
        unknown = words[place] != column
        if unknown.any():
            raise ValueError(
                f"{what} {int(column[unknown][0])} was not in the training data; "
                f"known are {', '.join(map(str, vocabulary))}"
            )
        places.append(place + first)
        first += len(vocabulary)
    return torch.stack(places, 1)


def _degrees(raw: RawGraphs) -> Tensor:
    """Return the out-degree of each node, [N]."""
    _check_room(raw.name, "node", int(raw.sizes.sum()), 1, 8)
    first = (raw.sizes.cumsum(0) - raw.sizes).repeat_interleave(raw.edge_counts)
    return (raw.edge_index[0] + first).bincount(minlength=int(raw.sizes.sum()))


def _check_room(name: str, what: str, rows: int, columns: int, itemsize: int) -> None:
    """Raise a ValueError if features need more memory than is free."""
    check_memory(
        itemsize * rows * columns,
        f"{name}: {columns:,} features for each of {rows:,} {what}s need",
        "choose other features (--features constant), or leave out labels that number nodes or "
        "edges",
    )
