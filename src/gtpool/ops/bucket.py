"""Graphs of similar size side by side: a packed batch as a few padded buckets, and back.

Padding to the largest graph of the whole batch wastes quadratic work; a bucket pads only to its own
largest graph. Heads see each other no more than graphs do, so each head of a graph is a sequence of
its own, and a row of a padded tensor is one head of one node.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.sample import kept_ptr

Numbers = NDArray[np.int64]

_EDGES = (
    *(8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048),
)
"""Graphs between two edges share a bucket; each graph above the last edge has one to itself."""


class Buckets(NamedTuple):
    """The padded layout of a batch of N nodes with H heads, bucket after bucket."""

    shapes: tuple[tuple[int, int], ...]
    """Of each bucket: how many sequences, and how many rows each."""
    heads: int
    order: Numbers
    """Graphs that have nodes, from the first bucket to the last, [G]."""
    place: Tensor
    """Slot, or padded row, of each head of each node, [N * H]."""
    row: Tensor
    """The way back: row of each slot; padding repeats the last row of its sequence, [slots]."""
    padding: Tensor
    """The slots that are padding."""
    whole: bool
    """Whether there is one bucket, without padding, in the order of the batch."""
    masks: tuple[Tensor, ...] = ()
    """Added to the logits of each bucket, -inf on padding, [sequences, 1, length]."""

    @classmethod
    def of(cls, ptr: Tensor, like: Tensor) -> Self:
        """Lay out the graphs that ``ptr`` (on the host) delimits, for heads such as ``like``'s.

        Args:
            ptr: First node of each graph and N at the end, [G + 1].
            like: Gives the heads, the dtype and the device, [N, H, ...].
        """
        starts = _starts(ptr)
        sizes = np.diff(starts)
        order = sizes.argsort(kind="stable")
        ends = np.searchsorted(sizes[order], _EDGES, side="right").tolist()
        bounds = sorted({0, *ends, *range(ends[-1], sizes.size + 1)})
        buckets = cls._build(starts, order, bounds, like)
        mask = like.new_zeros(buckets.row.numel()).index_fill_(0, buckets.padding, -torch.inf)
        masks = (part.unsqueeze(1) for part in _split(mask, buckets.shapes))
        return buckets._replace(masks=tuple(masks))

    def of_kept(self, ptr: Tensor, like: Tensor) -> Self:
        """Lay out some nodes of each graph, where graphs share a bucket as they do here."""
        counts = (count // self.heads for count, _ in self.shapes)
        bounds = list(accumulate(counts, initial=0))
        return self._build(_starts(ptr), self.order, bounds, like)

    @classmethod
    def _build(cls, starts: Numbers, order: Numbers, bounds: list[int], like: Tensor) -> Self:
        """Lay out graphs in an order, those between two bounds in one bucket.

        In NumPy, whose calls take a fraction of the time of torch's on a few numbers.
        """
        heads = like.size(1)
        size = np.diff(starts)[order]
        longest = np.maximum.reduceat(size, bounds[:-1])
        counts = np.diff(bounds) * heads
        # Of each sequence, [G * H]: its length with padding, its first slot, first row, last row.
        length = longest.repeat(counts)
        begin = length.cumsum() - length
        first = (starts[order][:, None] * heads + np.arange(heads)).ravel()
        last = first + (size.repeat(heads) - 1) * heads

        slot = np.arange(length.sum())
        row = slot * heads + (first - begin * heads).repeat(length)
        limit = last.repeat(length)
        real = row <= limit
        place = np.empty(starts[-1] * heads, np.int64)
        place[row[real]] = slot[real]
        whole = counts.size == 1 and slot.size == place.size and bool((np.diff(order) > 0).all())
        place, row, padding = (
            torch.from_numpy(part).to(like.device, non_blocking=True)
            for part in (place, np.minimum(row, limit), np.flatnonzero(~real))
        )
        shapes = tuple(zip(counts.tolist(), longest.tolist(), strict=True))
        return cls(shapes, heads, order, place, row, padding, whole)

    @property
    def slot(self) -> Tensor | None:
        """The slot of each row; None where each row is where it was."""
        return None if self.whole else self.place

    def pad(self, rows: Tensor) -> Tensor:
        """Move rows to their slots, zeros elsewhere, [N * H, ...] -> [slots, ...]."""
        return self.fill(rows) if self.whole else self.fill(rows).index_fill_(0, self.padding, 0)

    def fill(self, rows: Tensor) -> Tensor:
        """Move rows to their slots; padding repeats the last of its sequence, [slots, ...]."""
        if self.whole:
            return _swap(rows, self.shapes[0][1], self.heads)
        return rows.index_select(0, self.row)

    def unpad(self, padded: Tensor) -> Tensor:
        """Bring the rows back, [slots, ...] -> [N * H, ...]."""
        if self.whole:
            return _swap(padded, self.heads, self.shapes[0][1])
        return padded.index_select(0, self.place)

    def each(self, *padded: Tensor) -> Iterator[tuple[Tensor, *tuple[Tensor, ...]]]:
        """Give each bucket's mask and its views of padded tensors, [sequences, length, ...]."""
        return zip(self.masks, *self.split(*padded), strict=True)

    def split(self, *padded: Tensor) -> list[list[Tensor]]:
        """Give each bucket's view of each padded tensor, [sequences, length, ...]."""
        return [_split(part, self.shapes) for part in padded]


def buckets_of(level: GraphLayout, like: Tensor) -> Buckets:
    """Lay out a batch for heads such as ``like``'s, [N, H, ...], once."""
    name = ("buckets", like.size(1), like.dtype, like.device)
    return level.cached(name, lambda: Buckets.of(level.ptr, like))


def kept_buckets(level: GraphLayout, ratio: float, like: Tensor) -> Buckets:
    """Lay out the nodes that a ratio keeps, such as ``like``, [K, H, ...], once."""
    name = ("kept buckets", str(ratio), like.size(1), like.device)
    return level.cached(name, lambda: buckets_of(level, like).of_kept(kept_ptr(level, ratio), like))


def each_head(index: Tensor, heads: int) -> Tensor:
    """Number the heads of nodes, [M] -> [M * H].

    A vector is gathered from several times as fast as a matrix of few columns.
    """
    if heads == 1:
        return index
    return (index.unsqueeze(1) * heads + torch.arange(heads, device=index.device)).flatten()


def _starts(ptr: Tensor) -> Numbers:
    """Give the first node of each graph that has any, and the number of all at the end."""
    starts = ptr.numpy()
    return starts[np.append(True, starts[1:] > starts[:-1])]


def _split(padded: Tensor, shapes: tuple[tuple[int, int], ...]) -> list[Tensor]:
    parts = torch.split_with_sizes(padded, [count * length for count, length in shapes])
    rest = padded.shape[1:]
    return [part.view(*shape, *rest) for part, shape in zip(parts, shapes, strict=True)]


def _swap(rows: Tensor, outer: int, inner: int) -> Tensor:
    """Turn each graph's [outer, inner] rows into [inner, outer]; where one is 1, nothing moves."""
    return rows.unflatten(0, (-1, outer, inner)).transpose(1, 2).flatten(0, 2).contiguous()
