"""Gathering a batch of fixed capacity in plain PyTorch: which row is whose, and where edges end."""

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from gtpool.fixed import Rows


def lay_out(index: Tensor, counts: Tensor, ratios: Sequence[float], capacity: int) -> Rows:
    """Lay out graphs of a dataset, each run in so many rows.

    Args:
        index: Graphs of each run, -1 for an empty place, [R, G].
        counts: Nodes, or edges, of each graph of the dataset, [graphs].
        ratios: Share kept by each pooling step so far.
        capacity: Rows of a run.
    """
    sizes = counts[index.clamp(min=0)] * (index >= 0)
    for ratio in ratios:
        if isinstance(ratio, int):
            sizes = sizes.clamp(max=ratio)
        else:
            up, down = Fraction(str(ratio)).as_integer_ratio()
            sizes = (sizes * up + down - 1) // down
    return rows_of(sizes, capacity)


def rows_of(sizes: Tensor, capacity: int) -> Rows:
    """Lay out graphs of these sizes, [R, G], each run in so many rows, on their device.

    Example:
        >>> rows = rows_of(torch.tensor([[2, 1], [0, 3]]), 4)
        >>> rows.start.tolist(), rows.batch.tolist()
        ([0, 2, 4, 4], [0, 0, 1, 4, 3, 3, 3, 4])
    """
    runs, graphs = sizes.shape
    end = sizes.cumsum(1)
    run = torch.arange(runs, device=sizes.device).unsqueeze(1)
    row = torch.arange(capacity, device=sizes.device).repeat(runs, 1)
    graph = torch.searchsorted(end, row, right=True)
    batch = torch.where(graph < graphs, graph + run * graphs, runs * graphs)
    return Rows((end - sizes + run * capacity).flatten(), sizes.flatten(), batch.flatten())


def place(rows: Rows, index: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Number each row in the whole dataset and in the batch, -1 on padding, [N] each.

    Args:
        rows: The layout.
        index: The graph of the dataset in each place, [RG].
        first: First row of each graph of the dataset.
    """
    real = rows.batch < rows.size.numel()
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    row = torch.arange(rows.batch.numel(), device=graph.device)
    since = first[index.clamp(min=0)] - rows.start
    return torch.where(real, row + since[graph], -1), torch.where(real, row, -1)


def shift(values: Tensor, number: Tensor, rows: Rows, by: Tensor) -> Tensor:
    """Look values up by number and add what their graph has, -1 where the number is -1, [N]."""
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    return torch.where(number >= 0, values[number.clamp(min=0)] + by[graph], -1)


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Look ``outer`` up at ``inner``, -1 where that is -1."""
    return torch.where(inner >= 0, outer.index_select(0, inner.clamp(min=0)), -1)


def bring(x: Tensor, number: Tensor, dtype: torch.dtype) -> Tensor:
    """Take rows of the dataset as floats, zeros where the number is -1, [N, F]."""
    return x.index_select(0, number.clamp(min=0)).to(dtype) * (number >= 0).unsqueeze(1)
