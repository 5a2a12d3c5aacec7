"""Triton kernels for the gradient of GTPool's node scores on padded batches.

A program computes the gradients of one row and head. It sums over the edges into the row for the
query and over those out of it for key and value. Without atomic additions results are reproducible.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.kernels.score import edges_per_row, theta_by_run, warps_per_row
from gtpool.ops.kernels.tile import load, strides, tanh_grad, vector, width
from gtpool.padded_batch import PaddedCSR, PaddedLayout

ENTRIES = 8192
"""Entries of a tile of :func:`theta_grads`."""


class ScoreGrads(NamedTuple):
    """Gradients of the inputs of ``node_scores``."""

    qkv: Tensor
    """Of q, k and v but for what passes through ``out`` and ``lse``, 0 on padding, [N, 3, H, C]."""
    out: Tensor
    """Of ``out``, not written on padding, [N, H, C]."""
    lse: Tensor
    """Of ``lse`` minus sum(d_out * out), not written on padding, float32 [N, H]."""
    sent: Tensor
    """Of the part V theta_l, not written on padding, float32 [N, H]."""


def node_scores_backward(
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    theta_global: Tensor,
    theta_local: Tensor,
    parts: Tensor,
    d_score: Tensor,
    d_out: Tensor,
    lam: float,
    csr: PaddedCSR,
    rows: PaddedLayout,
    scale: float,
) -> ScoreGrads:
    """Return the gradients of the scores; that of Θ is :func:`theta_grads`.

    Args:
        qkv: Queries, keys and values, the last axis contiguous, [N, 3, H, C].
        out: Output of ``attend``, [N, H, C].
        lse: Log-sum-exp of the same call, [N, H].
        theta_global: Θ_g of each run, [R, H, C].
        theta_local: Θ_l of each run, [R, H, C].
        parts: Returned by ``node_scores``.
        d_score: Gradient of the scores, [N]; padding is not read.
        d_out: Gradient of ``out`` from elsewhere, which is added, [N, H, C]; padding is not read.
        lam: Weight of the global score.
        csr: The edges.
        rows: The layout of the rows.
        scale: Factor on q·k.
    """
    (count, _, heads, channels), (q, k, _) = qkv.shape, qkv.unbind(1)
    grads = ScoreGrads(
        qkv.new_empty(qkv.shape),
        d_out.new_empty(d_out.shape),
        *lse.new_empty(2, count, heads, dtype=torch.float32).unbind(0),
    )
    thetas = theta_by_run(theta_global), theta_by_run(theta_local)
    warps = warps_per_row(csr)
    _backward[(count, heads)](
        q,
        k,
        out.contiguous(),
        lse,
        *thetas,
        *parts.unbind(0),
        d_score.contiguous(),
        d_out.contiguous(),
        *grads,
        csr.source,
        csr.begin,
        csr.end,
        csr.target,
        csr.out_begin,
        csr.out_end,
        csr.origin,
        csr.place,
        rows.batch,
        *strides(q, k),
        *(theta.stride(0) for theta in thetas),
        rows.start.numel(),
        count // theta_global.size(0),
        heads,
        lam,
        scale,
        C=channels,
        BE=edges_per_row(channels, warps) // 2,  # sums of rows take as many registers
        BC=width(channels),
        num_warps=warps,
    )
    return grads


def theta_grads(
    v: Tensor,
    out: Tensor,
    parts: Tensor,
    d_score: Tensor,
    d_sent: Tensor,
    lam: float,
    rows: PaddedLayout,
    runs: int,
) -> tuple[Tensor, ...]:
    """Return the gradients of Θ_g and Θ_l of each run, float32 [R, H, C] each.

    Args:
        v: As given to ``node_scores``.
        out: As given to ``node_scores``.
        parts: Returned by ``node_scores``.
        d_score: Gradient of the scores, [N].
        d_sent: Field ``sent`` of :class:`ScoreGrads`, [N, H].
        lam: As given to ``node_scores``.
        rows: The layout of the rows.
        runs: Number R of runs.
    """
    count, heads, channels = v.shape
    block = ENTRIES // width(channels)
    blocks = triton.cdiv(count // runs, block)
    sums = v.new_empty(runs, blocks, 2, heads, channels, dtype=torch.float32)
    _theta_grads[(blocks, runs, heads)](
        v,
        out,
        parts[1],
        d_score.contiguous(),
        d_sent,
        sums,
        rows.batch,
        *strides(v, out),
        rows.start.numel(),
        count // runs,
        heads,
        lam,
        C=channels,
        BM=block,
        BC=width(channels),
    )
    return sums.sum(1).unbind(1)


@triton.jit
def _backward(  # noqa: PLR0915, PLR0917
    q: tl.tensor,
    k: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    theta_global: tl.tensor,
    theta_local: tl.tensor,
    own: tl.tensor,
    far: tl.tensor,
    near: tl.tensor,
    d_score: tl.tensor,
    d_out: tl.tensor,
    d_qkv: tl.tensor,
    d_mixed: tl.tensor,
    d_lse: tl.tensor,
    d_sent: tl.tensor,
    source: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    target: tl.tensor,
    out_begin: tl.tensor,
    out_end: tl.tensor,
    origin: tl.tensor,
    place: tl.tensor,
    batch: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    global_run: tl.tensor,
    local_run: tl.tensor,
    G: tl.tensor,
    N: tl.tensor,
    H: tl.tensor,
    lam: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    row, head, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, BC)
    d_query = tl.zeros([BC], tl.float32)
    d_key = tl.zeros([BC], tl.float32)
    d_value = tl.zeros([BC], tl.float32)
    if tl.load(batch + row) < G:
        q += head * q_head
        k += head * k_head
        at = row * H + head
        node = tl.load(origin + row)
        query = vector(q + row * q_row, C, BC)
        key = vector(k + row * k_row, C, BC)
        level, sent, local = tl.load(lse + at), tl.load(own + at), tl.load(near + at)
        given = tl.load(d_score + row).to(tl.float32)
        d_far = given * lam * tanh_grad(tl.load(far + at))
        d_near = given * (1 - lam) * tanh_grad(local)
        mixed = vector(d_out + at * C, C, BC)
        mixed += d_far * vector(theta_global + row // N * global_run + head * C, C, BC)
        tl.store(d_mixed + at * C + channel, mixed, mask=channel < C)
        tl.store(d_lse + at, -d_near * local - tl.sum(mixed * vector(out + at * C, C, BC), 0))
        passed = d_near * tl.exp(tl.sum(query * key, 0) * scale - level)
        # A row without a gradient of its score, such as one that is dropped, passes none to others.
        first, last = tl.load(begin + node), tl.load(end + node)
        last = tl.where(d_near == 0, first, last)
        total = tl.zeros([BE, BC], tl.float32)
        for edge in range(first, last, BE):
            there = _other_end(source, place, node, edge + tl.arange(0, BE), last)
            keys = load(k, there, k_row, there >= 0, C, BC).to(tl.float32)
            logits = tl.sum(keys * query[None, :], 1) * scale - level
            weight = tl.exp(tl.where(there >= 0, logits, float("-inf")))
            weight *= tl.load(own + there * H + head, mask=there >= 0, other=0.0)
            total += weight[:, None] * keys
        d_query = (passed * sent * key + d_near * tl.sum(total, 0)) * scale
        first, last = tl.load(out_begin + node), tl.load(out_end + node)
        total = tl.zeros([BE, BC], tl.float32)
        weights = tl.zeros([BE], tl.float32)
        for edge in range(first, last, BE):
            there = _other_end(target, place, node, edge + tl.arange(0, BE), last)
            d_other = tl.load(d_score + there, mask=there >= 0, other=0.0).to(tl.float32)
            there = tl.where(d_other == 0, -1, there)
            at_there = there * H + head
            d_other *= tanh_grad(tl.load(near + at_there, mask=there >= 0, other=0.0)) * (1 - lam)
            levels = tl.load(lse + at_there, mask=there >= 0, other=0.0)
            queries = load(q, there, q_row, there >= 0, C, BC).to(tl.float32)
            logits = tl.sum(queries * key[None, :], 1) * scale - levels
            weight = d_other * tl.exp(tl.where(there >= 0, logits, float("-inf")))
            total += weight[:, None] * queries
            weights += weight
        d_key = (passed * query + tl.sum(total, 0)) * (sent * scale)
        passed += tl.sum(weights, 0)
        tl.store(d_sent + at, passed)
        d_value = passed * vector(theta_local + row // N * local_run + head * C, C, BC)
    d_qkv += (row * 3 * H + head) * C + channel
    tl.store(d_qkv, d_query, mask=channel < C)
    tl.store(d_qkv + H * C, d_key, mask=channel < C)
    tl.store(d_qkv + 2 * H * C, d_value, mask=channel < C)


@triton.jit
def _other_end(
    far_end: tl.tensor, place: tl.tensor, node: tl.tensor, edge: tl.tensor, last: tl.tensor
) -> tl.tensor:
    """Return the row at the other end of each edge, -1 for self-loops and dropped rows."""
    other = tl.load(far_end + edge, mask=edge < last, other=node)
    return tl.load(place + other, mask=other != node, other=-1)


@triton.jit
def _theta_grads(  # noqa: PLR0917
    v: tl.tensor,
    out: tl.tensor,
    far: tl.tensor,
    d_score: tl.tensor,
    d_sent: tl.tensor,
    sums: tl.tensor,
    batch: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    G: tl.tensor,
    N: tl.tensor,
    H: tl.tensor,
    lam: tl.tensor,
    C: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    """Store the sums of one block of rows."""
    block, run, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    nth = block * BM + tl.arange(0, BM)
    row = run * N + nth
    real = tl.load(batch + row, mask=nth < N, other=G) < G
    d_far = tl.load(d_score + row, mask=real, other=0.0).to(tl.float32)
    d_far *= lam * tanh_grad(tl.load(far + row * H + head, mask=real, other=0.0))
    mixed = load(out + head * out_head, row, out_row, real, C, BC).to(tl.float32)
    d_global = tl.sum(d_far[:, None] * mixed, 0)
    passed = tl.load(d_sent + row * H + head, mask=real, other=0.0)
    values = load(v + head * v_head, row, v_row, real, C, BC).to(tl.float32)
    d_local = tl.sum(passed[:, None] * values, 0)
    channel = tl.arange(0, BC)
    sums += ((run * tl.num_programs(0) + block) * 2 * H + head) * C + channel
    tl.store(sums, d_global, mask=channel < C)
    tl.store(sums + H * C, d_local, mask=channel < C)
