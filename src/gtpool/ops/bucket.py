"""Buckets: conversion of a packed batch to a few padded tensors of similar graph sizes, and back.

Padding to the largest graph of the batch wastes quadratic work; a bucket pads only to its own
largest graph. Heads are independent, so each head of each graph is a separate sequence. A row of a
padded tensor is one head of one node.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise
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
"""Bucket boundaries in nodes; each graph above the last boundary has its own bucket."""
_SPARE = 2**13
"""Padded weights below which two buckets are merged: a bucket takes about as long on a CPU."""


class Buckets(NamedTuple):
    """The padded layout of a batch of N nodes with H heads, bucket after bucket."""

    shapes: tuple[tuple[int, int], ...]
    """Number of sequences and rows per sequence of each bucket."""
    heads: int
    order: Numbers
    """Non-empty graphs, from the first bucket to the last, [G]."""
    place: Tensor
    """Slot (padded row) of each head of each node, [N * H]."""
    row: Tensor
    """Inverse of ``place``: row of each slot; padding repeats the last row, [slots]."""
    padding: Tensor
    """The slots that are padding."""
    whole: bool
    """Whether there is a single bucket without padding, in the order of the batch."""
    masks: tuple[Tensor, ...] = ()
    """Added to the logits of each bucket, -inf on padding, [sequences, 1, length]."""

    @classmethod
    def of(cls, ptr: Tensor, like: Tensor) -> Self:
        """Return the buckets of a batch.

        Args:
            ptr: First node of each graph, then N, on the host, [G + 1].
            like: Tensor with the heads, dtype and device of the queries, [N, H, ...].
        """
        starts = _starts(ptr)
        sizes = np.diff(starts)
        order = sizes.argsort(kind="stable")
        ends = np.searchsorted(sizes[order], _EDGES, side="right").tolist()
        bounds = _merge(sorted({0, *ends, *range(ends[-1], sizes.size + 1)}), sizes[order])
        buckets = cls._build(starts, order, bounds, like)
        mask = like.new_zeros(buckets.row.numel()).index_fill_(0, buckets.padding, -torch.inf)
        masks = (part.unsqueeze(1) for part in _split(mask, buckets.shapes))
        return buckets._replace(masks=tuple(masks))

    def of_kept(self, ptr: Tensor, like: Tensor) -> Self:
        """Return the layout of a subset of nodes, with the same graphs in each bucket."""
        counts = (count // self.heads for count, _ in self.shapes)
        bounds = list(accumulate(counts, initial=0))
        return self._build(_starts(ptr), self.order, bounds, like)

    @classmethod
    def _build(cls, starts: Numbers, order: Numbers, bounds: list[int], like: Tensor) -> Self:
        """Return the layout of graphs in a given order; graphs between two bounds share a bucket.

        It uses NumPy, which is faster than torch for few numbers.
        """
        heads = like.size(1)
        size = np.diff(starts)[order]
        longest = np.maximum.reduceat(size, bounds[:-1])
        counts = np.diff(bounds) * heads
        # For each sequence, [G * H]: padded length, first slot, first row, last row.
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
        """The slot of each row; None if rows keep their positions."""
        return None if self.whole else self.place

    def pad(self, rows: Tensor) -> Tensor:
        """Return rows at their slots, zeros on padding, [N * H, ...] -> [slots, ...]."""
        return self.fill(rows) if self.whole else self.fill(rows).index_fill_(0, self.padding, 0)

    def fill(self, rows: Tensor) -> Tensor:
        """Return rows at their slots; padding repeats the last row of a sequence, [slots, ...]."""
        if self.whole:
            return _swap(rows, self.shapes[0][1], self.heads)
        return rows.index_select(0, self.row)

    def unpad(self, padded: Tensor) -> Tensor:
        """Return the rows of padded slots, [slots, ...] -> [N * H, ...]."""
        if self.whole:
            return _swap(padded, self.heads, self.shapes[0][1])
        return padded.index_select(0, self.place)

    def each(self, *padded: Tensor) -> Iterator[tuple[Tensor, *tuple[Tensor, ...]]]:
        """Yield each bucket's mask and views of padded tensors, [sequences, length, ...]."""
        return zip(self.masks, *self.split(*padded), strict=True)

    def split(self, *padded: Tensor) -> list[list[Tensor]]:
        """Return the views of each padded tensor, one per bucket, [sequences, length, ...]."""
        return [_split(part, self.shapes) for part in padded]


def buckets_of(level: GraphLayout, like: Tensor) -> Buckets:
    """Return the cached buckets of a batch for queries like ``like``, [N, H, ...]."""
    name = ("buckets", like.size(1), like.dtype, like.device)
    return level.cached(name, lambda: Buckets.of(level.ptr, like))


def kept_buckets(level: GraphLayout, ratio: float, like: Tensor) -> Buckets:
    """Return the cached buckets of the kept nodes for queries like ``like``, [K, H, ...]."""
    name = ("kept buckets", str(ratio), like.size(1), like.device)
    return level.cached(name, lambda: buckets_of(level, like).of_kept(kept_ptr(level, ratio), like))


def each_head(index: Tensor, heads: int) -> Tensor:
    """Return the flat index of each head of nodes, [M] -> [M * H].

    Gathering from a vector is several times faster than from a matrix of few columns.
    """
    if heads == 1:
        return index
    return (index.unsqueeze(1) * heads + torch.arange(heads, device=index.device)).flatten()


def _starts(ptr: Tensor) -> Numbers:
    """Return the first node of each non-empty graph, then the number of nodes."""
    starts = ptr.numpy()
    return starts[np.append(True, starts[1:] > starts[:-1])]


def _merge(bounds: list[int], sizes: Numbers) -> list[int]:
    """Return the bounds without those that save less than ``_SPARE`` weights of padding."""
    kept = bounds[:1]
    for bound, after in pairwise(bounds[1:]):
        short, long = sizes[bound - 1].item(), sizes[after - 1].item()
        if (bound - kept[-1]) * (long**2 - short**2) >= _SPARE:
            kept.append(bound)
    return [*kept, bounds[-1]]


def _split(padded: Tensor, shapes: tuple[tuple[int, int], ...]) -> list[Tensor]:
    parts = torch.split_with_sizes(padded, [count * length for count, length in shapes])
    rest = padded.shape[1:]
    return [part.view(*shape, *rest) for part, shape in zip(parts, shapes, strict=True)]


def _swap(rows: Tensor, outer: int, inner: int) -> Tensor:
    """Return the rows with [outer, inner] transposed in each graph; a view if either is 1."""
    return rows.unflatten(0, (-1, outer, inner)).transpose(1, 2).flatten(0, 2).contiguous()
