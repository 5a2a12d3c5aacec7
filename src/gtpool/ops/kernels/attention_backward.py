"""Triton kernel for the backward pass of attention inside each graph of a padded batch."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportReturnType=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.kernels import tile
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


def attend_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor,
    d_out: Tensor,
    rows: PaddedLayout,
    scale: float,
    *,
    d_lse: Tensor | None = None,
    kept: Tensor | None = None,
    kept_rows: PaddedLayout | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """Return the gradients of q, k and v as one tensor, [N, 3, H, C], 0 on padding.

    Args:
        q: Queries, as given to :func:`attend`.
        k: Keys, as given to :func:`attend`.
        v: Values, as given to :func:`attend`.
        out: Output of :func:`attend` at the rows with an output gradient, [K, H, C]; None if
            ``d_lse`` has sum(d_out * out) already subtracted.
        lse: Log-sum-exp from :func:`attend` at all rows, [N, H].
        d_out: Gradient of the output, in its dtype, [K, H, C].
        rows: As given to :func:`attend`.
        scale: As given to :func:`attend`.
        d_lse: Gradient of ``lse`` at the rows of ``d_out``, [K, H]; None means 0.
        kept: The rows with an output gradient, -1 on padding, [K]; None means all.
        kept_rows: The layout of the kept rows: the same graphs with fewer rows.
        into: Contiguous gradients to add to, in place, [N, 3, H, C]; None means 0.
    """
    if (kept is None) != (kept_rows is None):
        raise ValueError("kept and kept_rows must be given together")
    count, heads, channels = q.shape
    grad = q.new_empty(count, 3, heads, channels) if into is None else into
    block = _block(q, rows)
    key_blocks = triton.cdiv(count, block.keys)
    _backward[key_blocks + triton.cdiv(d_out.size(0), block.rows), heads](
        q,
        k,
        v,
        None if out is None else out.contiguous(),
        lse,
        d_out.contiguous(),
        None if d_lse is None else d_lse.contiguous(),
        grad,
        *rows,
        kept,
        *(kept_rows or rows),
        *strides(q, k, v),
        count,
        d_out.size(0),
        rows.start.numel(),
        heads,
        key_blocks,
        scale,
        C=channels,
        BM=block.rows,
        BN=block.keys,
        BC=width(channels),
        PRECISION=tile.PRECISION,
        ADD=into is not None,
        num_warps=block.warps,
        num_stages=block.stages,
    )
    return grad


def _block(q: Tensor, rows: PaddedLayout) -> TileConfig:
    """Return the largest tiles for which the kernel does not spill registers."""
    wide, exact = width(q.size(2)) > 128, q.dtype == torch.float32
    if not tile.large_graphs(rows):
        return TileConfig(16, 16, 4, 2)
    if exact:
        return TileConfig(16, 16, 4, 2) if wide else TileConfig(32, 32, 8, 2)
    return TileConfig(32, 32, 4, 2) if wide else TileConfig(64, 64, 8, 2)


@triton.jit
def _backward(  # noqa: PLR0915, PLR0917
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor | None,
    lse: tl.tensor,
    d_out: tl.tensor,
    d_lse: tl.tensor | None,
    grad: tl.tensor,
    start: tl.tensor,
    size: tl.tensor,
    batch: tl.tensor,
    kept: tl.tensor | None,
    kept_start: tl.tensor,
    kept_size: tl.tensor,
    kept_batch: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    G: tl.tensor,
    H: tl.tensor,
    key_blocks: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    PRECISION: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    head = tl.program_id(1)
    block = tl.program_id(0).to(tl.int64)
    q += head * q_head
    k += head * k_head
    v += head * v_head
    if out is not None:
        out += head * C
    d_out += head * C
    grad += head * C
    if block < key_blocks:
        key = block * BN + tl.arange(0, BN)
        home = graph_of(batch, key, N, G)
        begin, end = span(home, kept_start, kept_size)
        keys = load(k, key, k_row, home >= 0, C, BC)
        values = load(v, key, v_row, home >= 0, C, BC)
        d_keys = tl.zeros([BN, BC], tl.float32)
        d_values = tl.zeros([BN, BC], tl.float32)
        asked = (home >= 0).to(tl.int32)
        if kept is not None:
            asked = tl.zeros([BN], tl.int32)
        for at in range(begin, end, BM):
            query = at + tl.arange(0, BM)
            graph = graph_of(kept_batch, query, end, G)
            row = _row(kept, query, graph)
            queries = load(q, row, q_row, graph >= 0, C, BC)
            sent = load(d_out, query, H * C, graph >= 0, C, BC)
            term = _row_term(sent, out, d_lse, query, H, head, graph >= 0, C, BC)
            level = tl.load(lse + row * H + head, mask=graph >= 0, other=0.0)
            # [BN, BM]: transposed, because they are left factors of both products below.
            logits = tl.dot(keys, tl.trans(queries), input_precision=PRECISION) * scale
            logits = tl.where(same_graph(home, graph), logits - level[None, :], float("-inf"))
            weight = tl.exp(logits)
            d_weight = tl.dot(values, tl.trans(sent), input_precision=PRECISION)
            d_logits = (weight * (d_weight - term[None, :])).to(queries.dtype)
            d_values += tl.dot(weight.to(sent.dtype), sent, input_precision=PRECISION)
            d_keys += tl.dot(d_logits, queries, input_precision=PRECISION)
            if kept is not None:
                asked |= tl.max((key[:, None] == row[None, :]).to(tl.int32), 1)
        _put(grad + H * C, key, 3 * H * C, key < N, d_keys * scale, C, BC, ADD)
        _put(grad + 2 * H * C, key, 3 * H * C, key < N, d_values, C, BC, ADD)
        if not ADD:  # rows that are no query: no other program writes their gradient of q
            store(grad, key, 3 * H * C, (key < N) & (asked == 0), tl.zeros_like(d_keys), C, BC)
    else:
        query = (block - key_blocks) * BM + tl.arange(0, BM)
        graph = graph_of(kept_batch, query, K, G)
        begin, end = span(graph, start, size)
        row = _row(kept, query, graph)
        queries = load(q, row, q_row, graph >= 0, C, BC)
        sent = load(d_out, query, H * C, graph >= 0, C, BC)
        term = _row_term(sent, out, d_lse, query, H, head, graph >= 0, C, BC)
        level = tl.load(lse + row * H + head, mask=graph >= 0, other=0.0)
        d_queries = tl.zeros([BM, BC], tl.float32)
        for at in range(begin, end, BN):
            key = at + tl.arange(0, BN)
            home = graph_of(batch, key, end, G)
            keys = load(k, key, k_row, home >= 0, C, BC)
            values = load(v, key, v_row, home >= 0, C, BC)
            logits = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
            logits = tl.where(same_graph(graph, home), logits - level[:, None], float("-inf"))
            d_weight = tl.dot(sent, tl.trans(values), input_precision=PRECISION)
            d_logits = (tl.exp(logits) * (d_weight - term[:, None])).to(keys.dtype)
            d_queries += tl.dot(d_logits, keys, input_precision=PRECISION)
        _put(grad, row, 3 * H * C, graph >= 0, d_queries * scale, C, BC, ADD)


@triton.jit
def _row(kept: tl.tensor | None, query: tl.tensor, graph: tl.tensor) -> tl.tensor:
    """Return the row of each query, -1 on padding; ``kept`` lists the rows unless it is None."""
    if kept is None:
        row = tl.where(graph >= 0, query, -1)
    else:  # no early return: Triton would compile the code after it
        row = tl.load(kept + query, mask=graph >= 0, other=-1)
    return row


@triton.jit
def _row_term(
    sent: tl.tensor,
    out: tl.tensor | None,
    d_lse: tl.tensor | None,
    query: tl.tensor,
    H: tl.tensor,
    head: tl.tensor,
    own: tl.tensor,
    C: tl.constexpr,
    BC: tl.constexpr,
) -> tl.tensor:
    """Return the row term of the softmax gradient, sum(d_out * out) - d_lse."""
    term = tl.zeros_like(query).to(tl.float32)
    if out is not None:
        got = load(out, query, H * C, own, C, BC)
        term += tl.sum(sent.to(tl.float32) * got.to(tl.float32), 1)
    if d_lse is not None:
        term -= tl.load(d_lse + query * H + head, mask=own, other=0.0).to(tl.float32)
    return term


@triton.jit
def _put(
    base: tl.tensor,
    row: tl.tensor,
    stride: tl.tensor,
    own: tl.tensor,
    tile: tl.tensor,
    C: tl.constexpr,
    BC: tl.constexpr,
    ADD: tl.constexpr,
) -> None:
    """Store one head of the given rows, or add to it."""
    if ADD:
        tile += load(base, row, stride, own, C, BC).to(tl.float32)
    store(base, row, stride, own, tile, C, BC)
