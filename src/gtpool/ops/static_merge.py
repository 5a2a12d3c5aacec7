"""Merging nodes into clusters on a batch of fixed capacity, in plain PyTorch.

The graphs of the input are ``Sparse``. After the first merge every graph has as many clusters as
the others, and graphs are ``Dense``. A, S and the direction of edges are those of
``gtpool.ops.merge``; a row is a node or a cluster, and rows of all graphs are one tensor [N, F].
"""

from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from gtpool.fixed import PaddedCSR, Rows
from gtpool.ops.merge import neighbours, root_of
from gtpool.ops.static_edges import ends
from gtpool.ops.static_reads import Blocks


class Adjacent(Protocol):
    """The adjacency matrices of a batch, packed, ``Sparse`` or ``Dense``."""

    def degrees(self) -> Tensor:
        """Give each row half the weight of the edges that leave it and enter it, [N]."""
        ...

    def entering(self, *, positive: bool = False) -> Tensor:
        """Give each row the weight of the edges that enter it, or its size, [N]."""
        ...

    def normalized(self) -> Self:
        """Give D^-1/2 A D^-1/2 with D the ``degrees``."""
        ...

    def heard(self, value: Tensor) -> Tensor:
        """Give A^T v, [N, F]."""
        ...

    def sent(self, value: Tensor) -> Tensor:
        """Give A v, [N, F]."""
        ...

    def squares(self) -> Tensor:
        """Add up the squares of the entries of each graph's A, [G]."""
        ...

    def sizes(self) -> Tensor:
        """Give the rows of each graph, one where there is none, [G]."""
        ...

    def total(self, value: Tensor) -> Tensor:
        """Add up the rows of each graph, [N, ...] -> [G, ...]."""
        ...

    def spread(self, value: Tensor) -> Tensor:
        """Give each row what its graph has, zeros on padding, [G, F] -> [N, F]."""
        ...

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Give left^T right of each graph, [N, A] and [N, B] -> [G, A, B]."""
        ...

    def laid(self, value: Tensor) -> Any:  # noqa: ANN401 - each its own
        """Lay out the rows [N, A] for ``drawn``."""
        ...

    def drawn(self, laid: Any, right: Tensor) -> Tensor:  # noqa: ANN401
        """Give V (V^T right) of each graph, V what was laid out, [N, B] -> [N, B]."""
        ...


def merge(graphs: Adjacent, assign: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give S^T X [G, C, D], S^T A S [G, C, C] and S^T S [G, C, C], in the dtype of ``assign``."""
    clusters = assign.size(1)
    right = torch.cat([x.to(assign.dtype), graphs.sent(assign), assign], 1)
    found = graphs.products(assign, right)
    pooled, coarse, overlap = found.split([x.size(1), clusters, clusters], dim=2)
    return pooled, coarse, overlap


class Sparse(NamedTuple):
    """Graphs of any size, as their edges; one that does not count has the weight 0."""

    rows: Rows
    edges: Tensor
    """Source and target row of each edge, [2, E]."""
    weight: Tensor
    """[E]"""
    repeats: Tensor
    """How many edges before it have the ends of an edge, [E]."""
    blocks: Blocks

    @classmethod
    def of(
        cls, links: PaddedCSR, rows: Rows, dtype: torch.dtype, weight: Tensor | None = None
    ) -> Self:
        """Lay out the graphs at level 0, where each edge weighs one unless weights are given."""
        source, target, counts = ends(links, loops=True)
        edges = torch.stack([source, target])
        weighs = counts.to(dtype) if weight is None else counts * weight.to(dtype)
        return cls(rows, edges, weighs, _repeats(links), Blocks.of(rows))

    def degrees(self) -> Tensor:  # noqa: D102 - see Adjacent, here and below
        degree = self.weight.new_zeros(self.rows.batch.numel())
        return degree.index_add(0, self.edges.flatten(), self.weight.repeat(2) / 2)

    def entering(self, *, positive: bool = False) -> Tensor:  # noqa: D102
        weight = self.weight.abs() if positive else self.weight
        degree = weight.new_zeros(self.rows.batch.numel())
        return degree.index_add(0, self.edges[1], weight)

    def normalized(self) -> Self:  # noqa: D102
        source, target = root_of(self.degrees()).index_select(0, self.edges.flatten()).chunk(2)
        return self._replace(weight=self.weight / source / target)

    def heard(self, value: Tensor) -> Tensor:  # noqa: D102
        return neighbours(value, self.edges, self.weight)

    def sent(self, value: Tensor) -> Tensor:  # noqa: D102
        return neighbours(value, self.edges.flip(0), self.weight)

    def squares(self) -> Tensor:
        """Add up the squares of the entries of each graph's A, repeated edges as one, [G]."""
        first = torch.arange(self.repeats.numel(), device=self.repeats.device) - self.repeats
        square = torch.zeros_like(self.weight).index_add(0, first, self.weight).square()
        graph = self.rows.batch.index_select(0, self.edges[0])
        return square.new_zeros(self.rows.size.numel() + 1).index_add(0, graph, square)[:-1]

    def sizes(self) -> Tensor:  # noqa: D102
        return self.rows.size.clamp(min=1)

    def total(self, value: Tensor) -> Tensor:  # noqa: D102
        sums = value.new_zeros(self.rows.size.numel() + 1, *value.shape[1:])
        return sums.index_add(0, self.rows.batch, value)[:-1]

    def spread(self, value: Tensor) -> Tensor:  # noqa: D102
        graph = self.rows.batch.clamp(max=self.rows.size.numel() - 1)
        return self._real(value.index_select(0, graph))

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        first, second = self.blocks.pad(left), self.blocks.pad(right)
        return self.blocks.total(_multiply(first.mT, second))

    def laid(self, value: Tensor) -> Tensor:  # noqa: D102
        return self.blocks.pad(value)

    def drawn(self, laid: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        matrix = self.blocks.total(_multiply(laid.mT, self.blocks.pad(right)))
        own = matrix.index_select(0, self.blocks.owner.clamp(max=matrix.size(0) - 1))
        return self._real(self.blocks.rows(_multiply(laid, own)))

    def _real(self, value: Tensor) -> Tensor:
        """Leave zeros on padding, which may have read what is another run's, [N, F]."""
        real = self.rows.batch < self.rows.size.numel()
        return torch.where(real.unsqueeze(1), value, 0.0)


class Dense(NamedTuple):
    """Graphs of C clusters each, as their matrices; where no graph is, zeros."""

    matrix: Tensor
    """A of each graph, [G, C, C]."""

    def degrees(self) -> Tensor:  # noqa: D102
        return ((self.matrix.sum(1) + self.matrix.sum(2)) / 2).flatten()

    def entering(self, *, positive: bool = False) -> Tensor:  # noqa: D102
        return (self.matrix.abs() if positive else self.matrix).sum(1).flatten()

    def normalized(self) -> Self:  # noqa: D102
        root = self._by_graph(root_of(self.degrees()))
        return self._replace(matrix=self.matrix / root.unsqueeze(2) / root.unsqueeze(1))

    def heard(self, value: Tensor) -> Tensor:  # noqa: D102
        return _multiply(self.matrix.mT, self._by_graph(value)).flatten(0, 1)

    def sent(self, value: Tensor) -> Tensor:  # noqa: D102
        return _multiply(self.matrix, self._by_graph(value)).flatten(0, 1)

    def squares(self) -> Tensor:  # noqa: D102
        return self.matrix.square().sum((1, 2))

    def sizes(self) -> Tensor:  # noqa: D102
        return self.matrix.new_full(self.matrix.shape[:1], self.matrix.size(1))

    def total(self, value: Tensor) -> Tensor:  # noqa: D102
        return self._by_graph(value).sum(1)

    def spread(self, value: Tensor) -> Tensor:  # noqa: D102
        return value.unsqueeze(1).expand(-1, self.matrix.size(1), -1).flatten(0, 1)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return _multiply(self._by_graph(left).mT, self._by_graph(right))

    def laid(self, value: Tensor) -> Tensor:  # noqa: D102
        return self._by_graph(value)

    def drawn(self, laid: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return _multiply(laid, _multiply(laid.mT, self._by_graph(right))).flatten(0, 1)

    def _by_graph(self, value: Tensor) -> Tensor:
        return value.unflatten(0, self.matrix.shape[:2])


def cluster_rows(rows: Rows, clusters: int) -> Rows:
    """Lay out what is left after a merge: so many rows of each place, padding if it is empty.

    Example:
        >>> from gtpool.ops.static_plan import rows_of
        >>> cluster_rows(rows_of(torch.tensor([[5, 0, 1]]), 6), 2).batch.tolist()
        [0, 0, 3, 3, 2, 2]
    """
    there, places = rows.size > 0, rows.size.numel()
    graph = torch.arange(places, device=rows.size.device)
    batch = torch.where(there, graph, places).unsqueeze(1).expand(-1, clusters)
    return Rows(graph * clusters, there * clusters, batch.flatten())


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Multiply batches of matrices in the dtype that they have."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


def _repeats(links: PaddedCSR) -> Tensor:
    """Count the edges before each one that have its ends, which stand next to it, [E]."""
    number = torch.arange(links.source.numel(), device=links.source.device)
    before = torch.stack([links.source, links.sink]).roll(1, 1)
    new = (before[0] != links.source) | (before[1] != links.sink) | (number == 0)
    return number - torch.where(new, number, 0).cummax(0).values
