"""Sums over the nodes of a graph weighted by f(q·k), f(s) = 1 + s + s²/2, and their gradients.

There are two equal computations: by the n² pairs of nodes, or by C² / 2 features (products of two
channels) summed over the graph. Shapes for S sequences of L queries and M keys: q [S, L, C],
k [S, M, C], v [S, M, V], sums [S, L, V].
"""

from collections.abc import Iterator

import torch
from torch import Tensor

HELD = 2**19
"""Weights or features per block on a CPU: 2 MB in float32."""
HELD_ON_DEVICE = 2**25
"""Weights or features per block on other devices, where few large kernels are faster: 128 MB."""
ROWS = 128
"""Minimum rows of a block; smaller products are slow."""
BLOCK = 16
"""Channels of a block of features: their products with all later channels."""


def kernel(logits: Tensor) -> Tensor:
    """Return f(s) = 1 + s + s²/2 elementwise.

    Example:
        >>> kernel(torch.tensor([-1.0, 0.0, 2.0])).tolist()
        [0.5, 1.0, 5.0]
    """
    return torch.addcmul(logits + 1, logits, logits, value=0.5)


def held(x: Tensor) -> int:
    """Return the maximum entries of a block on the device of a tensor."""
    return HELD if x.device.type == "cpu" else HELD_ON_DEVICE


def is_long(k: Tensor) -> bool:
    """Return whether C² / 2 features need less work than a row of weights."""
    return k.size(1) > k.size(2) ** 2 // 2


def sum_by_pairs(q: Tensor, k: Tensor, v: Tensor, sums: Tensor) -> None:
    """Fill ``sums``, by pairs of nodes."""
    for seqs, rows in _blocks(q, k.size(1)):
        weight = kernel(torch.bmm(q[seqs, rows], k[seqs].mT))
        torch.bmm(weight, v[seqs], out=sums[seqs, rows])


def grads_by_pairs(
    q: Tensor, k: Tensor, v: Tensor, d_sums: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor
) -> None:
    """Fill the gradients of q, k and v, given those of the sums."""
    for seqs, rows in _blocks(q, k.size(1)):
        here = seqs, rows
        more = float(rows.start > 0)  # the first block of rows overwrites, later blocks add
        logits = torch.bmm(q[here], k[seqs].mT)
        d_v[seqs].baddbmm_(kernel(logits).mT, d_sums[here], beta=more)
        d_logits = torch.bmm(d_sums[here], v[seqs].mT).mul_(logits.add_(1))  # f' = 1 + s
        d_q[here] = torch.bmm(d_logits, k[seqs])
        d_k[seqs].baddbmm_(d_logits.mT, q[here], beta=more)


def sum_by_features(q: Tensor, k: Tensor, v: Tensor, sums: Tensor) -> None:
    """Fill ``sums``, by features."""
    sums.copy_(v.sum(1, keepdim=True).expand_as(sums)).baddbmm_(q, k.mT @ v)  # the terms 1 and s
    for first, seqs in _feature_blocks(q):
        table = _table(k[seqs], v[seqs], first)
        for rows in _row_blocks(q[seqs]):
            sums[seqs, rows].baddbmm_(_products(q[seqs, rows], first).flatten(2), table)


def grads_by_features(
    q: Tensor, k: Tensor, v: Tensor, d_sums: Tensor, d_q: Tensor, d_k: Tensor, d_v: Tensor
) -> None:
    """Fill the gradients of q, k and v, given those of the sums."""
    torch.bmm(d_sums, v.mT @ k, out=d_q)
    torch.bmm(v, d_sums.mT @ q, out=d_k)
    d_v.copy_(d_sums.sum(1, keepdim=True).expand_as(d_v)).baddbmm_(k, q.mT @ d_sums)
    for first, seqs in _feature_blocks(q):
        table = _table(k[seqs], v[seqs], first)
        for rows in _row_blocks(q[seqs]):
            here = seqs, rows
            _add_grad(d_q[here], q[here], d_sums[here] @ table.mT, first)
        table = _table(q[seqs], d_sums[seqs], first)
        for rows in _row_blocks(k[seqs]):
            here = seqs, rows
            _add_grad(d_k[here], k[here], v[here] @ table.mT, first)
            d_v[here].baddbmm_(_products(k[here], first).flatten(2), table)


def _blocks(q: Tensor, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of a bucket: whole sequences, or rows of one sequence if it is long."""
    count, length = q.shape[:2]
    seqs = max(1, held(q) // (length * columns))
    rows = length if seqs > 1 else max(ROWS, held(q) // columns)
    for first in range(0, count, seqs):
        for row in range(0, length, rows):
            yield slice(first, first + seqs), slice(row, row + rows)


def _feature_blocks(q: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield the first channel of a block, and the sequences of which tables fit at once."""
    count, _, channels = q.shape
    seqs = max(1, held(q) // (BLOCK * channels * max(ROWS, channels)))
    for first in range(0, channels, BLOCK):
        for seq in range(0, count, seqs):
            yield first, slice(seq, seq + seqs)


def _row_blocks(x: Tensor) -> list[slice]:
    """Return slices of rows of which features fit at once."""
    count, length, channels = x.shape
    rows = max(ROWS, held(x) // (count * BLOCK * channels))
    return [slice(row, row + rows) for row in range(0, length, rows)]


def _table(x: Tensor, v: Tensor, first: int) -> Tensor:
    """Return the sums of channel products times values, weighted as in s²/2, [S, P, V]."""
    width = x.size(2) - first
    taken = min(BLOCK, width)
    table = x.new_empty(x.size(0), taken * width, v.size(2))
    for rows in _row_blocks(x):
        products = _products(x[:, rows], first).flatten(2)
        table.baddbmm_(products.mT, v[:, rows], beta=float(rows.start > 0))
    # Pairs of channels inside the block occur twice, other pairs once.
    table.unflatten(1, (taken, width))[:, :, :taken].mul_(0.5)
    return table


def _products(x: Tensor, first: int) -> Tensor:
    """Return products of a block's channels with all channels from it on, [S, L, B, C - first]."""
    later = x[..., first:]
    return later[..., :BLOCK].unsqueeze(-1) * later.unsqueeze(-2)


def _add_grad(d_x: Tensor, x: Tensor, d_products: Tensor, first: int) -> None:
    later, d_later = x[..., first:], d_x[..., first:]
    d_products = d_products.unflatten(-1, (-1, later.size(-1)))
    d_later[..., :BLOCK].add_((d_products * later.unsqueeze(-2)).sum(-1))
    d_later.add_(d_products.mul_(later[..., :BLOCK].unsqueeze(-1)).sum(-2))
