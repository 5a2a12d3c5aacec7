"""The padded back-end: R runs side by side in a batch of fixed capacity.

Shapes never depend on the graphs, and nothing waits for the device. The steps are plain PyTorch
(``gtpool.ops.static``) or Triton kernels (``gtpool.ops.kernels.steps``).
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from gtpool.fixed import ChainStep, EdgeTypes, PaddedBatch, PaddedCSR, Rows
from gtpool.ops import static
from gtpool.ops import static_edges as sums
from gtpool.ops import static_reads as reads
from gtpool.ops.backend import Backend, Pooled
from gtpool.ops.clusters import ClusterGraph
from gtpool.ops.runs import linear, per_run
from gtpool.ops.sample import Order
from gtpool.ops.static_edges import Edges
from gtpool.ops.static_merge import Sparse, cluster_rows
from gtpool.ops.steps import WIDEST, Chosen, Steps, plain

_PLAIN = plain()  # not at each call: a compiler cannot follow it


class PaddedRows(NamedTuple):
    """The rows of a batch of fixed capacity; see ``gtpool.ops.backend.RowLayout``."""

    rows: Rows
    runs: int
    steps: Steps

    @property
    def real(self) -> Tensor:  # noqa: D102 - see RowLayout, here and below
        return self.rows.batch < self.rows.size.numel()

    @property
    def graphs(self) -> int:  # noqa: D102
        return self.rows.size.numel()

    @property
    def num_rows(self) -> int:  # noqa: D102
        return self.rows.batch.numel()

    def cleared(self, x: Tensor) -> Tensor:  # noqa: D102
        return torch.where(self.real.unsqueeze(1), x, 0.0)

    def spread(self, value: Tensor) -> Tensor:  # noqa: D102
        return torch.cat([value, torch.zeros_like(value[:1])]).index_select(0, self.rows.batch)

    def total(self, x: Tensor) -> Tensor:  # noqa: D102
        return static.total(x, self.rows)

    def mean(self, x: Tensor) -> Tensor:  # noqa: D102
        return static.mean(x, self.rows)

    def maximum(self, x: Tensor) -> Tensor:  # noqa: D102
        return static.maximum(x, self.rows)

    def mean_max(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.steps.mean_max(x, self.rows)

    def softmax(self, logit: Tensor) -> Tensor:  # noqa: D102
        return reads.softmax(logit, self.rows)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return reads.products(left, right, self.rows)

    def highest(self, x: Tensor, nodes: int) -> Tensor:  # noqa: D102
        return reads.highest(x, nodes, self.rows, self.runs)

    def places(self) -> tuple[Tensor, Tensor]:  # noqa: D102
        parts = (torch.cat([part, part.new_zeros(1)]) for part in (self.rows.start, self.rows.size))
        start, size = (part.index_select(0, self.rows.batch) for part in parts)
        return torch.arange(self.num_rows, device=start.device) - start, size

    def of_clusters(self, clusters: int) -> "PaddedRows":
        """Lay out as many clusters of each place."""
        return self._replace(rows=cluster_rows(self.rows, clusters))


class PaddedGraph:
    """A batch of fixed capacity; see ``gtpool.ops.backend.Backend``.

    Args:
        links: The edges, and where nodes are now.
        levels: The layout at this level and after each further pooling step.
        bonds: The kinds of the edges; None where nobody asked for them.
        runs: Number R of runs.
        longest: Nodes of the largest graph there can be.
        steps: Plain functions or kernels.
        edge_attr: Features of the edges, [RE, F]; None where nobody asked for them.
        chain: The clusterings of the next steps, where the batch has them.
        clusters: The edges between clusters, in place of ``links``, once there are clusters.
    """

    def __init__(
        self,
        links: PaddedCSR,
        levels: tuple[Rows, ...],
        bonds: EdgeTypes | None,
        runs: int,
        longest: int,
        steps: Steps,
        edge_attr: Tensor | None = None,
        chain: tuple[ChainStep, ...] = (),
        clusters: Edges | None = None,
    ) -> None:
        self.chain, self.clusters = chain, clusters
        self.links, self.levels, self.bonds, self.edge_attr = links, levels, bonds, edge_attr
        self.runs, self.longest, self.steps = runs, longest, steps
        self._scales: dict[Any, Tensor] = {}

    @classmethod
    def of(cls, batch: PaddedBatch, runs: int, longest: int, steps: Steps) -> "PaddedGraph":
        """Give the graphs of a batch at level 0."""
        parts = (batch.links, batch.levels, batch.bonds, runs, longest, steps, batch.edge_attr)
        return cls(*parts, batch.chain)

    @property
    def rows(self) -> PaddedRows:  # noqa: D102 - see Backend, here and below
        return PaddedRows(self.levels[0], self.runs, self.steps)

    def gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.clusters is not None:
            scale = sums.root_degrees(self.clusters, x.new_empty((), dtype=wide))
            return sums.gcn_sum(x, scale, self.clusters)
        if ("in", wide) not in self._scales:
            like = x.new_empty((), dtype=wide)
            self._scales["in", wide] = self.steps.root_degrees(self.links, like)
        return self.steps.gcn_sum(x, self._scales["in", wide], self.links)

    def weighted_gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        return sums.weighted_gcn_sum(x, self._features()[:, 0].to(x.dtype), self.links)

    def gin_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        return self.steps.gin_sum(x, self.links)

    def bond_sum(  # noqa: D102
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        if self.bonds is None:
            return self._feature_sum(x, encoder, root, scaled=scaled)
        table: Tensor = encoder.table.weight  # pyright: ignore[reportAssignmentType, reportAttributeAccessIssue]
        last = torch.zeros_like(table[:, :1]) if root is None else root.unsqueeze(1)
        key = "out", scaled
        if key not in self._scales:
            self._scales[key] = (
                self.steps.root_out_degrees(self.links, table)
                if scaled
                else (self.links.origin >= 0).to(table.dtype)
            )
        table = torch.cat([table, last], 1)
        out = self.steps.bond_sum(x, table, self._scales[key], self.links, self.bonds)
        return out if root is not None else out - x.relu() + x  # relu(x + 0) is in the sum

    def gat_sum(self, x: Tensor, sent: Tensor, got: Tensor) -> Tensor:  # noqa: D102
        return sums.gat_sum(x, sent, got, self.links)

    def attention(  # noqa: D102
        self,
        x: Tensor,
        seen: Tensor,
        weights: tuple[Tensor, Tensor, Tensor],
        heads: int,
        *,
        kind: Literal["exact", "linear"],
        learns: bool,
        ratio: float,
    ) -> "PaddedAttention":
        del seen, kind, ratio  # x, exact and planned
        return PaddedAttention(self, x, weights, heads, learns=learns)

    def keep(self, score: Tensor, ratio: float, *, sampler: str, order: Order) -> Chosen:  # noqa: D102
        del ratio  # which is planned
        return self.steps.choose(
            score.detach(),
            *self.levels[:2],
            sampler=sampler,
            order=order,
            longest=self.longest,
        )

    def take(self, x: Tensor, kept: Chosen) -> Tensor:  # noqa: D102
        if x.dim() == 1:
            return self.steps.take(x.unsqueeze(1), kept).squeeze(1)
        return self.steps.take(x, kept)

    def follow(self, kept: Chosen, ratio: float, *, edges: bool = True) -> "PaddedGraph":  # noqa: D102
        del ratio
        links = self.steps.follow(self.links, kept) if edges else self.links
        sizes = (self.runs, self.longest, self.steps)
        return PaddedGraph(links, self.levels[1:], self.bonds, *sizes, self.edge_attr)

    def coarsen(self, x: Tensor, steps: int) -> Pooled:  # noqa: D102
        del steps  # the chain is there
        (matrix, edges), rows = self.chain[0], self.levels[1]
        passed = x.index_select(0, matrix.column) * matrix.value
        passed = torch.where(matrix.value != 0, passed, 0.0)  # NaN of another run is among it
        pooled = x.new_zeros(rows.batch.numel(), x.size(1)).index_add(0, matrix.row, passed)
        ends = torch.stack([edges.row, edges.column])
        clusters = Edges(ends, rows.batch.numel(), padded=True)
        sizes = (self.runs, self.longest, self.steps)
        parts = (self.links, self.levels[1:], None, *sizes, edges.value.to(x.dtype))
        after = PaddedGraph(*parts, self.chain[1:], clusters)
        return Pooled(pooled, cast("Backend", after))

    def coarse_gcn_sum(self, x: Tensor) -> Tensor:  # noqa: D102
        if self.clusters is None:
            raise ValueError("the batch has no clusters yet: its edges have no weights of theirs")
        return sums.coarse_gcn_sum(x, self._features()[:, 0].to(x.dtype), self.clusters)

    def adjacent(self, dtype: torch.dtype, *, weighted: bool) -> Sparse:  # noqa: D102
        weight = self._features()[:, 0] if weighted else None
        return Sparse.of(self.links, self.levels[0], dtype, weight)

    def merged(self, coarse: Tensor) -> ClusterGraph:  # noqa: D102
        return ClusterGraph(coarse, self.rows.of_clusters(coarse.size(1)))

    def _feature_sum(
        self, x: Tensor, encoder: nn.Module, root: Tensor | None, *, scaled: bool
    ) -> Tensor:
        """Do what ``bond_sum`` does for edges with features that are no codes."""
        scale = self.steps.root_out_degrees(self.links, x) if scaled else None
        passed = sums.edge_sum(x, encoder(self._features()), scale, self.links)
        own = x if root is None else per_run(torch.add, x, root).relu()
        return passed + (own if scale is None else own * scale.square().unsqueeze(1))

    def _features(self) -> Tensor:
        if self.edge_attr is None:
            raise ValueError(
                "the batch has no features of edges: give Stock.of edge_categories or edge_features"
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
        learns: bool,
    ) -> None:
        self.graph, self.learns = graph, learns
        # A head too wide for the kernel's tiles is padded to the longest graph.
        self.steps = graph.steps if x.size(1) <= WIDEST * heads else _PLAIN
        self.qkv = linear(x, torch.cat(weights, -2)).unflatten(1, (3, heads, -1))
        everywhere = learns or self.steps is _PLAIN  # whose gradient is that of all rows
        with torch.set_grad_enabled(torch.is_grad_enabled() and everywhere):
            self.out, self.lse = self.steps.attend(self.qkv, graph.levels[0], graph.longest)

    def scores(  # noqa: D102
        self,
        theta_global: Tensor,
        theta_local: Tensor,
        lam: float,
        act: Callable[[Tensor], Tensor],
    ) -> Tensor:
        parts = (self.qkv, self.out, self.lse, theta_global, theta_local, lam)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns):
            return self.steps.scores(*parts, self.graph.links, self.graph.levels[0], act)

    def rows(self, kept: Chosen) -> Tensor:  # noqa: D102
        parts = (self.qkv, self.out, self.lse, kept, *self.graph.levels[:2])
        return self.steps.attended_rows(*parts).flatten(1)
