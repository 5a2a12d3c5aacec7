"""Read-outs: from the nodes of each graph to one vector a graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import Level
from gtpool.model.gmt import GMT
from gtpool.model.set2set import Set2Set
from gtpool.model.sortpool import SortPool
from gtpool.ops.sample import kept_count
from gtpool.ops.segment import segment_sum
from gtpool.spec import ModelSpec, ShapeSpec


class Reduce(nn.Module):
    """A read-out without parameters: ``function(x, batch, graphs)``, ``times`` as wide as x."""

    def __init__(
        self, function: Callable[[Tensor, Tensor, int], Tensor], in_channels: int, times: int = 1
    ) -> None:
        super().__init__()
        self.function, self.out_channels = function, times * in_channels

    def forward(self, x: Tensor, edge_index: Tensor, level: Level) -> Tensor:
        """Read out each graph, [N, D] -> [G, out_channels]."""
        del edge_index
        return self.function(x, level.batch, level.sizes.numel())

    def extra_repr(self) -> str:
        """Name the function."""
        return self.function.__name__


def mean(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Average the nodes of each graph, [N, D] -> [G, D]."""
    count = batch.bincount(minlength=num_graphs).clamp_(min=1)
    return segment_sum(x, batch, num_graphs) / count.unsqueeze(1)


def maximum(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Take the largest entry of each column over the nodes of each graph, [N, D] -> [G, D]."""
    return _Maximum.apply(x, batch, num_graphs)


def total(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Add up the nodes of each graph, [N, D] -> [G, D]."""
    return segment_sum(x, batch, num_graphs)


def mean_max(x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Set mean and maximum side by side, [N, D] -> [G, 2D]."""
    return torch.cat([mean(x, batch, num_graphs), maximum(x, batch, num_graphs)], 1)


class _Maximum(Function):
    """The gradient of an entry goes to the nodes that have it, in equal parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:  # noqa: ANN401
        most = x.new_zeros(num_graphs, x.size(1))
        index = batch.unsqueeze(1).expand_as(x)
        most = most.scatter_reduce_(0, index, x, "amax", include_self=False)
        ctx.save_for_backward(x, batch, most)
        return most

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_most: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, batch, most = ctx.saved_tensors
        # In floats: a comparison that is stored as bool takes five times as long.
        has = most.index_select(0, batch).eq_(x)
        share = d_most / segment_sum(has, batch, most.size(0)).clamp_(min=1)
        return has.mul_(share.index_select(0, batch)), None, None


def _sortpool(in_channels: int, spec: ModelSpec, shape: ShapeSpec) -> nn.Module:
    nodes = _known("sortpool", "common_nodes", shape.common_nodes)
    return SortPool(in_channels, nodes, **spec.readout_options)


def _gmt(in_channels: int, spec: ModelSpec, shape: ShapeSpec) -> nn.Module:
    nodes = _known("gmt", "mean_nodes", shape.mean_nodes)
    return GMT(in_channels, spec.width, kept_count(nodes, spec.ratio), **spec.readout_options)


def _known(readout: str, name: str, value: int) -> int:
    if not value:
        raise ValueError(f"readout {readout!r} is sized by the data: the shape must say {name}")
    return value


READOUTS: dict[str, Callable[[int, ModelSpec, ShapeSpec], nn.Module]] = {
    "mean": lambda channels, *_: Reduce(mean, channels),
    "max": lambda channels, *_: Reduce(maximum, channels),
    "sum": lambda channels, *_: Reduce(total, channels),
    "mean-max": lambda channels, *_: Reduce(mean_max, channels, 2),
    "set2set": lambda channels, spec, _: Set2Set(channels, **spec.readout_options),
    "sortpool": _sortpool,
    "gmt": _gmt,
}
"""From the width of the nodes, the choices and the data's shape to a module.

Each has ``out_channels``, and is called with the nodes, the edges and the layout of a batch.
"""
LEARNED: dict[str, type[nn.Module]] = {"set2set": Set2Set, "sortpool": SortPool, "gmt": GMT}
"""The read-outs that have parameters, and so options."""
