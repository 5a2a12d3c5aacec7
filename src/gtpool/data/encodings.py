"""Structural encodings as the leading columns of ``x``."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.schema import parse_encodings
from gtpool.ops.encodings import PackedEdges, cycles, degree, eigenspaces, random_walk
from gtpool.ops.memory import check_memory

_FUNCTIONS: dict[str, Callable[[PackedEdges, int], Tensor]] = {
    "rwse": random_walk,
    "lappe": eigenspaces,
    "degree": lambda edges, _: degree(edges),
    "cycles": cycles,
}


def encode_nodes(
    names: Sequence[str], edge_index: Tensor, sizes: Tensor, edge_counts: Tensor, where: str
) -> Tensor:
    """Return structural encodings of the nodes, float32 [N, columns].

    ``gtpool.ops.encodings`` defines each, also for directed, parallel and missing edges.

    Args:
        names: Encodings in order, such as ("rwse:16", "cycles").
        edge_index: Edges, numbered inside their graph, [2, E].
        sizes: Nodes of each graph, [G].
        edge_counts: Edges of each graph, [G].
        where: Name of the graphs, for messages.
    """
    encodings = parse_encodings(names)
    nodes, columns = int(sizes.sum()), sum(encoding.columns for encoding in encodings)
    check_memory(
        8 * nodes * columns,
        f"{where}: {columns:,} encodings of each of {nodes:,} nodes need",
        "choose fewer steps, such as rwse:8",
    )
    edges = PackedEdges(edge_index.cpu().long(), sizes, edge_counts, where)
    parts = [_FUNCTIONS[encoding.kind](edges, encoding.size) for encoding in encodings]
    return torch.cat([torch.empty(nodes, 0), *parts], 1)


def with_encodings(data: GraphDataset, names: Sequence[str]) -> GraphDataset:
    """Return a dataset with encodings as leading columns of ``x``; codes become floats.

    A dataset that already has these encodings is returned unchanged.

    Args:
        data: The graphs, not standardised.
        names: Encodings in order, such as ("rwse:16", "cycles").

    Example:
        >>> from gtpool.data.formats.memory import read_graphs
        >>> data = with_encodings(read_graphs(["C1CC1", "CO"]), ["cycles"])
        >>> data.x[:, :3].tolist() == 3 * [[torch.tensor(2.0).log(), 0, 0]] + 2 * [[0, 0, 0]]
        True
    """
    names, recipe = tuple(names), data.schema.recipe
    parse_encodings(names)
    if names in {(), recipe.encode}:
        return data
    what = f"{data.schema.name} cannot get the encodings {', '.join(names)}"
    if recipe.encode:
        raise ValueError(
            f"{what}: it has {', '.join(recipe.encode)} already; pass the dataset without encodings"
        )
    if recipe.mean is not None:
        raise ValueError(f"{what}: it is standardised; pass the dataset before standardising")
    found = encode_nodes(names, data.edge_index, data.sizes, data.edge_counts, data.schema.name)
    # Only molecules and graphs in memory have codes: others store one-hot columns as numbers.
    coded = not data.x.is_floating_point() and recipe.kind in {"molecule", "given"}
    dtype = data.x.dtype if data.x.is_floating_point() else torch.float32
    x = torch.cat([found.to(data.x.device, dtype), data.x.to(dtype)], 1)
    schema = replace(data.schema, recipe=replace(recipe, encode=names, coded=coded))
    return replace(data, x=x, schema=schema)
