"""k-MIS pooling: a maximal k-independent set of nodes, each the centre of a cluster.

Bacciu, Conte, Landolfi: "Generalizing Downsampling from Regular Data to Graphs", AAAI 2023,
arXiv 2208.03523.
"""

from typing import Literal

import torch
from torch import Tensor

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.connect import REACH, nearest_kept
from gtpool.ops.entry import no_compile
from gtpool.ops.greedy import independent_set, rank_by_score
from gtpool.ops.merge import at_least_float32
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.pool.partition import Partition, PartitionPool

REDUCTIONS = ("mean", "sum", "kept")


class KMISPool(PartitionPool):
    r"""Clustering pooling around a maximal k-independent set, chosen greedily by score.

    .. math::
        s     &= \sigma(X w + b) \\
        \pi_i &= s_i / \big[(A + I)^k \mathbf{1}\big]_i \\
        K     &= \text{nodes in descending order of } \pi,
                 \text{ unless a chosen node is within } k \text{ hops} \\
        S_{ij} &= 1 \text{ for the nearest } j \in K \text{ of node } i \\
        X'    &= \hat{S}^\top (s \odot X), \quad A' = S^\top A S

    with :math:`\hat{S} = S` for a sum and the columns of S divided by their sums for a mean. The
    diagonal of A' is left out. Chosen nodes lie more than k hops apart, and every node is within k
    hops of one: the set is spread over the graph, whatever the scores are.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share of nodes that a wheel draws, ceil(ratio * n) of n; an int draws that many. The
            set follows from the graph, and of ``"topk"`` this has no effect.
        k: Hops that the chosen nodes exceed, at most 8.
        reduce: Features of a cluster: ``"mean"`` or ``"sum"`` of its nodes, or ``"kept"``, the
            chosen node alone.
        greedy: Whether the order divides scores by the size of the neighbourhood; without it the
            order is that of s.
        sampler: ``"topk"`` takes nodes in descending order. With ``"rws"`` or ``"rwsv"`` the nodes
            that a wheel of :math:`\mathrm{softmax}(\pi)` draws come first, then the others.
        order: How nodes stand on the wheel, a name of ``NODE_ORDERS``. ``"structure"`` breaks ties
            by the structure around nodes; else the index does.
        weighted: Whether the first edge feature is the weight of its edge.

    Differs from the paper:
        - Clusters are those of the nearest chosen node, ties to the first in order. PyG's
          ``KMISPooling`` takes the first in order within k hops; for k = 1 both are the same.
        - PyG keeps the features of the chosen nodes alone unless told otherwise: ``"kept"``. The
          mean is the default here, so that no node is lost.
        - The wheels are not there. The scorer is PyG's default, ``"linear"``; a constant score and
          ``greedy`` give the order by degree.
        - The set follows edges in both directions. Edge weights do not enter the order.
        - Scores are rounded to half their binary digits, so that equal nodes tie. Of equal nodes
          one comes first, which decides how many are chosen in a ring; so for nodes that even
          ``order="structure"`` cannot tell apart, the result depends on the numbering.

    Example:
        >>> pool = KMISPool(16)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> pool(torch.ones(6, 16), ring).x.shape
        torch.Size([3, 16])
    """

    sized_by = "ratio"
    why_not_captured = (
        "pool 'kmis' has no static form: the number of its clusters depends on its weights"
    )

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        k: int = 1,
        reduce: Literal["mean", "sum", "kept"] = "mean",
        greedy: bool = True,
        sampler: str = "topk",
        order: Order = "index",
        weighted: bool = False,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_ratio(ratio)
        check_count("k", k)
        if k > REACH:
            raise ValueError(f"k must be at most {REACH}, got {k}")
        check_choice("reduce", reduce, REDUCTIONS)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, NODE_ORDERS)
        self.in_channels, self.ratio, self.k, self.reduce = in_channels, ratio, k, reduce
        self.greedy, self.sampler, self.weighted = greedy, sampler, weighted
        self.order: Order = order
        self.score = Linear(in_channels, 1)

    def reset_parameters(self) -> None:
        """Draw the scorer anew."""
        self.score.reset_parameters()

    def partition(self, x: Tensor, graph: PackedGraph) -> Partition:
        """Return the clusters around the chosen nodes."""
        score = at_least_float32(self.score(x)).sigmoid()
        chosen, cluster = self._choose(score.detach().squeeze(1), graph)
        batch = graph.level.batch.index_select(0, chosen)
        scaled = (x * score).to(x.dtype)
        if self.reduce == "kept":
            return Partition(scaled.index_select(0, chosen), cluster, batch)
        total = at_least_float32(scaled)
        total = total.new_zeros(chosen.numel(), x.size(1)).index_add(0, cluster, total)
        if self.reduce == "mean":
            total = total / cluster.bincount(minlength=chosen.numel()).unsqueeze(1)
        return Partition(total.to(x.dtype), cluster, batch)

    @no_compile
    def _choose(self, score: Tensor, graph: PackedGraph) -> tuple[Tensor, Tensor]:
        """Return the chosen nodes, ascending [K], and the cluster of each node [N]."""
        source, target = graph.edge_index
        first = score / self._neighbourhoods(score, graph) if self.greedy else score
        ties = graph.order_by_structure(first) if self.order == "structure" else None
        rank = rank_by_score(first, ties)
        if self.sampler != "topk":
            drawn = graph.keep(first, self.ratio, sampler=self.sampler, order=self.order)
            rank = rank.index_add(0, drawn, torch.full_like(drawn, -rank.numel()))
        mask = independent_set(source, target, rank, self.k)
        number = torch.where(mask, mask.cumsum(0) - 1, -1)
        cluster = nearest_kept(source, target, number, -rank.double())
        return mask.nonzero().view(-1), cluster

    def _neighbourhoods(self, score: Tensor, graph: PackedGraph) -> Tensor:
        """Return the number of walks of at most k steps to each node, (A + I)^k 1, [N]."""
        source, target = graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]]
        count = torch.ones_like(score)
        for _ in range(self.k):
            count = count.index_add(0, target, count.index_select(0, source))
        return count

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, k={self.k}, "
            f"reduce={self.reduce!r}, greedy={self.greedy}, sampler={self.sampler!r}, "
            f"order={self.order!r}, weighted={self.weighted})"
        )
