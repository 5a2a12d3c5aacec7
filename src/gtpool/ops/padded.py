"""The padded back-end: R runs side by side in a batch of fixed capacity.

Shapes do not depend on the graphs, and there is no host sync. Operations are plain PyTorch
(``gtpool.ops.padded_torch``) or Triton kernels (``gtpool.ops.kernels.padded_triton``).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from gtpool.graph import Coarsening
from gtpool.ops import aggregate, padded_segment
from gtpool.ops.adjacency import SparseAdjacency, cluster_layout
from gtpool.ops.aggregate import Edges
from gtpool.ops.backend import Backend, Pooled
from gtpool.ops.clusters import ClusterGraph
from gtpool.ops.connect import closest_csr
from gtpool.ops.directed_edges import DirectedEdges
from gtpool.ops.padded_ops import WIDEST, KeptRows, PaddedOps, torch_ops
from gtpool.ops.runs import linear, per_run
from gtpool.ops.sample import Order
from gtpool.padded_batch import (
    EdgeTypes,
    PaddedBatch,
    PaddedCoarseningStep,
    PaddedCSR,
    PaddedLayout,
)
from gtpool.spec import Connect

_TORCH_OPS = torch_ops()  # once, because torch.compile cannot trace the import


class PaddedRows(NamedTuple):
    """The rows of a padded batch; see ``gtpool.ops.backend.RowLayout``."""

    rows: PaddedLayout
    runs: int
    ops: PaddedOps
    longest: int
    """Maximum rows of a graph."""

    @property
    def real(self) -> Tensor:  # noqa: D102 - see RowLayout, here and below
        return self.rows.batch < self.rows.size.numel()

    @property
    def graphs(self) -> int:  # noqa: D102
        return self.rows.size.numel()

    @property
    def real_graphs(self) -> Tensor:  # noqa: D102
        return self.rows.size > 0

    @property
    def num_rows(self) -> int:  # noqa: D102
        return self.rows.batch.numel()

    def mask_padding(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.where(self.real.unsqueeze(1), x, 0.0)

    def broadcast(self, value: Tensor) -> Tensor:  # noqa: D102
        return torch.cat([value, torch.zeros_like(value[:1])]).index_select(0, self.rows.batch)

    def total(self, x: Tensor) -> Tensor:  # noqa: D102
        return padded_segment.total(x, self.rows)

    def mean(self, x: Tensor) -> Tensor:  # noqa: D102
        return padded_segment.mean(x, self.rows)

    def maximum(self, x: Tensor) -> Tensor:  # noqa: D102
        return padded_segment.maximum(x, self.rows)

    def mean_max(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.ops.mean_max(x, self.rows)

    def softmax(self, logit: Tensor) -> Tensor:  # noqa: D102
        return padded_segment.softmax(logit, self.rows)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return padded_segment.products(left, right, self.rows)

    def attend(self, qkv: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        return _attention_ops(self.ops, qkv.size(3)).attend(qkv, self.rows, self.longest)

    def topk_rows(self, x: Tensor, nodes: int) -> Tensor:  # noqa: D102
        return padded_segment.topk_rows(x, nodes, self.rows, self.runs)

    def positions(self) -> tuple[Tensor, Tensor]:  # noqa: D102
        parts = (torch.cat([part, part.new_zeros(1)]) for part in (self.rows.start, self.rows.size))
        start, size = (part.index_select(0, self.rows.batch) for part in parts)
        return torch.arange(self.num_rows, device=start.device) - start, size

    def of_clusters(self, clusters: int) -> "PaddedRows":
        """Return the rows of a given number of clusters per slot."""
        return self._replace(rows=cluster_layout(self.rows, clusters), longest=clusters)


class PaddedGraph:
    """A padded batch of graphs; see ``gtpool.ops.backend.Backend``.

    Args:
        csr: The edges, and the row of each node at this level.
        levels: The layout at this level and after each further pooling step.
        edge_types: Category codes of the edges; None if not requested.
        runs: Number R of runs.
        longest: Maximum nodes of a graph.
        ops: Functions in plain PyTorch or Triton kernels.
        edge_attr: Edge features, [RE, F]; None if not requested.
        chain: The next coarsening steps, if the batch has them.
        clusters: The edges between clusters, used instead of ``csr`` after a coarsening step.
    """

    def __init__(
        self,
        csr: PaddedCSR,
        levels: tuple[PaddedLayout, ...],
        edge_types: EdgeTypes | None,
        runs: int,
        longest: int,
        ops: PaddedOps,
        edge_attr: Tensor | None = None,
        chain: tuple[PaddedCoarseningStep, ...] = (),
        clusters: Edges | None = None,
    ) -> None:
        self.chain, self.clusters = chain, clusters
        self.csr, self.levels, self.edge_types, self.edge_attr = csr, levels, edge_types, edge_attr
        self.runs, self.longest, self.ops = runs, longest, ops
        self._scales: dict[Any, Tensor] = {}

    @classmethod
    def of(cls, batch: PaddedBatch, runs: int, longest: int, ops: PaddedOps) -> "PaddedGraph":
        """Return the graphs of a batch at level 0."""
        parts = (batch.csr, batch.levels, batch.edge_types, runs, longest, ops, batch.edge_attr)
        return cls(*parts, batch.chain)

    @property
    def rows(self) -> PaddedRows:  # noqa: D102 - see Backend, here and below
        return PaddedRows(self.levels[0], self.runs, self.ops, self.longest)

    def gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.clusters is not None:
            scale = aggregate.root_degrees(self.clusters, x.new_empty((), dtype=wide))
            return aggregate.gcn_sum(x, scale, self.clusters)
        if ("in", wide) not in self._scales:
            like = x.new_empty((), dtype=wide)
            self._scales["in", wide] = self.ops.root_degrees(self.csr, like)
        return self.ops.gcn_sum(x, self._scales["in", wide], self.csr)

    def weighted_gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        return aggregate.weighted_gcn_sum(x, self._features()[:, 0].to(x.dtype), self.csr)

    def gin_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.ops.gin_sum(x, self.csr)

    def bond_sum(  # noqa: D102
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        if self.edge_types is None:
            return self._feature_sum(x, encoder, root, scaled=scaled)
        table: Tensor = encoder.table.weight  # pyright: ignore[reportAssignmentType, reportAttributeAccessIssue]
        last = torch.zeros_like(table[:, :1]) if root is None else root.unsqueeze(1)
        key = "out", scaled
        if key not in self._scales:
            self._scales[key] = (
                self.ops.root_out_degrees(self.csr, table)
                if scaled
                else (self.csr.origin >= 0).to(table.dtype)
            )
        table = torch.cat([table, last], 1)
        out = self.ops.bond_sum(x, table, self._scales[key], self.csr, self.edge_types)
        return out if root is not None else out - x.relu() + x  # the sum contains relu(x + 0)

    def encode_edges(self, encoder: nn.Module) -> Tensor:  # noqa: D102
        if self.edge_types is None:
            return encoder(self._features())
        table: Tensor = encoder.table.weight  # pyright: ignore[reportAssignmentType, reportAttributeAccessIssue]
        codes = self.edge_types.entering.long()
        one_hot = table.new_zeros(codes.size(0), table.size(-2)).scatter(1, codes, 1.0)
        return encoder.encode_one_hot(one_hot)  # pyright: ignore[reportCallIssue]

    def directed_edges(self) -> DirectedEdges:  # noqa: D102
        return DirectedEdges.of(self.csr)

    def gat_sum(self, x: Tensor, sent: Tensor, got: Tensor) -> Tensor:  # noqa: D102
        return aggregate.gat_sum(x, sent, got, self.csr)

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
    ) -> "PaddedAttention":
        del attn, kind, ratio  # attn is x, kind is exact, the ratio is in the layouts
        return PaddedAttention(self, x, weights, heads, score_grad=score_grad)

    def keep(self, score: Tensor, ratio: float, *, sampler: str, order: Order) -> KeptRows:  # noqa: D102
        del ratio  # which is planned
        coloured = order == "structure"
        return self.ops.sample(
            score.detach(),
            *self.levels[:2],
            sampler=sampler,
            order="score" if coloured else order,
            longest=self.longest,
            colour=self.ops.node_colours(score, self.csr) if coloured else None,
        )

    def take(self, x: Tensor, kept: KeptRows) -> Tensor:  # noqa: D102
        if x.dim() == 1:
            return self.ops.take(x.unsqueeze(1), kept).squeeze(1)
        return self.ops.take(x, kept)

    def subgraph(  # noqa: D102
        self, kept: KeptRows, ratio: float, score: Tensor, connect: Connect, *, edges: bool = True
    ) -> "PaddedGraph":
        del ratio
        sizes = (self.runs, self.longest, self.ops)
        if connect == "induced" or not edges:
            csr = self.ops.induced_csr(self.csr, kept) if edges else self.csr
            return PaddedGraph(csr, self.levels[1:], self.edge_types, *sizes, self.edge_attr)
        if connect != "closest":
            raise ValueError(f"connect {connect!r} has no captured form; choose 'closest'")
        csr, entering, leaving = closest_csr(
            self.csr, kept.number, score.detach(), self.levels[1], self.runs
        )
        types, attr = self.edge_types, self.edge_attr
        if types is not None:  # both of one order: ``leaving`` numbers entering edges
            types = EdgeTypes(*(types.entering.index_select(0, by) for by in (entering, leaving)))
        attr = None if attr is None else attr.index_select(0, entering)
        return PaddedGraph(csr, self.levels[1:], types, *sizes, attr)

    def coarsen(self, x: Tensor, coarsening: Coarsening) -> Pooled:  # noqa: D102
        del coarsening  # the batch has the chain
        (matrix, edges), rows = self.chain[0], self.levels[1]
        passed = x.index_select(0, matrix.column) * matrix.value
        passed = torch.where(matrix.value != 0, passed, 0.0)  # padding may hold NaN of another run
        pooled = x.new_zeros(rows.batch.numel(), x.size(1)).index_add(0, matrix.row, passed)
        ends = torch.stack([edges.row, edges.column])
        clusters = Edges(ends, rows.batch.numel(), padded=True)
        sizes = (self.runs, self.longest, self.ops)
        parts = (self.csr, self.levels[1:], None, *sizes, edges.value.to(x.dtype))
        after = PaddedGraph(*parts, self.chain[1:], clusters)
        return Pooled(pooled, cast("Backend", after))

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.clusters is None:
            raise ValueError("the batch has no clusters: coarse_gcn_sum needs a coarsening step")
        return aggregate.coarse_gcn_sum(x, self._features()[:, 0].to(x.dtype), self.clusters)

    def adjacency(self, dtype: torch.dtype, *, weighted: bool) -> SparseAdjacency:  # noqa: D102
        weight = self._features()[:, 0] if weighted else None
        return SparseAdjacency.of(self.csr, self.levels[0], dtype, weight)

    def merged(self, coarse: Tensor) -> ClusterGraph:  # noqa: D102
        return ClusterGraph(coarse, self.rows.of_clusters(coarse.size(1)))

    def _feature_sum(
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        """Return ``bond_sum`` for numeric edge features."""
        scale = self.ops.root_out_degrees(self.csr, x) if scaled else None
        passed = aggregate.edge_sum(x, encoder(self._features()), scale, self.csr)
        own = x if root is None else per_run(torch.add, x, root).relu()
        return passed + (own if scale is None else own * scale.square().unsqueeze(1))

    def _features(self) -> Tensor:
        if self.edge_attr is None:
            raise ValueError(
                "the batch has no edge features: pass edge_categories or edge_features to "
                "DeviceDataset.of"
            )
        return self.edge_attr


class PaddedAttention:
    """Exact attention inside each graph; see ``gtpool.ops.backend.Attention``."""

    def __init__(
        self,
        graph: PaddedGraph,
        x: Tensor,
        weights: tuple[Tensor, Tensor, Tensor],
        heads: int,
        *,
        score_grad: bool,
    ) -> None:
        self.graph, self.x, self.score_grad = graph, x, score_grad
        self.ops = _attention_ops(graph.ops, x.size(1) // heads)
        self.qkv = linear(x, torch.cat(weights, -2)).unflatten(1, (3, heads, -1))
        everywhere = score_grad or self.ops is _TORCH_OPS  # torch needs the gradient of all rows
        with torch.set_grad_enabled(torch.is_grad_enabled() and everywhere):
            self.out, self.lse = self.ops.attend(self.qkv, graph.levels[0], graph.longest)

    def scores(  # noqa: D102
        self,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:
        parts = (self.qkv, self.out, self.lse, theta_global, theta_local, lam)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.score_grad):
            score, self.out = self.ops.scores(*parts, self.graph.csr, self.graph.levels[0], act)
        return score

    def rows(self, kept: KeptRows, gate: Tensor | None = None) -> tuple[Tensor, Tensor]:  # noqa: D102
        if gate is None:
            parts = (self.qkv, self.out, self.lse, kept, *self.graph.levels[:2])
            rows = self.ops.attended_rows(*parts)
        else:
            rows = self.ops.gated_rows(self.out, gate, kept)
        return rows.flatten(1), self.graph.take(self.x, kept)


def _attention_ops(ops: PaddedOps, channels: int) -> PaddedOps:
    """Return the functions that attend: torch, which pads to the longest graph, for wide heads."""
    return ops if channels <= WIDEST else _TORCH_OPS
