"""Graphs of similar size side by side: a packed batch as a few padded buckets, and back.

Padding to the largest graph of the whole batch wastes quadratic work; a bucket pads only to its own
largest graph. Heads see each other no more than graphs do, so each head of a graph is a sequence of
its own, and a row of a padded tensor is one head of one node.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor

_EDGES = (
    *(8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
"""Graphs between two edges share a bucket; each graph above the last edge has one to itself."""


class Buckets(NamedTuple):
    """The padded layout of a batch of N nodes with H heads, bucket after bucket."""

    shapes: tuple[tuple[int, int], ...]
    """Of each bucket: how many sequences, and how many rows each."""
    masks: tuple[Tensor | None, ...]
    """Added to the logits, -inf on padding, [sequences, 1, length]; None if nothing is padded."""
    slot: Tensor | None
    """Padded row of each head of each node, [N * H]; None for one bucket without padding."""
    heads: int

    @classmethod
    def of(cls, ptr: Tensor, like: Tensor) -> Self:
        """Lay out the graphs that ``ptr`` (on the host) delimits, for heads such as ``like``'s.

        Args:
            ptr: First node of each graph and N at the end, [G + 1].
            like: Gives the heads, the dtype and the device, [N, H, ...].
        """
        num_nodes, heads = like.shape[:2]
        ptr = ptr.unique_consecutive()  # a graph without nodes repeats an entry, and has no rows
        sizes, by_size = ptr.diff().sort(stable=True)
        spans = _spans(sizes)
        shapes = tuple((count * heads, longest) for count, _, longest in spans)
        num_slots = sum(count * length for count, length in shapes)
        if len(spans) == 1 and num_slots == num_nodes * heads:
            return cls(shapes, (None,), None, heads)

        count, _, longest = torch.tensor(spans).unbind(1)
        length = longest.repeat_interleave(count)[:, None]
        first = heads * (length.cumsum(0) - length) + length * torch.arange(heads)
        shift = torch.empty_like(first).index_copy_(0, by_size, first) - ptr[:-1, None]
        shift = shift.repeat_interleave(ptr.diff(), 0, output_size=num_nodes)
        slot = (shift + torch.arange(num_nodes)[:, None]).flatten()
        slot = slot.to(like.device, non_blocking=True)

        mask = like.new_full((num_slots,), -torch.inf).index_fill_(0, slot, 0)
        masks = tuple(
            part[:, None] if shortest < longest else None
            for part, (_, shortest, longest) in zip(_split(mask, shapes), spans, strict=True)
        )
        return cls(shapes, masks, slot, heads)

    def pad(self, rows: Tensor) -> Tensor:
        """Move rows to their slots, zeros elsewhere, [N * H, ...] -> [slots, ...]."""
        if self.slot is None:
            return _swap(rows, self.shapes[0][1], self.heads)
        num_slots = sum(count * length for count, length in self.shapes)
        return rows.new_zeros(num_slots, *rows.shape[1:]).index_copy_(0, self.slot, rows)

    def unpad(self, padded: Tensor) -> Tensor:
        """Bring the rows back, [slots, ...] -> [N * H, ...]."""
        if self.slot is None:
            return _swap(padded, self.heads, self.shapes[0][1])
        return padded.index_select(0, self.slot)

    def each(self, *padded: Tensor) -> Iterator[tuple[Tensor | None, *tuple[Tensor, ...]]]:
        """Give each bucket's mask and its views of padded tensors, [sequences, length, ...]."""
        return zip(self.masks, *(_split(part, self.shapes) for part in padded), strict=True)


def _spans(sizes: Tensor) -> list[tuple[int, int, int]]:
    """Cut ascending sizes into buckets: how many graphs, the smallest size and the largest."""
    ends = torch.searchsorted(sizes, torch.tensor(_EDGES), right=True).tolist()
    bounds = sorted({0, *ends, *range(ends[-1], sizes.numel() + 1)})
    ordered = sizes.tolist()
    return [(end - begin, ordered[begin], ordered[end - 1]) for begin, end in pairwise(bounds)]


def _split(padded: Tensor, shapes: tuple[tuple[int, int], ...]) -> list[Tensor]:
    parts = padded.split([count * length for count, length in shapes])
    return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]


def _swap(rows: Tensor, outer: int, inner: int) -> Tensor:
    """Turn each graph's [outer, inner] rows into [inner, outer]; where one is 1, nothing moves."""
    return rows.unflatten(0, (-1, outer, inner)).transpose(1, 2).flatten(0, 2).contiguous()
