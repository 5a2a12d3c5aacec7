"""Exact softmax attention inside each graph of a packed batch.

No implementation materialises an n x n matrix for a large graph. Graphs are sorted into buckets of
similar size, and each bucket is one padded computation (``attention_padded``, any device). On a CPU
the larger buckets use PyTorch's fused kernel (``attention_fused``).
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.ops import attention_fused, attention_padded
from gtpool.ops.bucket import Buckets
from gtpool.ops.edge_products import edge_products
from gtpool.ops.entry import no_autocast

AttentionBackend = Literal["auto", "reference", "padded", "fused"]
BACKENDS = ("auto", "reference", "padded", "fused")

FUSED_FROM = 96
"""Bucket size from which the fused CPU kernel is faster than padded products (``make bench``)."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ptr: Tensor,
    *,
    scale: float | None = None,
    backend: AttentionBackend = "auto",
    buckets: Buckets | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention of every node to all nodes of its own graph.

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        v: Values, [N, H, C].
        ptr: First node of each graph, then N, [G + 1]; a CPU tensor avoids a device sync.
        scale: Factor on q·k; the default is 1/sqrt(C).
        backend: A name of ``BACKENDS``; "auto" chooses by graph size and device.
        buckets: The padded layout of the batch for these heads, if it is already computed.

    Returns:
        ``out`` [N, H, C] in the dtype of ``v``, and the log-sum-exp of each row of logits [N, H],
        in float32 or better. Both have gradients.

    Example:
        >>> x = torch.zeros(3, 1, 2)
        >>> out, lse = attend(x, x, torch.eye(3, 2)[:, None], torch.tensor([0, 2, 3]))
        >>> out[:, 0].tolist()
        [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]
    """
    check_alike(q, k, v)
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "fused" and not attention_fused.available(q.device):
        raise ValueError(
            f"torch {torch.__version__} has no fused kernel for {q.device}; choose another backend"
        )
    ptr = ptr.to("cpu", torch.long)
    if ptr[0] != 0 or ptr[-1] != q.size(0) or (ptr.diff() < 0).any():
        raise ValueError(f"ptr must ascend from 0 to the number of nodes, {q.size(0)}")
    factor = q.size(-1) ** -0.5 if scale is None else scale
    exact = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        parts = (q.to(exact), k.to(exact), v.to(exact))
        if backend == "reference":
            out, lse = attend_reference(*parts, ptr, scale=factor)
        else:
            buckets = Buckets.of(ptr, parts[0]) if buckets is None else buckets
            rows = (part.flatten(0, 1) for part in parts)
            rows = _Attend.apply(*rows, buckets, factor, _fused_from(backend, q.device))
            out, lse = (part.unflatten(0, q.shape[:2]) for part in rows)
    return out.to(v.dtype), lse


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Tensor,
    out: Tensor,
    lse: Tensor,
    buckets: Buckets,
    some: Buckets,
) -> Tensor:
    """Return the rows of ``out`` at some nodes; only these rows get gradients, [K, H, C].

    Args:
        q: Queries of the rows, [K, H, C].
        k: Keys, [N, H, C].
        v: Values, [N, H, C].
        kept: The nodes, ascending, [K].
        out: Output of :func:`attend` for all nodes with the default scale, [N, H, C].
        lse: Log-sum-exp from :func:`attend`, [N, H].
        buckets: The padded layout of all nodes, in the dtype of ``lse``.
        some: The padded layout of the kept nodes, with graphs in the same buckets.
    """
    parts = (part.to(lse.dtype).flatten(0, 1) for part in (q, k, v))
    rows = (part.index_select(0, kept).flatten(0, 1) for part in (out.to(lse.dtype), lse))
    return _AttendRows.apply(*parts, *rows, buckets, some).view(q.shape).to(v.dtype)


def edge_attention(
    q: Tensor, k: Tensor, lse: Tensor, edge_index: Tensor, *, scale: float | None = None
) -> Tensor:
    """Return the attention weight exp(q_i·k_j·scale - lse_i) of each edge j -> i, [E, H].

    Args:
        q: Queries, [N, H, C].
        k: Keys, [N, H, C].
        lse: Log-sum-exp from :func:`attend`, [N, H].
        edge_index: Source j and target i of each edge, [2, E].
        scale: As given to :func:`attend`.
    """
    factor = q.size(-1) ** -0.5 if scale is None else scale
    with torch.autocast(q.device.type, enabled=False):
        products = edge_products(q.to(lse.dtype), k.to(lse.dtype), edge_index)
        return (products * factor - lse.index_select(0, edge_index[1])).exp()


def check_alike(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise a ValueError unless q, k and v have the same non-empty shape [N, H, C]."""
    if not q.shape == k.shape == v.shape or q.dim() != 3 or q.numel() == 0:
        shapes = ", ".join(str(list(part.shape)) for part in (q, k, v))
        raise ValueError(
            f"q, k and v must have the same non-empty shape [nodes, heads, channels], got {shapes}"
        )


def _fused_from(backend: AttentionBackend, device: torch.device) -> float:
    """Return the bucket size from which the fused kernel is used."""
    if backend == "fused":
        return 0
    return FUSED_FROM if backend == "auto" and attention_fused.available(device) else float("inf")


# torch calls these methods with types that the annotations of Function do not describe: hence Any
# and the ignored override.


class _Attend(Function):
    """Attention bucket by bucket; the backward pass recomputes the weights."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor,
        buckets: Buckets,
        scale: float,
        fused_from: float,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (buckets.fill(part) for part in (q, k, v))
        out, lse = torch.empty_like(v), v.new_empty(v.size(0))
        for mask, *parts in buckets.each(q, k, v, out, lse):
            _kernel(parts[0].size(1), fused_from).forward(mask, *parts, scale=scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = buckets, scale, fused_from
        ctx.set_materialize_grads(False)
        return buckets.unpad(out), buckets.unpad(lse)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor | None,
        d_lse: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        buckets, scale, fused_from = ctx.plan
        q, k, v, out, lse = ctx.saved_tensors
        d_out = torch.zeros_like(out) if d_out is None else buckets.pad(d_out)
        d_lse = None if d_lse is None else buckets.pad(d_lse)
        grads = tuple(torch.empty_like(part) for part in (q, k, v))
        given = (d_out,) if d_lse is None else (d_out, d_lse)
        with torch.autocast(q.device.type, enabled=False):
            for mask, *parts in buckets.each(q, k, v, out, lse, *grads, *given):
                _kernel(parts[0].size(1), fused_from).backward(mask, *parts, scale=scale)
        return *(buckets.unpad(grad) for grad in grads), None, None, None


class _AttendRows(Function):
    """Rows of a known output, with the gradients of these rows."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        buckets: Buckets,
        some: Buckets,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = buckets, some
        return out.clone()

    @staticmethod
    @once_differentiable
    @no_autocast
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_out: Tensor,
    ) -> tuple[Tensor | None, ...]:
        buckets, some = ctx.plan
        q, k, v, out, lse = ctx.saved_tensors
        q, out, lse = (some.fill(part) for part in (q, out, lse))
        k, v, d_out = buckets.fill(k), buckets.fill(v), some.pad(d_out)
        d_q, d_k, d_v = (torch.empty_like(part) for part in (q, k, v))
        fused_from = _fused_from("auto", q.device)
        rows, columns = some.split(q, out, lse, d_q, d_out), buckets.each(k, v, d_k, d_v)
        for q, out, lse, into, given, (mask, k, v, *grads) in zip(*rows, columns, strict=True):
            kernel = _kernel(k.size(1), fused_from)
            kernel.backward(mask, q, k, v, out, lse, into, *grads, given, scale=q.size(-1) ** -0.5)
        return some.unpad(d_q), buckets.unpad(d_k), buckets.unpad(d_v), *[None] * 4


class _Kernel(Protocol):
    """Interface of ``attention_padded`` and ``attention_fused``."""

    forward: Callable[..., None]
    backward: Callable[..., None]


def _kernel(length: int, fused_from: float) -> _Kernel:
    return attention_fused if length >= fused_from else attention_padded


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Return attention computed graph by graph; arguments as for :func:`attend`."""
    outs, lses = [], []
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        logits = torch.einsum("ihc,jhc->ijh", q[start:end], k[start:end]) * scale
        lse = logits.logsumexp(1)
        outs.append(torch.einsum("ijh,jhc->ihc", (logits - lse[:, None]).exp(), v[start:end]))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)
