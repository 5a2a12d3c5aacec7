"""q·k on edges, computed in slices of edges to avoid an [E, H, C] tensor."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

HELD, HELD_ON_DEVICE = 2**19, 2**24
"""Entries of gathered queries per slice: 2 MB in float32 on a CPU, 64 MB elsewhere."""


def edge_products(q: Tensor, k: Tensor, edge_index: Tensor) -> Tensor:
    """Return q_i·k_j for each edge j -> i, [E, H].

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        edge_index: Source j and target i of each edge, [2, E].
    """
    return _EdgeProducts.apply(q, k, edge_index)


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _EdgeProducts(Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        edge_index: Tensor,
    ) -> Tensor:
        product = q.new_empty(edge_index.size(1), q.size(1))
        for (source, target), filled in _slices(q, edge_index, product):
            ends = q.index_select(0, target).mul_(k.index_select(0, source))
            torch.sum(ends, -1, out=filled)
        ctx.save_for_backward(q, k, edge_index)
        return product

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_product: Tensor,
    ) -> tuple[Tensor | None, ...]:
        q, k, edge_index = ctx.saved_tensors
        d_q, d_k = (q.new_zeros(q.size(0), q.size(1) * q.size(2)) for _ in range(2))
        for (source, target), factor in _slices(q, edge_index, d_product.unsqueeze(-1)):
            # Flattened: index_add_ is fast only on two axes.
            d_q.index_add_(0, target, k.index_select(0, source).mul_(factor).flatten(1))
            d_k.index_add_(0, source, q.index_select(0, target).mul_(factor).flatten(1))
        return d_q.view(q.shape), d_k.view(q.shape), None


def _slices(q: Tensor, edge_index: Tensor, value: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Return slices of the edges and their values, limited by the memory of gathered queries."""
    held = HELD if q.device.type == "cpu" else HELD_ON_DEVICE
    step = max(1, held // q[0].numel())
    return zip(edge_index.split(step, 1), value.split(step), strict=True)
