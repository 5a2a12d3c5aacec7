r"""Kernelised attention inside each graph of a packed batch, linear in its nodes.

.. math::
    A_{ij} = f(s_{ij}) / \sum_{j'} f(s_{ij'}), \quad f(s) = 1 + s + s^2 / 2,
    \quad s_{ij} = q_i \cdot k_j / \sqrt{C}

f is the second-order Taylor expansion of exp. For small logits, as in a new layer, this is close to
softmax attention. For large logits it differs: rows are flatter, and logits below -1 gain weight
again. f(s) = φ(q)·φ(k), where φ maps a vector to 1, its entries and their products. The sums over j
are therefore computed once per graph, with n C² / 2 terms per value instead of n².

Why this feature map:

- It depends only on q·k, as softmax does, so A on edges needs no features. Maps of single channels
  (elu + 1, softmax or exponentials of ±x) add terms of q alone and of k alone; with many channels
  all rows become similar. In a new layer of width 128, half the sum of |A - softmax| over a row is
  0.005 here and 0.13 for elu + 1.
- It is deterministic. Positive random features match softmax only on average: 0.27 for 256.
- It needs no subtraction of a maximum: f >= 1/2 and f >= s²/4, so row sums stay away from zero.
  Cancellation loses at most a factor (1 + |s| + s²/2) / f(s) <= 5.9.

The cost grows with C²: four heads of 32 channels need a sixteenth of the products of one head of
128. Graphs of fewer than C² / 2 nodes use n x n products in blocks, with the same sums.
"""

from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from gtpool.graph import GraphLayout
from gtpool.ops import attention_sums
from gtpool.ops.attention import check_alike
from gtpool.ops.attention_streamed import StreamedAttention
from gtpool.ops.bucket import Buckets, buckets_of, kept_buckets
from gtpool.ops.edge_products import edge_products
from gtpool.ops.entry import no_compile

ALIGN = 8
"""Columns of values, including one for the row sum, are padded to a multiple of this for speed."""


class LinearAttention(StreamedAttention):
    """Linear attention of a batch; ``lse`` is the logarithm of each row sum."""

    @classmethod
    @no_compile
    def of(cls, q: Tensor, k: Tensor, v: Tensor, level: GraphLayout) -> Self:
        """Return the attention of q, k and v, [N, H, C] each."""
        buckets = buckets_of(level, q.to(torch.promote_types(q.dtype, torch.float32)))
        return cls(level, buckets, q, k, *attend_linear(q, k, v, level.ptr, buckets=buckets))

    @no_compile
    def edge_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention weight from target to source of each edge, [E, H]."""
        return edge_attention_linear(self.q, self.k, self.lse, torch.stack([source, target]))

    @no_compile
    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Return the output of the kept nodes, with gradients, [K, H, C]."""
        if not torch.is_grad_enabled():
            return self.out.index_select(0, kept)
        return _attend(q, k, v, kept_buckets(self.level, ratio, q), self.buckets, None)[0]


def attend_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ptr: Tensor,
    *,
    scale: float | None = None,
    buckets: Buckets | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention with the kernel f of every node to all nodes of its own graph.

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        v: Values, [N, H, C].
        ptr: First node of each graph, then N, [G + 1]; a CPU tensor avoids a device sync.
        scale: Factor on q·k; the default is 1/sqrt(C).
        buckets: The padded layout of the batch, if it is already computed.

    Returns:
        ``out`` [N, H, C] in the dtype of ``v``, and the logarithm of each row sum of f [N, H] in
        float32 or better. Both have gradients.

    Example:
        >>> x = torch.zeros(3, 1, 2)
        >>> out, lse = attend_linear(x, x, torch.eye(3, 2)[:, None], torch.tensor([0, 2, 3]))
        >>> out[:, 0].tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]
    """
    check_alike(q, k, v)
    if buckets is None:
        exact = torch.promote_types(q.dtype, torch.float32)
        buckets = Buckets.of(ptr.to("cpu", torch.long), q.to(exact))
    out, total = _attend(q, k, v, buckets, buckets, scale)
    return out, total.log()


def edge_attention_linear(
    q: Tensor, k: Tensor, lse: Tensor, edge_index: Tensor, *, scale: float | None = None
) -> Tensor:
    """Return the attention weight f(q_i·k_j·scale) / exp(lse_i) of each edge j -> i, [E, H].

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        lse: Second result of :func:`attend_linear`, [N, H].
        edge_index: Source j and target i of each edge, [2, E].
        scale: As given to :func:`attend_linear`.
    """
    factor = q.size(-1) ** -0.5 if scale is None else scale
    with torch.autocast(q.device.type, enabled=False):
        logits = edge_products(q.to(lse.dtype), k.to(lse.dtype), edge_index) * factor
        return attention_sums.kernel(logits) * (-lse).exp().index_select(0, edge_index[1])


def _attend(
    q: Tensor, k: Tensor, v: Tensor, queries: Buckets, keys: Buckets, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the output of queries, which may have a separate layout, and the row sums."""
    channels = q.size(-1)
    factor = channels**-0.5 if scale is None else scale
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        query, key = q.to(exact) * factor, k.to(exact)
        value = pad(pad(v.to(exact), (0, 1), value=1.0), (0, -(channels + 1) % ALIGN))
        rows = (part.flatten(0, 1) for part in (query, key, value))
        sums = _Sums.apply(*rows, queries, keys).unflatten(0, q.shape[:2])
        total = sums[..., channels]
        return (sums[..., :channels] / total.unsqueeze(-1)).to(v.dtype), total


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _Sums(Function):
    """Σ_j f(q_i·k_j) v_j over the graph of i; the backward pass recomputes the features."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor,
        queries: Buckets,
        keys: Buckets,
    ) -> Tensor:
        # Padding has value 0, and 0 in the column of the row sum, so it adds nothing.
        q, k, v = queries.pad(q), keys.pad(k), keys.pad(v)
        sums = v.new_empty(q.size(0), v.size(1))
        for parts in zip(*queries.split(q), *keys.split(k, v), *queries.split(sums), strict=True):
            long = attention_sums.is_long(parts[1])
            fill = attention_sums.sum_by_features if long else attention_sums.sum_by_pairs
            fill(*parts)
        ctx.save_for_backward(q, k, v)
        ctx.plan = queries, keys
        return queries.unpad(sums)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_sums: Tensor,
    ) -> tuple[Tensor | None, ...]:
        queries, keys = ctx.plan
        q, k, v = ctx.saved_tensors
        d_sums = queries.pad(d_sums.contiguous())
        d_q, d_k, d_v = (torch.empty_like(part) for part in (q, k, v))
        some, others = queries.split(q, d_sums, d_q), keys.split(k, v, d_k, d_v)
        lists = some[0], *others[:2], *some[1:], *others[2:]
        with torch.autocast(q.device.type, enabled=False):
            for parts in zip(*lists, strict=True):
                long = attention_sums.is_long(parts[1])
                fill = attention_sums.grads_by_features if long else attention_sums.grads_by_pairs
                fill(*parts)
        return queries.unpad(d_q), keys.unpad(d_k), keys.unpad(d_v), None, None
