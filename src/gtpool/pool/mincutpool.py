"""MinCutPool: clusters that cut few edges, from the features of the nodes.

Bianchi, Grattarola, Alippi: "Spectral Clustering with Graph Neural Networks for Graph Pooling",
arXiv 1907.00481.
"""

import torch
from torch import Tensor, nn

from gtpool.graph import Level, NodeMerge, check_count
from gtpool.ops.entry import lay_out
from gtpool.ops.merge import coarse_graph, diagonal, merge, root_of, weight_of, widen
from gtpool.ops.segment import segment_sum


class MinCutPool(nn.Module):
    r"""Soft clustering of the nodes by a small network, trained towards a minimum cut.

    .. math::
        S  &= \mathrm{softmax}(\mathrm{MLP}(X)) \\
        L  &= -\frac{\mathrm{tr}(S^\top \tilde{A} S)}{\mathrm{tr}(S^\top \tilde{D} S)} +
              \left\lVert \frac{S^\top S}{\lVert S^\top S \rVert_F} -
              \frac{I_C}{\sqrt{C}} \right\rVert_F \\
        X' &= S^\top X, \quad \hat{A} = S^\top \tilde{A} S \text{ with a diagonal of zeros}, \quad
        A' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2}

    with :math:`\tilde{A} = D^{-1/2} A D^{-1/2}` and :math:`D, \tilde{D}, \hat{D}` the degrees of
    :math:`A, \tilde{A}, \hat{A}`. The first loss keeps the ends of an edge together, the second
    keeps clusters apart and of one size. MLP is two linear maps with a ReLU between.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        clusters: Clusters C of every graph, whatever its size.
        hidden_channels: Hidden width of the MLP.
        weighted: Whether the first edge feature is the weight of its edge, not negative; else every
            edge weighs one.

    Differs from the paper:
        - The MLP has one hidden layer of 16, as in the authors' code for graph classification (the
          text fixes neither depth nor width; PyG's example has none).
        - PyG takes the matrix that it is given for :math:`\tilde{A}`; here A is normalised.
        - Losses are of each graph; both have weight one, as in the paper.
        - Of directed edges, which the paper does not have, the degree of a node is half the weight
          of the edges that leave it and enter it.
        - A graph without edges has a cut of 0, of which PyG makes NaN. Clusters without edges to
          others have zeros in A', with gradients; PyG's are NaN.

    Example:
        >>> pool = MinCutPool(16, clusters=3)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> out = pool(torch.randn(6, 16), ring)
        >>> out.x.shape, out.assign.shape, out.loss.shape
        (torch.Size([3, 16]), torch.Size([6, 3]), torch.Size([1]))
    """

    def __init__(
        self,
        in_channels: int,
        clusters: int,
        *,
        hidden_channels: int = 16,
        weighted: bool = False,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("clusters", clusters)
        check_count("hidden_channels", hidden_channels)
        self.in_channels, self.clusters = in_channels, clusters
        self.hidden_channels, self.weighted = hidden_channels, weighted
        self.hidden = nn.Linear(in_channels, hidden_channels)
        self.out = nn.Linear(hidden_channels, clusters)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        level: Level | None = None,
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
            level = lay_out(x, edge_index, edge_attr, batch, self.in_channels)
        assign = widen(self.out(self.hidden(x).relu())).softmax(1)
        weight = weight_of(edge_index, edge_attr, assign, weighted=self.weighted)
        source, target = edge_index
        root = root_of(_degrees(edge_index, weight, level))
        weight = weight / root.index_select(0, source) / root.index_select(0, target)
        pooled, coarse, overlap = merge(assign, x, edge_index, weight, level)
        edges, attr, layout = coarse_graph(between(coarse))

        volume = _degrees(edge_index, weight, level) * assign.square().sum(1)
        volume = segment_sum(volume, level.batch, level.sizes.numel())  # tr(S^T D S)
        loss = cut(coarse, volume) + imbalance(overlap)
        return NodeMerge(
            pooled.flatten(0, 1).to(x.dtype), edges, attr.to(x.dtype), layout.batch, assign, loss
        )

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"hidden_channels={self.hidden_channels}, weighted={self.weighted})"
        )


def _degrees(edge_index: Tensor, weight: Tensor, level: Level) -> Tensor:
    """Give each node half the weight of the edges that leave it and enter it, [N]."""
    degree = weight.new_zeros(level.batch.numel())
    return degree.index_add(0, edge_index.flatten(), weight.repeat(2) / 2)


def between(coarse: Tensor) -> Tensor:
    """Take away the diagonal and normalise by degrees, [G, C, C].

    The diagonal is the largest part, and would keep a convolution inside the clusters.
    """
    coarse = coarse - diagonal(coarse)
    root = root_of((coarse.sum(1) + coarse.sum(2)) / 2)
    return coarse / root.unsqueeze(2) / root.unsqueeze(1)


def cut(coarse: Tensor, volume: Tensor) -> Tensor:
    """Give minus the share of edges inside clusters, 0 without edges, [G]."""
    return -diagonal(coarse).sum((1, 2)) / volume.where(volume > 0, 1.0)


def imbalance(overlap: Tensor) -> Tensor:
    """Give the distance of S^T S from clusters apart and of one size, from 0 to 2, [G]."""
    clusters = overlap.size(1)
    even = torch.eye(clusters, dtype=overlap.dtype, device=overlap.device) / clusters**0.5
    length = torch.linalg.vector_norm(overlap, dim=(1, 2), keepdim=True)
    length = length.where(length > 0, 1.0)  # of a place without a graph
    return torch.linalg.vector_norm(overlap / length - even, dim=(1, 2))
