"""Graphs in the text format of the TU collection, and the MUTAG files that lie in this package.

Morris et al.: "TUDataset", 2020. Debnath et al.: "Structure-activity relationship of mutagenic
aromatic and heteroaromatic nitro compounds", 1991 (MUTAG).
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

EMBEDDED = Path(__file__).parent / "embedded"

MUTAG_ATOMS = ("C", "N", "O", "F", "I", "Cl", "Br")
"""Element of each of MUTAG's node labels."""


def load_mutag() -> list[Data]:
    """Read the 188 molecules of MUTAG from this package; no file or network is needed.

    Example:
        >>> graphs = load_mutag()
        >>> len(graphs), graphs[0].num_nodes, graphs[0].num_edges
        (188, 17, 38)
    """
    return read_tu(EMBEDDED / "MUTAG", "MUTAG")


def read_tu(folder: Path, name: str) -> list[Data]:
    """Read a labelled set of graphs: x and edge_attr are one-hot labels, y is the class from 0.

    Args:
        folder: Where ``NAME_A.txt`` and its companions lie.
        name: The name that the files begin with.
    """
    graph = _column(folder / f"{name}_graph_indicator.txt") - 1  # [N]
    edge_index = _column(folder / f"{name}_A.txt").view(-1, 2).T - 1  # [2, E]
    x = _one_hot(_column(folder / f"{name}_node_labels.txt"))
    edge_attr = _one_hot(_column(folder / f"{name}_edge_labels.txt"))
    y = _column(folder / f"{name}_graph_labels.txt").unique(return_inverse=True)[1]

    by_graph = graph[edge_index[0]].argsort(stable=True)
    edge_index, edge_attr = edge_index[:, by_graph], edge_attr[by_graph]
    nodes = graph.bincount(minlength=y.numel()).tolist()
    edges = graph[edge_index[0]].bincount(minlength=y.numel()).tolist()
    first = np.cumsum([0, *nodes[:-1]]).tolist()
    parts = zip(
        x.split(nodes), edge_index.split(edges, 1), edge_attr.split(edges), y, first, strict=True
    )
    return [
        Data(x=xs, edge_index=joins - start, edge_attr=attrs, y=label.view(1))
        for xs, joins, attrs, label, start in parts
    ]


def _column(path: Path) -> Tensor:
    """Read a file of whole numbers, divided by commas and ends of lines."""
    return torch.from_numpy(np.loadtxt(path, np.int64, delimiter=",", ndmin=1))


def _one_hot(label: Tensor) -> Tensor:
    kinds, index = label.unique(return_inverse=True)
    return torch.nn.functional.one_hot(index, kinds.numel()).float()
