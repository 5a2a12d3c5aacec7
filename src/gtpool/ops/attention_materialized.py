"""Attention with stored weights, for batches whose weights fit in memory; on a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import GraphLayout
from gtpool.ops.bucket import Buckets, buckets_of, each_head, kept_buckets
from gtpool.ops.dense import map_rows, sum_products
from gtpool.ops.entry import no_autocast, no_compile


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

    @no_compile
    def rows_of_one_head(
        self,
        x: Tensor,
        weights: tuple[Tensor, Tensor],
        queries: Tensor,
        kept: Tensor,
        ratio: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the output of the kept nodes for one head with keys and values x, and their x.

        It is ``rows`` with its linear maps as one step, with fewer passes over the rows, [K, D]
        each.

        Args:
            x: The nodes, which ``of`` got as keys and values, [N, D].
            weights: Of the queries, W_K^T W_Q, and of the values, [D, D] each.
            queries: Queries of all nodes, without gradient, [N, D].
            kept: The kept nodes, ascending, [K].
            ratio: Share, or number, of nodes kept in each graph.
        """
        some = kept_buckets(self.level, ratio, queries.unsqueeze(1))
        return _RowsOfOneHead.apply(x, *weights, queries, self, kept, some)

    def attend(self, kept: Tensor, some: Buckets) -> tuple[Tensor, list[Tensor]]:
        """Return the output of the kept nodes, [K * H, C], and their weights by bucket."""
        slot = self.buckets.place
        if self.buckets.heads > 1:
            slot = slot.view(-1, self.buckets.heads)
        slot = slot.index_select(0, kept).flatten()
        out = self.v.new_empty(some.row.numel(), self.v.size(1))
        weights: list[Tensor] = []
        begin = 0
        columns, rows = self.buckets.split(self.v), some.split(some.fill(slot), out)
        for whole, values, row, result in zip(self.weights(), *columns, *rows, strict=True):
            count, length, width = whole.shape
            weight = whole.view(-1, width).index_select(0, row.view(-1).sub_(begin))
            weights.append(weight.view(count, -1, width))
            torch.bmm(weights[-1], values, out=result)
            begin += count * length
        return some.unpad(out), weights


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


def _gradients(
    buckets: Buckets,
    some: Buckets,
    scale: float,
    same: bool,
    saved: Sequence[Tensor],
    d_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the queries of some rows, of keys and of values.

    Args:
        buckets: The layout of all rows.
        some: The layout of the rows.
        scale: Factor on q·k.
        same: Whether keys are values; the gradient of the keys is then that of both.
        saved: Queries and output of the rows, padded keys and values, and weights by bucket.
        d_out: Gradient of the output of the rows.
    """
    q, out, k, v, *weights = saved
    row_term = some.pad((d_out * out).sum(-1, keepdim=True).neg_())
    q, d_out = some.fill(q), some.pad(d_out)
    d_q, d_k = torch.empty_like(q), torch.empty_like(k)
    d_v = d_k if same else torch.empty_like(v)
    rows = some.split(q, d_q, d_out, row_term)
    columns = buckets.split(k, d_k, v, d_v)
    for weight, *parts in zip(weights, *rows, *columns, strict=True):
        q, d_q_part, d_out, row_term, k, d_k_part, v, d_v_part = parts
        torch.bmm(weight.mT, d_out, out=d_v_part)
        d_logits = torch.baddbmm(row_term, d_out, v.mT).mul_(weight)
        d_q_part.baddbmm_(d_logits, k, beta=0, alpha=scale)
        d_k_part.baddbmm_(d_logits.mT, q, beta=int(same), alpha=scale)
    return some.unpad(d_q), buckets.unpad(d_k), None if same else buckets.unpad(d_v)


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
        out, weights = held.attend(kept, some)
        ctx.save_for_backward(q, out, held.k, held.v, *weights)
        ctx.plan = held.buckets, some, held.scale, held.v is held.k
        return out

    @staticmethod
    @once_differentiable
    @no_autocast
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        buckets, some, scale, same = ctx.plan
        gradients = _gradients(buckets, some, scale, same, ctx.saved_tensors, d_out)
        return *gradients, None, None, None


class _RowsOfOneHead(Function):
    """``A X W_V^T`` of some rows, and these rows of X, with A = softmax(X W X^T / sqrt(C))."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        value: Tensor,
        queries: Tensor,
        held: MaterializedAttention,
        kept: Tensor,
        some: Buckets,
    ) -> tuple[Tensor, Tensor]:
        own, q = x.index_select(0, kept), queries.index_select(0, kept)
        out, weights = held.attend(kept, some)
        ctx.save_for_backward(weight, value, kept, own, q, out, held.k, held.v, *weights)
        ctx.plan = held.buckets, some, held.scale, held.v is held.k
        return map_rows(out, value), own

    @staticmethod
    @once_differentiable
    @no_autocast
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_mapped: Tensor,
        d_own: Tensor,
    ) -> tuple[Tensor | None, ...]:
        weight, value, kept, own, *saved = ctx.saved_tensors
        buckets, some, scale, same = ctx.plan
        d_q, d_x, _ = _gradients(buckets, some, scale, same, saved, map_rows(d_mapped, value.T))
        d_x.index_add_(0, kept, map_rows(d_q, weight.T).add_(d_own))
        out = saved[1]
        return d_x, sum_products(d_q, own), sum_products(d_mapped, out), None, None, None, None
