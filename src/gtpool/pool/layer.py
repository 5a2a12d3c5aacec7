"""What all poolers share: PyG's call on a packed batch, and the step inside a classifier.

A pooler is written once, against ``gtpool.ops.backend.Backend``. It runs on packed and on padded
batches, for one run and for many.
"""

from abc import abstractmethod
from typing import Any, NamedTuple, get_args

from torch import Tensor, nn

from gtpool.graph import GraphLayout, NodeDrop, NodeMerge
from gtpool.ops.backend import Backend, Kept, Pooled, RowLayout
from gtpool.ops.entry import check_inputs
from gtpool.ops.merge import coarse_graph
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import Order, check_choice
from gtpool.spec import Connect


class Dropped(NamedTuple):
    """What a pooler that drops nodes decides."""

    x: Tensor
    """Features of the kept nodes, [K, D]."""
    kept: Kept
    """Which they are."""
    score: Tensor
    """Score of every node, [N]."""


class DropPool(nn.Module):
    """A pooler that drops nodes; a subclass has ``in_channels``, ``ratio`` and ``select``.

    Args:
        connect: Edges of the pooled graph. ``"induced"``: those between kept nodes.
            ``"khop:2"``: also joins kept nodes that have a third node between them; these edges
            have zeros as features, -1 as codes. ``"closest"``: each dropped node hands its edges
            to the nearest kept node (S^T A S without the diagonal, repeated edges side by side).
            The nearest is the one fewest hops away, at most eight; of several, the one of the
            highest score, then of the lowest index. Edges of a node that reaches none vanish.
    """

    kind = "dropping"
    in_channels: int
    ratio: float
    multiplies = False
    """Whether features are multiplied with features: those that overflow are then refused."""

    def __init__(self, connect: Connect = "induced") -> None:
        super().__init__()
        check_choice("connect", connect, get_args(Connect))
        self.connect: Connect = connect

    @property
    def why_not_captured(self) -> str | None:
        """Say why the layer has no captured form, where it has none."""
        if self.connect != "khop:2":
            return None
        return "connect 'khop:2' has no captured form: the number of edges depends on the weights"

    @abstractmethod
    def select(self, x: Tensor, graph: Backend, attn: Tensor | None = None) -> Dropped:
        """Choose the nodes that stay, and their features.

        Args:
            x: Node features, [N, D].
            graph: The graphs of the batch.
            attn: Stands in for ``x`` in the score, [N, D].
        """

    def shown(self, score: Tensor, rows: RowLayout) -> Tensor:
        """Give the score of every node as ``NodeDrop`` has it, [N]."""
        del rows
        return score

    def step(
        self,
        x: Tensor,
        graph: Any,  # noqa: ANN401 - a Backend; ASAP takes packed ones alone
        attn: Tensor | None = None,
        *,
        edges: bool = True,
    ) -> tuple[Dropped, Any]:
        """Give what is selected and the graphs of what stays, as the back-end has them."""
        out = self.select(x, graph, attn)
        after = graph.subgraph(out.kept, self.ratio, out.score, self.connect, edges=edges)
        return out, after

    def check(self, x: Tensor, graph: PackedGraph) -> None:
        """Raise a ValueError for graphs that this pooler alone cannot take."""

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Take one step in a network; without ``edges`` nothing will ask for edges after it."""
        out, after = self.step(x, graph, edges=edges)
        return Pooled(out.x, after)

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
        """Pool a batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, which travel along, [E, ...].
            batch: Graph of each node, sorted, [N]; without it the nodes are one graph.
            attn: Stands in for ``x`` in the score, never in the result, [N, D].
            level: The planned layout of the batch, in place of ``batch``: what was planned was
                checked then and is trusted, so that nothing synchronises a GPU before edges are
                filtered.
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
    """Keep nodes by their score, and scale the features of those that stay by it.

    Top-k ranks the score before its activation, ``raw``: where the activation is flat, rounding
    would make unequal nodes tie. A wheel takes the softmax of ``score`` itself.
    """
    ranked = raw if sampler == "topk" else score
    kept = graph.keep(ranked, ratio, sampler=sampler, order=order)
    scaled = graph.take(x, kept) * graph.take(score, kept).unsqueeze(1)
    return Dropped(scaled.to(x.dtype), kept, score)


class Merged(NamedTuple):
    """What a pooler that merges nodes decides, in the floats it computed in."""

    x: Tensor
    """Features of the clusters, [G, C, D]."""
    coarse: Tensor
    """Weights between the clusters, [G, C, C]."""
    assign: Tensor
    """Share of each node in each cluster of its graph, [N, C]."""
    loss: Tensor | None
    """Auxiliary loss of each graph, [G]."""


class MergePool(nn.Module):
    """A pooler that merges the nodes of each graph into as many clusters."""

    kind = "clustering"
    in_channels: int
    multiplies = False

    @abstractmethod
    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Merge the nodes of each graph.

        Args:
            x: Node features, [N, D].
            graph: The graphs of the batch.
        """

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Take one step in a network."""
        del edges  # a matrix a graph is there anyway
        out = self.merge(x, graph)
        pooled = out.x.flatten(0, 1).to(x.dtype)
        return Pooled(pooled, graph.merged(out.coarse.to(x.dtype)), out.loss)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        level: GraphLayout | None = None,
    ) -> NodeMerge:
        """Pool a batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, the weight first where edges are weighted, [E, ...].
            batch: Graph of each node, sorted, [N]; without it the nodes are one graph.
            level: The planned layout of the batch, in place of ``batch``: what was planned was
                checked then and is trusted.
        """
        if level is None:
            level = check_inputs(
                x, edge_index, edge_attr, batch, self.in_channels, multiplied=self.multiplies
            )
        out = self.merge(x, PackedGraph(edge_index, edge_attr, level))
        edges, weight, layout = coarse_graph(out.coarse)
        pooled = out.x.flatten(0, 1).to(x.dtype)
        return NodeMerge(pooled, edges, weight.to(x.dtype), layout.batch, out.assign, out.loss)
