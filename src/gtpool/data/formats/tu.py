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
    """Return graphs without features; edges are sorted and duplicates dropped.

    Files are read as by PyG's ``TUDataset``: labels and attributes of nodes and edges are optional
    and may have any number of columns. Unlike PyG, self-loops are kept, and ``graph_labels`` take
    precedence over ``graph_attributes``.

    Args:
        folder: The folder with ``NAME_A.txt`` and the other files.
        name: The prefix of the file names.
        need_targets: Whether the graphs must have targets, and classes must differ. If false and
            there are no targets, ``y`` has no columns.
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
        del task  # inferred from the files
        return read_tu(path, name or tu_name(path), need_targets=need_targets)


READER = _TU()


def tu_name(folder: Path) -> str:
    """Return the prefix of the TU files of a folder."""
    names = sorted(path.name.removesuffix("_A.txt") for path in folder.glob("*_A.txt"))
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise ValueError(f"{folder} must hold exactly one NAME_A.txt; found: {found}")
    return names[0]


def _check_graphs(graph: Tensor, path: Path) -> None:
    """Raise a ValueError unless nodes are listed graph by graph, and each graph has some."""
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
    """Return classes, labels of binary tasks, or regression targets."""
    labels, numbers = (folder / f"{name}_graph_{part}.txt" for part in ("labels", "attributes"))
    if labels.exists():
        found = _rows(labels, graphs)
        if found.size(1) > 1:
            return _binary_labels(labels, found, needed), "binary", _tasks(found)
        classes, y = found.flatten().unique(return_inverse=True)
        if needed and classes.numel() == 1:
            raise ValueError(f"{labels}: all graphs have class {int(classes)}")
        return y, "classes", tuple(map(str, classes.tolist()))
    if numbers.exists():
        y = _rows(numbers, graphs, real=True).float()
        return y, "regression", _tasks(y)
    if needed:
        raise FileNotFoundError(
            f"{labels} is missing (and so is {numbers.name}, for regression targets)"
        )
    return torch.empty(graphs, 0), "regression", ()


def _binary_labels(path: Path, found: Tensor, needed: bool) -> Tensor:
    """Return the labels of several binary tasks, float [G, T]."""
    wrong = ((found != 0) & (found != 1)).nonzero()
    if wrong.numel():
        row, column = wrong[0].tolist()
        raise ValueError(
            f"{path}, line {row + 1}: label {int(found[row, column])} in column {column + 1}; "
            "several columns of labels are binary tasks and must hold 0 or 1"
        )
    if needed and not ((found == 0).any(0) & (found == 1).any(0)).any():
        raise ValueError(f"{path}: no column has both 0 and 1: there is nothing to learn")
    return found.float()


def _tasks(y: Tensor) -> tuple[str, ...]:
    return tuple(f"task {column + 1}" for column in range(y.size(1)))


def _rows(path: Path, rows: int, *, real: bool = False) -> Tensor:
    """Return the numbers of a file that must have ``rows`` lines, in any number of columns."""
    values = read_numbers(path, real=real)
    if values.size(0) != rows:
        what = path.stem.rsplit("_", 2)[1]
        raise ValueError(
            f"{path} has {values.size(0)} lines, expected {rows}: one for each {what} of the "
            f"{'A' if what == 'edge' else 'graph_indicator'} file"
        )
    return values


def _check_edges(edge_index: Tensor, graph: Tensor, path: Path) -> None:
    """Raise a ValueError if an edge names a missing node or connects two graphs."""
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
    """Return labels and attributes of nodes or edges, None without a file."""
    labels, attributes = (folder / f"{name}_{what}_{part}.txt" for part in ("labels", "attributes"))
    found = _rows(labels, rows) if labels.exists() else None
    return (
        found.flatten() if found is not None and found.size(1) == 1 else found,
        _rows(attributes, rows, real=True).float() if attributes.exists() else None,
    )
