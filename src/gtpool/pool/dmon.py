"""DMoN: soft clustering by a linear map, trained to maximise modularity.

Tsitsulin, Palowitch, Perozzi, Müller: "Graph Clustering with Graph Neural Networks",
arXiv 2006.16904.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import selu

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.adjacency import Adjacency, merge
from gtpool.ops.backend import Backend
from gtpool.ops.merge import at_least_float32, between, keep_diagonal
from gtpool.pool.layer import Merged, MergePool


class DMoN(MergePool):
    r"""Soft clustering of nodes by a linear map, trained with a modularity loss.

    .. math::
        S  &= \mathrm{softmax}(X W + b) \\
        L  &= -\frac{1}{2m} \mathrm{tr}(S^\top B S) +
              \frac{\sqrt{C}}{n} \left\lVert \textstyle\sum_i S_i \right\rVert - 1,
              \quad B = A - \frac{d d^\top}{2m} \\
        X' &= \mathrm{SELU}(\hat{S}^\top X), \quad \hat{S}_{ic} = S_{ic} /
              \textstyle\sum_j S_{jc} \\
        A' &= \hat{D}^{-1/2} \hat{A} \hat{D}^{-1/2}, \quad
              \hat{A} = S^\top A S \text{ with a diagonal of zeros}

    with d the degrees of A and 2m their sum. The first loss is the modularity of the clusters: the
    share of edges inside clusters beyond that of a random graph with the same degrees. The second
    is 0 for clusters of equal size and :math:`\sqrt{C} - 1` if one cluster has all nodes.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        clusters: Clusters C of every graph, for any size.
        weighted: Whether the first edge feature is a non-negative edge weight; otherwise every edge
            has weight 1.

    Differs from the paper:
        - The paper clusters one graph and does not pool a batch. :math:`X'` is that of the authors'
          code; :math:`A'` is MinCutPool's, as in PyG.
        - X is already the output of a convolution, so S is a linear map of it, as in that code.
          Dropout before the softmax is the network's ``block_dropout``.
        - Losses are computed per graph; both have weight 1, as in the paper.
        - PyG adds MinCutPool's orthogonality loss and uses :math:`S^\top X` without division.
        - For directed edges, which the paper does not have, the degree of a node is half the weight
          of its outgoing and incoming edges.
        - A graph without edges has a modularity of 0.

    Example:
        >>> pool = DMoN(16, clusters=3)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> out = pool(torch.randn(6, 16), ring)
        >>> out.x.shape, out.assign.shape, out.loss.shape
        (torch.Size([3, 16]), torch.Size([6, 3]), torch.Size([1]))
    """

    def __init__(self, in_channels: int, clusters: int, *, weighted: bool = False) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("clusters", clusters)
        self.in_channels, self.clusters, self.weighted = in_channels, clusters, weighted
        self.linear = Linear(in_channels, clusters)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters as the authors' code does: orthogonal weights, no bias."""
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Return the clusters of each graph, their edges, the assignment and the loss."""
        assign = at_least_float32(self.linear(x)).softmax(1)
        graphs = graph.adjacency(assign.dtype, weighted=self.weighted)
        pooled, coarse, _ = merge(graphs, assign, x)
        size = graphs.total(assign)  # [G, C]
        pooled = selu(pooled / size.clamp(min=torch.finfo(size.dtype).eps).unsqueeze(2))
        loss = collapse(size, graphs.sizes()) - modularity(coarse, assign, graphs)
        return Merged(pooled, between(coarse), assign, loss)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"weighted={self.weighted})"
        )


def modularity(coarse: Tensor, assign: Tensor, graphs: Adjacency) -> Tensor:
    """Return the modularity of soft clusters, 0 without edges, [G]."""
    degree = graphs.degrees().unsqueeze(1)
    volume = graphs.total(degree * assign)  # d^T S, [G, C]
    edges = graphs.total(degree)  # 2m, [G, 1]
    edges = edges.where(edges > 0, 1.0)
    inside = keep_diagonal(coarse).sum((1, 2)) / edges.squeeze(1)
    return inside - (volume / edges).square().sum(1)


def collapse(size: Tensor, nodes: Tensor) -> Tensor:
    """Return how far clusters are from equal sizes, from 0 to sqrt(C) - 1, [G]."""
    return size.size(1) ** 0.5 * torch.linalg.vector_norm(size, dim=1) / nodes - 1
