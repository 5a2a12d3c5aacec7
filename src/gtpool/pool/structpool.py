"""StructPool: soft clustering by a conditional random field.

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
"""A row sum counts as cancelled below this share of its upper bound."""


class StructPool(MergePool):
    r"""Soft clustering by a conditional random field over all pairs of nodes of a graph.

    .. math::
        U &= H^{(3)}, \quad H^{(l + 1)} = \tanh(\tilde{D}^{-1} (\tilde{A} H^{(l)} \Theta_l + b_l)),
             \quad H^{(0)} = X, \quad \tilde{A} = A + I \\
        W_{ij} &= x_i^\top x_j \, / \, r_i, \quad W_{ii} = 0,
             \quad r_i = \textstyle\sum_{j \ne i} x_i^\top x_j \\
        Q &\leftarrow U + W \, \mathrm{softmax}(Q), \quad \text{initially } Q = U \\
        L &= \mathrm{softmax}(Q) \\
        X' &= L^\top X, \quad A' = L^\top A L

    W is never materialised: its product with L is :math:`X (X^\top L)` without the diagonal, which
    is linear in the number of nodes.

    Args:
        in_channels: Width D of the node features, kept unchanged, and of the two hidden layers.
        clusters: Clusters C of every graph, even one with fewer nodes.
        steps: Mean-field updates of Q.
        weighted: Whether the first column of ``edge_attr`` is the edge weight; otherwise every edge
            has weight 1.

    Differs from the paper:
        - All pairs of nodes interact, as in the authors' code; the paper also has a variant with
          pairs within some hops.
        - tanh follows the last layer too, and the bias is divided by the degree, as in the authors'
          code. The hidden layers have the width of the features (48 in the code).
        - The products in a row sum may cancel, and an isolated node has none. The authors' code
          divides anyway, and gives NaN for a graph of one node. Here
          :math:`r_i / \max(|r_i|, f_i)^2` replaces :math:`1 / r_i`, with
          :math:`f_i = |x_i| \sum_j |x_j| / 100`: equal if :math:`|r_i| \ge f_i`, and falling to
          zero below.
        - A node whose products with others are below the root of the smallest float (1e-19 in
          float32) counts as a node without features, because division would overflow.
        - Degrees sum absolute weights, so that negative weights cannot cancel.

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
        """Reinitialise all parameters."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()

    def merge(self, x: Tensor, graph: Backend) -> Merged:
        """Return the clusters of each graph by unary and pairwise energies."""
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
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, clusters={self.clusters}, "
            f"steps={self.steps}, weighted={self.weighted})"
        )


def _mean_field(x: Tensor, unary: Tensor, graphs: Adjacency, steps: int) -> Tensor:
    """Return the assignment after mean-field updates, [N, C]."""
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
    """Return the rows with their norms appended, [N, D] -> [N, D + 1]."""
    return torch.cat([x, x.norm(dim=1, keepdim=True)], 1)


def inverse_row_sums(both: Tensor, own: Tensor, total: Tensor) -> Tensor:
    """Return the guarded inverse of each row sum of X X^T without its diagonal, [N, 1].

    Args:
        both: Features and their norm, [N, D + 1].
        own: The diagonal, [N, 1].
        total: Sum of ``both`` over the graph of each node, [N, D + 1].
    """
    row_sum = (both[:, :-1] * total[:, :-1]).sum(1, keepdim=True) - own
    size = torch.maximum(row_sum.abs(), _LEAST * both[:, -1:] * total[:, -1:])
    least = torch.finfo(size.dtype).tiny ** 0.5  # below, 1 / size^2 in gradients overflows
    size = size.masked_fill(size < least, 1.0)  # rows that are (nearly) zero
    return row_sum / size / size  # not size**2, which may underflow
