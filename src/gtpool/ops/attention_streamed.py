"""Attention for pooling: scores of all rows, outputs of the kept rows, for graphs of any size."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import GraphLayout
from gtpool.ops.attention import attend, attend_rows, edge_attention
from gtpool.ops.attention_materialized import MaterializedAttention
from gtpool.ops.bucket import Buckets, buckets_of, kept_buckets
from gtpool.ops.entry import no_autocast, no_compile, without_autocast
from gtpool.ops.padded_ops import WIDEST, has_triton


class BatchAttention(Protocol):
    """Interface of the attention of a packed batch."""

    def project(self, near: Tensor, theta: Tensor) -> Tensor:
        """Return the output times one vector per head, A V theta, given V theta, [N, H]."""
        ...

    def edge_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention weight from target to source of each edge, [E, H]."""
        ...

    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Return the output of the kept nodes, with gradients of these rows, [K, H, C]."""
        ...


@dataclass(frozen=True)
class StreamedAttention:
    """The attention of a batch: output and log-sum-exp, with gradients if enabled."""

    level: GraphLayout
    buckets: Buckets
    q: Tensor
    k: Tensor
    out: Tensor
    """[N, H, C]."""
    lse: Tensor
    """[N, H]."""

    @classmethod
    @no_compile
    def of(cls, q: Tensor, k: Tensor, v: Tensor, level: GraphLayout) -> Self:
        """Return the attention of q, k and v, [N, H, C] each."""
        exact = torch.promote_types(q.dtype, torch.float32)
        buckets = buckets_of(level, q.to(exact))
        return cls(level, buckets, q, k, *attend(q, k, v, level.ptr, buckets=buckets))

    def project(self, near: Tensor, theta: Tensor) -> Tensor:
        """Return the output times one vector per head, A V theta, [N, H]."""
        del near
        return (self.out * theta).sum(-1)

    @no_compile
    def edge_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention weight from target to source of each edge, [E, H]."""
        return edge_attention(self.q, self.k, self.lse, torch.stack([source, target]))

    @no_compile
    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Return the output of the kept nodes; see ``MaterializedAttention.rows``."""
        some = kept_buckets(self.level, ratio, q)
        return attend_rows(q, k, v, kept, self.out, self.lse, self.buckets, some)


@no_compile
def attend_no_grad(q: Tensor, k: Tensor, v: Tensor, level: GraphLayout) -> BatchAttention:
    """Return attention without gradients, to score all rows before some are kept.

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        v: Values, [N, H, C].
        level: The layout of the batch.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    on_gpu = q.is_cuda and exact == torch.float32 and has_triton()
    if on_gpu and q.size(-1) <= WIDEST:
        with torch.cuda.device_of(q):  # Triton launches on the current device
            kernels = import_module("gtpool.ops.kernels.triton_attention")
            return kernels.TritonAttention.of(q, k, v, level)
    if q.device.type == "cpu" and weights_fit(q.to(exact), level):
        with without_autocast(q.device):
            return MaterializedAttention.of(q.to(exact), k.to(exact), v.to(exact), level)
    return StreamedAttention.of(q, k, v, level)


@no_compile
def linear_known(x: Tensor, weight: Tensor, result: Tensor, kept: Tensor) -> Tensor:
    """Return rows of a known linear map, with gradients, [K, D] -> [K, D'].

    Args:
        x: The input rows, [K, D].
        weight: The weight, [D', D].
        result: The map of all rows, [N, D'].
        kept: Index of each input row in ``result``, [K].
    """
    return _LinearKnown.apply(x, weight, result, kept)


class _LinearKnown(Function):
    """Linear map with a known result, for its gradients."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - not described by Function's annotations
        x: Tensor,
        weight: Tensor,
        result: Tensor,
        kept: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return result.index_select(0, kept)

    @staticmethod
    @once_differentiable
    @no_autocast
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_result: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_result = d_result.to(x.dtype)  # lower precision under autocast
        return d_result @ weight.to(x.dtype), d_result.T @ x, None, None


MAX_ROW_WEIGHTS = 128
"""Mean weights per row up to which they are stored; the memory equals a layer of that width."""
MAX_BATCH_WEIGHTS = 2**22
"""Weights of a batch up to which they are always stored: 16 MB in float32."""


def weights_fit(q: Tensor, level: GraphLayout) -> bool:
    """Return whether the attention weights of a batch, for queries [N, H, C], fit in memory."""
    shapes = buckets_of(level, q).shapes
    rows, entries = (sum(count * length**power for count, length in shapes) for power in (1, 2))
    return entries <= max(MAX_ROW_WEIGHTS * rows, MAX_BATCH_WEIGHTS)
