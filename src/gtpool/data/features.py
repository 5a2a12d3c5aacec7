"""Node features from what a source holds: labels, attributes, degrees, or nothing.

A source is read into ``Raw``; a ``Recipe`` says how ``Raw`` becomes features. The recipe is learned
once on the data a model is trained on and repeated, by the same code, on the data it predicts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gtpool.data.dataset import GraphDataset, scale
from gtpool.data.schema import Recipe, Schema, Task


class Raw(NamedTuple):
    """Graphs as a source holds them, packed; edges are numbered inside their graph."""

    sizes: Tensor
    """Nodes of each graph, [G]."""
    edge_counts: Tensor
    """Edges of each graph, [G]."""
    edge_index: Tensor
    """Edges, none listed twice, [2, E]."""
    y: Tensor
    """Class of each graph, int64 [G], or one float a task, NaN where missing, [G, T]."""
    name: str
    task: Task
    targets: tuple[str, ...]
    """Names of the classes or tasks."""
    node_labels: Tensor | None = None
    """A whole number a node, [N]."""
    node_attributes: Tensor | None = None
    """Continuous features, float [N, A]."""
    edge_labels: Tensor | None = None
    """A whole number an edge, [E]."""
    edge_attributes: Tensor | None = None
    """Continuous features of edges, the weight first where there is one, float [E, B]."""
    edge_weighted: bool = False
    """Whether the first edge attribute is a weight."""


def gmt(raw: Raw) -> Recipe:
    """Attributes and one-hot labels; the one-hot degree where there is neither."""
    if raw.node_labels is None and raw.node_attributes is None:
        return degree(raw)
    return _recipe("gmt", raw, raw.node_labels, _width(raw))


def fair(raw: Raw) -> Recipe:
    """One-hot labels, else attributes, else the degree as one number; ENZYMES has both."""
    if raw.node_labels is None and raw.node_attributes is None:
        return replace(_recipe("fair", raw, attributes=1), degree=True)
    both = raw.name == "ENZYMES" or raw.node_labels is None
    return _recipe("fair", raw, raw.node_labels, _width(raw) if both else 0)


def degree(raw: Raw) -> Recipe:
    """The degree of each node, one-hot up to the highest of the data."""
    return _recipe("degree", raw, max_degree=int(_degrees(raw).max()))


def constant(raw: Raw) -> Recipe:
    """The number one for every node."""
    return _recipe("constant", raw)


FEATURES: dict[str, Callable[[Raw], Recipe]] = {
    "gmt": gmt,
    "fair": fair,
    "degree": degree,
    "constant": constant,
}


def learn_recipe(raw: Raw, kind: str = "gmt") -> Recipe:
    """Say how features are made of ``raw``, by a name of ``FEATURES``."""
    if kind not in FEATURES:
        raise ValueError(f"unknown features {kind!r}; choose one of {', '.join(FEATURES)}")
    return FEATURES[kind](raw)


def featurize(raw: Raw, recipe: Recipe) -> GraphDataset:
    """Make the dataset that ``recipe`` describes of ``raw``, standardised if the recipe is."""
    columns: list[Tensor] = []
    if recipe.attributes:
        columns.append(_attributes(raw, recipe))
    if recipe.labels:
        columns.append(_known("node label", raw.node_labels, recipe.labels))
    if recipe.max_degree is not None:
        columns.append(one_hot(_degrees(raw).clamp(max=recipe.max_degree), recipe.max_degree + 1))
    if not columns:
        columns.append(torch.ones(int(raw.sizes.sum()), 1))
    x = torch.cat([part.float() for part in columns], 1)
    schema = Schema(raw.name, raw.task, raw.targets, recipe)
    edge_index = raw.edge_index.int()
    return GraphDataset(
        scale(x, recipe),
        edge_index,
        _edge_features(raw, recipe),
        raw.sizes,
        raw.edge_counts,
        raw.y,
        schema,
    )


def _recipe(
    kind: str,
    raw: Raw,
    labels: Tensor | None = None,
    attributes: int = 0,
    max_degree: int | None = None,
) -> Recipe:
    return Recipe(
        kind,
        labels=_vocabulary(labels),
        attributes=attributes,
        max_degree=max_degree,
        edge_labels=_vocabulary(raw.edge_labels),
        edge_attributes=0 if raw.edge_attributes is None else raw.edge_attributes.size(1),
        edge_weighted=raw.edge_weighted,
    )


def _width(raw: Raw) -> int:
    return 0 if raw.node_attributes is None else raw.node_attributes.size(1)


def _vocabulary(labels: Tensor | None) -> tuple[int, ...]:
    return () if labels is None else tuple(labels.unique().tolist())


def _attributes(raw: Raw, recipe: Recipe) -> Tensor:
    """Give the continuous columns, [N, A]."""
    if recipe.degree:
        return _degrees(raw)[:, None]
    found = _width(raw)
    if raw.node_attributes is None or found != recipe.attributes:
        raise ValueError(
            f"{raw.name} has {found} node attributes, but the model was trained on "
            f"{recipe.attributes}"
        )
    return raw.node_attributes


def _edge_features(raw: Raw, recipe: Recipe) -> Tensor | None:
    """Give the continuous columns of the edges and their one-hot labels, [E, F]."""
    columns: list[Tensor] = []
    if recipe.edge_attributes:
        found = 0 if raw.edge_attributes is None else raw.edge_attributes.size(1)
        if raw.edge_attributes is None or found != recipe.edge_attributes:
            raise ValueError(
                f"{raw.name} has {found} edge attributes, but the model was trained on "
                f"{recipe.edge_attributes}"
            )
        columns.append(raw.edge_attributes.float())
    if recipe.edge_labels:
        columns.append(_known("edge label", raw.edge_labels, recipe.edge_labels))
    return torch.cat(columns, 1) if columns else None


def _known(what: str, labels: Tensor | None, vocabulary: tuple[int, ...]) -> Tensor:
    """One-hot encode labels; one that the recipe does not know is an error, [N, L] uint8."""
    if labels is None:
        raise ValueError(f"the model was trained on graphs with {what}s, and these have none")
    known = torch.tensor(vocabulary)
    place = torch.searchsorted(known, labels.contiguous()).clamp(max=known.numel() - 1)
    strange = known[place] != labels
    if strange.any():
        raise ValueError(
            f"{what} {int(labels[strange][0])} was not in the data that the features were learned "
            f"on; known are {', '.join(map(str, vocabulary))}"
        )
    return one_hot(place, known.numel()).to(torch.uint8)


def _degrees(raw: Raw) -> Tensor:
    """Count the edges that leave each node, [N]."""
    first = (raw.sizes.cumsum(0) - raw.sizes).repeat_interleave(raw.edge_counts)
    return (raw.edge_index[0] + first).bincount(minlength=int(raw.sizes.sum()))
