"""Triton kernels for exact softmax attention inside each graph of a padded batch.

A program processes a block of consecutive rows, from several small graphs or from a part of a large
one, and loops over all rows of those graphs. The grid depends only on shapes, and no n x n matrix
is materialised. There are no atomic additions, so results are reproducible.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.kernels import tile
from gtpool.ops.kernels.attention_backward import attend_backward
from gtpool.ops.kernels.tile import (
    TileConfig,
    graph_of,
    load,
    same_graph,
    span,
    store,
    strides,
    width,
)
from gtpool.padded_batch import PaddedLayout

__all__ = ["attend", "attend_backward", "edge_weights"]

EDGE_ENTRIES = 2048
"""Entries of gathered queries per program of :func:`edge_weights`."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, rows: PaddedLayout, scale: float
) -> tuple[Tensor, Tensor]:
    """Return softmax attention of every row to the rows of its own graph.

    Args:
        q: Queries, float32 or bfloat16, the last axis contiguous, [N, H, C].
        k: Keys, as ``q``.
        v: Values, as ``q``.
        rows: The layout of the rows; padding is not read.
        scale: Factor on q·k.

    Returns:
        ``out`` [N, H, C] in the dtype of ``v`` and the log-sum-exp of each row of logits, float32
        [N, H]; both 0 on padding.
    """
    count, heads, channels = q.shape
    out = v.new_empty(v.shape)
    lse = q.new_empty(count, heads, dtype=torch.float32)
    block = _block(q, rows)
    _forward[triton.cdiv(count, block.rows), heads](
        q,
        k,
        v,
        out,
        lse,
        *rows,
        *strides(q, k, v),
        count,
        rows.start.numel(),
        heads,
        scale,
        C=channels,
        BM=block.rows,
        BN=block.keys,
        BC=width(channels),
        PRECISION=tile.PRECISION,
        num_warps=block.warps,
        num_stages=block.stages,
    )
    return out, lse


def edge_weights(q: Tensor, k: Tensor, lse: Tensor, edge_index: Tensor, scale: float) -> Tensor:
    """Return the attention weight exp(q_i·k_j·scale - lse_i) of each edge j -> i.

    Args:
        q: Queries, as given to :func:`attend`.
        k: Keys, as given to :func:`attend`.
        lse: Log-sum-exp from :func:`attend`, [N, H].
        edge_index: Source j and target i of each edge in any order, -1 on padding, [2, E].
        scale: As given to :func:`attend`.

    Returns:
        The weights, float32 [E, H], 0 on padding.
    """
    count, heads, channels = edge_index.size(1), q.size(1), q.size(2)
    weight = q.new_empty(count, heads, dtype=torch.float32)
    block = max(1, EDGE_ENTRIES // width(channels))
    _edge_weights[triton.cdiv(count, block), heads](
        q,
        k,
        lse,
        edge_index[0],
        edge_index[1],
        weight,
        *strides(q, k),
        count,
        heads,
        scale,
        C=channels,
        BE=block,
        BC=width(channels),
        num_warps=2,
    )
    return weight


def _block(q: Tensor, rows: PaddedLayout) -> TileConfig:
    """Return the largest tiles for which the kernel does not spill registers."""
    wide, exact = width(q.size(2)) > 128, q.dtype == torch.float32
    if not tile.large_graphs(rows):
        return TileConfig(16, 32, 4, 2)
    if exact:
        return TileConfig(32, 32, 8 if wide else 4, 2)
    return TileConfig(64, 64, 8, 2) if wide else TileConfig(128, 64, 8, 3)


@triton.jit
def _forward(  # noqa: PLR0917
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    start: tl.tensor,
    size: tl.tensor,
    batch: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    N: tl.tensor,
    G: tl.tensor,
    H: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    head = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    graph = graph_of(batch, row, N, G)
    begin, end = span(graph, start, size)
    queries = load(q + head * q_head, row, q_row, graph >= 0, C, BC)
    top = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, BC], tl.float32)
    for at in range(begin, end, BN):
        key = at + tl.arange(0, BN)
        home = graph_of(batch, key, end, G)
        keys = load(k + head * k_head, key, k_row, home >= 0, C, BC)
        values = load(v + head * v_head, key, v_row, home >= 0, C, BC)
        logits = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
        logits = tl.where(same_graph(graph, home), logits, float("-inf"))
        peak = tl.maximum(top, tl.max(logits, 1))
        # Rows without any key so far have peak -inf: -inf - -inf would be NaN.
        shift = tl.where(peak == float("-inf"), 0.0, peak)
        weight = tl.exp(logits - shift[:, None])
        fade = tl.exp(top - shift)
        total = total * fade + tl.sum(weight, 1)
        mixed *= fade[:, None]
        mixed += tl.dot(weight.to(values.dtype), values, input_precision=PRECISION)
        top = peak
    total = tl.where(graph >= 0, total, 1.0)
    top = tl.where(graph >= 0, top, 0.0)
    tl.store(lse + row * H + head, top + tl.log(total), mask=row < N)
    store(out + head * C, row, H * C, row < N, mixed / total[:, None], C, BC)


@triton.jit
def _edge_weights(  # noqa: PLR0917
    q: tl.tensor,
    k: tl.tensor,
    lse: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    weight: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    E: tl.tensor,
    H: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    head = tl.program_id(1)
    edge = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    i = tl.load(target + edge, mask=edge < E, other=-1)
    j = tl.load(source + edge, mask=edge < E, other=-1)
    counts = (i >= 0) & (j >= 0)
    queries = load(q + head * q_head, i, q_row, counts, C, BC).to(tl.float32)
    keys = load(k + head * k_head, j, k_row, counts, C, BC).to(tl.float32)
    level = tl.load(lse + i * H + head, mask=counts, other=float("inf"))
    logits = tl.sum(queries * keys, 1) * scale
    tl.store(weight + edge * H + head, tl.exp(logits - level), mask=edge < E)
