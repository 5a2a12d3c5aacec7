"""Attention of which every row is scored and only some may be kept, for graphs of any size."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import Level
from gtpool.ops.attention import attend, attend_rows, edge_attention
from gtpool.ops.attention_held import Held, fits
from gtpool.ops.bucket import Buckets, buckets_of, kept_buckets
from gtpool.ops.entry import eager, precise
from gtpool.ops.steps import WIDEST


class Attended(Protocol):
    """What a layer asks of the attention of a batch."""

    def project(self, near: Tensor, theta: Tensor) -> Tensor:
        """Give the output times a vector a head, A V theta, given V theta, [N, H]."""
        ...

    def on_edges(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the weight that the target of each edge gives its source, [E, H]."""
        ...

    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Give the output of some nodes with gradients for their rows, [K, H, C]."""
        ...


@dataclass(frozen=True)
class Streamed:
    """The attention of a batch: its output and log-sum-exp, with gradients where they are on."""

    level: Level
    buckets: Buckets
    q: Tensor
    k: Tensor
    out: Tensor
    """[N, H, C]."""
    lse: Tensor
    """[N, H]."""

    @classmethod
    @eager
    def of(cls, q: Tensor, k: Tensor, v: Tensor, level: Level) -> Self:
        """Attend: q, k and v are [N, H, C]."""
        exact = torch.promote_types(q.dtype, torch.float32)
        buckets = buckets_of(level, q.to(exact))
        return cls(level, buckets, q, k, *attend(q, k, v, level.ptr, buckets=buckets))

    def project(self, near: Tensor, theta: Tensor) -> Tensor:
        """Give the output times a vector a head, A V theta, [N, H]."""
        del near
        return (self.out * theta).sum(-1)

    @eager
    def on_edges(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the weight that the target of each edge gives its source, [E, H]."""
        return edge_attention(self.q, self.k, self.lse, torch.stack([source, target]))

    @eager
    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Give the output of some nodes, as ``Held.rows`` does."""
        some = kept_buckets(self.level, ratio, q)
        return attend_rows(q, k, v, kept, self.out, self.lse, self.buckets, some)


@eager
def look(q: Tensor, k: Tensor, v: Tensor, level: Level) -> Attended:
    """Attend without gradients, for scores of all rows and the output of some.

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        v: Values, [N, H, C].
        level: The layout of the batch.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    kernels = q.is_cuda and exact == torch.float32 and find_spec("triton") is not None
    if kernels and q.size(-1) <= WIDEST:
        with torch.cuda.device_of(q):  # where Triton launches
            return import_module("gtpool.ops.kernels.looked").Looked.of(q, k, v, level)
    if q.device.type == "cpu" and fits(q.to(exact), level):
        with torch.autocast("cpu", enabled=False):
            return Held.of(q.to(exact), k.to(exact), v.to(exact), level)
    return Streamed.of(q, k, v, level)


@eager
def known_rows(x: Tensor, weight: Tensor, result: Tensor, kept: Tensor) -> Tensor:
    """Map rows by a matrix, [K, D] -> [K, D'], where the result is known but for its gradients.

    Args:
        x: The rows to map, [K, D].
        weight: The matrix, [D', D].
        result: What came of mapping these and others, [N, D'].
        kept: Where these are among them, [K].
    """
    return _Known.apply(x, weight, result, kept)


class _Known(Function):
    """A linear map that has only its gradients left to compute."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - Function's own annotations do not say what these methods are given
        x: Tensor,
        weight: Tensor,
        result: Tensor,
        kept: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        return result.index_select(0, kept)

    @staticmethod
    @once_differentiable
    @precise
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_result: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_result = d_result.to(x.dtype)  # autocast maps in short floats
        return d_result @ weight.to(x.dtype), d_result.T @ x, None, None
