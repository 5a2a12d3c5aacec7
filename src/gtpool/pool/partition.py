"""Base classes of poolers that put each node into one cluster; the graph decides how many.

The clusters of a ``ChainPool`` follow from the edges alone and are computed once a dataset. Those
of a ``PartitionPool`` follow from the features.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from gtpool.graph import Coarsening, CoarseningStep, GraphLayout, NodeMerge, check_count
from gtpool.ops.backend import Backend, Pooled
from gtpool.ops.chains import coarsen_graphs, pool_features
from gtpool.ops.coarsening import contract_between
from gtpool.ops.entry import check_inputs, no_compile
from gtpool.ops.merge import at_least_float32, edge_weight
from gtpool.ops.packed import PackedGraph
from gtpool.ops.segment import layout_from_batch


class Partition(NamedTuple):
    """Result of ``PartitionPool.partition``."""

    x: Tensor
    """Features of the clusters, [K, D]."""
    cluster: Tensor
    """Cluster of each node, [N]."""
    batch: Tensor
    """Graph of each cluster, sorted, [K]."""


class PartitionPool(nn.Module):
    """Base of poolers whose clusters follow from the features; a subclass has ``partition``.

    The edges of the output are those of S^T A S without its diagonal, weighted by their sums.
    """

    kind = "clustering"
    in_channels: int
    weighted: bool

    @abstractmethod
    def partition(self, x: Tensor, graph: PackedGraph) -> Partition:
        """Return the clusters of each graph.

        Args:
            x: Node features, [N, D].
            graph: The graphs of the batch.
        """

    def step(self, x: Tensor, graph: PackedGraph) -> tuple[Partition, PackedGraph]:
        """Return the clusters and the pooled graphs."""
        out = self.partition(x, graph)
        return out, _contracted(graph, out, at_least_float32(x), x, weighted=self.weighted)

    def pool(self, x: Tensor, graph: Any, *, edges: bool = True) -> Pooled:  # noqa: ANN401
        """Return the graphs of clusters."""
        del edges  # clusters always have edges
        out, after = self.step(x, graph)
        return Pooled(out.x, after)

    @no_compile
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        level: GraphLayout | None = None,
    ) -> NodeMerge:
        """Return the pooled batch of graphs; ``assign`` is the cluster of each node.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features; with ``weighted``, column 0 is the edge weight, [E, ...].
            batch: Graph of each node, sorted, [N]; if None, all nodes are one graph.
            level: The layout of the batch, instead of ``batch``; inputs are then not checked.
        """
        if level is None:
            level = check_inputs(x, edge_index, edge_attr, batch, self.in_channels)
        out, after = self.step(x, PackedGraph(edge_index, edge_attr, level))
        assert after.edge_attr is not None  # noqa: S101 - clusters have weighted edges
        return NodeMerge(out.x, after.edge_index, after.edge_attr, out.batch, out.cluster, None)


class ChainPool(nn.Module):
    """Base of poolers along a coarsening chain, which depends on the edges alone.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        steps: Length of the chain that the layer builds for graphs without one.
    """

    kind = "clustering"
    sized_by = "chain"
    method: str
    """A key of ``gtpool.ops.chains.CHAINS``."""

    def __init__(self, in_channels: int, steps: int = 3) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("steps", steps)
        self.in_channels, self.steps = in_channels, steps

    def reset_parameters(self) -> None:
        """Do nothing: the layer has no parameters."""

    @no_compile
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        level: GraphLayout | None = None,
        chain: Sequence[CoarseningStep] | None = None,
    ) -> NodeMerge:
        """Return the pooled batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features; ignored.
            batch: Graph of each node, sorted, [N]; if None, all nodes are one graph.
            level: The layout of the batch, instead of ``batch``; inputs are then not checked.
            chain: The remaining steps of the chain; the first is applied. If None, the layer builds
                a chain of ``steps`` steps.
        """
        if level is None:
            level = check_inputs(x, edge_index, edge_attr, batch, self.in_channels)
            _check_chain(chain, level, self.method)
        if chain is None:
            chain = coarsen_graphs(edge_index, level, Coarsening(self.steps, self.method))
        step = chain[0]
        weight = step.edge_attr.to(x.dtype)
        pooled = pool_features(x, chain)
        return NodeMerge(pooled, step.edge_index, weight, step.level.batch, step.cluster, None)

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Return the graphs after one step along the chain of the batch."""
        del edges  # clusters always have edges
        return graph.coarsen(x, Coarsening(self.steps, self.method))

    def __repr__(self) -> str:
        """Return the class name, the width and the length of the chain."""
        return f"{type(self).__name__}({self.in_channels}, steps={self.steps})"


@no_compile
def _contracted(
    graph: PackedGraph, out: Partition, exact: Tensor, x: Tensor, *, weighted: bool
) -> PackedGraph:
    """Return the graphs of clusters, with the summed weights of the edges between them."""
    weight = edge_weight(graph.edge_index, graph.edge_attr, exact, weighted=weighted)
    level = layout_from_batch(out.batch)
    edges, total = contract_between(graph.edge_index, weight, out.cluster, level)
    return PackedGraph(edges, total.to(x.dtype).unsqueeze(1), level)


def _check_chain(chain: Sequence[CoarseningStep] | None, level: GraphLayout, method: str) -> None:
    """Raise a ValueError unless the chain has a step of the method that starts from these nodes."""
    if chain is None:
        return
    if not chain:
        raise ValueError("the chain has no steps left: each graph is already one node")
    if chain[0].method != method:
        raise ValueError(f"the layer needs a chain of method {method!r}, got {chain[0].method!r}")
    nodes, graphs = level.batch.numel(), level.sizes.numel()
    if chain[0].cluster.numel() != nodes or chain[0].level.sizes.numel() != graphs:
        raise ValueError(
            f"the chain starts from {chain[0].cluster.numel()} nodes of "
            f"{chain[0].level.sizes.numel()} graphs, but x has {nodes} nodes of {graphs}"
        )
