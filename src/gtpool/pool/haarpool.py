"""HaarPool: spectral clustering, and features as low frequencies in a Haar basis.

Wang, Li, Ma, Montúfar, Zhuang, Fan: "Haar Graph Pooling", ICML 2020, arXiv 1909.11580.
"""

from gtpool.pool.partition import ChainPool


class HaarPool(ChainPool):
    r"""Clustering pooling by the compressive Haar transform, without parameters.

    Each step of a coarsening chain reduces a graph of n nodes to :math:`\lfloor n/2 \rfloor + 1`;
    the last step reduces it to one node. Each level of N nodes has an orthonormal Haar basis, built
    from the top of the chain down. The basis vector of a single node is 1. Let
    :math:`\phi'_1 \dots \phi'_{N'}` be the basis of the level above, whose node :math:`\ell` is a
    cluster of :math:`k_\ell` nodes :math:`v_{\ell,1} \dots v_{\ell,k_\ell}` in ascending order, and
    :math:`\chi_{\ell,j}` the indicator of :math:`v_{\ell,j}`. Then the basis of the level is

    .. math::
        \phi_{\ell}(v) &= \phi'_{\ell}(p) / \sqrt{k_p},
            \quad v \text{ in cluster } p, \quad \ell = 1 \dots N' \\
        \phi_{\ell,j} &= \sqrt{\tfrac{k_\ell - j}{k_\ell - j + 1}}
            \Bigl(\chi_{\ell,j} - \tfrac{1}{k_\ell - j} \textstyle\sum_{i > j} \chi_{\ell,i}\Bigr),
            \quad j = 1 \dots k_\ell - 1

    in this order. A pooling step keeps the first :math:`N'` coefficients, with
    :math:`\Phi = (\phi_1 \dots \phi_{N'})`:

    .. math::
        X' = \Phi^\top X, \qquad A' = S^\top A S

    where S assigns each node to its cluster. The basis is never materialised: :math:`X'` is
    :math:`U'^\top Z` with :math:`Z_p` the sum of cluster p divided by :math:`\sqrt{k_p}` and
    :math:`U'` the basis of the level above, applied by sums inside clusters up the chain.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        steps: Length of the chain that the layer builds for graphs without one.

    Differs from the paper:
        - The chain depends only on the graph, so a dataset computes it once
          (``gtpool.data.coarsening.with_chain``). The authors' code computes it in every forward
          pass, with random initialisation.
        - Spectral clustering uses :math:`D^{-1/2}` times the eigenvectors of the normalised
          Laplacian, as in their code, but one deterministic start instead of ten random ones. A
          disconnected graph is first split into its components.
        - A graph of two nodes becomes one node, as in their code; with the formula it would not
          shrink.
        - The clusters of a level are numbered by the cluster above, then by their first node. The
          paper suggests an order by degree; their code has none.
        - Edge weights count the merged edges, and edges inside a cluster become self-loops, as in
          their clustering. Their network drops the weights and keeps the loops.

    Row i of :math:`X'` is the coefficient of :math:`\phi_i`, not a mean of cluster i. The next
    convolution uses it as node i of the coarse graph, as in the authors' design. The result
    therefore depends on the node order.

    Example:
        >>> import torch
        >>> pool = HaarPool(16)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([4, 16])
    """

    method = "spectral"
