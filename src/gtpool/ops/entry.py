"""Input checks of poolers, and decorators that disable compilation and autocast."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from importlib import import_module
from typing import TypeVar

import torch
from torch import Tensor

from gtpool.graph import (
    GraphLayout,
    LayoutCache,
    check_batch,
    check_edges,
    check_features,
    largest_allowed,
)
from gtpool.ops.padded_ops import has_triton
from gtpool.ops.segment import layout_from_batch, offsets

_Function = TypeVar("_Function", bound=Callable[..., object])


def no_compile(function: _Function) -> _Function:
    """Return a function excluded from torch.compile.

    Functions that read sizes from the data cause graph breaks and recompilation for every batch.
    """
    return torch.compiler.disable(function)  # pyright: ignore[reportReturnType]


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast; entering torch's costs as much as a small product."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def no_autocast(backward: _Function) -> _Function:
    """Return the backward method of a Function with autocast disabled."""

    @wraps(backward)
    def run(ctx: object, *grads: Tensor | None) -> object:
        device = next(grad.device for grad in grads if grad is not None)
        with without_autocast(device):
            return backward(ctx, *grads)

    return run  # pyright: ignore[reportReturnType]


@no_compile
def check_inputs(
    x: Tensor,
    edge_index: Tensor,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    channels: int,
    attn: Tensor | None = None,
    *,
    multiplied: bool = False,
) -> GraphLayout:
    """Return the layout of valid inputs of a pooler; raise a ValueError for invalid ones.

    Without ``batch`` all nodes are one graph. With ``multiplied``, features whose products overflow
    are invalid.
    """
    known = _check_on_gpu(x, edge_index, edge_attr, batch, channels, attn, multiplied=multiplied)
    if known is not None:
        return known
    check_features("x", x, channels, multiplied=multiplied)
    if attn is not None:
        check_features("attn", attn, channels, multiplied=multiplied)
        if attn.size(0) != x.size(0):
            raise ValueError(f"attn has {attn.size(0)} rows, but x has {x.size(0)}")
    if batch is not None:
        check_batch(batch, x.size(0))
    check_edges(edge_index, edge_attr, batch, x.size(0))
    return layout_from_batch(edge_index.new_zeros(x.size(0)) if batch is None else batch)


def _check_on_gpu(
    x: object,
    edge_index: object,
    edge_attr: Tensor | None,
    batch: object,
    channels: int,
    attn: Tensor | None,
    *,
    multiplied: bool,
) -> GraphLayout | None:
    """Return the layout after a check in one GPU kernel; None without a GPU or if a check fails."""
    if attn is not None or not isinstance(x, Tensor) or not x.is_cuda:
        return None
    if not isinstance(edge_index, Tensor) or not isinstance(batch, Tensor | None):
        return None
    given = [edge_index] if batch is None else [edge_index, batch]
    shaped = x.shape[1:] == (channels,) and edge_index.shape[:1] == (2,) and edge_index.dim() == 2
    shaped = shaped and (batch is None or batch.shape == x.shape[:1])
    shaped = shaped and (edge_attr is None or edge_attr.shape[:1] == edge_index.shape[1:])
    here = all(part.device == x.device and part.dtype == torch.long for part in given)
    if not (shaped and here and x.is_floating_point() and x.size(0)) or not has_triton():
        return None
    largest = largest_allowed(x, multiplied=multiplied)
    with torch.cuda.device_of(x):  # Triton launches on the current device
        kernel = import_module("gtpool.ops.kernels.entry")
        sizes = kernel.sizes_if_valid(x, edge_index, batch, largest)
    if sizes is None:
        return None
    batch = edge_index.new_zeros(x.size(0)) if batch is None else batch
    return GraphLayout(sizes, offsets(sizes), batch, LayoutCache())
