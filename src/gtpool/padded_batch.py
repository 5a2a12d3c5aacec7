"""Padded batches: static shapes for a fixed capacity of graphs, nodes and edges.

Shape letters as in ``gtpool.graph``. A batch holds R runs side by side, each with G graph slots.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from torch import Tensor

_BLOCK = 64
"""Capacities are multiples of this; kernels process rows in blocks."""


class Capacity(NamedTuple):
    """Maximum graphs, nodes and edges of one run in a batch."""

    graphs: int
    nodes: tuple[int, ...]
    """Rows at each level."""
    edges: int
    chain: tuple[int, ...] = ()
    """For each coarsening step, entries of its transform and edges after it."""

    @classmethod
    def rounded(
        cls, graphs: int, nodes: Sequence[int], edges: int, chain: Sequence[int] = ()
    ) -> Self:
        """Return a capacity with rows and edges rounded up to whole blocks."""
        counts = [max(1, -(-count // _BLOCK)) * _BLOCK for count in (*nodes, edges, *chain)]
        levels = len(nodes)
        return cls(graphs, tuple(counts[:levels]), counts[levels], tuple(counts[levels + 1 :]))

    def holds(self, other: Self) -> bool:
        """Whether a batch of another capacity fits."""
        pairs = zip((*self.nodes, *self.chain), (*other.nodes, *other.chain), strict=True)
        fits = all(mine >= theirs for mine, theirs in pairs)
        return fits and self.graphs >= other.graphs and self.edges >= other.edges


class PaddedLayout(NamedTuple):
    """Layout of a padded batch at one level: R runs of G graph slots, each run padded to N rows.

    The rows of a run are the nodes of its graphs, graph after graph, then padding. All tensors are
    int64 and on the device; their shapes do not depend on the graphs.
    """

    start: Tensor
    """First row of each graph, [RG]."""
    size: Tensor
    """Nodes of each graph, 0 for an empty slot, [RG]."""
    batch: Tensor
    """Graph of each row, RG on padding, [RN]."""


class PaddedCSR(NamedTuple):
    """The edges of a padded batch at level 0, and the row of each node at the current level.

    Edges are never filtered. An edge is active at a level if both its ends have a row there. E is
    the edge capacity of a run, N0 its row capacity at level 0, N its row capacity at this level.
    """

    source: Tensor
    """Source row of each edge at level 0, sorted by target, then by source, -1 on padding, [RE]."""
    sink: Tensor
    """Target row of the same edges, ascending inside a run, -1 on padding, [RE]."""
    begin: Tensor
    """First incoming edge of each row of level 0, [RN0]."""
    end: Tensor
    """One past the last incoming edge; equal to ``begin`` if there is none, [RN0]."""
    target: Tensor
    """Target row of each edge, sorted by source, -1 on padding, [RE]."""
    out_begin: Tensor
    """First outgoing edge of each row of level 0, as an index into ``target``, [RN0]."""
    out_end: Tensor
    """One past the last outgoing edge, [RN0]."""
    origin: Tensor
    """Row at level 0 of each row at this level, -1 on padding, [RN]."""
    place: Tensor
    """Row at this level of each row at level 0, -1 if dropped or padding, [RN0]."""


class EdgeTypes(NamedTuple):
    """Category codes of the edges; each column has its own range of codes, padding is 0.

    Both fields are the same tensor if edges and codes are symmetric.
    """

    entering: Tensor
    """Codes in the order of ``PaddedCSR.source``, integers, [RE, F]."""
    leaving: Tensor
    """Codes in the order of ``PaddedCSR.target``, [RE, F]."""


class COOMatrix(NamedTuple):
    """Sparse matrices of all graphs in COO format; padding has any index and the value 0."""

    row: Tensor
    """[M]"""
    column: Tensor
    """[M]"""
    value: Tensor
    """[M, 1]"""


class PaddedCoarseningStep(NamedTuple):
    """One coarsening step of a padded batch."""

    transform: COOMatrix
    """Maps nodes before the step to clusters after it."""
    edges: COOMatrix
    """Source, target and weight of the edges between clusters."""


class PaddedBatch(NamedTuple):
    """A padded batch: R runs of G graph slots, some of which may be empty."""

    x: Tensor
    """Node features, zeros on padding, [RN, F]."""
    csr: PaddedCSR
    """The edges, at level 0."""
    levels: tuple[PaddedLayout, ...]
    """Layout of the input, then the layout after each pooling step."""
    y: Tensor
    """Targets as in the dataset, arbitrary for empty slots, [RG] or [RG, T]."""
    present: Tensor
    """Mask of slots that hold a graph, bool [RG]."""
    edge_types: EdgeTypes | None = None
    """Category codes of the edges; None if not requested."""
    edge_attr: Tensor | None = None
    """Edge features in the order of ``PaddedCSR.source``, zeros on padding, [RE, F]."""
    chain: tuple[PaddedCoarseningStep, ...] = ()
    """Coarsening steps of the graphs, if the network needs them."""
    graph_features: Tensor | None = None
    """Features of each graph, NaN if missing, arbitrary for empty slots, [RG, D]."""
