"""Attention for pooling: scores of all rows, outputs of the kept rows, for graphs of any size."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import GraphLayout
from gtpool.ops.attention import attend, attend_rows, edge_attention
from gtpool.ops.bucket import Buckets, buckets_of, each_head, kept_buckets
from gtpool.ops.entry import no_autocast, no_compile
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
        with torch.autocast("cpu", enabled=False):
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


@dataclass(frozen=True)
class MaterializedAttention:
    """The attention of a batch with stored weights."""

    level: GraphLayout
    buckets: Buckets
    scale: float
    k: Tensor
    """Padded keys, [slots, C]; the same tensor as ``v`` if keys are values."""
    v: Tensor
    """Padded values, [slots, C]."""
    flat: Tensor
    """The weights of all buckets, one after another."""
    cell: Tensor
    """Index into ``flat`` of the weight from node i to node j, minus j, [N, H]."""

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, level: GraphLayout) -> Self:
        """Return the attention of q, k and v, [N, H, C] in float32 or better, without gradients."""
        buckets, scale = buckets_of(level, q), q.size(-1) ** -0.5
        name = ("cells", q.size(1), q.device)
        cell = level.cached(name, lambda: _cells(buckets, level))
        padded = buckets.fill(k.flatten(0, 1))
        v = padded if v is k else buckets.fill(v.flatten(0, 1))
        q, k = buckets.fill(q.flatten(0, 1)), padded
        flat = q.new_empty(sum(count * length**2 for count, length in buckets.shapes))
        held = cls(level, buckets, scale, k, v, flat, cell)
        for weight, (mask, rows, columns) in zip(held.weights(), buckets.each(q, k), strict=True):
            torch.softmax(torch.baddbmm(mask, rows, columns.mT, alpha=scale), -1, out=weight)
        return held

    def weights(self) -> list[Tensor]:
        """Return the weights of each bucket, [sequences, length, length]."""
        shapes = [(count, length, length) for count, length in self.buckets.shapes]
        parts = self.flat.split([count * length * length for count, length, _ in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    @no_compile
    def project(self, near: Tensor, theta: Tensor) -> Tensor:
        """Return the output times one vector per head, A V theta, from V theta, [N, H]."""
        del theta
        given = self.buckets.fill(near.to(self.v.dtype).flatten())
        out = torch.empty_like(given)
        parts = zip(self.weights(), *self.buckets.split(given, out), strict=True)
        for weight, row, result in parts:  # row times matrix is faster than matrix times column
            torch.bmm(row.unsqueeze(1), weight.mT, out=result.unsqueeze(1))
        return self.buckets.unpad(out).view_as(self.cell)

    @no_compile
    def edge_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention weight from target to source of each edge, [E, H]."""
        heads = self.buckets.heads
        entry = self.cell.flatten().index_select(0, each_head(target, heads))
        entry = entry.view(-1, heads).add_(source[:, None])
        return self.flat.index_select(0, entry.flatten()).view(entry.shape)

    @no_compile
    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Return the output of the kept nodes, with gradients, [K, H, C].

        Args:
            q: Queries of the kept nodes, [K, H, C].
            k: Keys of all nodes, [N, H, C].
            v: Values of all nodes, [N, H, C]; ignored if ``of`` got the keys as values.
            kept: The kept nodes, ascending, [K].
            ratio: Share, or number, of nodes kept in each graph.
        """
        shape, dtype = q.shape, v.dtype
        q, k, v = (part.to(self.v.dtype) for part in (q, k, v))
        some = kept_buckets(self.level, ratio, q)
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        out = _Rows.apply(q, k, None if self.v is self.k else v, self, kept, some)
        return out.view(shape).to(dtype)


def _cells(buckets: Buckets, level: GraphLayout) -> Tensor:
    """Return the index of the first weight of each node and head, minus its first node, [N, H]."""
    count, length = np.array(buckets.shapes).T
    slots = (count * length).cumsum() - count * length
    entries = (count * length**2).cumsum() - count * length**2
    # A row of weights starts at its slot within the bucket, times the bucket's length.
    shift, step = (part.repeat(count * length) for part in (entries - slots * length, length))
    begin = torch.from_numpy(np.arange(shift.size) * step + shift).to(buckets.place.device)
    first = level.ptr.to(level.batch.device).index_select(0, level.batch)
    return begin.index_select(0, buckets.place).view(-1, buckets.heads).sub_(first[:, None])


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _Rows(Function):
    """Rows of the output; the backward pass covers these rows only."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        held: MaterializedAttention,
        kept: Tensor,
        some: Buckets,
    ) -> Tensor:
        del k, v  # already padded in ``held``
        buckets = held.buckets
        slot = buckets.place.view(-1, buckets.heads).index_select(0, kept).flatten()
        out = q.new_empty(some.row.numel(), q.size(1))
        weights: list[Tensor] = []
        begin = 0
        columns, rows = buckets.split(held.v), some.split(some.fill(slot), out)
        for whole, values, row, result in zip(held.weights(), *columns, *rows, strict=True):
            weight = whole.flatten(0, 1).index_select(0, row.flatten().sub_(begin))
            weights.append(weight.view(*row.shape, -1))
            torch.bmm(weights[-1], values, out=result)
            begin += whole.size(0) * whole.size(1)
        out = some.unpad(out)
        ctx.save_for_backward(q, out, held.k, held.v, *weights)
        ctx.plan = buckets, some, held.scale, held.v is held.k
        return out

    @staticmethod
    @once_differentiable
    @no_autocast
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        q, out, k, v, *weights = ctx.saved_tensors
        buckets, some, scale, same = ctx.plan
        row_term = some.pad((d_out * out).sum(-1, keepdim=True).neg_())
        q, d_out = some.fill(q), some.pad(d_out)
        d_q, d_k, d_v = (torch.empty_like(part) for part in (q, k, v))
        d_v = d_k if same else d_v
        rows, columns = some.split(q, d_q, d_out, row_term), buckets.split(k, d_k, v, d_v)
        for weight, *parts in zip(weights, *rows, *columns, strict=True):
            q, d_q_part, d_out, row_term, k, d_k_part, v, d_v_part = parts
            torch.bmm(weight.mT, d_out, out=d_v_part)
            d_logits = torch.baddbmm(row_term, d_out, v.mT).mul_(weight)
            d_q_part.baddbmm_(d_logits, k, beta=0, alpha=scale)
            d_k_part.baddbmm_(d_logits.mT, q, beta=int(same), alpha=scale)
        d_v = None if same else buckets.unpad(d_v)
        return some.unpad(d_q), buckets.unpad(d_k), d_v, None, None, None
