"""Per-graph arithmetic on a padded batch, in plain PyTorch: layouts, reductions, blocks of rows.

``gtpool.ops.segment`` is the packed counterpart. Shapes do not depend on the sizes of the graphs.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from gtpool.ops.padded_ops import FeatureScaler, KeptRows
from gtpool.padded_batch import PaddedLayout

_BITS = 63
"""Bits of a non-negative int64."""
SIZE = 32
"""Rows of a block; on average half a block per graph is padding."""


def gather_layout(
    index: Tensor, counts: Tensor, ratios: Sequence[float], capacity: int
) -> PaddedLayout:
    """Return the layout of graphs of a dataset, each run padded to ``capacity`` rows.

    Args:
        index: Graphs of each run, -1 for an empty slot, [R, G].
        counts: Nodes, or edges, of each graph of the dataset, [graphs].
        ratios: Ratio of each pooling step so far.
        capacity: Rows of a run.
    """
    sizes = counts[index.clamp(min=0)] * (index >= 0)
    for ratio in ratios:
        if isinstance(ratio, int):
            sizes = sizes.clamp(max=ratio)
        else:
            up, down = Fraction(str(ratio)).as_integer_ratio()
            sizes = (sizes * up + down - 1) // down
    return layout_of_sizes(sizes, capacity)


def layout_of_sizes(sizes: Tensor, capacity: int) -> PaddedLayout:
    """Return the layout of graphs of given sizes, [R, G], on their device.

    Example:
        >>> rows = layout_of_sizes(torch.tensor([[2, 1], [0, 3]]), 4)
        >>> rows.start.tolist(), rows.batch.tolist()
        ([0, 2, 4, 4], [0, 0, 1, 4, 3, 3, 3, 4])
    """
    runs, graphs = sizes.shape
    end = sizes.cumsum(1)
    run = torch.arange(runs, device=sizes.device).unsqueeze(1)
    row = torch.arange(capacity, device=sizes.device).repeat(runs, 1)
    graph = torch.searchsorted(end, row, right=True)
    batch = torch.where(graph < graphs, graph + run * graphs, runs * graphs)
    return PaddedLayout((end - sizes + run * capacity).flatten(), sizes.flatten(), batch.flatten())


def row_numbers(rows: PaddedLayout, index: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of each row in the dataset and in the batch, -1 on padding, [N] each.

    Args:
        rows: The layout.
        index: Graph of the dataset in each slot, [RG].
        first: First row of each graph of the dataset.
    """
    real = rows.batch < rows.size.numel()
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    row = torch.arange(rows.batch.numel(), device=graph.device)
    since = first[index.clamp(min=0)] - rows.start
    return torch.where(real, row + since[graph], -1), torch.where(real, row, -1)


def gather_shifted(values: Tensor, number: Tensor, rows: PaddedLayout, by: Tensor) -> Tensor:
    """Return ``values[number]`` plus the offset ``by`` of each row's graph, -1 on padding, [N]."""
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    return torch.where(number >= 0, values[number.clamp(min=0)] + by[graph], -1)


def gather_rows(
    rows: PaddedLayout, index: Tensor, first: Tensor, values: Sequence[Tensor], by: Tensor
) -> tuple[Tensor, ...]:
    """Return what ``row_numbers`` returns, and each of ``values`` as by ``gather_shifted``.

    Args:
        rows: The layout.
        index: Graph of the dataset in each slot, [RG].
        first: First row of each graph of the dataset.
        values: Integers of the rows of the dataset, at most 4 tensors.
        by: Added to the values of each graph, [RG].
    """
    number, own = row_numbers(rows, index, first)
    return number, own, *(gather_shifted(part, number, rows, by) for part in values)


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """Return ``outer[inner]``, -1 where ``inner`` is -1."""
    return torch.where(inner >= 0, outer.index_select(0, inner.clamp(min=0)), -1)


def gather_features(
    x: Tensor, number: Tensor, dtype: torch.dtype, scaler: FeatureScaler | None = None
) -> Tensor:
    """Return rows of the dataset in a dtype, zeros where ``number`` is -1, [N, F].

    Args:
        x: Features in the dataset, [M, F].
        number: Index of each row in the dataset, -1 on padding, [N].
        dtype: Dtype of the result.
        scaler: Scales the first columns of each run; None for none.
    """
    rows = x.index_select(0, number.clamp(min=0)).to(dtype)
    if scaler is not None:
        mean, std = (part.unsqueeze(1) for part in scaler)
        rows = rows.unflatten(0, (mean.size(0), -1))
        scaled = (rows[..., : mean.size(2)] - mean) / std
        rows = torch.cat([scaled, rows[..., mean.size(2) :]], 2).flatten(0, 1)
    return rows * (number >= 0).unsqueeze(1)


def number_rows(stay: Tensor, rows: PaddedLayout, after: PaddedLayout) -> KeptRows:
    """Number the rows that stay, bool [N], as many of each graph as ``after`` says."""
    row = torch.arange(stay.numel(), device=stay.device)
    before = stay.cumsum(0) - stay.long()
    shift = after.start - before.index_select(0, rows.start.clamp(max=stay.numel() - 1))
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    number = torch.where(stay, before + shift.index_select(0, graph), -1)
    kept = number.new_full((after.batch.numel() + 1,), -1)
    kept = kept.index_copy(0, torch.where(stay, number, after.batch.numel()), row)[:-1]
    return KeptRows(torch.where(after.batch < after.size.numel(), kept, -1), number)


def total(x: Tensor, rows: PaddedLayout) -> Tensor:
    """Return the sum over the rows of each graph, [N, D] -> [RG, D]."""
    sums = x.new_zeros(rows.size.numel() + 1, x.size(1))
    return sums.index_add(0, rows.batch, x)[:-1]


def mean(x: Tensor, rows: PaddedLayout) -> Tensor:
    """Return the mean over the rows of each graph, zeros for empty slots, [N, D] -> [RG, D]."""
    return total(x, rows) / rows.size.clamp(min=1).unsqueeze(1)


def maximum(x: Tensor, rows: PaddedLayout) -> Tensor:
    """Return the maximum of each column over the rows of each graph, [N, D] -> [RG, D]."""
    real = (rows.batch < rows.size.numel()).unsqueeze(1)
    lowest = x.new_full((rows.size.numel() + 1, x.size(1)), -torch.inf)
    index = rows.batch.unsqueeze(1).expand_as(x)
    # Padding of all runs shares one segment: a NaN there would spread to gradients of other runs.
    most = lowest.scatter_reduce(0, index, torch.where(real, x, -torch.inf), "amax")[:-1]
    return torch.where(rows.size.unsqueeze(1) > 0, most, 0.0)


def softmax(logit: Tensor, rows: PaddedLayout) -> Tensor:
    """Return the softmax over the rows of each graph; padding counts as a graph, [N] -> [N]."""
    lowest = logit.new_full((rows.size.numel() + 1,), -torch.inf)
    most = lowest.scatter_reduce(0, rows.batch, logit.detach(), "amax")
    part = (logit - most.index_select(0, rows.batch)).exp()
    sums = part.new_zeros(lowest.numel()).index_add(0, rows.batch, part)
    return part / sums.index_select(0, rows.batch)


def products(left: Tensor, right: Tensor, rows: PaddedLayout) -> Tensor:
    """Return left^T right of each graph and head, [RG, H, A, B].

    Args:
        left: [N, H, A].
        right: [N, H, B].
        rows: The layout.
    """
    blocks = RowBlocks.of(rows)
    first, second = (blocks.pad(part).transpose(1, 2) for part in (left, right))
    return blocks.total((first.mT @ second).to(left.dtype))  # lower precision under autocast


def topk_rows(x: Tensor, nodes: int, rows: PaddedLayout, runs: int) -> Tensor:
    """Return the first rows of each graph, descending by the last channel, [RG, nodes, D].

    Ties are broken by the channel before it, and so on, as in ``SortPool``. Missing rows are zeros.
    """
    batch = rows.batch.view(runs, -1)
    count = batch.size(1)
    rank = _ranks(x.detach().view(runs, count, -1).mT)
    row_numbers = (batch * count - rank).argsort(stable=True)  # graph by graph, highest first
    row_numbers = (row_numbers + torch.arange(runs, device=x.device).unsqueeze(1) * count).flatten()

    size = rows.size.view(runs, -1)  # sorted rows are contiguous: empty slots have none
    first = size.cumsum(1) - size + torch.arange(runs, device=x.device).unsqueeze(1) * count
    slot = torch.arange(nodes, device=x.device)
    taken = (first.view(-1, 1) + slot).clamp(max=x.size(0) - 1).flatten()
    empty = (slot >= rows.size.unsqueeze(1)).unsqueeze(2)
    found = x.index_select(0, row_numbers.index_select(0, taken)).unflatten(0, (-1, nodes))
    return found.masked_fill(empty, 0)


def _ranks(x: Tensor) -> Tensor:
    """Return the lexicographic rank of each column, last row first, [R, D, N] -> [R, N].

    Equal columns share a rank. Each row is ranked separately; then as many rows of ranks as fit an
    int64 are combined into one. This needs 1 + log D sorts instead of D.
    """
    count = x.size(2)
    rank = _dense(x)
    while rank.size(1) > 1:
        width = min(rank.size(1), _BITS // count.bit_length())
        rank = pad(rank, (0, 0, -rank.size(1) % width, 0)).unflatten(1, (-1, width))
        key = rank[:, :, -1].long()
        for row in reversed(range(width - 1)):
            key = key * count + rank[:, :, row]
        rank = _dense(key)
    return rank.squeeze(1)


def _dense(values: Tensor) -> Tensor:
    """Return the dense rank of each value in its row, from 0, [..., N]."""
    values, index = values.sort(-1)
    fresh = pad(values[..., 1:] != values[..., :-1], (1, 0))
    rank = fresh.cumsum(-1, dtype=torch.int32)
    return torch.zeros_like(rank).scatter(-1, index, rank)


class RowBlocks(NamedTuple):
    """Blocks of ``SIZE`` rows; each block belongs to one graph.

    The number of blocks is fixed and sufficient for any sizes. Padding every graph to the longest
    one would need much more memory.
    """

    slot: Tensor
    """Index of each row in the blocks, past the last block for padding, [N]."""
    owner: Tensor
    """Graph of each block, RG for unused blocks, [K]."""
    graphs: int

    @classmethod
    def of(cls, rows: PaddedLayout) -> Self:
        """Return the blocks of a layout; each graph starts a new block."""
        graphs, count = rows.size.numel(), rows.batch.numel()
        filled = (rows.size + SIZE - 1) // SIZE
        past = filled.cumsum(0)
        since = (past - filled) * SIZE - rows.start
        row = torch.arange(count, device=rows.batch.device)
        slot = row + since.index_select(0, rows.batch.clamp(max=graphs - 1))
        number = torch.arange(count // SIZE + graphs, device=rows.batch.device)
        slot = torch.where(rows.batch < graphs, slot, number.numel() * SIZE)
        return cls(slot, torch.searchsorted(past, number, right=True), graphs)

    def pad(self, value: Tensor) -> Tensor:
        """Return rows in blocks, zeros elsewhere, [N, ...] -> [K, SIZE, ...]."""
        places = value.new_zeros(self.owner.numel() * SIZE + 1, *value.shape[1:])
        return places.index_copy(0, self.slot, value)[:-1].unflatten(0, (-1, SIZE))

    def rows(self, blocks: Tensor) -> Tensor:
        """Return the rows of blocks, undefined on padding, [K, SIZE, ...] -> [N, ...]."""
        flat = blocks.flatten(0, 1)
        return flat.index_select(0, self.slot.clamp(max=flat.size(0) - 1))

    def total(self, each: Tensor) -> Tensor:
        """Return the sum over the blocks of each graph, [K, ...] -> [RG, ...]."""
        sums = each.new_zeros(self.graphs + 1, *each.shape[1:])
        return sums.index_add(0, self.owner, each)[:-1]
