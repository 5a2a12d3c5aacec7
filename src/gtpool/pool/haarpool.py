"""HaarPool: spectral clustering, and features as low frequencies in a Haar basis.

Wang, Li, Ma, Montúfar, Zhuang, Fan: "Haar Graph Pooling", ICML 2020, arXiv 1909.11580.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from gtpool.graph import CoarseningStep, GraphLayout, NodeMerge, check_count
from gtpool.ops.backend import Backend, Pooled
from gtpool.ops.coarsening import build_chain, haar_transform
from gtpool.ops.entry import check_inputs


class HaarPool(nn.Module):
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

    kind = "clustering"

    def __init__(self, in_channels: int, steps: int = 3) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_count("steps", steps)
        self.in_channels, self.steps = in_channels, steps

    def reset_parameters(self) -> None:
        """Do nothing: the layer has no parameters."""

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        level: GraphLayout | None = None,
        chain: Sequence[CoarseningStep] | None = None,
    ) -> NodeMerge:
        """Return the pooled batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features; ignored.
            batch: Graph of each node, sorted, [N]; if None, all nodes are one graph.
            level: The layout of the batch, instead of ``batch``; inputs are then not checked.
            chain: The remaining steps of the chain; the first is applied. If None, the layer builds
                a chain of ``steps`` steps.
        """
        if level is None:
            level = check_inputs(x, edge_index, edge_attr, batch, self.in_channels)
            _check_chain(chain, level)
        if chain is None:
            chain = build_chain(edge_index, level, self.steps)
        step = chain[0]
        pooled = haar_transform(x, chain)
        weight = step.edge_attr.to(x.dtype)
        return NodeMerge(pooled, step.edge_index, weight, step.level.batch, step.cluster, None)

    def pool(self, x: Tensor, graph: Backend, *, edges: bool = True) -> Pooled:
        """Return the graphs after one step along the chain of the batch."""
        del edges  # clusters always have edges
        return graph.coarsen(x, self.steps)

    def __repr__(self) -> str:
        """Return the class name, the width and the length of the chain."""
        return f"{type(self).__name__}({self.in_channels}, steps={self.steps})"


def _check_chain(chain: Sequence[CoarseningStep] | None, level: GraphLayout) -> None:
    """Raise a ValueError unless the chain has a step that starts from these nodes."""
    if chain is None:
        return
    if not chain:
        raise ValueError("the chain has no steps left: each graph is already one node")
    nodes, graphs = level.batch.numel(), level.sizes.numel()
    if chain[0].cluster.numel() != nodes or chain[0].level.sizes.numel() != graphs:
        raise ValueError(
            f"the chain starts from {chain[0].cluster.numel()} nodes of "
            f"{chain[0].level.sizes.numel()} graphs, but x has {nodes} nodes of {graphs}"
        )
