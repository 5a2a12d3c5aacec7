"""The score of every node from its row of the attention matrix, for a batch of fixed capacity."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# A kernel is Triton's language, which Python's types do not describe.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.fixed import Links, Rows
from gtpool.ops.kernels.tile import load, strides, width

ENTRIES = 1024
"""Entries of the keys of neighbours that a warp holds."""

MANY = 16
"""Mean edges a node from which four warps share the neighbours of one node."""


def node_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    theta_global: Tensor,
    theta_local: Tensor,
    lam: float,
    links: Links,
    rows: Rows,
    scale: float,
) -> Tensor:
    """Score every row, equations (5)-(7) of ``gtpool.pool.gtpool`` with tanh; without a gradient.

    Args:
        q: Queries, the last axis contiguous, [N, H, C].
        k: Keys, likewise.
        v: Values, likewise.
        out: What :func:`gtpool.ops.kernels.attention.attend` returned for them, [N, H, C].
        lse: Likewise, [N, H].
        theta_global: Θ_g of each run, [R, H, C].
        theta_local: Θ_l of each run, [R, H, C].
        lam: Weight of the global score, from 0 to 1; the local score has the rest.
        links: The edges; loops among them do not count, every node is its own neighbour once.
        rows: The layout of the rows.
        scale: As given to ``attend``.

    Returns:
        The raw score of each row, float32 [N], 0 on padding.
    """
    count, heads, channels = q.shape
    score = q.new_empty(count, dtype=torch.float32)
    warps = 4 if links.source.numel() >= MANY * links.place.numel() else 1
    _scores[(count,)](
        q,
        k,
        v,
        out,
        lse,
        theta_global.contiguous(),
        theta_local.contiguous(),
        score,
        links.source,
        links.begin,
        links.end,
        links.origin,
        links.place,
        rows.batch,
        *strides(q, k, v, out),
        rows.start.numel(),
        count // theta_global.size(0),
        heads,
        lam,
        scale,
        C=channels,
        BE=warps * min(16, ENTRIES // width(channels)),
        BC=width(channels),
        num_warps=warps,
    )
    return score


@triton.jit
def _scores(  # noqa: PLR0917
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    theta_global: tl.tensor,
    theta_local: tl.tensor,
    score: tl.tensor,
    source: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    origin: tl.tensor,
    place: tl.tensor,
    batch: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    G: tl.tensor,
    N: tl.tensor,
    H: tl.tensor,
    lam: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    if tl.load(batch + row) < G:
        node = tl.load(origin + row)
        first = tl.load(begin + node)
        last = tl.load(end + node)
        theta = row // N * H * C
        for head in range(H):
            query = _vector(q + row * q_row + head * q_head, C, BC)
            key = _vector(k + row * k_row + head * k_head, C, BC)
            value = _vector(v + row * v_row + head * v_head, C, BC)
            mixed = _vector(out + row * out_row + head * out_head, C, BC)
            far = _vector(theta_global + theta + head * C, C, BC)
            near = _vector(theta_local + theta + head * C, C, BC)
            level = tl.load(lse + row * H + head)
            local = tl.exp(tl.sum(query * key, 0) * scale - level) * tl.sum(value * near, 0)
            parts = tl.zeros([BE], tl.float32)
            for at in range(first, last, BE):
                edge = at + tl.arange(0, BE)
                other = tl.load(source + edge, mask=edge < last, other=node)
                there = tl.load(place + other, mask=other != node, other=-1)
                keys = load(k + head * k_head, there, k_row, there >= 0, C, BC).to(tl.float32)
                values = load(v + head * v_head, there, v_row, there >= 0, C, BC).to(tl.float32)
                logits = tl.sum(keys * query[None, :], 1) * scale - level
                weight = tl.exp(tl.where(there >= 0, logits, float("-inf")))
                parts += weight * tl.sum(values * near[None, :], 1)
            local += tl.sum(parts, 0)
            total += lam * _tanh(tl.sum(mixed * far, 0)) + (1 - lam) * _tanh(local)  # (5)-(7)
    tl.store(score + row, total)


@triton.jit
def _vector(at: tl.tensor, C: tl.constexpr, BC: tl.constexpr) -> tl.tensor:
    """Load one head of one row in float32, [BC]."""
    channel = tl.arange(0, BC)
    return tl.load(at + channel, mask=channel < C, other=0.0).to(tl.float32)


@triton.jit
def _tanh(x: tl.tensor) -> tl.tensor:
    small = tl.exp(-2 * tl.abs(x))
    part = (1 - small) / (1 + small)
    return tl.where(x < 0, -part, part)
