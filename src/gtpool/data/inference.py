"""Graphs for a trained model: its schema is read, its recipe applied, its input shape checked."""

from dataclasses import replace
from math import isfinite
from typing import Any, get_args

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset, standardize_columns
from gtpool.data.encodings import with_encodings
from gtpool.data.features import FEATURES, RawGraphs, label_columns
from gtpool.data.graph_features import MOLECULE_FEATURES, other_graph_columns
from gtpool.data.schema import TASKS, Recipe, Schema, count_columns
from gtpool.spec import AtomOrder, ShapeSpec


def read_schema(value: Any, where: str, shape: ShapeSpec | None = None) -> Schema:  # noqa: ANN401
    """Return the schema that a model was saved with, or raise a ValueError.

    Args:
        value: Parsed JSON, untrusted.
        where: The model, for error messages.
        shape: Input shape of the network, if known; the recipe must produce that many columns.
    """
    try:
        schema = Schema.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        why = str(error)[:200]
        raise ValueError(f"{where} does not say what the model was trained on: {why}") from error
    recipe = schema.recipe
    sound = (
        _all(str, (schema.name, recipe.kind))
        and recipe.kind in {*FEATURES, "given", "molecule"}
        and schema.task in TASKS
        and recipe.atom_order in get_args(AtomOrder)
        and _all(str, schema.targets)
        and all(_are_labels(labels, counts) for labels, counts in _labels(recipe))
        and {type(recipe.degree), type(recipe.edge_weighted), type(recipe.coded)} == {bool}
        and _all(str, recipe.encode)
        and all(_all(str, part) for part in _named_features(recipe))
        and set(recipe.molecule_features) <= set(MOLECULE_FEATURES)
        and _are_counts(recipe.attributes, recipe.edge_attributes)
        and (recipe.max_degree is None or _are_counts(recipe.max_degree))
        and _are_statistics(recipe, where)
    )
    if not sound:
        raise ValueError(
            f"{where} has an invalid schema of the training data; train or download the model again"
        )
    if shape is not None:
        _check_columns(recipe, shape, where)
    return schema


def _are_labels(labels: Any, counts: Any) -> bool:  # noqa: ANN401
    """Whether the labels of each column are sorted int64 values, and no column is empty."""
    if not _all(int, labels) or not isinstance(counts, tuple) or not _are_counts(*counts):
        return False
    if counts and sum(counts) != len(labels):
        return False
    parts = Recipe("", labels=labels, label_columns=counts).label_sets
    return all(sorted(part) == [*part] and part for part in parts) and all(
        -(2**63) <= label < 2**63 for label in labels
    )


def _are_counts(*values: Any) -> bool:  # noqa: ANN401
    return _all(int, values) and all(0 <= value < 2**31 for value in values)


def _are_statistics(recipe: Recipe, where: str) -> bool:
    """Whether continuous columns have all a finite mean and a positive deviation, or none has."""
    try:
        count = count_columns(recipe.encode) + recipe.attributes
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if recipe.mean is None and recipe.std is None:
        return True
    sound = _all(float, recipe.mean) and _all(float, recipe.std)
    if not sound or recipe.mean is None or recipe.std is None:
        return False
    lengths = {len(recipe.mean), len(recipe.std), count}
    return len(lengths) == 1 and all(map(isfinite, recipe.mean)) and min(recipe.std, default=1) > 0


def _check_columns(recipe: Recipe, shape: ShapeSpec, where: str) -> None:
    """Raise a ValueError unless a recipe produces the columns that a network takes."""
    degrees = 0 if recipe.max_degree is None else recipe.max_degree + 1
    nodes = recipe.encoded + (recipe.attributes + len(recipe.labels) + degrees or 1)
    edges = recipe.edge_attributes + len(recipe.edge_labels)
    fits = (nodes, edges) == (shape.node_width, shape.edge_width)
    if len(recipe.graph_columns) != shape.graph_width:
        raise ValueError(
            f"{where} does not hold a sound model: its recipe makes {len(recipe.graph_columns)} "
            f"features of the whole graph, but its network takes {shape.graph_width}"
        )
    if recipe.coded or recipe.kind == "molecule":  # codes are no columns of this kind
        nodes, fits = recipe.encoded, recipe.encoded == shape.node_width
    elif recipe.kind == "given":  # all columns of the source are attributes, or none
        fits = recipe.attributes in {0, shape.node_width - recipe.encoded}
    if not fits or recipe.edge_weighted != shape.edge_weighted:
        raise ValueError(
            f"{where} does not hold a sound model: its recipe makes {nodes} node and {edges} edge "
            f"columns, but its network takes {shape.node_width} and {shape.edge_width}"
        )


def unknown_labels(raw: RawGraphs, recipe: Recipe) -> dict[int, str]:
    """Return the graphs with labels that a recipe does not know: index to reason."""
    reasons: dict[int, str] = {}
    for what, found, known, counts in (
        ("edge", raw.edge_labels, recipe.edge_label_sets, raw.edge_counts),
        ("node", raw.node_labels, recipe.label_sets, raw.sizes),
    ):
        columns = () if found is None else label_columns(found)
        if len(columns) != len(known):  # featurize reports that for the whole source
            continue
        for column, words in reversed([*zip(columns, known, strict=True)]):
            wrong = (~torch.isin(column, torch.tensor(words))).nonzero().flatten().flip(0)
            owner = torch.arange(counts.numel()).repeat_interleave(counts)[wrong]
            reasons |= {
                graph: f"{what} label {label} was not in the training data"
                for graph, label in zip(owner.tolist(), column[wrong].tolist(), strict=True)
            }
    return reasons


def filter_graphs(raw: RawGraphs, wanted: Tensor) -> RawGraphs:
    """Return the graphs where a boolean mask, [G], is true."""
    nodes, edges = wanted.repeat_interleave(raw.sizes), wanted.repeat_interleave(raw.edge_counts)
    of_nodes = {name: getattr(raw, name) for name in ("node_labels", "node_attributes")}
    of_edges = {name: getattr(raw, name) for name in ("edge_labels", "edge_attributes")}
    return raw._replace(
        sizes=raw.sizes[wanted],
        edge_counts=raw.edge_counts[wanted],
        edge_index=raw.edge_index[:, edges],
        y=raw.y[wanted],
        **{name: part if part is None else part[nodes] for name, part in of_nodes.items()},
        **{name: part if part is None else part[edges] for name, part in of_edges.items()},
    )


def apply_recipe(data: GraphDataset, recipe: Recipe) -> GraphDataset:
    """Return a dataset with the encodings of a recipe, standardised by its statistics.

    Args:
        data: Graphs with the features of that recipe, standardised by it or not at all, with its
            encodings or none.
        recipe: The model's recipe.
    """
    if not data.schema.recipe.encode:
        data = with_encodings(data, recipe.encode)
    check_recipe(data, recipe)
    found = replace(data.schema.recipe, atom_order=recipe.atom_order)
    if found == recipe:
        return data
    if found.mean is not None:
        raise ValueError(
            f"{data.schema.name} was standardised with other statistics than the model's; "
            "save the dataset before standardising it"
        )
    return replace(
        data, x=standardize_columns(data.x, recipe), schema=replace(data.schema, recipe=recipe)
    )


def check_recipe(data: GraphDataset, recipe: Recipe) -> None:
    """Raise a ValueError unless graphs have the features of a recipe, standardised or not.

    The order of atoms is not compared: it only matters when SMILES are read.

    Args:
        data: The graphs.
        recipe: The model's recipe.
    """
    found, same = data.schema.recipe, {"mean": None, "std": None, "atom_order": "given"}
    if found.graph_columns != recipe.graph_columns:
        raise ValueError(other_graph_columns(data.schema.name, found, recipe))
    if replace(found, **same) != replace(recipe, **same):
        raise ValueError(
            f"{data.schema.name} has other features ({_summary(found)}) than the model was trained "
            f"on ({_summary(recipe)})"
        )


def check_fit(data: GraphDataset, shape: ShapeSpec, *, edges: bool) -> None:
    """Raise a ValueError unless these graphs have the features that a model takes.

    Args:
        data: The graphs.
        shape: Input shape of the model.
        edges: Whether the model uses edge features.
    """
    name, edge_attr = data.schema.name, data.edge_attr
    sizes, made_for = shape.node_categories, shape.node_width + len(shape.node_categories)
    if data.num_features != made_for:
        raise ValueError(
            f"{name} has {data.num_features} node features, but the model was made for {made_for}"
        )
    if data.x.is_floating_point() != bool(shape.node_width):
        found, made = ("floats", "codes") if sizes else ("codes", "floats")
        raise ValueError(f"the node features of {name} are {found}, the model was made for {made}")
    check_codes(data, sizes, ())
    columns = 0 if data.graph_features is None else data.graph_features.size(1)
    if columns != shape.graph_width:
        raise ValueError(
            f"{name} has {columns} features of the whole graph, but the model was made for "
            f"{shape.graph_width}"
        )
    if not edges:
        return
    columns = len(shape.edge_categories) or shape.edge_width
    if (0 if edge_attr is None else edge_attr.size(1)) != columns:
        raise ValueError(
            f"{name} has {0 if edge_attr is None else edge_attr.size(1)} edge features, but the "
            f"model was made for {columns}"
        )
    check_codes(data, (), shape.edge_categories)


def check_codes(data: GraphDataset, nodes: tuple[int, ...], edges: tuple[int, ...]) -> None:
    """Raise a ValueError unless each categorical code is below the size of its column.

    A larger code would index the embedding of the next column.

    Args:
        data: The graphs.
        nodes: Number of categories of each node feature; empty for float features.
        edges: The same for edge features.
    """
    for what, codes, sizes, counts in (
        ("node", data.x[:, data.num_features - len(nodes) :], nodes, data.sizes),
        ("edge", data.edge_attr, edges, data.edge_counts),
    ):
        if codes is None or not sizes or not codes.numel():
            continue
        where = data.schema.name
        if codes.size(1) != len(sizes):
            raise ValueError(f"{where} has {codes.size(1)} {what} features, expected {len(sizes)}")
        most = torch.tensor(sizes, device=codes.device) - 1
        if bool(((codes.amin(0) >= 0) & (codes.amax(0) <= most)).all()):
            continue
        row, column = ((codes.long() < 0) | (codes.long() > most)).nonzero()[0].tolist()
        graph = int(torch.searchsorted(counts.cumsum(0), row, right=True))
        raise ValueError(
            f"{where}, graph {graph}, {what} feature {column}: code {int(codes[row, column])}, "
            f"but the model knows 0 to {sizes[column] - 1}"
        )


def _labels(recipe: Recipe) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the labels of nodes and of edges, each with the sizes of their columns."""
    return (recipe.labels, recipe.label_columns), (recipe.edge_labels, recipe.edge_label_columns)


def _named_features(recipe: Recipe) -> tuple[Any, Any, Any]:
    return recipe.molecule_features, recipe.descriptors, recipe.feature_columns


def _all(kind: type, values: Any) -> bool:  # noqa: ANN401
    """Whether values are a tuple of one type; bool does not count as int."""
    return isinstance(values, tuple) and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )


def _summary(recipe: Recipe) -> str:
    """Describe the features of a recipe in a few words."""
    parts = (
        recipe.kind,
        *recipe.encode,
        f"{recipe.attributes} attributes" if recipe.attributes else "",
        f"{len(recipe.labels)} labels" if recipe.labels else "",
        f"degrees to {recipe.max_degree}" if recipe.max_degree is not None else "",
        f"{len(recipe.edge_labels)} edge labels" if recipe.edge_labels else "",
        f"{recipe.edge_attributes} edge attributes" if recipe.edge_attributes else "",
    )
    return ", ".join(part for part in parts if part)
