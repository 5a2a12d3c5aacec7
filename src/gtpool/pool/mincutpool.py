"""MinCutPool: soft clustering by an MLP with a minimum-cut loss.

Bianchi, Grattarola, Alippi: "Spectral Clustering with Graph Neural Networks for Graph Pooling",
arXiv 1907.00481.
"""

import torch
from torch import Tensor

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.adjacency import merge
from gtpool.ops.backend import Backend
from gtpool.ops.merge import at_least_float32, between, keep_diagonal
from gtpool.pool.layer import Merged, MergePool


class MinCutPool(MergePool):
    r"""Soft clustering of nodes by an MLP, trained with a minimum-cut loss.

    .. math::
        S  &= \mathrm{softmax}(\mathrm{MLP}(X)) \\
        L  &= -\frac{\mathrm{tr}(S^\top \tilde{A} S)}{\mathrm{tr}(S^\top \tilde{D} S)} +
              \left\lVert \frac{S^\top S}{\lVert S^\top S \rVert_F} -
              \frac{I_C}{\sqrt{C}} \right\rVert_F \\
        X' &= S^\top X, \quad \hat{A} = S^\top \tilde{A} S \text{ with a diagonal of zeros}, \quad
        A' = \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2}

    with :math:`\tilde{A} = D^{-1/2} A D^{-1/2}` and :math:`D, \tilde{D}, \hat{D}` the degrees of
    :math:`A, \tilde{A}, \hat{A}`. The first loss keeps the ends of an edge in one cluster; the
    second makes clusters disjoint and of equal size. MLP is two linear maps with a ReLU in between.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        clusters: Clusters C of every graph, for any size.
        hidden_channels: Hidden width of the MLP.
        weighted: Whether the first edge feature is a non-negative edge weight; otherwise every edge
            has weight 1.

    Differs from the paper:
        - The MLP has one hidden layer of 16, as in the authors' code for graph classification (the
          paper specifies neither depth nor width; PyG's example has no hidden layer).
        - PyG treats its input as :math:`\tilde{A}`; here A is normalised.
        - Losses are computed per graph; both have weight 1, as in the paper.
        - For directed edges, which the paper does not have, the degree of a node is half the weight
          of its outgoing and incoming edges.
        - A graph without edges has a cut of 0; in PyG it is NaN. Clusters without edges to others
          have zeros in A', with gradients; in PyG they are NaN.

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
        self.hidden = Linear(in_channels, hidden_channels)
        self.out = Linear(hidden_channels, clusters)

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Return the clusters of each graph, their edges, the assignment and the loss."""
        assign = at_least_float32(self.out(self.hidden(x).relu())).softmax(1)
        graphs = graph.adjacency(assign.dtype, weighted=self.weighted).normalized()
        pooled, coarse, overlap = merge(graphs, assign, x)
        volume = graphs.total(graphs.degrees() * assign.square().sum(1))  # tr(S^T D S)
        loss = cut(coarse, volume) + imbalance(overlap)
        return Merged(pooled, between(coarse), assign, loss)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"hidden_channels={self.hidden_channels}, weighted={self.weighted})"
        )


def cut(coarse: Tensor, volume: Tensor) -> Tensor:
    """Return minus the share of edges inside clusters, 0 without edges, [G]."""
    return -keep_diagonal(coarse).sum((1, 2)) / volume.where(volume > 0, 1.0)


def imbalance(overlap: Tensor) -> Tensor:
    """Return the distance of S^T S from disjoint clusters of equal size, from 0 to 2, [G]."""
    clusters = overlap.size(1)
    even = torch.eye(clusters, dtype=overlap.dtype, device=overlap.device) / clusters**0.5
    length = torch.linalg.vector_norm(overlap, dim=(1, 2), keepdim=True)
    length = length.where(length > 0, 1.0)  # empty slots
    return torch.linalg.vector_norm(overlap / length - even, dim=(1, 2))
