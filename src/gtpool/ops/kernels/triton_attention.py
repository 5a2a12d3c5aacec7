"""Attention for pooling with Triton kernels: scores of all rows, outputs of the kept rows."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import GraphLayout
from gtpool.ops.drop import kept_layout
from gtpool.ops.kernels.attention import attend, attend_backward, edge_weights
from gtpool.ops.kernels.score import packed_scores
from gtpool.ops.segment import device_layout
from gtpool.padded_batch import PaddedLayout


@dataclass(frozen=True)
class TritonAttention:
    """The attention of a batch; see ``gtpool.ops.attention_streamed.BatchAttention``."""

    level: GraphLayout
    layout: PaddedLayout
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    """[N, H, C]."""
    lse: Tensor
    """[N, H]."""

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, level: GraphLayout) -> Self:
        """Return the attention of q, k and v, [N, H, C] each, in the dtype of q."""
        layout = device_layout(level)
        q, k, v = (part.to(q.dtype).contiguous() for part in (q, k, v))
        return cls(level, layout, q, k, v, *attend(q, k, v, layout, q.size(-1) ** -0.5))

    def project(self, near: Tensor, theta: Tensor) -> Tensor:
        """Return the output times one vector per head, A V theta, [N, H]."""
        del near
        return (self.out * theta).sum(-1)

    def edge_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention weight from target to source of each edge, [E, H]."""
        ends = torch.stack([source, target])
        return edge_weights(self.q, self.k, self.lse, ends, self.q.size(-1) ** -0.5)

    def scores(self, theta: Tensor, lam: float, edge_index: Tensor) -> Tensor:
        """Return scores with tanh, given theta_l and theta_g, [H, 2, C] -> [N]; no gradients."""
        parts = (self.q, self.k, self.v, self.out, self.lse, theta.float(), lam, edge_index)
        with torch.cuda.device_of(self.q):  # Triton launches on the current device
            return packed_scores(*parts, self.q.size(-1) ** -0.5)

    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Return the output of the kept nodes, with gradients of these rows, [K, H, C]."""
        after = device_layout(kept_layout(self.level, ratio))
        return _RowsOfKnownOutput.apply(q, k, v, kept, self, after)  # pyright: ignore[reportReturnType]


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _RowsOfKnownOutput(Function):
    """Rows of a known output, with the gradients of these rows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kept: Tensor,
        attention: TritonAttention,
        after: PaddedLayout,
    ) -> Tensor:
        del q, k, v  # already in ``attention``
        out = attention.out.index_select(0, kept)
        ctx.save_for_backward(attention.q, attention.k, attention.v, out, attention.lse, kept)
        ctx.layout = attention.layout, after
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, kept = ctx.saved_tensors
        layout, after = ctx.layout
        parts = (q, k, v, out, lse, d_out.to(out.dtype).contiguous(), layout, q.size(-1) ** -0.5)
        d_q, d_k, d_v = attend_backward(*parts, kept=kept, kept_rows=after).unbind(1)
        return d_q.index_select(0, kept), d_k, d_v, None, None, None
