"""What every pooler does first: check what a user gave and lay it out; and what compiles never."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor

from gtpool.graph import Level, check_batch, check_edges, check_features
from gtpool.ops.segment import level_of

_Function = TypeVar("_Function", bound=Callable[..., object])


def eager(function: _Function) -> _Function:
    """Leave a function out of torch.compile.

    Traced, what reads sizes from the data would break the graph at each of these places and be
    compiled anew for every batch.
    """
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType]


def precise(backward: _Function) -> _Function:
    """Leave autocast out of the backward pass of a Function, which computes in the types it has."""

    @wraps(backward)
    def run(ctx: object, *grads: Tensor | None) -> object:
        device = next(grad.device for grad in grads if grad is not None)
        with torch.autocast(device.type, enabled=False):
            return backward(ctx, *grads)

    return run  # pyright: ignore[reportReturnType]


@eager
def lay_out(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    channels: int,
    attn: Tensor | None = None,
    *,
    multiplied: bool = False,
) -> Level:
    """Check the graphs that a user gave a pooler; without ``batch`` the nodes are one graph.

    A pooler that multiplies features with features refuses those whose products overflow.
    """
    check_features("x", x, channels, multiplied=multiplied)
    if attn is not None:
        check_features("attn", attn, channels, multiplied=multiplied)
        if attn.size(0) != x.size(0):
            raise ValueError(f"attn has {attn.size(0)} rows, but x has {x.size(0)}")
    if batch is not None:
        check_batch(batch, x.size(0))
    check_edges(edge_index, edge_attr, batch, x.size(0))
    return level_of(edge_index.new_zeros(x.size(0)) if batch is None else batch)
