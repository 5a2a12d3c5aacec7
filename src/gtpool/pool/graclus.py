"""Graclus: pairs of nodes matched by their normalised cut weight.

Dhillon, Guan, Kulis: "Weighted Graph Cuts without Eigenvectors: A Multilevel Approach", TPAMI 2007;
as a pooling layer in Defferrard, Bresson, Vandergheynst, NeurIPS 2016, arXiv 1606.09375.
"""

from gtpool.pool.partition import ChainPool


class Graclus(ChainPool):
    r"""Clustering pooling by a greedy matching, without parameters.

    Nodes are visited in ascending order of degree :math:`d`. A node i without a partner gets the
    neighbour j without one that has the highest normalised cut weight

    .. math::
        w_{ij} \Bigl(\frac{1}{d_i} + \frac{1}{d_j}\Bigr)

    and stays alone if there is none. With the assignment S of nodes to pairs, and its columns
    divided by their sums in :math:`\hat{S}`, the pooled graph is

    .. math::
        X' = \hat{S}^\top X, \qquad A' = S^\top A S, \qquad d' = S^\top d

    and the next step matches pairs. A step about halves the nodes.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        steps: Length of the chain that the layer builds for graphs without one.

    Differs from the paper:
        - Dhillon et al. visit nodes in random order, and refine the clusters of the coarsest graph.
          Defferrard et al. start at random and then go by degree; there is no refinement.
        - Equal weights and degrees go by the structure around nodes (``gtpool.ops.partitions``).
          The result depends on the numbering only where colour refinement cannot tell nodes apart
          that are not symmetric.
        - Features are means of pairs, where Defferrard et al. take the maximum. Their fake nodes,
          which make a balanced tree, are not there.
        - The diagonal of A' is left out; d' still counts the edges inside a pair.
        - Edges are followed both ways, and loops have no weight.

    Example:
        >>> import torch
        >>> pool = Graclus(16)
        >>> path = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
        >>> pool(torch.randn(6, 16), path).x.shape
        torch.Size([3, 16])
    """

    method = "graclus"
