"""Attention over one padded bucket with plain matrix products, on any device.

Rows are processed in blocks, so that a long sequence never needs its full weight matrix. Shapes for
S sequences of length L: q, k, v, out [S, L, C], lse [S, L], mask [S, 1, L]. In the backward pass q,
out and lse may have fewer rows than k and v.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

HELD = 2**19
"""Attention weights per block on a CPU: 2 MB in float32, which fit its cache."""
HELD_ON_DEVICE = 2**24
"""Attention weights per block on other devices, where few large kernels are faster: 64 MB."""
ROWS = 128
"""Minimum rows of a block in a long sequence; smaller products are slow."""


def forward(
    mask: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float
) -> None:
    """Fill ``out`` and ``lse``."""
    for seqs, rows in _blocks(q, k):
        here = seqs, rows
        logits = _logits(mask, q, k, scale, seqs, rows)
        top = logits.amax(-1, keepdim=True)
        weight = logits.sub_(top).exp_()
        total = weight.sum(-1, keepdim=True)
        torch.bmm(weight, v[seqs], out=out[here]).div_(total)
        lse[here] = total.log_().add_(top).squeeze(-1)


def backward(
    mask: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_q: Tensor,
    d_k: Tensor,
    d_v: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None = None,
    *,
    scale: float,
) -> None:
    """Fill the gradients of q, k and v, given those of out and lse."""
    row_term = (d_out * out).sum(-1, keepdim=True).neg_()  # equal for all weights of a row
    if d_lse is not None:
        row_term += d_lse[..., None]
    for seqs, rows in _blocks(q, k):
        here = seqs, rows
        more = float(rows.start > 0)  # the first block of rows overwrites, later blocks add
        weight = _logits(mask, q, k, scale, seqs, rows).sub_(lse[here][..., None]).exp_()
        d_v[seqs].baddbmm_(weight.mT, d_out[here], beta=more)
        d_logits = torch.baddbmm(row_term[here], d_out[here], v[seqs].mT).mul_(weight)
        d_q[here].baddbmm_(d_logits, k[seqs], beta=0, alpha=scale)
        d_k[seqs].baddbmm_(d_logits.mT, q[here], beta=more, alpha=scale)


def _blocks(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of a bucket: whole sequences, or rows of one sequence if it is long."""
    count, length = q.shape[:2]
    held = HELD if q.device.type == "cpu" else HELD_ON_DEVICE
    seqs = max(1, held // (length * k.size(1)))
    rows = length if seqs > 1 else max(ROWS, held // k.size(1))
    for first in range(0, count, seqs):
        for row in range(0, length, rows):
            yield slice(first, first + seqs), slice(row, row + rows)


def _logits(mask: Tensor, q: Tensor, k: Tensor, scale: float, seqs: slice, rows: slice) -> Tensor:
    return torch.baddbmm(mask[seqs], q[seqs, rows], k[seqs].mT, alpha=scale)
