"""Triton kernels for GTPool's node scores, on padded and packed batches."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import torch
import triton
import triton.language as tl
from torch import Tensor

from gtpool.ops.kernels.tile import load, strides, tanh, vector, width
from gtpool.padded_batch import PaddedCSR, PaddedLayout

ENTRIES = 1024
"""Entries of neighbours' keys per warp."""

MANY = 16
"""Mean degree from which four warps process the neighbours of one node."""


def node_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    theta_global: Tensor,
    theta_local: Tensor,
    lam: float,
    csr: PaddedCSR,
    rows: PaddedLayout,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return scores by equations (5)-(7) of ``gtpool.pool.gtpool`` with tanh, and their parts.

    Args:
        q: Queries, the last axis contiguous, [N, H, C].
        k: Keys, as ``q``.
        v: Values, as ``q``.
        out: Output of :func:`gtpool.ops.kernels.attention.attend`, [N, H, C].
        lse: Log-sum-exp of the same call, [N, H].
        theta_global: Θ_g of each run, [R, H, C].
        theta_local: Θ_l of each run, [R, H, C].
        lam: Weight of the global score, from 0 to 1; the local score has weight 1 - lam.
        csr: The edges; self-loops are ignored, because every node is its own neighbour once.
        rows: The layout of the rows.
        scale: As given to ``attend``.

    Returns:
        The raw score of each row, float32 [N], 0 on padding; and V theta_l, A V theta_g and
        (A * (A + I)) V theta_l, whose tanh are the two scores, float32 [3, N, H], not written on
        padding. ``gtpool.ops.kernels.score_backward`` reads these.
    """
    count, heads, channels = q.shape
    score = q.new_empty(count, dtype=torch.float32)
    parts = q.new_empty(3, count, heads, dtype=torch.float32)
    thetas = theta_by_run(theta_global), theta_by_run(theta_local)
    warps = warps_per_row(csr)
    _scores[(count,)](
        q,
        k,
        v,
        out,
        lse,
        *thetas,
        score,
        *parts.unbind(0),
        csr.source,
        csr.begin,
        csr.end,
        csr.origin,
        csr.place,
        rows.batch,
        *strides(q, k, v, out),
        *(theta.stride(0) for theta in thetas),
        rows.start.numel(),
        count // theta_global.size(0),
        heads,
        lam,
        scale,
        C=channels,
        BE=edges_per_row(channels, warps),
        BC=width(channels),
        num_warps=warps,
    )
    return score, parts


def theta_by_run(theta: Tensor) -> Tensor:
    """Return Θ [R, H, C] with one contiguous vector per run; runs may lie apart."""
    return theta if theta[0].is_contiguous() else theta.contiguous()


def warps_per_row(csr: PaddedCSR) -> int:
    """Return the warps of a program that processes the neighbours of one row."""
    return 4 if csr.source.numel() >= MANY * csr.place.numel() else 1


def edges_per_row(channels: int, warps: int) -> int:
    """Return the neighbours that such a program reads at once."""
    return warps * min(16, ENTRIES // width(channels))


def packed_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    theta: Tensor,
    lam: float,
    edge_index: Tensor,
    scale: float,
) -> Tensor:
    """Return the scores of a packed batch as :func:`node_scores` does, for edges in any order.

    Sums over edges use atomic additions, so the last digits may differ between calls.

    Args:
        q: Queries, contiguous, [N, H, C].
        k: Keys, as ``q``.
        v: Values, as ``q``.
        out: Output of :func:`gtpool.ops.kernels.attention.attend`, [N, H, C].
        lse: Log-sum-exp of the same call, [N, H].
        theta: Θ_l and Θ_g, [H, 2, C].
        lam: Weight of the global score, from 0 to 1; the local score has weight 1 - lam.
        edge_index: Source and target of each edge; self-loops are ignored, [2, E].
        scale: As given to ``attend``.
    """
    (nodes, heads, channels), edges = q.shape, edge_index.size(1)
    near, far, local = q.new_empty(3, nodes, heads, dtype=torch.float32)
    score = q.new_empty(nodes, dtype=torch.float32)
    block = max(1, ENTRIES // width(channels))
    sizes = {"C": channels, "BE": block, "BC": width(channels)}
    parts = (q, k, lse, near, local)
    _own_scores[triton.cdiv(nodes, block), heads](
        *parts, v, out, far, theta.contiguous(), nodes, heads, scale, **sizes, num_warps=2
    )
    if edges:
        _edge_scores[triton.cdiv(edges, block), heads](
            *parts, edge_index.contiguous(), edges, heads, scale, **sizes, num_warps=2
        )
    _add_heads[(triton.cdiv(nodes, ENTRIES),)](far, local, score, nodes, heads, lam, BLOCK=ENTRIES)
    return score


@triton.jit
def _own_scores(  # noqa: PLR0917
    q: tl.tensor,
    k: tl.tensor,
    lse: tl.tensor,
    near: tl.tensor,
    local: tl.tensor,
    v: tl.tensor,
    out: tl.tensor,
    far: tl.tensor,
    theta: tl.tensor,
    nodes: tl.tensor,
    H: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    """Store V theta_l, A V theta_g and each node's own part of its local score."""
    head = tl.program_id(1)
    node = (tl.program_id(0) * BE + tl.arange(0, BE)).to(tl.int64)
    row, here = node * H + head, node < nodes
    query = load(q, row, C, here, C, BC).to(tl.float32)
    key = load(k, row, C, here, C, BC).to(tl.float32)
    value = load(v, row, C, here, C, BC).to(tl.float32)
    mixed = load(out, row, C, here, C, BC).to(tl.float32)
    own = tl.sum(value * vector(theta + head * 2 * C, C, BC)[None, :], 1)
    weight = tl.exp(tl.sum(query * key, 1) * scale - tl.load(lse + row, mask=here, other=0.0))
    tl.store(near + row, own, mask=here)
    tl.store(local + row, weight * own, mask=here)
    whole = tl.sum(mixed * vector(theta + (head * 2 + 1) * C, C, BC)[None, :], 1)
    tl.store(far + row, whole, mask=here)


@triton.jit
def _edge_scores(
    q: tl.tensor,
    k: tl.tensor,
    lse: tl.tensor,
    near: tl.tensor,
    local: tl.tensor,
    ends: tl.tensor,
    edges: tl.tensor,
    H: tl.tensor,
    scale: tl.tensor,
    C: tl.constexpr,
    BE: tl.constexpr,
    BC: tl.constexpr,
) -> None:
    """Add the neighbours' part to the local score of each node."""
    head = tl.program_id(1)
    edge = tl.program_id(0) * BE + tl.arange(0, BE)
    here = edge < edges
    source = tl.load(ends + edge, mask=here, other=0)
    target = tl.load(ends + edges + edge, mask=here, other=0)
    here = here & (source != target)
    sent, got = source * H + head, target * H + head
    query = load(q, got, C, here, C, BC).to(tl.float32)
    key = load(k, sent, C, here, C, BC).to(tl.float32)
    logit = tl.sum(query * key, 1) * scale - tl.load(lse + got, mask=here, other=0.0)
    passed = tl.exp(logit) * tl.load(near + sent, mask=here, other=0.0)
    tl.atomic_add(local + got, passed, mask=here)


@triton.jit
def _add_heads(
    far: tl.tensor,
    local: tl.tensor,
    score: tl.tensor,
    nodes: tl.tensor,
    H: tl.tensor,
    lam: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Store the sum of the scores over heads, (5)-(7)."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = row < nodes
    total = tl.zeros([BLOCK], tl.float32)
    for head in range(H):
        whole = tl.load(far + row * H + head, mask=here, other=0.0)
        part = tl.load(local + row * H + head, mask=here, other=0.0)
        total += lam * tanh(whole) + (1 - lam) * tanh(part)
    tl.store(score + row, total, mask=here)


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
    own: tl.tensor,
    far: tl.tensor,
    near: tl.tensor,
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
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    if tl.load(batch + row) < G:
        node = tl.load(origin + row)
        first = tl.load(begin + node)
        last = tl.load(end + node)
        theta_global += row // N * global_run
        theta_local += row // N * local_run
        for head in range(H):
            query = vector(q + row * q_row + head * q_head, C, BC)
            key = vector(k + row * k_row + head * k_head, C, BC)
            value = vector(v + row * v_row + head * v_head, C, BC)
            mixed = vector(out + row * out_row + head * out_head, C, BC)
            to_local = vector(theta_local + head * C, C, BC)
            level = tl.load(lse + row * H + head)
            sent = tl.sum(value * to_local, 0)
            local = tl.exp(tl.sum(query * key, 0) * scale - level) * sent
            parts = tl.zeros([BE], tl.float32)
            for at in range(first, last, BE):
                edge = at + tl.arange(0, BE)
                other = tl.load(source + edge, mask=edge < last, other=node)
                there = tl.load(place + other, mask=other != node, other=-1)
                keys = load(k + head * k_head, there, k_row, there >= 0, C, BC).to(tl.float32)
                values = load(v + head * v_head, there, v_row, there >= 0, C, BC).to(tl.float32)
                logits = tl.sum(keys * query[None, :], 1) * scale - level
                weight = tl.exp(tl.where(there >= 0, logits, float("-inf")))
                parts += weight * tl.sum(values * to_local[None, :], 1)
            local += tl.sum(parts, 0)
            whole = tl.sum(mixed * vector(theta_global + head * C, C, BC), 0)
            total += lam * tanh(whole) + (1 - lam) * tanh(local)  # (5)-(7)
            tl.store(own + row * H + head, sent)
            tl.store(far + row * H + head, whole)
            tl.store(near + row * H + head, local)
    tl.store(score + row, total)
