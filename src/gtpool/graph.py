"""Data types passed between layers, and checks of public inputs.

Shape letters of the whole project: N nodes, K kept nodes, E edges, G graphs, H heads,
C channels per head, D width.
"""

from collections.abc import Callable, Hashable
from math import isfinite
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")


class LayoutCache:
    """Cache of values that depend only on the sizes of a batch, by name."""

    def __init__(self) -> None:
        self.values: dict[Hashable, Any] = {}


class GraphLayout(NamedTuple):
    """Layout of a packed batch at one level; depends only on the sizes of the graphs."""

    sizes: Tensor
    """Nodes of each graph, on the host, [G]."""
    ptr: Tensor
    """First node of each graph, then the total number of nodes, on the host, [G + 1]."""
    batch: Tensor
    """Graph of each node, on the device of the batch, [N]."""
    cache: LayoutCache | None = None
    """Cache for derived values; None recomputes them on every call."""

    def cached(self, name: Hashable, make: Callable[[], _T]) -> _T:
        """Return the value cached under a unique name, or compute and cache it with ``make``."""
        values = {} if self.cache is None else self.cache.values
        if name not in values:
            values[name] = make()
        return values[name]


class CoarseningStep(NamedTuple):
    """One coarsening step of a chain, for a packed batch."""

    cluster: Tensor
    """Cluster of each node, counted over the batch, [N]; HaarPool's ascend after the first step."""
    edge_index: Tensor
    """Edges between clusters, [2, E']; HaarPool's have self-loops for those inside a cluster."""
    edge_attr: Tensor
    """Weight of each edge: the number of input edges merged into it, [E', 1]."""
    level: GraphLayout
    """The layout of the clusters."""
    method: str = "spectral"
    """Name of the coarsening, a key of ``gtpool.ops.chains.CHAINS``."""
    share: Tensor | None = None
    """Weight of each node in the features of its cluster, [N]; None for HaarPool's basis."""

    def to(self, device: torch.device | str) -> Self:
        """Return the step on a device; the sizes stay on the host."""
        return self._replace(
            cluster=self.cluster.to(device),
            edge_index=self.edge_index.to(device),
            edge_attr=self.edge_attr.to(device),
            level=self.level._replace(batch=self.level.batch.to(device)),
            share=None if self.share is None else self.share.to(device),
        )


class Coarsening(NamedTuple):
    """The coarsening chain that a network needs."""

    steps: int
    method: str = "spectral"
    """A key of ``gtpool.ops.chains.CHAINS``."""


class PackedBatch(NamedTuple):
    """A packed batch of checked graphs, with the layouts of all pooling steps."""

    x: Tensor
    """Node features, float [N, D], or codes of categories, int64 [N, F]."""
    edge_index: Tensor
    """Source and target of each edge, [2, E]."""
    edge_attr: Tensor | None
    """Edge features, [E, F]."""
    y: Tensor
    """Class of each graph, int64 [G], or one float per task, NaN if missing, [G, T]."""
    levels: tuple[GraphLayout, ...]
    """Layout of the input, then the layout after each pooling step."""
    chain: tuple[CoarseningStep, ...] = ()
    """Coarsening steps of the graphs, if the dataset has them."""
    graph_features: Tensor | None = None
    """Features of each graph, NaN if missing, [G, D]."""

    @property
    def batch(self) -> Tensor:
        """Graph of each node, sorted, [N]."""
        return self.levels[0].batch

    @property
    def num_graphs(self) -> int:
        """Number of graphs in the batch."""
        return self.levels[0].sizes.numel()

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on a device; the sizes stay on the host."""
        levels = tuple(level._replace(batch=level.batch.to(device)) for level in self.levels)
        attr = None if self.edge_attr is None else self.edge_attr.to(device)
        chain = tuple(step.to(device) for step in self.chain)
        features = None if self.graph_features is None else self.graph_features.to(device)
        ends, y = self.edge_index.to(device), self.y.to(device)
        return type(self)(self.x.to(device), ends, attr, y, levels, chain, features)


class NodeDrop(NamedTuple):
    """Result of a node-dropping pooler: the six values of PyG's poolers, by name."""

    x: Tensor
    """Features of the kept nodes, [K, D]."""
    edge_index: Tensor
    """Edges of the induced subgraph, as indices of kept nodes, [2, E']."""
    edge_attr: Tensor | None
    """Features of those edges, [E', ...]."""
    batch: Tensor
    """Graph of each kept node, sorted, [K]."""
    perm: Tensor
    """Input node of each kept node, ascending, [K]."""
    score: Tensor
    """Score of each kept node: its share of the wheel in GTPool, its scale factor elsewhere."""


class NodeMerge(NamedTuple):
    """Result of a pooler that merges nodes into clusters; the first four fields as in NodeDrop."""

    x: Tensor
    """Features of the clusters, [K, D]."""
    edge_index: Tensor
    """Edges between clusters, with self-loops for edges inside a cluster, [2, E']."""
    edge_attr: Tensor
    """Weight of each edge, [E', 1]."""
    batch: Tensor
    """Graph of each cluster, sorted, [K]."""
    assign: Tensor
    """Soft assignment of nodes to the clusters of their graph, [N, C], or cluster indices, [N]."""
    loss: Tensor | None
    """Auxiliary loss of each graph, [G]."""


def unpool(x: Tensor, perm: Tensor, num_nodes: int) -> Tensor:
    """Return pooled features at the positions of their input nodes; dropped nodes get zeros.

    Args:
        x: Features of the kept nodes, [K, ...].
        perm: Input node of each row of ``x``, [K].
        num_nodes: Nodes of the graph before pooling.

    Example:
        >>> unpool(torch.tensor([[5.0], [7.0]]), torch.tensor([0, 2]), 3).flatten().tolist()
        [5.0, 0.0, 7.0]
    """
    if x.size(0) != perm.numel():
        raise ValueError(f"x has {x.size(0)} rows, but perm names {perm.numel()} nodes")
    outside = (perm < 0) | (perm >= num_nodes)
    if outside.any():
        raise ValueError(
            f"perm names node {int(perm[outside][0])}, but num_nodes={num_nodes} "
            f"means nodes 0 to {num_nodes - 1}"
        )
    return x.new_zeros(num_nodes, *x.shape[1:]).index_copy(0, perm, x)


def check_features(name: str, x: Tensor, channels: int, *, multiplied: bool = False) -> None:
    """Raise a ValueError unless ``x`` is a finite [N, channels] matrix of floats with N >= 1.

    Args:
        name: Name of the argument, for the message.
        x: The matrix.
        channels: Required number of columns.
        multiplied: Whether the layer multiplies features with features. Features whose products
            overflow (in float32 or better) then raise an error.
    """
    if not _is(x, dim=2) or x.size(1) != channels or not x.is_floating_point():
        raise ValueError(
            f"{name} must be a float tensor of shape [nodes, {channels}], "
            f"got {_describe(x)}; the layer was made with in_channels={channels}"
        )
    if x.size(0) == 0:
        raise ValueError(f"{name} has no rows: the batch has no nodes")
    largest = largest_allowed(x, multiplied=multiplied)
    sound = x.detach().abs() <= largest
    if not sound.all():
        row, column = (~sound).nonzero()[0].tolist()
        value = x[row, column].item()
        if not isfinite(value):
            raise ValueError(f"{name} must be finite, but {name}[{row}, {column}] is {value}")
        exact = torch.promote_types(x.dtype, torch.float32)
        raise ValueError(
            f"{name}[{row}, {column}] is {value:.3g}: products of features beyond "
            f"{largest:.2g} overflow in {str(exact).removeprefix('torch.')}; scale the features"
        )


def largest_allowed(x: Tensor, *, multiplied: bool) -> float:
    """Return the largest entry that ``check_features`` accepts."""
    largest = torch.finfo(x.dtype).max
    if not multiplied:
        return largest
    exact = torch.promote_types(x.dtype, torch.float32)
    # The sum of 16 products per pair of entries must not overflow.
    return min(largest, (torch.finfo(exact).max / (16 * x.numel())) ** 0.5)


def check_batch(batch: Tensor, num_nodes: int) -> None:
    """Raise a ValueError unless ``batch`` is sorted and holds 0, 1, 2 … without gaps."""
    if not _is(batch, dim=1) or batch.dtype != torch.long:
        raise ValueError(f"batch must be an int64 vector, got {_describe(batch)}")
    if batch.numel() != num_nodes:
        raise ValueError(f"batch has {batch.numel()} entries for {num_nodes} nodes")
    step = batch.diff(prepend=batch.new_full((1,), -1))
    wrong = (batch < 0) | (step < 0) | (step > 1)
    if not wrong.any():
        return
    at = int(wrong.nonzero()[0])
    here = f"batch[{at}] = {int(batch[at])}"
    if batch[at] < 0:
        raise ValueError(f"batch must start at 0, but {here}")
    if step[at] < 0:
        raise ValueError(f"batch must be sorted, but {here} follows {int(batch[at - 1])}")
    raise ValueError(
        f"graph {int(batch[at]) - 1} of the batch has no nodes ({here}); "
        "number the graphs 0, 1, 2 … and omit empty graphs"
    )


def check_edges(
    edge_index: Tensor, edge_attr: Tensor | None, batch: Tensor | None, num_nodes: int
) -> None:
    """Raise a ValueError unless each edge joins two existing nodes of one graph."""
    if not _is(edge_index, dim=2) or edge_index.size(0) != 2 or edge_index.dtype != torch.long:
        raise ValueError(
            f"edge_index must be an int64 tensor of shape [2, edges], got {_describe(edge_index)}"
        )
    if edge_attr is not None and edge_attr.shape[:1] != edge_index.shape[1:]:
        raise ValueError(
            f"edge_attr must have one row for each of the {edge_index.size(1)} edges, "
            f"got {_describe(edge_attr)}"
        )
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if outside.any():
        at = int(outside.any(0).nonzero()[0])
        raise ValueError(
            f"edge {at} joins nodes {edge_index[:, at].tolist()}, "
            f"but the batch has nodes 0 to {num_nodes - 1}"
        )
    if batch is None:
        return
    source, target = batch[edge_index]
    if not torch.equal(source, target):
        at = int((source != target).nonzero()[0])
        raise ValueError(
            f"edge {at} joins nodes {edge_index[:, at].tolist()} of different graphs, "
            f"{int(source[at])} and {int(target[at])}"
        )


def check_count(name: str, value: object) -> None:
    """Raise a ValueError unless ``value`` is an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an int of at least 1, got {value!r}")


def check_share(name: str, value: float) -> None:
    """Raise a ValueError unless ``value`` lies between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")


def _is(value: object, *, dim: int) -> bool:
    """Whether a value is a tensor with ``dim`` dimensions."""
    return isinstance(value, Tensor) and value.dim() == dim


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
