"""Read-outs: from the nodes of each graph to one vector a graph."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.nn import global_add_pool, global_mean_pool


def mean(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Average the nodes of each graph, [N, D] -> [G, D]."""
    return global_mean_pool(x, batch, num_graphs)


def maximum(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Take the largest entry of each column over the nodes of each graph, [N, D] -> [G, D]."""
    most = x.new_zeros(num_graphs, x.size(1))
    index = batch.unsqueeze(1).expand_as(x)
    return most.scatter_reduce(0, index, x, "amax", include_self=False)


def total(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Add up the nodes of each graph, [N, D] -> [G, D]."""
    return global_add_pool(x, batch, num_graphs)


def mean_max(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Set mean and maximum side by side, [N, D] -> [G, 2D]."""
    return torch.cat([mean(x, batch, num_graphs), maximum(x, batch, num_graphs)], 1)


READOUTS: dict[str, tuple[Callable[[Tensor, Tensor, int], Tensor], int]] = {
    "mean": (mean, 1),
    "max": (maximum, 1),
    "sum": (total, 1),
    "mean-max": (mean_max, 2),
}
"""Each read-out, and how many times the width its vector is."""
