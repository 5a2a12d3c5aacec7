"""Batches of fixed capacity: shapes that do not depend on the graphs they hold.

Shape letters as in ``gtpool.graph``; R runs stand side by side, each with G places for graphs.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

from torch import Tensor

_BLOCK = 64
"""Capacities are multiples of it, as kernels take rows in blocks."""


class Capacity(NamedTuple):
    """How much a run's part of a batch may hold."""

    graphs: int
    nodes: tuple[int, ...]
    """Rows at each level."""
    edges: int
    chain: tuple[int, ...] = ()
    """Of each step of a chain of clusterings, entries of its transform and edges after it."""

    @classmethod
    def rounded(
        cls, graphs: int, nodes: Sequence[int], edges: int, chain: Sequence[int] = ()
    ) -> Self:
        """Round rows and edges up to whole blocks."""
        counts = [max(1, -(-count // _BLOCK)) * _BLOCK for count in (*nodes, edges, *chain)]
        levels = len(nodes)
        return cls(graphs, tuple(counts[:levels]), counts[levels], tuple(counts[levels + 1 :]))

    def holds(self, other: Self) -> bool:
        """Say whether a batch of another capacity fits."""
        pairs = zip((*self.nodes, *self.chain), (*other.nodes, *other.chain), strict=True)
        fits = all(mine >= theirs for mine, theirs in pairs)
        return fits and self.graphs >= other.graphs and self.edges >= other.edges


class PaddedLayout(NamedTuple):
    """A batch of fixed capacity at one level: R runs of G graphs, each run padded to N rows.

    The rows of a run are the nodes of its graphs, graph after graph, then padding. All tensors are
    int64 and on the device, so that shapes do not depend on which graphs a batch has.
    """

    start: Tensor
    """First row of each graph, [RG]."""
    size: Tensor
    """Nodes of each graph, 0 where a place is empty, [RG]."""
    batch: Tensor
    """Graph of each row, RG on padding, [RN]."""


class PaddedCSR(NamedTuple):
    """The edges of a batch of fixed capacity, at the level of the input, and where nodes are now.

    Edges are never filtered: an edge counts where both its ends have a place at the level. E is the
    capacity of a run, N0 that of its rows at level 0, N that of its rows at this level.
    """

    source: Tensor
    """Source row of each edge at level 0, sorted by target, then by source, -1 on padding, [RE]."""
    sink: Tensor
    """Target row of the same edges, ascending inside a run, -1 on padding, [RE]."""
    begin: Tensor
    """First of the edges that enter each row of level 0, [RN0]."""
    end: Tensor
    """One past the last of them; equal to ``begin`` where there are none, [RN0]."""
    target: Tensor
    """Target row of each edge, sorted by source, -1 on padding, [RE]."""
    out_begin: Tensor
    """First of the edges that leave each row of level 0, in ``target``, [RN0]."""
    out_end: Tensor
    """One past the last of them, [RN0]."""
    origin: Tensor
    """Row of level 0 of each row of this level, -1 on padding, [RN]."""
    place: Tensor
    """Row of this level of each row of level 0, -1 where it was dropped or is padding, [RN0]."""


class EdgeTypes(NamedTuple):
    """The kinds of the edges: codes of categories, numbered on from column to column.

    Of padding 0. Both are one tensor where edges and codes are the same either way.
    """

    entering: Tensor
    """Of the edges as ``PaddedCSR.source`` has them, whole numbers, [RE, F]."""
    leaving: Tensor
    """Of the edges as ``PaddedCSR.target`` has them, [RE, F]."""


class COOMatrix(NamedTuple):
    """A sparse matrix a graph; of padding any place and the value 0."""

    row: Tensor
    """[M]"""
    column: Tensor
    """[M]"""
    value: Tensor
    """[M, 1]"""


class PaddedCoarseningStep(NamedTuple):
    """One step of a chain of clusterings."""

    transform: COOMatrix
    """From the nodes before to the coefficients after."""
    edges: COOMatrix
    """Source, target and weight of the edges between clusters."""


class PaddedBatch(NamedTuple):
    """A batch of fixed capacity: R runs of G places for graphs, some of which may be empty."""

    x: Tensor
    """Node features, zeros on padding, [RN, F]."""
    csr: PaddedCSR
    """The edges, at level 0."""
    levels: tuple[PaddedLayout, ...]
    """The input's layout, then that after each pooling step."""
    y: Tensor
    """Targets as a dataset has them; of an empty place, any, [RG] or [RG, T]."""
    present: Tensor
    """Whether a place holds a graph, bool [RG]."""
    edge_types: EdgeTypes | None = None
    """The kinds of the edges; None where nobody asked for them."""
    edge_attr: Tensor | None = None
    """Features of the edges as ``PaddedCSR.source`` has them, zeros on padding, [RE, F]."""
    chain: tuple[PaddedCoarseningStep, ...] = ()
    """The steps by which graphs are clustered, where the network asks for them."""
