r"""Kernelised attention inside each graph of a packed batch: time and memory linear in its nodes.

.. math::
    A_{ij} = f(s_{ij}) / \sum_{j'} f(s_{ij'}), \quad f(s) = 1 + s + s^2 / 2,
    \quad s_{ij} = q_i \cdot k_j / \sqrt{C}

f is the exponential to second order, so this is softmax attention where logits are small, as they
are when a layer starts, and another function where they are large: its rows are flatter, and a
logit below -1 gains weight again. f(s) = φ(q)·φ(k) for the map of a vector to 1, its entries and
their products, so the sums over j are taken once for a graph and not once for a node: n C² / 2
terms a value instead of n².

Why this map:

- It sees q·k and nothing else, as softmax does, so A on edges needs no features. A sum of functions
  of single channels (elu + 1, softmax or exponentials of ±x) is C plus terms of q alone and of k
  alone plus q·k: the more channels, the nearer all rows are to one and the same. In a fresh layer
  of width 128 half of the sum of |A - softmax| over a row is 0.005 here and 0.13 for elu + 1.
- It is the same at every run. Positive random features are softmax on average only: 0.27 for 256.
- It needs no maximum subtracted: f >= 1/2 and f >= s²/4, so a row sum is never near zero, and no
  more is lost to cancellation than a factor (1 + |s| + s²/2) / f(s) <= 5.9.

The price is C²: four heads of 32 channels take a sixteenth of the products of one head of 128.
Graphs of less than C² / 2 nodes are done by n x n products, in blocks: the same sums, less work.
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
"""Columns of values are a multiple of this, one of them for the row sum: odd widths are slow."""


class LinearAttention(StreamedAttention):
    """The attention of a batch by f; ``lse`` is the logarithm of each row sum."""

    @classmethod
    @no_compile
    def of(cls, q: Tensor, k: Tensor, v: Tensor, level: GraphLayout) -> Self:
        """Attend: q, k and v are [N, H, C]."""
        buckets = buckets_of(level, q.to(torch.promote_types(q.dtype, torch.float32)))
        return cls(level, buckets, q, k, *attend_linear(q, k, v, level.ptr, buckets=buckets))

    @no_compile
    def edge_weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the weight that the target of each edge gives its source, [E, H]."""
        return edge_attention_linear(self.q, self.k, self.lse, torch.stack([source, target]))

    @no_compile
    def rows(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, ratio: float) -> Tensor:
        """Give the output of some nodes, with gradients, [K, H, C]."""
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
    """Let every node attend to every node of its own graph, by the kernel f.

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        v: Values, [N, H, C].
        ptr: First node of each graph and N at the end, [G + 1]; on the host, nothing synchronises.
        scale: Factor on q·k; the default is 1/sqrt(C).
        buckets: The layout that ``ptr`` gives, where it is at hand.

    Returns:
        What :func:`gtpool.ops.attention.attend` does: ``out`` [N, H, C] in the dtype of ``v``, and
        the logarithm of each row sum of f [N, H] in float32 or better; both carry gradients.

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
    """Read attention on edges only: f(q_i·k_j·scale) / exp(lse_i) for each edge j -> i, [E, H].

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        lse: What :func:`attend_linear` returned for them, [N, H].
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
    """Give the output of queries that have a layout of their own, and the row sums."""
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


# Function hands its own subclass of FunctionCtx and any number of gradients to these methods, which
# its annotations do not say: hence Any and the override ignored.


class _Sums(Function):
    """Σ_j f(q_i·k_j) v_j over the graph of i; the backward pass rebuilds all of it."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor,
        queries: Buckets,
        keys: Buckets,
    ) -> Tensor:
        # Where values are zero, and the 1 to be summed with them, padding adds nothing.
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
