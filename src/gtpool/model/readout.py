"""Read-outs: map the nodes of each graph to one vector per graph."""

from collections.abc import Callable

from torch import Tensor, nn

from gtpool.model.gmt import GMT
from gtpool.model.graphtrans import GraphTrans
from gtpool.model.set2set import Set2Set
from gtpool.model.sortpool import SortPool
from gtpool.ops.backend import Backend
from gtpool.ops.sample import kept_count
from gtpool.spec import ModelSpec, ShapeSpec


class Reduce(nn.Module):
    """Read-out by a reduction of ``RowLayout``, given by name; has no parameters.

    Args:
        name: Method of ``RowLayout``, such as "mean".
        in_channels: Width of the node features.
        times: Factor from ``in_channels`` to the output width.
    """

    def __init__(self, name: str, in_channels: int, times: int = 1) -> None:
        super().__init__()
        self.name, self.out_channels = name, times * in_channels

    def forward(self, x: Tensor, graph: Backend) -> Tensor:
        """Return one vector per graph, [N, D] -> [G, out_channels]."""
        return getattr(graph.rows, self.name)(x)

    def extra_repr(self) -> str:
        """Return the name of the reduction."""
        return self.name


def _sortpool(in_channels: int, spec: ModelSpec, shape: ShapeSpec) -> nn.Module:
    nodes = _known("sortpool", "common_nodes", shape.common_nodes)
    return SortPool(in_channels, nodes, **spec.readout_options)


def _gmt(in_channels: int, spec: ModelSpec, shape: ShapeSpec) -> nn.Module:
    nodes = _known("gmt", "mean_nodes", shape.mean_nodes)
    return GMT(in_channels, spec.width, kept_count(nodes, spec.ratio), **spec.readout_options)


def _known(readout: str, name: str, value: int) -> int:
    if not value:
        raise ValueError(f"readout {readout!r} is sized by the data: set {name} in the shape")
    return value


READOUTS: dict[str, Callable[[int, ModelSpec, ShapeSpec], nn.Module]] = {
    "mean": lambda channels, *_: Reduce("mean", channels),
    "max": lambda channels, *_: Reduce("maximum", channels),
    "sum": lambda channels, *_: Reduce("total", channels),
    "mean-max": lambda channels, *_: Reduce("mean_max", channels, 2),
    "set2set": lambda channels, spec, _: Set2Set(channels, **spec.readout_options),
    "sortpool": _sortpool,
    "gmt": _gmt,
    "graphtrans": lambda channels, spec, _: GraphTrans(
        channels, spec.width, **spec.readout_options
    ),
}
"""Factory of each read-out; its arguments are the node width, the spec and the data's shape.

A read-out has ``out_channels`` and is called with node features and their graphs. A read-out that
needs edges sets ``reads_edges``.
"""
LEARNED_READOUTS: dict[str, type[nn.Module]] = {
    "set2set": Set2Set,
    "sortpool": SortPool,
    "gmt": GMT,
    "graphtrans": GraphTrans,
}
"""Read-outs with parameters and options."""
