"""Attention over one padded bucket with PyTorch's fused CPU kernel, which stores no weights.

The functions match those of ``attention_padded``. The kernel needs a head axis, here of size 1. It
is private to PyTorch, so ``available`` looks it up by name.
"""

import torch
from torch import Tensor

from gtpool.ops import attention_padded

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


def available(device: torch.device) -> bool:
    """Return whether this PyTorch has the kernel for tensors on ``device``."""
    return device.type == "cpu" and all(hasattr(torch.ops.aten, op) for op in (_FORWARD, _BACKWARD))


def forward(
    mask: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float
) -> None:
    """Fill ``out`` and ``lse``."""
    op = getattr(torch.ops.aten, _FORWARD)
    q, k, v = (part[:, None] for part in (q, k, v))
    parts = op(q, k, v, attn_mask=mask[:, None], scale=scale)
    _fill((out, lse), parts)


def backward(
    mask: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_q: Tensor,
    d_k: Tensor,
    d_v: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None = None,
    *,
    scale: float,
) -> None:
    """Fill the gradients of q, k and v, given those of out and lse.

    The kernel does not support a gradient of lse. An extra channel could add it (zero in q, k and
    v, with output 1 and output gradient -d_lse), but an odd width makes the kernel as slow as plain
    products. So with ``d_lse`` this calls ``attention_padded``.
    """
    if d_lse is not None:
        parts = (mask, q, k, v, out, lse, d_q, d_k, d_v, d_out, d_lse)
        attention_padded.backward(*parts, scale=scale)
        return
    op = getattr(torch.ops.aten, _BACKWARD)
    parts = op(
        *(part[:, None] for part in (d_out, q, k, v, out, lse)),
        0.0,
        is_causal=False,
        attn_mask=mask[:, None],
        scale=scale,
    )
    _fill((d_q, d_k, d_v), parts)


def _fill(wholes: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> None:
    for whole, part in zip(wholes, parts, strict=True):
        whole.copy_(part[:, 0])
