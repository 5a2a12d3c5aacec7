"""What read-outs that learn need of the rows of each graph, in fixed shapes and plain PyTorch."""

from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from gtpool.fixed import Rows

_BITS = 63
"""Of a whole number that is not negative."""


def softmax(logit: Tensor, rows: Rows) -> Tensor:
    """Divide one among the rows of each graph; padding counts as a graph, [N] -> [N]."""
    lowest = logit.new_full((rows.size.numel() + 1,), -torch.inf)
    most = lowest.scatter_reduce(0, rows.batch, logit.detach(), "amax")
    part = (logit - most.index_select(0, rows.batch)).exp()
    sums = part.new_zeros(lowest.numel()).index_add(0, rows.batch, part)
    return part / sums.index_select(0, rows.batch)


def products(left: Tensor, right: Tensor, rows: Rows) -> Tensor:
    """Add up the outer products of the rows of each graph, [RG, H, A, B].

    Args:
        left: [N, H, A].
        right: [N, H, B].
        rows: The layout.
    """
    blocks = Blocks.of(rows)
    first, second = (blocks.pad(part).transpose(1, 2) for part in (left, right))
    return blocks.total((first.mT @ second).to(left.dtype))  # autocast shortens a product


def highest(x: Tensor, nodes: int, rows: Rows, runs: int) -> Tensor:
    """Give the first rows of each graph, descending by the last channel, [RG, nodes, D].

    Rows equal in it are ordered by the channel before, and so on, as ``SortPool`` says; where a
    graph has no more rows there are zeros.
    """
    batch = rows.batch.view(runs, -1)
    count = batch.size(1)
    rank = _ranks(x.detach().view(runs, count, -1).mT)
    place = (batch * count - rank).argsort(stable=True)  # graph by graph, highest first
    place = (place + torch.arange(runs, device=x.device).unsqueeze(1) * count).flatten()

    size = rows.size.view(runs, -1)  # in this order an empty place has no rows, not even clusters
    first = size.cumsum(1) - size + torch.arange(runs, device=x.device).unsqueeze(1) * count
    slot = torch.arange(nodes, device=x.device)
    taken = (first.view(-1, 1) + slot).clamp(max=x.size(0) - 1).flatten()
    empty = (slot >= rows.size.unsqueeze(1)).unsqueeze(2)
    found = x.index_select(0, place.index_select(0, taken)).unflatten(0, (-1, nodes))
    return found.masked_fill(empty, 0)


def _ranks(x: Tensor) -> Tensor:
    """Rank the columns of each run, the last row deciding first, [R, D, N] -> [R, N].

    Equal columns have one rank. Each row is ranked by itself, then several rows of ranks, as many
    as a whole number holds, become one: there are 1 + log D sorts, not D.
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
    """Number the different values of each row, ascending, from 0, [..., N]."""
    values, index = values.sort(-1)
    fresh = pad(values[..., 1:] != values[..., :-1], (1, 0))
    rank = fresh.cumsum(-1, dtype=torch.int32)
    return torch.zeros_like(rank).scatter(-1, index, rank)


SIZE = 32
"""Rows of a block: half a block a graph is padding on average."""


class Blocks(NamedTuple):
    """Blocks of rows of one graph each, as many as fit any sizes.

    To pad every graph to the longest would take many times the room.
    """

    slot: Tensor
    """Place of each row in the blocks, behind all of them for padding, [N]."""
    owner: Tensor
    """Graph of each block, RG where it has none, [K]."""
    graphs: int

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Lay out the blocks; a graph begins one."""
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
        """Bring rows into the blocks, zeros elsewhere, [N, ...] -> [K, SIZE, ...]."""
        places = value.new_zeros(self.owner.numel() * SIZE + 1, *value.shape[1:])
        return places.index_copy(0, self.slot, value)[:-1].unflatten(0, (-1, SIZE))

    def rows(self, blocks: Tensor) -> Tensor:
        """Bring rows back, anything on padding, [K, SIZE, ...] -> [N, ...]."""
        flat = blocks.flatten(0, 1)
        return flat.index_select(0, self.slot.clamp(max=flat.size(0) - 1))

    def total(self, each: Tensor) -> Tensor:
        """Add up what the blocks of each graph have, [K, ...] -> [RG, ...]."""
        sums = each.new_zeros(self.graphs + 1, *each.shape[1:])
        return sums.index_add(0, self.owner, each)[:-1]
