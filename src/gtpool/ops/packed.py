"""The packed back-end: concatenated graphs of any sizes, without padding."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gtpool.graph import Coarsening, CoarseningStep, GraphLayout
from gtpool.ops import aggregate, bag, merge
from gtpool.ops.adjacency import PackedAdjacency
from gtpool.ops.aggregate import Edges, ends
from gtpool.ops.attention import attend
from gtpool.ops.attention_packed import PackedAttention
from gtpool.ops.backend import Pooled
from gtpool.ops.bucket import buckets_of
from gtpool.ops.chains import coarsen_graphs, pool_features
from gtpool.ops.clusters import ClusterGraph
from gtpool.ops.connect import closest_edges, khop_edges
from gtpool.ops.dense import runs_as_written
from gtpool.ops.directed_edges import DirectedEdges
from gtpool.ops.drop import keep, kept_layout
from gtpool.ops.entry import no_compile
from gtpool.ops.memory import check_fits
from gtpool.ops.sample import Order
from gtpool.ops.segment import (
    gather_by_graph,
    induced_edges,
    layout_from_batch,
    layout_from_sizes,
    segment_softmax,
    segment_sum,
)
from gtpool.ops.structure import node_colours, order_by_colour
from gtpool.spec import Connect


class PackedRows(NamedTuple):
    """The rows of a packed batch; see ``gtpool.ops.backend.RowLayout``."""

    level: GraphLayout

    @property
    def real(self) -> None:  # noqa: D102 - see RowLayout, here and below
        return None

    @property
    def graphs(self) -> int:  # noqa: D102
        return self.level.sizes.numel()

    @property
    def real_graphs(self) -> None:  # noqa: D102
        return None

    @property
    def num_rows(self) -> int:  # noqa: D102
        return self.level.batch.numel()

    def mask_padding(self, x: Tensor) -> Tensor:  # noqa: D102
        return x

    def broadcast(self, value: Tensor) -> Tensor:  # noqa: D102
        return value.index_select(0, self.level.batch)

    def total(self, x: Tensor) -> Tensor:  # noqa: D102
        return segment_sum(x, self.level.batch, self.graphs)

    def mean(self, x: Tensor) -> Tensor:  # noqa: D102
        count = self.level.batch.bincount(minlength=self.graphs).clamp_(min=1)
        return self.total(x) / count.unsqueeze(1)

    @no_compile  # dynamo instantiates the Function, which torch warns about
    def maximum(self, x: Tensor) -> Tensor:  # noqa: D102
        return _Maximum.apply(x, self.level.batch, self.graphs)

    def mean_max(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.cat([self.mean(x), self.maximum(x)], 1)

    def softmax(self, logit: Tensor) -> Tensor:  # noqa: D102
        return segment_softmax(logit, self.level.batch, self.graphs)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        heads = zip(left.unbind(1), right.unbind(1), strict=True)
        return torch.stack([merge.products(*head, self.level) for head in heads], 1)

    @no_compile
    def attend(self, qkv: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        q, k, v = qkv.unbind(1)
        like = q.to(torch.promote_types(q.dtype, torch.float32))
        return attend(q, k, v, self.level.ptr, buckets=buckets_of(self.level, like))

    @no_compile
    def topk_rows(self, x: Tensor, nodes: int) -> Tensor:  # noqa: D102
        # unique() sorts by the first channel first; the flip makes it the last channel.
        rank = x.detach().flip(1).unique(dim=0, return_inverse=True)[1]
        batch, ptr, sizes = self.level.batch, self.level.ptr, self.level.sizes
        place = (batch * x.size(0) - rank).argsort(stable=True)  # graph by graph, highest first
        slot = torch.arange(nodes)
        taken = (ptr[:-1, None] + slot).clamp(max=x.size(0) - 1).flatten()
        empty = (slot >= sizes[:, None]).unsqueeze(2)
        taken, empty = (part.to(x.device, non_blocking=True) for part in (taken, empty))
        rows = x.index_select(0, place.index_select(0, taken))
        return rows.unflatten(0, (-1, nodes)).masked_fill(empty, 0)

    def positions(self) -> tuple[Tensor, Tensor]:  # noqa: D102
        batch = self.level.batch
        start, size = (
            gather_by_graph(part.to(batch.device, non_blocking=True), batch)
            for part in (self.level.ptr[:-1], self.level.sizes)
        )
        return torch.arange(batch.numel(), device=batch.device) - start, size

    @no_compile
    def of_clusters(self, clusters: int) -> "PackedRows":
        """Return the rows of a given number of clusters per graph."""
        sizes = torch.full_like(self.level.sizes, clusters)
        return PackedRows(layout_from_sizes(sizes, self.level.batch.device))


class PackedGraph(NamedTuple):
    """A packed batch of graphs; see ``gtpool.ops.backend.Backend``."""

    edge_index: Tensor
    """Source and target of each edge, [2, E]."""
    edge_attr: Tensor | None
    """Edge features, [E, ...]."""
    level: GraphLayout
    """The layout of the batch."""
    later: tuple[GraphLayout, ...] = ()
    """The layouts after the next pooling steps, if already computed."""
    chain: tuple[CoarseningStep, ...] = ()
    """The next coarsening steps, if the batch has them."""
    mask: Tensor | None = None
    """Factor on the message of each edge, [E]; None for no scaling."""
    joined: bool = False
    """Whether edges may have the code -1: edges added by a pooler."""

    @classmethod
    def of(
        cls, edge_index: Tensor, batch: Tensor, edge_attr: Tensor | None = None
    ) -> "PackedGraph":
        """Compute the layout from ``batch`` (one device sync).

        Example:
            >>> PackedGraph.of(torch.tensor([[0], [1]]), torch.tensor([0, 0, 1])).rows.graphs
            2
        """
        return cls(edge_index, edge_attr, layout_from_batch(batch))

    @property
    def rows(self) -> PackedRows:  # noqa: D102 - see Backend, here and below
        return PackedRows(self.level)

    def with_edge_mask(self, mask: Tensor) -> "PackedGraph":  # noqa: D102
        return self._replace(mask=mask)

    def gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        if self._use_bags(x) and x.size(1) > 1:  # for one column index_add is as fast
            return bag.gcn_propagate_cpu(x, self.edge_index)
        # bf16 cannot represent large degrees.
        wide = x.new_empty((), dtype=torch.promote_types(x.dtype, torch.float32))
        scale = aggregate.root_degrees(self._edges, wide).to(x.dtype)
        return aggregate.gcn_sum(x, scale, self._edges)

    def weighted_gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        return aggregate.weighted_gcn_sum(x, self._weight(x), self._edges)

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        return aggregate.coarse_gcn_sum(x, self._weight(x), self._edges)

    def gin_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        if self._use_bags(x):
            return bag.gin_propagate_cpu(x, self.edge_index)
        return aggregate.gin_sum(x, self._edges)

    def bond_sum(  # noqa: D102
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        degree = aggregate.out_degrees(self._edges, x) if scaled else None
        scale = None if degree is None else degree.rsqrt()
        passed = aggregate.edge_sum(x, self.encode_edges(encoder), scale, self._edges)
        own = x if root is None else (x + root).relu()
        return passed + (own if degree is None else own / degree.unsqueeze(1))

    def encode_edges(self, encoder: nn.Module) -> Tensor:  # noqa: D102
        attr = self.edge_attr
        if attr is None or not self.joined or attr.is_floating_point():
            return encoder(attr)
        return encoder(attr.clamp(min=0)).masked_fill(attr[:, :1] < 0, 0)  # -1: no code

    def directed_edges(self) -> DirectedEdges:  # noqa: D102
        return DirectedEdges.of(self._edges)

    def gat_sum(self, x: Tensor, sent: Tensor, got: Tensor) -> Tensor:  # noqa: D102
        return aggregate.gat_sum(x, sent, got, self._edges)

    def attention(  # noqa: D102
        self,
        x: Tensor,
        attn: Tensor,
        weights: tuple[Tensor, Tensor, Tensor],
        heads: int,
        *,
        kind: Literal["exact", "linear"],
        score_grad: bool,
        ratio: float,
    ) -> PackedAttention:
        check_fits(
            x.size(0),
            self.edge_index.size(1),
            x.size(1),
            heads,
            attention=kind,
            training=torch.is_grad_enabled(),
            device=x.device,
            itemsize=x.element_size(),
        )
        parts = (x, attn, weights, heads, self.edge_index, self.level)
        return PackedAttention(*parts, kind=kind, score_grad=score_grad, ratio=ratio)

    def keep(self, score: Tensor, ratio: float, *, sampler: str, order: Order) -> Tensor:  # noqa: D102
        if order != "structure":
            return keep(score, ratio, self.level, sampler=sampler, order=order)
        place = self.order_by_structure(score)
        found = keep(score[place], ratio, self.level, sampler=sampler, order="score")
        return place.index_select(0, found).sort().values

    def order_by_structure(self, score: Tensor) -> Tensor:
        """Return the nodes of each graph in the order of their colours, [N]."""
        colour = node_colours(*ends(self._edges._replace(mask=None), loops=True), score.detach())
        return order_by_colour(colour, self.level.batch)

    def take(self, x: Tensor, kept: Tensor) -> Tensor:  # noqa: D102
        return x.index_select(0, kept)

    @no_compile
    def subgraph(  # noqa: D102
        self, kept: Tensor, ratio: float, score: Tensor, connect: Connect, *, edges: bool = True
    ) -> "PackedGraph":
        level = self.next_level(ratio)
        if not edges:
            return PackedGraph(self.edge_index.new_empty(2, 0), None, level, self.later[1:])
        given = (self.edge_index, self.edge_attr, kept)
        if connect == "closest":
            parts = closest_edges(*given, score)
        else:
            join = induced_edges if connect == "induced" else khop_edges
            parts = join(*given, self.level.batch.numel())
        joined = self.joined or connect == "khop:2"
        return PackedGraph(*parts, level, self.later[1:], joined=joined)

    @no_compile
    def next_level(self, ratio: float) -> GraphLayout:
        """Return the layout after a step that keeps a share of the rows of each graph."""
        return self.later[0] if self.later else kept_layout(self.level, ratio)

    def coarsen(self, x: Tensor, coarsening: Coarsening) -> Pooled:  # noqa: D102
        chain = self.chain or coarsen_graphs(self.edge_index, self.level, coarsening)
        step, later = chain[0], tuple(chain[1:])
        weight = step.edge_attr.to(x.dtype)
        after = PackedGraph(step.edge_index, weight, step.level, chain=later)
        return Pooled(pool_features(x, chain), after)

    def adjacency(self, dtype: torch.dtype, *, weighted: bool) -> PackedAdjacency:  # noqa: D102
        like = torch.empty(0, dtype=dtype, device=self.edge_index.device)
        weight = merge.edge_weight(self.edge_index, self.edge_attr, like, weighted=weighted)
        return PackedAdjacency(self.edge_index, weight, self.level)

    def merged(self, coarse: Tensor) -> ClusterGraph:  # noqa: D102
        return ClusterGraph(coarse, self.rows.of_clusters(coarse.size(1)))

    @property
    def _edges(self) -> Edges:
        return Edges(self.edge_index, self.level.batch.numel(), self.mask)

    def _weight(self, x: Tensor) -> Tensor:
        return merge.edge_weight(self.edge_index, self.edge_attr, x, weighted=True)

    def _use_bags(self, x: Tensor) -> bool:
        """Return whether the fast CPU sums apply: float32 or float64, no mask, run as written."""
        exact = x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
        return exact and x.device.type == "cpu" and runs_as_written() and self.mask is None


class _Maximum(Function):
    """Maximum per graph; ties share the gradient equally."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: Tensor, num_graphs: int) -> Tensor:  # noqa: ANN401
        most = x.new_zeros(num_graphs, x.size(1))
        index = batch.unsqueeze(1).expand_as(x)
        most = most.scatter_reduce_(0, index, x, "amax", include_self=False)
        ctx.save_for_backward(x, batch, most)
        return most

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,  # noqa: ANN401
        d_most: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, batch, most = ctx.saved_tensors
        # The comparison is stored as float: bool takes five times as long.
        has = most.index_select(0, batch).eq_(x)
        share = d_most / segment_sum(has, batch, most.size(0)).clamp_(min=1)
        return has.mul_(share.index_select(0, batch)), None, None
