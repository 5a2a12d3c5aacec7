"""Helpers of the attention kernels: tiles of rows and their graphs."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from gtpool.padded_batch import PaddedLayout

PRECISION = "tf32x3"
"""Precision of float32 products: "ieee" is exact, "tf32x3" nearly exact on tensor cores."""

LARGE = 128
"""Mean rows per graph from which tiles are large."""


class TileConfig(NamedTuple):
    """Tile sizes and launch options of a kernel."""

    rows: int
    keys: int
    warps: int
    stages: int


def large_graphs(rows: PaddedLayout) -> bool:
    """Return whether graphs are large, from shapes only (no device sync)."""
    return rows.batch.numel() >= LARGE * rows.start.numel()


def width(channels: int) -> int:
    """Return the width of a tile: a power of two, at least 16 for matrix products."""
    return max(16, int(triton.next_power_of_2(channels)))


def strides(*parts: Tensor) -> tuple[int, ...]:
    """Return the strides of rows and heads of tensors [N, H, C]."""
    return tuple(stride for part in parts for stride in part.stride()[:2])


@triton.jit
def graph_of(batch: tl.tensor, row: tl.tensor, end: tl.tensor, G: tl.tensor) -> tl.tensor:
    """Return the graph of each row, -1 on padding and from ``end`` on."""
    graph = tl.load(batch + row, mask=row < end, other=-1).to(tl.int32)
    return tl.where(graph < G, graph, -1)


@triton.jit
def span(graph: tl.tensor, start: tl.tensor, size: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the first row of the graphs, and one past their last row; 0 and 0 without graphs."""
    last = tl.max(graph, 0)
    first = tl.min(tl.where(graph < 0, last, graph), 0)
    begin = tl.load(start + first, mask=last >= 0, other=0)
    end = tl.load(start + last, mask=last >= 0, other=0)
    return begin, end + tl.load(size + last, mask=last >= 0, other=0)


@triton.jit
def same_graph(graph: tl.tensor, other: tl.tensor) -> tl.tensor:
    """Return the mask of pairs in the same graph; padding is in none."""
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
    """Return one head of the given rows, [rows, BC], 0 where ``own`` is False."""
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
    """Store one head of the given rows, [rows, BC], where ``own`` is True."""
    channel = tl.arange(0, BC)
    at = base + row[:, None] * stride + channel[None, :]
    tl.store(at, tile.to(base.dtype.element_ty), mask=own[:, None] & (channel < C)[None, :])


@triton.jit
def vector(at: tl.tensor, C: tl.constexpr, BC: tl.constexpr) -> tl.tensor:
    """Return one head of one row in float32, [BC]."""
    channel = tl.arange(0, BC)
    return tl.load(at + channel, mask=channel < C, other=0.0).to(tl.float32)


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Return the hyperbolic tangent without overflow."""
    small = tl.exp(-2 * tl.abs(x))
    part = (1 - small) / (1 + small)
    return tl.where(x < 0, -part, part)


@triton.jit
def tanh_grad(x: tl.tensor) -> tl.tensor:
    """Return the derivative 1 - tanh(x)^2 without cancellation."""
    small = tl.exp(-2 * tl.abs(x))
    return 4 * small / ((1 + small) * (1 + small))
