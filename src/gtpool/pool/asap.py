"""ASAP: every node's neighbourhood forms a cluster, and the fittest clusters are kept.

Ranjan, Sanyal, Talukdar: "ASAP: Adaptive Structure Aware Pooling for Learning Hierarchical Graph
Representations", arXiv 1911.07979.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu, logsigmoid
from torch_geometric.nn import GCNConv, LEConv

from gtpool.graph import check_count, check_share
from gtpool.ops.assign import check_weights, coarsen, with_loops
from gtpool.ops.merge import adj_t_matmul, edge_weight
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.ops.segment import segment_softmax
from gtpool.pool.layer import Dropped, DropPool

SLOPE = 0.2  # slope of the leaky ReLU, as in the authors' code


class ASAPool(DropPool):
    r"""Pooling that keeps some of the clusters formed by each node and its neighbours.

    .. math::
        m_i &= \max_{j \in c(i)} x'_j, \quad X' = \mathrm{GCN}(X, A) \\
        \alpha_{ij} &= \mathrm{softmax}_{j \in c(i)}
                       \big(\sigma(w^\top (W m_i \,\Vert\, x'_j))\big),
                       \quad S_{ji} = \alpha_{ij} \\
        x^c_i &= \textstyle\sum_{j \in c(i)} \alpha_{ij} x_j \\
        \phi_i &= \mathrm{sigmoid}\big(x^c_i W_1
                  + \textstyle\sum_{j \in \mathcal{N}(i)} (x^c_i W_2 - x^c_j W_3)\big) \\
        idx &= \mathrm{sample}(\phi, \lceil \mu n \rceil) \\
        X^p &= \phi_{idx} \odot X^c_{idx} \\
        A^p &= \hat{S}^\top (A + I) \hat{S}, \quad \hat{S} = S_{:, idx}

    The cluster c(i) consists of node i and the sources of its incoming edges; N(i) is those sources
    without i. :math:`\sigma` is a leaky ReLU. Two kept clusters are adjacent if they share a node
    or if an edge leads from one to the other. The ``edge_attr`` of the output is the weight of
    these edges, in one column; of the input's edge features only a weight is used. ``perm`` is the
    centres of the kept clusters, ``score`` is :math:`\phi_{idx}`.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share of clusters kept, ceil(ratio * n) of n; an int keeps that many.
        sampler: A key of ``gtpool.ops.sample.SAMPLERS``; a wheel takes the softmax of the fitness.
        order: How clusters stand on the wheel, a name of ``NODE_ORDERS``.
        dropout: Share of the attention coefficients dropped in training.
        weighted: The first column of ``edge_attr`` (or a vector) is the non-negative weight of each
            edge, as on all levels above the first. If False, every edge has weight 1.

    Differs from the paper:
        - The paper has :math:`\sigma` inside, :math:`w^\top \sigma(W m_i \Vert x'_j)`. The query
          then adds a constant to all members of its cluster, which cancels in the softmax: W would
          have no effect. The authors' code and PyG have it outside, as here.
        - W, w, W_1 and W_2 have a bias. Edge weights enter the GCN and A^p, but not the fitness, as
          in both implementations. W_2 and W_3 have the signs of PyG's ``LEConv``.
        - The GCN is always applied; in PyG it is optional and off by default.
        - A node is not its own neighbour in the fitness, as in the authors' code. PyG counts it,
          which is equivalent to a different W_1.
        - PyG keeps the clusters of *lowest* fitness for half of all seeds: its selection multiplies
          by a number of random sign that never learns. Here the fittest stay.
        - The sigmoid rounds to one where a cluster is very fit. Top-k compares its logarithm, which
          does not; scores are rounded to half their binary digits first, so that equal clusters
          tie; of these the lowest index stays, unless ``order`` is ``"structure"``.
        - The output has no self-loops, and listed ones do not count beside the I of A^p: the
          authors set the diagonal to one, and the next level adds that here as well.
        - The authors detach S in A^p; here its gradient flows. PyG's fails on a CPU, so that two of
          its layers in a row do not train there.
        - Clusters reach one hop, as in both codes; repeated edges add up.

    Example:
        >>> pool = ASAPool(16, ratio=0.5)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> out = pool(torch.randn(6, 16), ring)
        >>> out.x.shape, out.edge_attr.shape[1]
        (torch.Size([3, 16]), 1)
    """

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        sampler: str = "topk",
        order: Order = "index",
        dropout: float = 0.0,
        weighted: bool = False,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, NODE_ORDERS)
        check_share("dropout", dropout)
        self.in_channels, self.ratio, self.sampler = in_channels, ratio, sampler
        self.order: Order = order
        self.dropout, self.weighted = dropout, weighted

        self.gcn = GCNConv(in_channels, in_channels, add_self_loops=False)
        self.query = nn.Linear(in_channels, in_channels)  # W
        self.attention = nn.Linear(2 * in_channels, 1)  # w
        self.fitness = LEConv(in_channels, 1)  # W_1 is its lin3, W_2 -lin2, W_3 -lin1

    @property
    def why_not_captured(self) -> str:
        """Reason why the layer cannot be captured."""
        return "pool 'asap' has no static form: the number of its edges depends on its weights"

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        for part in (self.gcn, self.query, self.attention, self.fitness):
            part.reset_parameters()

    def check(self, x: Tensor, graph: PackedGraph) -> None:
        """Raise a ValueError for weights that are negative or not finite."""
        check_weights(edge_weight(graph.edge_index, graph.edge_attr, x, weighted=self.weighted))

    def step(
        self, x: Tensor, graph: PackedGraph, attn: Tensor | None = None, *, edges: bool = True
    ) -> tuple[Dropped, PackedGraph]:
        """Return the kept clusters, the fitness of all clusters, and the pooled graphs."""
        del edges  # clusters always have edges
        weight = edge_weight(graph.edge_index, graph.edge_attr, x, weighted=self.weighted)
        looped, weight = with_loops(graph.edge_index, weight, x.size(0))
        share = self._attend(x if attn is None else attn, looped, weight).to(x.dtype)
        share = dropout(share, self.dropout, self.training)
        clusters = adj_t_matmul(x, looped, share)  # X^c
        logit = self.fitness(clusters, looped[:, : -x.size(0)]).squeeze(1)
        fitness = logit.sigmoid()
        score = logsigmoid(logit) if self.sampler == "topk" else fitness
        kept = graph.keep(score, self.ratio, sampler=self.sampler, order=self.order)
        scale = fitness.index_select(0, kept).unsqueeze(1)
        x = (clusters.index_select(0, kept) * scale).to(x.dtype)
        ends, weight = coarsen(looped, weight, looped, share, kept, graph.level.batch.numel())
        level = graph.next_level(self.ratio)
        return Dropped(x, kept, fitness), PackedGraph(ends, weight, level, graph.later[1:])

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, "
            f"sampler={self.sampler!r}, order={self.order!r}, weighted={self.weighted})"
        )

    def _attend(self, x: Tensor, edges: Tensor, weight: Tensor) -> Tensor:
        """Return the attention weight of each edge's source in its target's cluster, [E + N]."""
        source, target = edges
        x = self.gcn(x, edges, weight)
        place = target.unsqueeze(1).expand(-1, x.size(1))
        members = x.index_select(0, source)
        master = torch.zeros_like(x).scatter_reduce(0, place, members, "amax", include_self=False)
        for_query, for_member = self.attention.weight.view(2, -1)
        query = self.query(master) @ for_query + self.attention.bias
        member = x @ for_member
        logit = query.index_select(0, target) + member.index_select(0, source)
        return segment_softmax(leaky_relu(logit, SLOPE), target, x.size(0))
