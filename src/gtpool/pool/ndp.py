"""NDP: one side of a maximum cut stays, with the edges of a Kron reduction.

Bianchi, Grattarola, Livi, Alippi: "Hierarchical Representation Learning in Graph Neural Networks
with Node Decimation Pooling", TNNLS 2022, arXiv 1910.11436.
"""

from gtpool.pool.partition import ChainPool


class NDP(ChainPool):
    r"""Node decimation pooling, without parameters.

    Let u be the eigenvector of the largest eigenvalue of :math:`I - D^{-1/2} A D^{-1/2}`. The nodes
    i with :math:`u_i \ge 0` and those with :math:`u_i < 0` are the two sides of a cut, which is
    close to a maximum cut. One side K stays. The other is dropped and leaves its paths in the Kron
    reduction of the Laplacian :math:`L = D - A`:

    .. math::
        X' = X_K, \qquad
        L' = L_{K,K} - L_{K,\bar{K}} L_{\bar{K},\bar{K}}^{-1} L_{\bar{K},K}, \qquad
        A' = \mathrm{diag}(L') - L'

    Edges of A' lighter than 0.01 are left out of the pooled graph. The next step reduces the whole
    of A'.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        steps: Length of the chain that the layer builds for graphs without one.

    ``assign`` of the result is the kept node that a random walk from each node most likely reaches
    first. It does not enter the features.

    Differs from the paper:
        - Each connected component is cut on its own, and its smaller side stays: at most half.
        - Where the eigenvector cuts less than half of the weight, the paper takes a random cut.
          Here nodes join one by one the side opposite to most of their neighbours, which always
          cuts half.
        - A diagonal of 1e-6 separates equal eigenvalues. Nodes are numbered by the structure
          (``gtpool.ops.partitions``), so that the result depends on the numbering only where colour
          refinement cannot tell nodes apart that are not symmetric.
        - Edges are followed both ways, and loops have no weight.

    Example:
        >>> import torch
        >>> pool = NDP(16)
        >>> path = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
        >>> pool(torch.randn(6, 16), path).x.shape
        torch.Size([3, 16])
    """

    method = "ndp"
