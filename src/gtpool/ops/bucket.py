"""Graphs of similar size side by side: a packed batch as a few padded blocks, and back.

Padding to the largest graph of the whole batch wastes quadratic work; a bucket pads only to its own
largest graph.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

_EDGES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Graphs between two edges share a bucket; each graph above the last edge has one to itself."""


class Bucket(NamedTuple):
    """One padded block: rows ``start`` to ``start + graphs * length`` of the padded tensors."""

    start: int
    graphs: int
    length: int
    mask: Tensor | None
    """Added to the logits, -inf on padding, [graphs, 1, 1, length]; None if nothing is padded."""

    def view(self, padded: Tensor) -> Tensor:
        """Show this bucket's rows of a padded tensor graph by graph, [graphs, H, length, ...]."""
        rows = padded[self.start : self.start + self.graphs * self.length]
        return rows.unflatten(0, (self.graphs, self.length)).transpose(1, 2)


class Buckets(NamedTuple):
    """The padded layout of a batch."""

    blocks: tuple[Bucket, ...]
    slot: Tensor | None
    """Row of each node in the padded tensors, [N]; None where that is the node's own number."""
    num_slots: int

    @classmethod
    def of(cls, ptr: Tensor, like: Tensor) -> Self:
        """Lay out the graphs that ``ptr`` (on the host) delimits, for tensors such as ``like``."""
        sizes = ptr.diff()
        edges = torch.tensor(_EDGES)
        group = torch.bucketize(sizes, edges)
        alone = group == len(_EDGES)
        group[alone] += torch.arange(int(alone.sum()))
        _, group, count = group.unique(return_inverse=True, return_counts=True)
        length = torch.zeros_like(count).scatter_reduce(0, group, sizes, "amax")
        end = (count * length).cumsum(0)
        start = end - count * length

        by_group = group.argsort(stable=True)
        place = torch.arange(sizes.numel()) - (count.cumsum(0) - count)[group[by_group]]
        first_slot = torch.empty_like(sizes)
        first_slot[by_group] = start[group[by_group]] + place * length[group[by_group]]
        blocks = tuple(
            Bucket(begin, many, long, _mask(sizes[group == index], long, like))
            for index, (begin, many, long) in enumerate(
                zip(start.tolist(), count.tolist(), length.tolist(), strict=True)
            )
        )
        num_nodes, num_slots = int(ptr[-1]), int(end[-1])
        if len(blocks) == 1 and num_slots == num_nodes:
            return cls(blocks, None, num_slots)
        shift = (first_slot - ptr[:-1]).repeat_interleave(sizes, output_size=num_nodes)
        slot = (torch.arange(num_nodes) + shift).to(like.device, non_blocking=True)
        return cls(blocks, slot, num_slots)

    def pad(self, packed: Tensor) -> Tensor:
        """Move the rows of the nodes to their slots, zeros elsewhere, [N, ...] -> [slots, ...]."""
        if self.slot is None:
            return packed.contiguous()
        padded = packed.new_zeros(self.num_slots, *packed.shape[1:])
        return padded.index_copy_(0, self.slot, packed)

    def unpad(self, padded: Tensor) -> Tensor:
        """Bring the rows of the nodes back, [slots, ...] -> [N, ...]."""
        return padded if self.slot is None else padded.index_select(0, self.slot)


def _mask(sizes: Tensor, length: int, like: Tensor) -> Tensor | None:
    if int(sizes.min()) == length:
        return None
    padding = torch.arange(length) >= sizes[:, None]
    mask = torch.zeros(padding.shape, dtype=like.dtype).masked_fill_(padding, -torch.inf)
    return mask[:, None, None].to(like.device, non_blocking=True)
