"""The rows of each graph in blocks of fixed size, in a batch of fixed capacity."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from gtpool.fixed import Rows

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
