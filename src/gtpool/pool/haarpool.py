"""HaarPool: merge spectral clusters, and keep the low frequencies of a Haar basis on them.

Wang, Li, Ma, Montúfar, Zhuang, Fan: "Haar Graph Pooling", ICML 2020, arXiv 1909.11580.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from gtpool.graph import CoarseningStep, GraphLayout, NodeMerge, check_count
from gtpool.ops.backend import Backend, Pooled
from gtpool.ops.coarsening import build_chain, haar_transform
from gtpool.ops.entry import check_inputs


class HaarPool(nn.Module):
    r"""Clustering pooling by the compressive Haar transform, without a parameter.

    A chain of clusterings makes a graph of n nodes one of :math:`\lfloor n/2 \rfloor + 1`, and so
    on, until the last step makes it one node. Each level of N nodes has an orthonormal Haar basis,
    which is built from the top of the chain down. The one basis vector of a single node is 1. Let
    :math:`\phi'_1 \dots \phi'_{N'}` be the basis of the level above, whose node :math:`\ell` is a
    cluster of :math:`k_\ell` nodes :math:`v_{\ell,1} \dots v_{\ell,k_\ell}` in ascending order, and
    :math:`\chi_{\ell,j}` the indicator of :math:`v_{\ell,j}`. Then the basis of the level is

    .. math::
        \phi_{\ell}(v) &= \phi'_{\ell}(p) / \sqrt{k_p},
            \quad v \text{ in cluster } p, \quad \ell = 1 \dots N' \\
        \phi_{\ell,j} &= \sqrt{\tfrac{k_\ell - j}{k_\ell - j + 1}}
            \Bigl(\chi_{\ell,j} - \tfrac{1}{k_\ell - j} \textstyle\sum_{i > j} \chi_{\ell,i}\Bigr),
            \quad j = 1 \dots k_\ell - 1

    in this order, and a pooling step keeps the first :math:`N'` coefficients, with
    :math:`\Phi = (\phi_1 \dots \phi_{N'})`:

    .. math::
        X' = \Phi^\top X, \qquad A' = S^\top A S

    where S assigns each node to its cluster. No basis is ever written down: :math:`X'` is
    :math:`U'^\top Z` with :math:`Z_p` the sum of cluster p over :math:`\sqrt{k_p}` and :math:`U'`
    the whole basis of the level above, applied by sums inside clusters going up the chain.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        steps: Length of the chain that the layer builds for a graph that comes without one.

    Differs from the paper:
        - The chain follows from the graph alone, so a dataset computes it once
          (``gtpool.data.coarsening.with_chain``); the authors' code does so in every forward pass,
          from random starts.
        - Spectral clustering, as in their code on :math:`D^{-1/2}` times the eigenvectors of the
          normalised Laplacian, has one deterministic start in place of ten random ones. A graph
          that is not connected is split into its components first.
        - A graph of two nodes becomes one node, as in their code; the formula would never end.
        - The clusters of a level are numbered by the cluster above, then by their first node;
          the paper suggests an order by degree, and their code has none.
        - Edges are weighted by the number of edges that they stand for, and inner ones become
          loops, as in their clustering. Their network drops the weights and keeps the loops.

    Row i of :math:`X'` is the coefficient of :math:`\phi_i`, no mean of cluster i. To take it for
    node i of the coarse graph, as the next convolution does, is the authors' design: the result
    depends on the numbering of the nodes.

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
        """Do nothing: there are none."""

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
        """Pool a batch of graphs.

        Args:
            x: Node features, [N, D].
            edge_index: Source and target of each edge, [2, E].
            edge_attr: Edge features, which have no part in the result.
            batch: Graph of each node, sorted, [N]; without it the nodes are one graph.
            level: The planned layout of the batch, in place of ``batch``, which is trusted.
            chain: The rest of the chain, of which the first step is taken here. Without it the
                layer builds one of ``steps`` steps from the graphs that it is given.
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
        """Take one step in a network, along the chain of the batch."""
        del edges  # they come with the clusters
        return graph.coarsen(x, self.steps)

    def __repr__(self) -> str:
        """Name the class, the width and the length of a chain."""
        return f"{type(self).__name__}({self.in_channels}, steps={self.steps})"


def _check_chain(chain: Sequence[CoarseningStep] | None, level: GraphLayout) -> None:
    """Raise a ValueError unless there are steps, and the first one starts from these nodes."""
    if chain is None:
        return
    if not chain:
        raise ValueError("the chain is at its end: each graph is one node, there is no step left")
    nodes, graphs = level.batch.numel(), level.sizes.numel()
    if chain[0].cluster.numel() != nodes or chain[0].level.sizes.numel() != graphs:
        raise ValueError(
            f"the chain starts from {chain[0].cluster.numel()} nodes of "
            f"{chain[0].level.sizes.numel()} graphs, but x has {nodes} nodes of {graphs}"
        )
