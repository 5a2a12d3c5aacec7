"""EdgePool: contraction of the edges with the highest scores.

Diehl: "Edge Contraction Pooling for Graph Neural Networks", arXiv 1905.10990.
"""

import torch
from torch import Tensor

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.entry import no_compile
from gtpool.ops.greedy import match_edges, rank_by_score
from gtpool.ops.merge import at_least_float32
from gtpool.ops.packed import PackedGraph
from gtpool.ops.segment import segment_softmax
from gtpool.pool.partition import Partition, PartitionPool

BASE = 0.5  # added to each score, as in the paper


class EdgePool(PartitionPool):
    r"""Clustering pooling that contracts edges in descending order of their scores.

    .. math::
        s_{ij} &= 0.5 + \mathrm{softmax}_{r_{*j}}(r_{ij}), \quad r_{ij} = w^\top x_i \\
        M      &= \text{edges in descending order of } s,
                  \text{ unless a chosen edge has one of their nodes} \\
        x'     &= s_{ij} (x_i + x_j) \text{ for } (i, j) \in M, \quad
        x' = x_i \text{ for nodes of no chosen edge}

    The softmax is over the edges that enter node j. A graph of n nodes keeps at least n/2 of them;
    one with a perfect matching may keep half. The edges of the output are those of S^T A S, without
    its diagonal, weighted by their sums.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        weighted: Whether the first edge feature is the weight of its edge, for the sums.

    Differs from the paper:
        - Its score is :math:`r_{ij} = w^\top [x_i \,\Vert\, x_j] + b`. What all edges that enter a
          node have in common cancels in the softmax, so the part of :math:`x_j` and b have no
          effect and no gradient; they are left out.
        - A self-loop cannot be contracted. In PyG's ``EdgePooling`` it can, and the node then
          counts as merged with itself.
        - Edges that become one add up their weights, where PyG gives no weights and keeps edges
          inside a cluster as loops. Edge features do not enter the score.
        - The scores have no dropout; the paper has 0.2.
        - Scores are rounded to half their binary digits, so that equal edges tie; of these the
          first in ``edge_index`` is contracted. The result then depends on the numbering: in a ring
          of six equal nodes, the edge that comes first decides whether two or three are contracted.

    Example:
        >>> pool = EdgePool(16)
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        >>> pool(torch.randn(4, 16), path).x.shape
        torch.Size([2, 16])
    """

    sized_by = "nothing"
    why_not_captured = (
        "pool 'edgepool' has no static form: the number of its clusters depends on its weights"
    )

    def __init__(self, in_channels: int, *, weighted: bool = False) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        self.in_channels, self.weighted = in_channels, weighted
        self.score = Linear(in_channels, 1, bias=False)

    def reset_parameters(self) -> None:
        """Draw the scorer anew."""
        self.score.reset_parameters()

    def partition(self, x: Tensor, graph: PackedGraph) -> Partition:
        """Return the contracted edges and the other nodes, each as a cluster."""
        source, target = graph.edge_index
        score = self._scores(x, source, target)
        edges, cluster, first = _contract(source, target, score.detach(), x.size(0))
        wide = at_least_float32(x)
        total = wide.new_zeros(first.numel(), x.size(1)).index_add(0, cluster, wide)
        scale = torch.ones_like(total[:, 0])
        scale = scale.index_copy(
            0, cluster.index_select(0, source[edges]), score.index_select(0, edges)
        )
        pooled = (total * scale.unsqueeze(1)).to(x.dtype)
        return Partition(pooled, cluster, graph.level.batch.index_select(0, first))

    def _scores(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return the score of each edge, [E]."""
        raw = at_least_float32(self.score(x)).squeeze(1).index_select(0, source)
        return BASE + segment_softmax(raw, target, x.size(0))

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return f"{type(self).__name__}({self.in_channels}, weighted={self.weighted})"


@no_compile
def _contract(
    source: Tensor, target: Tensor, score: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the contracted edges [M], the cluster of each node [N] and its first node [K]."""
    chosen = match_edges(source, target, rank_by_score(score), num_nodes)
    edges = chosen.nonzero().view(-1)
    low = torch.arange(num_nodes, device=source.device)
    one, other = source.index_select(0, edges), target.index_select(0, edges)
    low = low.index_copy(0, one.maximum(other), one.minimum(other))
    first, cluster = low.unique(return_inverse=True)
    return edges, cluster, first
