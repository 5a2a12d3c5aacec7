"""DiffPool: soft cluster assignment by a graph convolution.

Ying, You, Morris, Ren, Hamilton, Leskovec: "Hierarchical Graph Representation Learning with
Differentiable Pooling", arXiv 1806.08804.
"""

import torch
from torch import Tensor, nn

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.adjacency import merge
from gtpool.ops.backend import Backend
from gtpool.ops.merge import at_least_float32, keep_diagonal, sqrt_degree
from gtpool.ops.runs import add_bias
from gtpool.pool.layer import Merged, MergePool


class DiffPool(MergePool):
    r"""Soft clustering by a graph convolution, with two auxiliary losses.

    .. math::
        S  &= \mathrm{softmax}(\mathrm{GNN}_{pool}(A, X))                      && (6) \\
        X' &= S^\top X                                                         && (3) \\
        A' &= S^\top A S                                                       && (4) \\
        L_{LP} &= \lVert A - S S^\top \rVert_F, \quad
        L_E = \tfrac{1}{n} \textstyle\sum_i H(S_i)

    with :math:`\mathrm{GNN}_{pool}(A, X) = \tilde{D}^{-1/2} (A + I)^\top \tilde{D}^{-1/2} X W + b`,
    H the entropy of a node's assignment, and :math:`L_{LP} / n^2 + L_E` the loss of a graph.
    Messages follow the edges; the degree of a node is the weight of its incoming edges, plus 1.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        clusters: Clusters C of every graph, for any size.
        weighted: Whether the first edge feature is a non-negative edge weight; otherwise every edge
            has weight 1.

    Differs from the paper:
        - X is already the embedding Z of the paper's (3), from the convolution before the layer.
        - S comes from one graph convolution; the paper allows any stack.
        - The link loss grows with the graph as written. Here it is divided by the graph's own n²,
          as PyG does for a single graph. PyG takes one norm over a batch and divides it and the
          entropy by the padded size, so that a graph's loss depends on the rest of the batch.
        - Both losses have weight 1, as in Spektral; the paper gives no weights. The authors' code
          uses a cross-entropy of A and S S^T instead of the norm, and no entropy.
        - The norm is computed as :math:`\lVert A \rVert^2 - 2\,\mathrm{tr}(S^\top A S) + \lVert
          S^\top S \rVert^2`, without an n x n matrix; repeated edges add up in A.

    Example:
        >>> pool = DiffPool(16, clusters=3)
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
        self.linear = Linear(in_channels, clusters, bias=False)
        self.bias = nn.Parameter(torch.empty(clusters))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise all parameters as PyG's ``GCNConv`` does."""
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.bias)

    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Return the clusters of each graph, their edges, the assignment and the loss."""
        mapped = at_least_float32(self.linear(x))
        graphs = graph.adjacency(mapped.dtype, weighted=self.weighted)
        root = sqrt_degree(graphs.in_weight() + 1).unsqueeze(1)
        mapped = mapped / root
        logits = add_bias((graphs.adj_t_matmul(mapped) + mapped) / root, self.bias)
        assign = logits.softmax(1)  # (6)
        pooled, coarse, overlap = merge(graphs, assign, x)  # (3), (4)
        size = graphs.sizes()
        link = norm_of_difference(graphs.squared_norm(), coarse, overlap)
        entropy = graphs.total(-(assign * logits.log_softmax(1)).sum(1))
        return Merged(pooled, coarse, assign, link / size**2 + entropy / size)

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"weighted={self.weighted})"
        )


def norm_of_difference(square: Tensor, coarse: Tensor, overlap: Tensor) -> Tensor:
    """Return the Frobenius norm of A - S S^T, given that of A squared, S^T A S and S^T S, [G]."""
    common = keep_diagonal(coarse).sum((1, 2))
    total = square - 2 * common + overlap.square().sum((1, 2))
    # If S S^T is A, rounding may give a negative total, and the root of 0 has no gradient.
    return total.clamp(min=torch.finfo(total.dtype).tiny).sqrt()
