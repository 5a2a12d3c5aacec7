"""Read-outs: from the nodes of each graph to one vector a graph."""

from collections.abc import Callable

from torch import Tensor, nn

from gtpool.model.gmt import GMT
from gtpool.model.set2set import Set2Set
from gtpool.model.sortpool import SortPool
from gtpool.ops.backend import Backend
from gtpool.ops.sample import kept_count
from gtpool.spec import ModelSpec, ShapeSpec


class Reduce(nn.Module):
    """A read-out without parameters: a method of ``RowLayout``, ``times`` as wide as x."""

    def __init__(self, name: str, in_channels: int, times: int = 1) -> None:
        super().__init__()
        self.name, self.out_channels = name, times * in_channels

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Read out each graph, [N, D] -> [G, out_channels]."""
        return getattr(graph.rows, self.name)(x)

    def extra_repr(self) -> str:
        """Name the function."""
        return self.name


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
    "mean": lambda channels, *_: Reduce("mean", channels),
    "max": lambda channels, *_: Reduce("maximum", channels),
    "sum": lambda channels, *_: Reduce("total", channels),
    "mean-max": lambda channels, *_: Reduce("mean_max", channels, 2),
    "set2set": lambda channels, spec, _: Set2Set(channels, **spec.readout_options),
    "sortpool": _sortpool,
    "gmt": _gmt,
}
"""From the width of the nodes, the choices and the data's shape to a module.

Each has ``out_channels``, and is called with the nodes and their graphs. One that asks for edges
says so by ``reads_edges``.
"""
LEARNED_READOUTS: dict[str, type[nn.Module]] = {
    "set2set": Set2Set,
    "sortpool": SortPool,
    "gmt": GMT,
}
"""The read-outs that have parameters, and so options."""
