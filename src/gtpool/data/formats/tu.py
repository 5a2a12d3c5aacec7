"""Graphs in the text format of the TU collection.

Morris et al.: "TUDataset: a collection of benchmark datasets for learning with graphs", 2020.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gtpool.data.features import RawGraphs
from gtpool.data.formats.reader import RawReader
from gtpool.data.numbers import read_numbers
from gtpool.data.schema import Task

MUTAG_ATOMS = ("C", "N", "O", "F", "I", "Cl", "Br")
"""Element of each of MUTAG's node labels."""


def read_tu(folder: Path, name: str, *, need_targets: bool = True) -> RawGraphs:
    """Read a set of graphs; edges come sorted, and one listed again counts once, as first listed.

    Files are read as PyG's ``TUDataset`` reads them: labels of nodes and edges in any number of
    columns, attributes likewise, and none of these files needed. Unlike there, loops stay, and
    where a set has both ``graph_labels`` and ``graph_attributes``, the labels are predicted.

    Args:
        folder: Where ``NAME_A.txt`` and its companions lie.
        name: The name that the files begin with.
        need_targets: Whether the graphs must have classes or numbers to predict, and classes must
            differ. Without it, where there are none, ``y`` has no columns.
    """
    indicator, adjacency = (folder / f"{name}_{part}.txt" for part in ("graph_indicator", "A"))
    graph = read_numbers(indicator, 1).flatten() - 1  # [N]
    _check_graphs(graph, indicator)
    y, task, targets = _targets(folder, name, int(graph[-1]) + 1, need_targets)
    edge_index = read_numbers(adjacency, 2).T - 1  # [2, E]
    _check_edges(edge_index, graph, adjacency)

    nodes = graph.numel()
    node_labels, node_attributes = _optional(folder, name, "node", nodes)
    edge_labels, edge_attributes = _optional(folder, name, "edge", edge_index.size(1))

    keys = edge_index[0] * nodes + edge_index[1]
    kept = torch.from_numpy(np.unique(keys.numpy(), return_index=True)[1])
    edge_index = edge_index[:, kept]
    sizes = graph.bincount()
    owner = graph[edge_index[0]]
    return RawGraphs(
        sizes,
        owner.bincount(minlength=sizes.numel()),
        edge_index - (sizes.cumsum(0) - sizes)[owner],
        y,
        name,
        task,
        targets,
        node_labels,
        node_attributes,
        None if edge_labels is None else edge_labels[kept],
        None if edge_attributes is None else edge_attributes[kept],
    )


class _TU(RawReader):
    def raw(
        self, path: Path, *, name: str | None, task: Task | None, need_targets: bool
    ) -> RawGraphs:
        del task  # the files tell
        return read_tu(path, name or tu_name(path), need_targets=need_targets)


READER = _TU()


def tu_name(folder: Path) -> str:
    """Give the name that the TU files of a folder begin with."""
    names = sorted(path.name.removesuffix("_A.txt") for path in folder.glob("*_A.txt"))
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise ValueError(f"{folder} must hold exactly one NAME_A.txt; found: {found}")
    return names[0]


def _check_graphs(graph: Tensor, path: Path) -> None:
    """Raise a ValueError unless the nodes are listed graph by graph, and each graph has some."""
    step = graph.diff(prepend=graph.new_full((1,), -1))
    wrong = (step < 0) | (step > 1)
    wrong[0] = graph[0] != 0
    if wrong.any():
        line = int(wrong.nonzero()[0])
        found = int(graph[line]) + 1
        before = f"follows graph {int(graph[line - 1]) + 1}" if line else "comes first"
        raise ValueError(
            f"{path}, line {line + 1}: graph {found} {before}; graphs are numbered "
            "from 1, each has a node, and nodes are listed graph by graph"
        )


def _targets(
    folder: Path, name: str, graphs: int, needed: bool
) -> tuple[Tensor, Task, tuple[str, ...]]:
    """Read the classes of the graphs, 0 or 1 a task, or else the numbers to predict."""
    labels, numbers = (folder / f"{name}_graph_{part}.txt" for part in ("labels", "attributes"))
    if labels.exists():
        found = _rows(labels, graphs)
        if found.size(1) > 1:
            return _answers(labels, found, needed), "binary", _tasks(found)
        classes, y = found.flatten().unique(return_inverse=True)
        if needed and classes.numel() == 1:
            raise ValueError(f"{labels}: all graphs are of class {int(classes)}")
        return y, "classes", tuple(map(str, classes.tolist()))
    if numbers.exists():
        y = _rows(numbers, graphs, real=True).float()
        return y, "regression", _tasks(y)
    if needed:
        raise FileNotFoundError(
            f"{labels} is missing (and {numbers.name}, which would hold numbers to predict)"
        )
    return torch.empty(graphs, 0), "regression", ()


def _answers(path: Path, found: Tensor, needed: bool) -> Tensor:
    """Give the labels of several columns, a yes-or-no task each, float [G, T]."""
    strange = ((found != 0) & (found != 1)).nonzero()
    if strange.numel():
        row, column = strange[0].tolist()
        raise ValueError(
            f"{path}, line {row + 1}: label {int(found[row, column])} in column {column + 1}; "
            "where labels have several columns, each is a task and holds 0 or 1"
        )
    if needed and not ((found == 0).any(0) & (found == 1).any(0)).any():
        raise ValueError(f"{path}: no column has both a 0 and a 1, so nothing to learn")
    return found.float()


def _tasks(y: Tensor) -> tuple[str, ...]:
    return tuple(f"task {column + 1}" for column in range(y.size(1)))


def _rows(path: Path, rows: int, *, real: bool = False) -> Tensor:
    """Read whole or real numbers in any number of columns; there must be ``rows`` lines."""
    values = read_numbers(path, real=real)
    if values.size(0) != rows:
        what = path.stem.rsplit("_", 2)[1]
        raise ValueError(
            f"{path} has {values.size(0)} lines, expected {rows}: one for each {what} of the "
            f"{'A' if what == 'edge' else 'graph_indicator'} file"
        )
    return values


def _check_edges(edge_index: Tensor, graph: Tensor, path: Path) -> None:
    """Raise a ValueError unless the edges join nodes that exist, inside one graph each."""
    nodes = graph.numel()
    outside = ((edge_index < 0) | (edge_index >= nodes)).any(0).nonzero()
    if outside.numel():
        line = int(outside[0])
        pair = (edge_index[:, line] + 1).tolist()
        raise ValueError(f"{path}, line {line + 1}: edge {pair}, but the nodes are 1 to {nodes}")
    source, target = graph[edge_index]
    across = (source != target).nonzero()
    if across.numel():
        line = int(across[0])
        raise ValueError(
            f"{path}, line {line + 1}: edge {(edge_index[:, line] + 1).tolist()} joins "
            f"graphs {int(source[line]) + 1} and {int(target[line]) + 1}"
        )


def _optional(folder: Path, name: str, what: str, rows: int) -> tuple[Tensor | None, Tensor | None]:
    """Read labels and attributes of nodes or edges, where there are files of them."""
    labels, attributes = (folder / f"{name}_{what}_{part}.txt" for part in ("labels", "attributes"))
    found = _rows(labels, rows) if labels.exists() else None
    return (
        found.flatten() if found is not None and found.size(1) == 1 else found,
        _rows(attributes, rows, real=True).float() if attributes.exists() else None,
    )
