"""DiffPool: a graph convolution decides how much of each node goes into each cluster.

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
from gtpool.ops.runs import per_run
from gtpool.pool.layer import Merged, MergePool


class DiffPool(MergePool):
    r"""Soft clustering by a graph convolution, held to the graph by two auxiliary losses.

    .. math::
        S  &= \mathrm{softmax}(\mathrm{GNN}_{pool}(A, X))                      && (6) \\
        X' &= S^\top X                                                         && (3) \\
        A' &= S^\top A S                                                       && (4) \\
        L_{LP} &= \lVert A - S S^\top \rVert_F, \quad
        L_E = \tfrac{1}{n} \textstyle\sum_i H(S_i)

    with :math:`\mathrm{GNN}_{pool}(A, X) = \tilde{D}^{-1/2} (A + I)^\top \tilde{D}^{-1/2} X W + b`,
    H the entropy of a node's shares, and :math:`L_{LP} / n^2 + L_E` the loss of a graph. A node
    hears those with an edge to it, and its degree is the weight of these edges, plus one.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        clusters: Clusters C of every graph, whatever its size.
        weighted: Whether the first edge feature is the weight of its edge, not negative; else every
            edge weighs one.

    Differs from the paper:
        - X is already the embedding Z of the paper's (3): the convolution before the layer made it.
        - One graph convolution makes S; the paper has a stack of any kind.
        - The link loss, which as written grows with the graph, is divided by the graph's own n², as
          PyG divides that of one graph. PyG takes one norm of a whole batch and divides it and the
          entropy by the padded size, so that a graph's loss changes with the others.
        - Both losses have weight one, as in Spektral; the paper gives no weights. The authors' code
          has a cross-entropy of A and S S^T in place of the norm, and no entropy.
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
        """Draw all parameters anew, as PyG's graph convolution does."""
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.bias)

    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Merge nodes by an assignment that a graph convolution learns."""
        mapped = at_least_float32(self.linear(x))
        graphs = graph.adjacency(mapped.dtype, weighted=self.weighted)
        root = sqrt_degree(graphs.in_weight() + 1).unsqueeze(1)
        mapped = mapped / root
        logits = per_run(torch.add, (graphs.adj_t_matmul(mapped) + mapped) / root, self.bias)
        assign = logits.softmax(1)  # (6)
        pooled, coarse, overlap = merge(graphs, assign, x)  # (3), (4)
        size = graphs.sizes()
        link = norm_of_difference(graphs.squared_norm(), coarse, overlap)
        entropy = graphs.total(-(assign * logits.log_softmax(1)).sum(1))
        return Merged(pooled, coarse, assign, link / size**2 + entropy / size)

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"weighted={self.weighted})"
        )


def norm_of_difference(square: Tensor, coarse: Tensor, overlap: Tensor) -> Tensor:
    """Give the Frobenius norm of A - S S^T from the square of A's, S^T A S and S^T S, [G]."""
    common = keep_diagonal(coarse).sum((1, 2))
    total = square - 2 * common + overlap.square().sum((1, 2))
    # Where S S^T is A, rounding may leave less than nothing, and the root of 0 has no gradient.
    return total.clamp(min=torch.finfo(total.dtype).tiny).sqrt()
