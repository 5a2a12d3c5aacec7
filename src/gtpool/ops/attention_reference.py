"""Softmax attention inside each graph, one graph at a time: the definition, never optimised."""

import torch
from torch import Tensor


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend within each graph; the arguments are those of :func:`gtpool.ops.attention.attend`."""
    outs, lses = [], []
    for start, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        logits = torch.einsum("ihc,jhc->ijh", q[start:end], k[start:end]) * scale
        lse = logits.logsumexp(1)
        outs.append(torch.einsum("ijh,jhc->ihc", (logits - lse[:, None]).exp(), v[start:end]))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)
