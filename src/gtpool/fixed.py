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

    @classmethod
    def rounded(cls, graphs: int, nodes: Sequence[int], edges: int) -> Self:
        """Round rows and edges up to whole blocks."""
        *rows, links = (max(1, -(-count // _BLOCK)) * _BLOCK for count in (*nodes, edges))
        return cls(graphs, tuple(rows), links)

    def holds(self, other: Self) -> bool:
        """Say whether a batch of another capacity fits."""
        fits = all(mine >= theirs for mine, theirs in zip(self.nodes, other.nodes, strict=True))
        return fits and self.graphs >= other.graphs and self.edges >= other.edges


class Rows(NamedTuple):
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


class Links(NamedTuple):
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


class Bonds(NamedTuple):
    """The kinds of the edges: codes of categories, numbered on from column to column.

    Of padding 0. Both are one tensor where edges and codes are the same either way.
    """

    entering: Tensor
    """Of the edges as ``Links.source`` has them, whole numbers, [RE, F]."""
    leaving: Tensor
    """Of the edges as ``Links.target`` has them, [RE, F]."""


class FixedBatch(NamedTuple):
    """A batch of fixed capacity: R runs of G places for graphs, some of which may be empty."""

    x: Tensor
    """Node features, zeros on padding, [RN, F]."""
    links: Links
    """The edges, at level 0."""
    levels: tuple[Rows, ...]
    """The input's layout, then that after each pooling step."""
    y: Tensor
    """Targets as a dataset has them; of an empty place, any, [RG] or [RG, T]."""
    present: Tensor
    """Whether a place holds a graph, bool [RG]."""
    bonds: Bonds | None = None
    """The kinds of the edges; None where nobody asked for them."""
    edge_attr: Tensor | None = None
    """Features of the edges as ``Links.source`` has them, zeros on padding, [RE, F]."""
