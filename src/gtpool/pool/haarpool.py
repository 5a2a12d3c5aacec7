"""HaarPool: merge spectral clusters, and keep the low frequencies of a Haar basis on them.

Wang, Li, Ma, Montúfar, Zhuang, Fan: "Haar Graph Pooling", ICML 2020, arXiv 1909.11580.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gtpool.graph import Coarse, Level, NodeMerge, check_count
from gtpool.ops.backend import Pooled
from gtpool.ops.chain import build_chain
from gtpool.ops.entry import eager, lay_out
from gtpool.ops.packed import PackedGraph
from gtpool.ops.segment import plan, segment_sum


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
          (``gtpool.data.chain.with_chain``); the authors' code does so in every forward pass, from
          random starts.
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
        >>> pool = HaarPool(16)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.randn(6, 16), ring).x.shape
        torch.Size([4, 16])
    """

    kind = "clustering"
    why_not_captured = (
        "pool 'haarpool' has no static form: how many edges join its clusters depends on the graphs"
    )

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
        level: Level | None = None,
        chain: Sequence[Coarse] | None = None,
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
            level = lay_out(x, edge_index, edge_attr, batch, self.in_channels)
            _check_chain(chain, level)
        if chain is None:
            chain = build_chain(edge_index, level, self.steps)
        step = chain[0]
        pooled = transform(x, chain)
        weight = step.edge_attr.to(x.dtype)
        return NodeMerge(pooled, step.edge_index, weight, step.level.batch, step.cluster, None)

    def pool(self, x: Tensor, graph: PackedGraph, *, edges: bool = True) -> Pooled:
        """Take one step in a network, along the chain of the batch."""
        del edges
        chain = graph.chain or build_chain(graph.edge_index, graph.level, self.steps)
        step = chain[0]
        after = PackedGraph(
            step.edge_index, step.edge_attr.to(x.dtype), step.level, chain=tuple(chain[1:])
        )
        return Pooled(transform(x, chain), after)

    def __repr__(self) -> str:
        """Name the class, the width and the length of a chain."""
        return f"{type(self).__name__}({self.in_channels}, steps={self.steps})"


@eager
def transform(x: Tensor, chain: Sequence[Coarse]) -> Tensor:
    """Take the first step of a chain: Phi^T X, [N, D] -> [N', D].

    Example:
        >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> chain = build_chain(path, plan(torch.tensor([4]), torch.device("cpu")), steps=1)
        >>> transform(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), chain).tolist()
        [[5.0]]
    """
    cluster, level = chain[0].cluster, chain[0].level
    exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
    size = _sizes(cluster, level).to(exact.dtype)
    total = segment_sum(exact, cluster, size.numel()) / size.sqrt().unsqueeze(1)
    return _coefficients(total, level, chain[1:]).to(x.dtype)


def _check_chain(chain: Sequence[Coarse] | None, level: Level) -> None:
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


def _coefficients(z: Tensor, level: Level, chain: Sequence[Coarse]) -> Tensor:
    """Give all coefficients of each graph in the Haar basis of a level, U^T z, [N, D].

    The nodes of a cluster stand side by side. All but its last become a detail of their own; the
    last makes room for what their sum becomes further up.
    """
    if chain:
        cluster, above = chain[0].cluster, chain[0].level
    elif level.batch.numel() == level.sizes.numel():
        return z
    else:
        cluster, above = level.batch, plan(torch.ones_like(level.sizes), z.device)
    size = _sizes(cluster, above)
    end = size.cumsum(0)
    node = torch.arange(z.size(0), device=z.device)
    after = end.index_select(0, cluster) - 1 - node  # nodes after this one in its cluster, k - j
    most = int((level.sizes - above.sizes).max()) + 1
    suffix = _suffix_sums(z, after, most)
    share = suffix.index_select(0, end - size) / size.to(z.dtype).sqrt().unsqueeze(1)
    share = _coefficients(share, above, chain[1:])
    left = after.to(z.dtype).unsqueeze(1)  # the last node of a cluster has none left: 0 below
    detail = (left / (left + 1)).sqrt() * (z - (suffix - z) / left.clamp(min=1))
    from_above, own = _places(cluster, level, above)
    own = torch.where(after > 0, own, from_above.index_select(0, cluster))
    return torch.empty_like(z).index_copy(0, own, detail).index_copy(0, from_above, share)


def _sizes(cluster: Tensor, level: Level) -> Tensor:
    """Count the nodes of each cluster, [N']."""
    return segment_sum(torch.ones_like(cluster), cluster, level.batch.numel())


def _suffix_sums(z: Tensor, after: Tensor, most: int) -> Tensor:
    """Add to each node those after it in its cluster, [N, D], in a logarithmic number of passes.

    A running sum over the batch would do with one, but mix the rounding errors of all graphs.

    Args:
        z: The values, [N, D].
        after: How many nodes of the same cluster follow, [N].
        most: No cluster has more nodes than this.
    """
    step = 1
    while step < most:
        reaches = (after[:-step] >= step).to(z.dtype).unsqueeze(1)
        z = torch.cat([z[:-step].addcmul(z[step:], reaches), z[-step:]])
        step *= 2
    return z


def _places(cluster: Tensor, level: Level, above: Level) -> tuple[Tensor, Tensor]:
    """Say where the coefficients from above belong, [N'], and the details behind them, [N].

    Before node i of the batch there are i - cluster details, as one node of each cluster is none.
    """
    node = torch.arange(cluster.numel(), device=cluster.device)
    ptr = torch.stack([level.ptr[:-1] - above.ptr[:-1], above.ptr[1:]])
    shift, behind = ptr.to(cluster.device, non_blocking=True)
    from_above = node[: above.batch.numel()] + shift.index_select(0, above.batch)
    return from_above, node - cluster + behind.index_select(0, level.batch)
