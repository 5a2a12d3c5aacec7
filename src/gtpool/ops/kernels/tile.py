"""What the kernels of attention have in common: tiles of rows, and which graphs they are of."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# A kernel is Triton's language, which Python's types do not describe.

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from gtpool.padded_batch import PaddedLayout

PRECISION = "tf32x3"
"""How float32 matrices are multiplied: "ieee" exactly, "tf32x3" nearly so on tensor cores."""

LARGE = 128
"""Mean rows a graph from which blocks are large."""


class TileConfig(NamedTuple):
    """What one program takes at a time."""

    rows: int
    keys: int
    warps: int
    stages: int


def large_graphs(rows: PaddedLayout) -> bool:
    """Say whether graphs are large, from shapes alone: nothing waits for the device."""
    return rows.batch.numel() >= LARGE * rows.start.numel()


def width(channels: int) -> int:
    """Give the width of a tile: a power of two, for matrix products at least 16."""
    return max(16, int(triton.next_power_of_2(channels)))


def strides(*parts: Tensor) -> tuple[int, ...]:
    """Give the strides of rows and of heads of tensors [N, H, C]."""
    return tuple(stride for part in parts for stride in part.stride()[:2])


@triton.jit
def graph_of(batch: tl.tensor, row: tl.tensor, end: tl.tensor, G: tl.tensor) -> tl.tensor:
    """Give the graph of each row, -1 on padding and from ``end`` on."""
    graph = tl.load(batch + row, mask=row < end, other=-1).to(tl.int32)
    return tl.where(graph < G, graph, -1)


@triton.jit
def span(graph: tl.tensor, start: tl.tensor, size: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Give the first row of all those graphs, and one past the last; 0 and 0 where none is."""
    last = tl.max(graph, 0)
    first = tl.min(tl.where(graph < 0, last, graph), 0)
    begin = tl.load(start + first, mask=last >= 0, other=0)
    end = tl.load(start + last, mask=last >= 0, other=0)
    return begin, end + tl.load(size + last, mask=last >= 0, other=0)


@triton.jit
def same_graph(graph: tl.tensor, other: tl.tensor) -> tl.tensor:
    """Say which pairs are of one graph; padding is of none."""
    return (graph[:, None] == other[None, :]) & (graph >= 0)[:, None]


@triton.jit
def load(
    base: tl.tensor,
    row: tl.tensor,
    stride: tl.tensor,
    own: tl.tensor,
    C: tl.constexpr,
    BC: tl.constexpr,
) -> tl.tensor:
    """Load one head of some rows, [rows, BC], with 0 where they are not ours."""
    channel = tl.arange(0, BC)
    at = base + row[:, None] * stride + channel[None, :]
    return tl.load(at, mask=own[:, None] & (channel < C)[None, :], other=0.0)


@triton.jit
def store(
    base: tl.tensor,
    row: tl.tensor,
    stride: tl.tensor,
    own: tl.tensor,
    tile: tl.tensor,
    C: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    """Store one head of some rows, [rows, BC]."""
    channel = tl.arange(0, BC)
    at = base + row[:, None] * stride + channel[None, :]
    tl.store(at, tile.to(base.dtype.element_ty), mask=own[:, None] & (channel < C)[None, :])
