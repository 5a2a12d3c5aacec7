"""RepPool: node dropping by importance and representativeness; dropped nodes join kept ones.

Li, Ma, Wu, Qi, Tang: "Graph Pooling with Representativeness", ICDM 2020.
"""

import torch
from torch import Tensor

from gtpool.graph import check_count
from gtpool.nn import Linear
from gtpool.ops.assign import check_weights, coarsen, pairs_within_two, with_loops
from gtpool.ops.drop import keep
from gtpool.ops.greedy import spread_nodes, spread_scores
from gtpool.ops.merge import adj_t_matmul, at_least_float32, edge_weight
from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import NODE_ORDERS, SAMPLERS, Order, check_choice, check_ratio
from gtpool.ops.segment import segment_softmax
from gtpool.pool.layer import Dropped, DropPool


class RepPool(DropPool):
    r"""Node-dropping pooling that keeps important nodes far from each other.

    .. math::
        s_i &= \hat{s}_i / \max_j \hat{s}_j, \quad
               \hat{s}_i = \textstyle\sum_{j \in \mathcal{N}(i)} A_{ji} \sigma(x_j w + b) / d_j \\
        idx &= \text{one by one the node of highest } s_i \, r_i, \quad
               r_i = \min_{j \in idx} \mathrm{hops}(i, j) \\
        B_i &= \mathrm{softmax}_{j \in idx} \big(m_{ij} \, x_i W x_j\big), \quad
               m_{ij} = [\mathrm{hops}(i, j) \le 1] + \lambda \, [\mathrm{hops}(i, j) \le 2] \\
        X'  &= B^\top (s \odot X), \qquad A' = B^\top (A + I) B

    The importance s of a node is what its neighbours hand on, each in equal parts. The
    representativeness r is large where no chosen node is near. The assignment B of a node has the
    chosen nodes at most two hops away. The diagonal of A' is left out; its weights are the
    ``edge_attr`` of the output, in one column. ``score`` is :math:`s_{idx}`.

    Args:
        in_channels: Width D of the node features, kept unchanged.
        ratio: Share of nodes kept, ceil(ratio * n) of n; an int keeps that many.
        sampler: ``"topk"`` chooses one by one, as above. ``"rws"`` and ``"rwsv"`` choose at once,
            by a wheel of the softmax of s r; r is then the distance to the next higher s.
        order: How nodes stand on the wheel, a name of ``NODE_ORDERS``. ``"structure"`` breaks ties
            by the structure around nodes; else the index does.
        far: The factor :math:`\lambda` of nodes two hops apart, not negative.
        weighted: The first column of ``edge_attr`` (or a vector) is the non-negative weight of each
            edge, as on all levels above the first. If False, every edge has weight 1.

    Differs from the paper:
        - The paper's text was not at hand. The equations follow the authors' code, with the options
          of its examples: chosen one by one, sigmoid, local assignment, :math:`\lambda = 0.1`.
        - d is the sum of a node's outgoing weights, and the weights share out what is handed on;
          in that code d sums the normalised A and edges count alike. A node without neighbours has
          the importance :math:`\sigma(x_i w + b)`, where it would be lost.
        - Hops are counted on the graph of each level; the authors keep those of the first level.
          Components are n hops apart, as in that code.
        - The authors' other selection chooses at once by top-k; the wheels are not there. The
          distance to a higher s is divided by the largest one, there by the longest path.
        - A node without a chosen one within two hops is left out of X'; there it is shared out
          evenly. A' is not normalised, since convolutions do that.
        - Hops follow edges in both directions. Scores are rounded to half their binary digits, so
          that equal nodes tie; of nodes that even ``order="structure"`` cannot tell apart, the
          index decides.

    Example:
        >>> pool = RepPool(16, ratio=0.5)
        >>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        >>> out = pool(torch.ones(6, 16), ring)
        >>> out.x.shape, out.perm.tolist()
        (torch.Size([3, 16]), [0, 1, 3])
    """

    multiplies = True

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        sampler: str = "topk",
        order: Order = "index",
        far: float = 0.1,
        weighted: bool = False,
    ) -> None:
        super().__init__()
        check_count("in_channels", in_channels)
        check_ratio(ratio)
        check_choice("sampler", sampler, SAMPLERS)
        check_choice("order", order, NODE_ORDERS)
        if not 0 <= far < float("inf"):
            raise ValueError(f"far must be a finite number of at least 0, got {far}")
        self.in_channels, self.ratio, self.sampler = in_channels, ratio, sampler
        self.order: Order = order
        self.far, self.weighted = far, weighted
        self.importance = Linear(in_channels, 1)  # w, b
        self.likeness = Linear(in_channels, in_channels, bias=False)  # W

    @property
    def why_not_captured(self) -> str:
        """Reason why the layer cannot be captured."""
        return "pool 'reppool' has no static form: the number of its edges depends on its weights"

    def reset_parameters(self) -> None:
        """Reinitialise all parameters."""
        self.importance.reset_parameters()
        self.likeness.reset_parameters()

    def check(self, x: Tensor, graph: PackedGraph) -> None:
        """Raise a ValueError for weights that are negative or not finite."""
        check_weights(edge_weight(graph.edge_index, graph.edge_attr, x, weighted=self.weighted))

    def step(
        self, x: Tensor, graph: PackedGraph, attn: Tensor | None = None, *, edges: bool = True
    ) -> tuple[Dropped, PackedGraph]:
        """Return the kept nodes with what joins them, all importances, and the pooled graphs."""
        del edges  # the assignment is computed anyway
        nodes, exact = x.size(0), at_least_float32(x)
        weight = edge_weight(graph.edge_index, graph.edge_attr, exact, weighted=self.weighted)
        looped, weight = with_loops(graph.edge_index, weight, nodes)
        own = at_least_float32(self.importance(x if attn is None else attn)).sigmoid().squeeze(1)
        score = _handed_on(own, looped[:, :-nodes], weight[:-nodes], graph)
        kept = self._keep(score.detach(), own.detach(), graph)
        pairs, near = pairs_within_two(looped, kept, nodes)
        share = self._share(x, pairs, near).to(exact.dtype)
        pooled = adj_t_matmul(exact * score.unsqueeze(1), pairs, share).index_select(0, kept)
        ends, weight = coarsen(looped, weight, pairs, share, kept, nodes)
        after = PackedGraph(ends, weight.to(x.dtype), graph.next_level(self.ratio), graph.later[1:])
        return Dropped(pooled.to(x.dtype), kept, score), after

    def _keep(self, score: Tensor, own: Tensor, graph: PackedGraph) -> Tensor:
        """Return the kept nodes, ascending, [K]; the structure is told apart by ``own``."""
        edges, level = graph.edge_index, graph.level
        place = graph.order_by_structure(own) if self.order == "structure" else None
        if self.sampler == "topk":
            return spread_nodes(edges, score, self.ratio, level, place)
        value = score * spread_scores(edges, score, level)
        if place is None:
            return keep(value, self.ratio, level, sampler=self.sampler, order=self.order)
        found = keep(value[place], self.ratio, level, sampler=self.sampler, order="score")
        return place.index_select(0, found).sort().values

    def _share(self, x: Tensor, pairs: Tensor, near: Tensor) -> Tensor:
        """Return the share of each pair's node that its kept node gets, [P]."""
        node, kept = pairs
        alike = self.likeness(x).index_select(0, node) * x.index_select(0, kept)
        logit = at_least_float32(alike).sum(1)
        return segment_softmax(logit * (near.to(logit.dtype) + self.far), node, x.size(0))

    def __repr__(self) -> str:
        """Return the class name, the width and the options."""
        return (
            f"{type(self).__name__}({self.in_channels}, ratio={self.ratio}, "
            f"sampler={self.sampler!r}, order={self.order!r}, far={self.far}, "
            f"weighted={self.weighted})"
        )


def _handed_on(own: Tensor, edges: Tensor, weight: Tensor, graph: PackedGraph) -> Tensor:
    """Return what each node gets from its neighbours, relative to the highest of its graph, [N]."""
    source, target = edges
    sent, got = (torch.zeros_like(own).index_add(0, end, weight) for end in edges)
    handed = (own / sent.where(sent > 0, 1.0)).index_select(0, source) * weight
    score = torch.zeros_like(own).index_add(0, target, handed)
    score = torch.where(got > 0, score, own)
    most = graph.rows.broadcast(graph.rows.maximum(score.unsqueeze(1))).squeeze(1)
    return score / most.clamp(min=torch.finfo(most.dtype).tiny)
