"""Sums over edges and codes on a CPU, without a gathered row per edge or code.

``embedding_bag`` adds rows of a matrix while it reads them. The sum and its gradient, which is a
sum over the reversed edges, each take one pass. No Function here has a ``setup_context``: torch
inspects the signature of such a Function in every call, which takes as long as a small sum.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag

_SHORT = 2**16
"""Number of 16-bit integers."""


def gcn_propagate_cpu(x: Tensor, edge_index: Tensor) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2 x, with D the in-degree of A + I.

    Self-loops in ``edge_index`` are ignored.

    Args:
        x: Node features, [N, D].
        edge_index: Source and target of each edge, [2, E].

    Example:
        >>> x, edges = torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1, 1], [1, 0, 1]])
        >>> gcn_propagate_cpu(x, edges).round(decimals=3).tolist()
        [[2.0], [2.0]]
    """
    source, target = edge_index
    loops = source == target
    if loops.any():
        source, target = edge_index[:, ~loops]
    degree = target.bincount(minlength=x.size(0)).add_(1)
    return _Propagate.apply(x, source, target, degree.to(x.dtype).rsqrt_().unsqueeze(1))


def gin_propagate_cpu(x: Tensor, edge_index: Tensor) -> Tensor:
    """Return the sum of each row and its neighbours, A^T x + x, [N, D].

    Example:
        >>> x, edges = torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1, 1], [1, 0, 1]])
        >>> gin_propagate_cpu(x, edges).tolist()
        [[4.0], [7.0]]
    """
    return _Propagate.apply(x, *edge_index, None)


def sum_embeddings(table: Tensor, codes: Tensor) -> Tensor:
    """Return the sum of the table rows given by each row of codes, [T, D], [N, F] -> [N, D].

    Example:
        >>> table, codes = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0, 2], [1, 1]])
        >>> sum_embeddings(table, codes).tolist()
        [[5.0], [4.0]]
    """
    return _SumEmbeddings.apply(table, codes)


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _Propagate(Function):
    """Propagation along edges; the gradient uses reversed edges. A scale of None means 1."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        source: Tensor,
        target: Tensor,
        scale: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(source, target, scale)
        ctx.save_for_forward(source, target, scale)
        scaled = x.contiguous() if scale is None else x * scale
        out = _add_up(scaled, source, target, x.size(0)).add_(scaled)
        return out if scale is None else out.mul_(scale)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        source, target, scale = ctx.saved_tensors
        return _Propagate.apply(d_out, target, source, scale), None, None, None

    @staticmethod
    def jvp(ctx: Any, *grads: Any) -> Tensor:  # noqa: ANN401
        return _Propagate.apply(grads[0], *ctx.saved_tensors)


class _SumEmbeddings(Function):
    """Sum of embeddings by row; the gradient is a sum by code."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, codes: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(codes)
        ctx.rows = table.size(0)
        return embedding_bag(codes, table, mode="sum")

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        (codes,) = ctx.saved_tensors
        row = torch.arange(codes.size(0)).repeat_interleave(codes.size(1))
        return _add_up(d_out.contiguous(), row, codes.flatten(), ctx.rows), None


def _add_up(x: Tensor, source: Tensor, target: Tensor, count: int) -> Tensor:
    """Return the sum of x[source] for each target, [count, D]."""
    if (target[1:] < target[:-1]).any():
        source = source.index_select(0, _argsort(target, count))
    end = target.bincount(minlength=count).cumsum(0)
    first = torch.cat([end.new_zeros(1), end])
    return embedding_bag(source, x, first, mode="sum", include_last_offset=True)


def _argsort(number: Tensor, count: int) -> Tensor:
    """Return the stable argsort of numbers below ``count``; NumPy's 16-bit radix sort is faster."""
    if count > _SHORT:
        return number.argsort(stable=True)
    return torch.from_numpy(number.numpy().astype(np.uint16).argsort(kind="stable"))
