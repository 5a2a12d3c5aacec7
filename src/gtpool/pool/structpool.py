"""StructPool: cluster the nodes so that nodes which are alike agree on their cluster.

Yuan, Ji: "StructPool: Structured Graph Pooling via Conditional Random Fields", ICLR 2020,
openreview BJxg_hVtwH.
"""

import torch
from torch import Tensor, nn

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.adjacency import Adjacency, merge
from gtpool.ops.backend import Backend
from gtpool.ops.merge import at_least_float32
from gtpool.pool.layer import Merged, MergePool

_LEAST = 0.01
"""A row sum counts as cancelled below this share of what it can be at most."""


class StructPool(MergePool):
    r"""Soft clustering by a conditional random field over all pairs of nodes of a graph.

    .. math::
        U &= H^{(3)}, \quad H^{(l + 1)} = \tanh(\tilde{D}^{-1} (\tilde{A} H^{(l)} \Theta_l + b_l)),
             \quad H^{(0)} = X, \quad \tilde{A} = A + I \\
        W_{ij} &= x_i^\top x_j \, / \, r_i, \quad W_{ii} = 0,
             \quad r_i = \textstyle\sum_{j \ne i} x_i^\top x_j \\
        Q &\leftarrow U + W \, \mathrm{softmax}(Q), \quad \text{at first } Q = U \\
        L &= \mathrm{softmax}(Q) \\
        X' &= L^\top X, \quad A' = L^\top A L

    W is never formed: its product with L is :math:`X (X^\top L)` less the diagonal, which is linear
    in the number of nodes.

    Args:
        in_channels: Width D of the node features, kept unchanged, and of the two hidden layers.
        clusters: Clusters C of every graph, also of one with fewer nodes.
        steps: Mean-field updates of Q.
        weighted: The first column of ``edge_attr`` weighs the edges; else each counts one.

    Differs from the paper:
        - Pairs are all pairs of nodes, as in the authors' code; the text also offers those at most
          some hops apart.
        - tanh stands after the last layer too and the bias is divided by the degree, as in the
          authors' code; the hidden layers are as wide as the features (there 48).
        - The products in a row sum may cancel, and a lone node has none; the authors' code divides
          all the same, and gives NaN for a graph of one node. Here :math:`r_i / \max(|r_i|, f_i)^2`
          stands for :math:`1 / r_i`, with :math:`f_i = |x_i| \sum_j |x_j| / 100`: the same wherever
          :math:`|r_i| \ge f_i`, and fading to zero below.
        - A node whose products with others are below the root of the smallest float (of float32
          1e-19) counts as one without features, as division would overflow.
        - Degrees add up absolute weights, so that a negative weight makes none vanish.

    Example:
        >>> pool = StructPool(16, clusters=3)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([3, 16])
    """

    multiplies = True

    def __init__(
        self, in_channels: int, clusters: int, *, steps: int = 5, weighted: bool = False
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("clusters", clusters)
        check_count("steps", steps)
        self.in_channels, self.clusters, self.steps = in_channels, clusters, steps
        self.weighted = weighted
        widths = (in_channels, in_channels, clusters)
        self.unary = nn.ModuleList(Linear(in_channels, width) for width in widths)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()

    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Merge nodes by what each leans to and what the others of its graph draw it to."""
        unary = wide = at_least_float32(x)
        graphs = graph.adjacency(wide.dtype, weighted=self.weighted)
        degree = (graphs.in_weight(absolute=True) + 1).unsqueeze(1)
        for linear in self.unary:
            near = unary + graphs.adj_t_matmul(unary)
            unary = (linear(near.to(x.dtype)) / degree).tanh()
        assign = _mean_field(wide, unary, graphs, self.steps)
        pooled, coarse, _ = merge(graphs, assign, x)
        return Merged(pooled, coarse, assign, None)

    def __repr__(self) -> str:
        """Name the class, the width and the choices that change the result."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"steps={self.steps}, weighted={self.weighted})"
        )


def _mean_field(x: Tensor, unary: Tensor, graphs: Adjacency, steps: int) -> Tensor:
    """Let the nodes of each graph draw one another, and give the share of each cluster, [N, C]."""
    own = x.square().sum(1, keepdim=True)  # the diagonal of X X^T
    both = with_norm(x)
    inverse = inverse_row_sums(both, own, graphs.broadcast(graphs.total(both)))
    q, grouped = unary, graphs.group_rows(x)
    for _ in range(steps):
        share = q.softmax(1)
        drawn = graphs.gram_matmul(grouped, share)  # X (X^T L)
        q = unary + (drawn - own * share) * inverse
    return q.softmax(1)


def with_norm(x: Tensor) -> Tensor:
    """Set the length of each row beside it, [N, D] -> [N, D + 1]."""
    return torch.cat([x, x.norm(dim=1, keepdim=True)], 1)


def inverse_row_sums(both: Tensor, own: Tensor, total: Tensor) -> Tensor:
    """Give one over each row sum of X X^T without its diagonal, guarded, [N, 1].

    Args:
        both: Features and their length, [N, D + 1].
        own: The diagonal, [N, 1].
        total: What ``both`` adds up to over the graph of each node, [N, D + 1].
    """
    row_sum = (both[:, :-1] * total[:, :-1]).sum(1, keepdim=True) - own
    size = torch.maximum(row_sum.abs(), _LEAST * both[:, -1:] * total[:, -1:])
    least = torch.finfo(size.dtype).tiny ** 0.5  # below, 1 / size^2 overflows, as gradients have it
    size = size.masked_fill(size < least, 1.0)  # a row of zeros, or nearly: nothing to divide
    return row_sum / size / size  # its square may be too small for a float
