"""Base classes of poolers: PyG's interface on packed batches, and the step inside a classifier.

A pooler is written once, against ``gtpool.ops.backend.Backend``. It runs on packed and on padded
batches, for one run and for many.
"""

from abc import abstractmethod
from typing import Any, NamedTuple, get_args

from torch import Tensor, nn

from gtpool.graph import GraphLayout, NodeDrop, NodeMerge
from gtpool.ops.backend import Backend, Kept, Pooled, RowLayout
from gtpool.ops.entry import check_inputs, no_compile
from gtpool.ops.merge import coarse_graph
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import Order, check_choice
from gtpool.spec import Connect


class Dropped(NamedTuple):
    """Result of ``DropPool.select``."""

    x: Tensor
    """Features of the kept nodes, [K, D]."""
    kept: Kept
    """The kept nodes, as returned by ``Backend.keep``."""
    score: Tensor
    """Score of every node, [N]."""
    loss: Tensor | None = None
    """Auxiliary loss of each graph, [G]."""


class DropPool(nn.Module):
    """Base of node-dropping poolers; a subclass has ``in_channels``, ``ratio`` and ``select``.

    Args:
        connect: Edges of the pooled graph. ``"induced"`` keeps the edges between kept nodes.
            ``"khop:2"`` also joins kept nodes with a common neighbour; these edges have features
            of zeros, or codes of -1. ``"closest"`` reconnects the edges of each dropped node to
            its nearest kept node (S^T A S without the diagonal; repeated edges are not merged).
            The nearest node has the fewest hops, at most eight; ties go to the highest score, then
            to the lowest index. Edges of nodes without such a node are dropped.
    """

    kind = "dropping"
    sized_by = "ratio"
    in_channels: int
    ratio: float
    multiplies = False
    """Whether the layer multiplies features with features; products must then not overflow."""

    def __init__(self, connect: Connect = "induced") -> None:
        super().__init__()
        check_choice("connect", connect, get_args(Connect))
        self.connect: Connect = connect

    @property
    def why_not_captured(self) -> str | None:
        """Reason why the layer cannot be captured; None if it can."""
        if self.connect != "khop:2":
            return None
        return "connect 'khop:2' has no captured form: the number of edges depends on the weights"

    @abstractmethod
    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Return the kept nodes and their features.

        Args:
            x: Node features, [N, D].
            graph: The graphs of the batch.
            attn: Features for the score instead of ``x``, [N, D].
        """

    def shown(self, score: Tensor, rows: RowLayout) -> Tensor:
        """Return the score of every node for ``NodeDrop.score``, [N]."""
        del rows
        return score

    def step(
        self,
        x: Tensor,
        graph: Any,  # noqa: ANN401 - a Backend; for ASAP a PackedGraph
        attn: Tensor | None = None,
        *,
        edges: bool = True,
    ) -> tuple[Dropped, Any]:
        """Return the selection and the pooled graphs."""
        out = self.select(x, graph, attn)
        after = graph.subgraph(out.kept, self.ratio, out.score, self.connect, edges=edges)
        return out, after

    def check(self, x: Tensor, graph: PackedGraph) -> None:
        """Raise a ValueError for graphs that this pooler cannot handle."""

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Return the pooled graphs; with ``edges=False`` their edges are undefined."""
        out, after = self.step(x, graph, edges=edges)
        return Pooled(out.x, after, out.loss)

    @no_compile
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
        *,
        level: GraphLayout | None = None,
    ) -> NodeDrop:
        """Return the pooled batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, filtered with the edges, [E, ...].
            batch: Graph of each node, sorted, [N]; if None, all nodes are one graph.
            attn: Features for the score instead of ``x``, [N, D]; the output still pools ``x``.
            level: The layout of the batch, instead of ``batch``. Inputs are then not checked, and
                there is no device sync before edges are filtered.
        """
        if level is None:
            level = check_inputs(
                x, edge_index, edge_attr, batch, self.in_channels, attn, multiplied=self.multiplies
            )
            self.check(x, PackedGraph(edge_index, edge_attr, level))
        graph = PackedGraph(edge_index, edge_attr, level)
        out, after = self.step(x, graph, attn)
        score = self.shown(out.score, graph.rows).index_select(0, out.kept)
        batch = level.batch.index_select(0, out.kept)
        return NodeDrop(out.x, after.edge_index, after.edge_attr, batch, out.kept, score)


def drop_and_scale(
    x: Tensor,
    raw: Tensor,
    score: Tensor,
    ratio: float,
    graph: Backend,
    *,
    sampler: str,
    order: Order,
) -> Dropped:
    """Return the nodes kept by score, with features scaled by their scores.

    Top-k ranks ``raw``, the score before its activation: where the activation saturates, rounding
    would make unequal nodes tie. A wheel takes the softmax of ``score``.
    """
    ranked = raw if sampler == "topk" else score
    kept = graph.keep(ranked, ratio, sampler=sampler, order=order)
    scaled = graph.take(x, kept) * graph.take(score, kept).unsqueeze(1)
    return Dropped(scaled.to(x.dtype), kept, score)


class Merged(NamedTuple):
    """Result of ``MergePool.merge``, in the dtype of the computation."""

    x: Tensor
    """Features of the clusters, [G, C, D]."""
    coarse: Tensor
    """Weights between the clusters, [G, C, C]."""
    assign: Tensor
    """Soft assignment of nodes to the clusters of their graph, [N, C]."""
    loss: Tensor | None
    """Auxiliary loss of each graph, [G]."""


class MergePool(nn.Module):
    """Base of poolers that merge nodes into the same number of clusters per graph."""

    kind = "clustering"
    sized_by = "clusters"
    in_channels: int
    multiplies = False

    @abstractmethod
    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Return the clusters of each graph.

        Args:
            x: Node features, [N, D].
            graph: The graphs of the batch.
        """

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Return the graphs of clusters."""
        del edges  # the matrices are computed anyway
        out = self.merge(x, graph)
        pooled = out.x.flatten(0, 1).to(x.dtype)
        return Pooled(pooled, graph.merged(out.coarse.to(x.dtype)), out.loss)

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
        """Return the pooled batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features; with ``weighted``, column 0 is the edge weight, [E, ...].
            batch: Graph of each node, sorted, [N]; if None, all nodes are one graph.
            level: The layout of the batch, instead of ``batch``; inputs are then not checked.
        """
        if level is None:
            level = check_inputs(
                x, edge_index, edge_attr, batch, self.in_channels, multiplied=self.multiplies
            )
        out = self.merge(x, PackedGraph(edge_index, edge_attr, level))
        edges, weight, layout = coarse_graph(out.coarse)
        pooled = out.x.flatten(0, 1).to(x.dtype)
        return NodeMerge(pooled, edges, weight.to(x.dtype), layout.batch, out.assign, out.loss)
