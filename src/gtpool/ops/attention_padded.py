"""Attention over one padded bucket by plain matrix products, on any device.

Rows are taken in blocks, so that the weights held at one time stay below ``HELD`` whatever the size
of a graph. Shapes: q, k, v, out [G, H, L, C], lse [G, H, L], mask [G, 1, 1, L].
"""

from collections.abc import Iterator

import torch
from torch import Tensor

HELD = 2**21
"""Attention weights held at one time: 8 MB in float32, about a processor's cache."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Give out and lse."""
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1])
    for graphs, rows in _blocks(q):
        logits = _logits(q, k, mask, scale, graphs, rows)
        top = logits.amax(-1, keepdim=True)
        weight = logits.sub_(top).exp_()
        total = weight.sum(-1, keepdim=True)
        out[graphs, :, rows] = (weight @ v[graphs]).div_(total)
        lse[graphs, :, rows] = total.log_().add_(top).squeeze(-1)
    return out, lse


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
    d_out: Tensor,
    d_lse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of q, k and v."""
    d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    row_term = (d_out * out).sum(-1)  # what the softmax takes off every weight's gradient
    if d_lse is not None:
        row_term -= d_lse
    for graphs, rows in _blocks(q):
        here = (graphs, slice(None), rows)
        weight = _logits(q, k, mask, scale, graphs, rows).sub_(lse[here][..., None]).exp_()
        d_v[graphs] += weight.mT @ d_out[here]
        d_logits = d_out[here] @ v[graphs].mT
        d_logits = d_logits.sub_(row_term[here][..., None]).mul_(weight).mul_(scale)
        d_q[here] = d_logits @ k[graphs]
        d_k[graphs] += d_logits.mT @ q[here]
    return d_q, d_k, d_v


def _blocks(q: Tensor) -> Iterator[tuple[slice, slice]]:
    """Cut a bucket into whole graphs, or a large graph into rows, of at most ``HELD`` weights."""
    count, heads, length = q.shape[:3]
    graphs = max(1, HELD // (heads * length * length))
    rows = length if graphs > 1 else max(1, HELD // (heads * length))
    for first in range(0, count, graphs):
        for row in range(0, length, rows):
            yield slice(first, first + graphs), slice(row, row + rows)


def _logits(
    q: Tensor, k: Tensor, mask: Tensor | None, scale: float, graphs: slice, rows: slice
) -> Tensor:
    logits = (q[graphs, :, rows] @ k[graphs].mT).mul_(scale)
    return logits if mask is None else logits.add_(mask[graphs])
