"""SEP-G: clusters are the levels of a coding tree of low structural entropy.

Wu, Chen, Xu, Li: "Structural Entropy Guided Graph Hierarchical Pooling", ICML 2022,
arXiv 2206.13510.
"""

from gtpool.pool.partition import ChainPool


class SEPG(ChainPool):
    r"""Clustering pooling along a coding tree, without parameters.

    The leaves of a coding tree T are the nodes of the graph G. A tree node :math:`\alpha` with
    parent :math:`\alpha^-` stands for the nodes below it: :math:`vol(\alpha)` is the sum of their
    degrees and :math:`g_\alpha` the number of edges that leave them. The tree has a low structural
    entropy

    .. math::
        H^T(G) = - \sum_{\alpha \in T, \alpha \ne root} \frac{g_\alpha}{vol(G)}
            \mathrm{log}_2 \frac{vol(\alpha)}{vol(\alpha^-)}

    It is built greedily in three stages: pairs of the root's children are merged, each time the
    pair that lowers :math:`H^T` most; tree nodes are removed, each time the one that raises it
    least, until the height is right; and chains of tree nodes fill the levels between a node and a
    distant parent. Level i of the tree gives the assignment :math:`S_i`:

    .. math::
        X' = S_i^\top X, \qquad A' = S_i^\top A S_i

    A network of L levels has a tree of height L + 1, whose root is the read-out.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        steps: Length of the chain that the layer builds for graphs without one.

    Differs from the paper:
        - Only adjacent children of the root are merged. Other merges lower nothing; a graph without
          edges keeps its nodes.
        - Equal gains go by the structure around nodes (``gtpool.ops.partitions``). The result
          depends on the numbering only where colour refinement cannot tell nodes apart that are
          not symmetric.
        - The authors' code starts from a tree of height 2, adds levels below its root and above its
          leaves, and gives each connected component a tree of its own.
        - The diagonal of A' is left out, and edges weigh the edges they stand for. The authors'
          network drops both loops and weights.
        - Edges are followed both ways, and loops have no volume.

    Example:
        >>> import torch
        >>> pool = SEPG(16)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([4, 16])
    """

    method = "sep"
