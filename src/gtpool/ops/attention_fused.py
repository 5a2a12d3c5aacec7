"""Attention over one padded bucket by PyTorch's fused CPU kernel, which holds no weights at all.

The shapes and functions are those of ``attention_padded``. The kernel is private to PyTorch, so
``available`` asks for it by name.
"""

import torch
from torch import Tensor

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


def available(device: torch.device) -> bool:
    """Say whether this PyTorch has the kernel for tensors on ``device``."""
    return device.type == "cpu" and all(hasattr(torch.ops.aten, op) for op in (_FORWARD, _BACKWARD))


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Give out and lse."""
    op = getattr(torch.ops.aten, _FORWARD)
    return op(q, k, v, attn_mask=mask, scale=scale)


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
    d_out: Tensor,
    d_lse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of q, k and v.

    The kernel knows no gradient of lse. One more channel brings it in: zero in q, k and v, so that
    no product sees it, with output 1 and output gradient -d_lse, so that the row term of the
    softmax, the sum of d_out * out, loses d_lse.
    """
    op = getattr(torch.ops.aten, _BACKWARD)
    if d_lse is None:
        return op(d_out, q, k, v, out, lse, 0.0, is_causal=False, attn_mask=mask, scale=scale)
    zero = torch.zeros_like(d_lse)[..., None]
    q, k, v = (torch.cat([part, zero], -1) for part in (q, k, v))
    out = torch.cat([out, zero + 1], -1)
    d_out = torch.cat([d_out, -d_lse[..., None]], -1)
    grads = op(d_out, q, k, v, out, lse, 0.0, is_causal=False, attn_mask=mask, scale=scale)
    d_q, d_k, d_v = (grad[..., :-1] for grad in grads)
    return d_q, d_k, d_v
