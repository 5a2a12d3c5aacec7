"""Adjacency matrices of a batch, used to merge nodes into clusters.

A packed batch has a ``PackedAdjacency``, a padded batch a ``SparseAdjacency``. After the first
merge all graphs have the same number of clusters and form a ``DenseAdjacency``. A, S and the
direction of edges are as in ``gtpool.ops.merge``. A row is a node or a cluster.
"""

from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops import merge as packed
from gtpool.ops.aggregate import ends
from gtpool.ops.bucket import Buckets
from gtpool.ops.entry import no_compile
from gtpool.ops.merge import adj_t_matmul, sqrt_degree
from gtpool.ops.padded_segment import RowBlocks
from gtpool.ops.segment import segment_sum
from gtpool.padded_batch import PaddedCSR, PaddedLayout


class Adjacency(Protocol):
    """Interface of the adjacency matrices of a batch."""

    def degrees(self) -> Tensor:
        """Return half the total weight of outgoing and incoming edges of each row, [N]."""
        ...

    def in_weight(self, *, absolute: bool = False) -> Tensor:
        """Return the total (absolute) weight of the incoming edges of each row, [N]."""
        ...

    def normalized(self) -> Self:
        """Return D^-1/2 A D^-1/2 with D the ``degrees``."""
        ...

    def adj_t_matmul(self, value: Tensor) -> Tensor:
        """Return A^T v, [N, F]."""
        ...

    def adj_matmul(self, value: Tensor) -> Tensor:
        """Return A v, [N, F]."""
        ...

    def squared_norm(self) -> Tensor:
        """Return the squared Frobenius norm of each graph's A, [G]."""
        ...

    def sizes(self) -> Tensor:
        """Return the number of rows of each graph, at least 1, [G]."""
        ...

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over the rows of each graph, [N, ...] -> [G, ...]."""
        ...

    def broadcast(self, value: Tensor) -> Tensor:
        """Return the value of each row's graph, zeros on padding, [G, F] -> [N, F]."""
        ...

    def products(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left^T right of each graph, [N, A] and [N, B] -> [G, A, B]."""
        ...

    def group_rows(self, value: Tensor) -> Any:  # noqa: ANN401 - depends on the class
        """Return the rows V, [N, A], in the form that ``gram_matmul`` takes."""
        ...

    def gram_matmul(self, grouped: Any, right: Tensor) -> Tensor:  # noqa: ANN401
        """Return V (V^T right) of each graph, with V from ``group_rows``, [N, B] -> [N, B]."""
        ...


def merge(graphs: Adjacency, assign: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return S^T X [G, C, D], S^T A S [G, C, C] and S^T S [G, C, C], in the dtype of ``assign``."""
    clusters = assign.size(1)
    right = torch.cat([x.to(assign.dtype), graphs.adj_matmul(assign), assign], 1)
    found = graphs.products(assign, right)
    pooled, coarse, overlap = found.split([x.size(1), clusters, clusters], dim=2)
    return pooled, coarse, overlap


class PackedAdjacency(NamedTuple):
    """The adjacency matrices of a packed batch; see ``Adjacency``."""

    edges: Tensor
    """Source and target of each edge, [2, E]."""
    weight: Tensor
    """[E]"""
    level: GraphLayout

    def degrees(self) -> Tensor:  # noqa: D102 - see Adjacency, here and below
        degree = self.weight.new_zeros(self.level.batch.numel())
        return degree.index_add(0, self.edges.flatten(), self.weight.repeat(2) / 2)

    def in_weight(self, *, absolute: bool = False) -> Tensor:  # noqa: D102
        weight = self.weight.abs() if absolute else self.weight
        return weight.new_zeros(self.level.batch.numel()).index_add(0, self.edges[1], weight)

    def normalized(self) -> Self:  # noqa: D102
        root = sqrt_degree(self.degrees())
        source, target = root.index_select(0, self.edges.flatten()).chunk(2)
        return self._replace(weight=self.weight / source / target)

    def adj_t_matmul(self, value: Tensor) -> Tensor:  # noqa: D102
        return adj_t_matmul(value, self.edges, self.weight)

    def adj_matmul(self, value: Tensor) -> Tensor:  # noqa: D102
        return adj_t_matmul(value, self.edges.flip(0), self.weight)

    def squared_norm(self) -> Tensor:  # noqa: D102
        return packed.squared_norm(self.edges, self.weight, self.level)

    def sizes(self) -> Tensor:  # noqa: D102
        return self.level.sizes.to(self.weight.device, non_blocking=True)

    def total(self, value: Tensor) -> Tensor:  # noqa: D102
        return segment_sum(value, self.level.batch, self.level.sizes.numel())

    def broadcast(self, value: Tensor) -> Tensor:  # noqa: D102
        return value.index_select(0, self.level.batch)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return packed.products(left, right, self.level)

    @no_compile
    def group_rows(self, value: Tensor) -> tuple[Buckets, Tensor]:  # noqa: D102
        buckets = Buckets.of(self.level.ptr, value.unsqueeze(1))
        return buckets, buckets.pad(value)

    @no_compile
    def gram_matmul(self, grouped: tuple[Buckets, Tensor], right: Tensor) -> Tensor:  # noqa: D102
        buckets, padded = grouped
        with torch.autocast(right.device.type, enabled=False):
            parts = [
                (rows @ (rows.transpose(1, 2) @ shares)).flatten(0, 1)
                for _, rows, shares in buckets.each(padded, buckets.pad(right))
            ]
        return buckets.unpad(torch.cat(parts))


class SparseAdjacency(NamedTuple):
    """The adjacency matrices of a padded batch, as edges; inactive edges have weight 0."""

    rows: PaddedLayout
    edges: Tensor
    """Source and target row of each edge, [2, E]."""
    weight: Tensor
    """[E]"""
    repeats: Tensor
    """Number of earlier edges with the same source and target as each edge, [E]."""
    blocks: RowBlocks

    @classmethod
    def of(
        cls, csr: PaddedCSR, rows: PaddedLayout, dtype: torch.dtype, weight: Tensor | None = None
    ) -> Self:
        """Return the matrices at level 0; edges have weight 1 unless weights are given."""
        source, target, counts = ends(csr, loops=True)
        edges = torch.stack([source, target])
        weighs = counts.to(dtype) if weight is None else counts * weight.to(dtype)
        return cls(rows, edges, weighs, _repeats(csr), RowBlocks.of(rows))

    def degrees(self) -> Tensor:  # noqa: D102 - see Adjacency, here and below
        degree = self.weight.new_zeros(self.rows.batch.numel())
        return degree.index_add(0, self.edges.flatten(), self.weight.repeat(2) / 2)

    def in_weight(self, *, absolute: bool = False) -> Tensor:  # noqa: D102
        weight = self.weight.abs() if absolute else self.weight
        degree = weight.new_zeros(self.rows.batch.numel())
        return degree.index_add(0, self.edges[1], weight)

    def normalized(self) -> Self:  # noqa: D102
        source, target = sqrt_degree(self.degrees()).index_select(0, self.edges.flatten()).chunk(2)
        return self._replace(weight=self.weight / source / target)

    def adj_t_matmul(self, value: Tensor) -> Tensor:  # noqa: D102
        return adj_t_matmul(value, self.edges, self.weight)

    def adj_matmul(self, value: Tensor) -> Tensor:  # noqa: D102
        return adj_t_matmul(value, self.edges.flip(0), self.weight)

    def squared_norm(self) -> Tensor:
        """Return the squared Frobenius norm of each graph's A; repeated edges add up first, [G]."""
        first = torch.arange(self.repeats.numel(), device=self.repeats.device) - self.repeats
        square = torch.zeros_like(self.weight).index_add(0, first, self.weight).square()
        graph = self.rows.batch.index_select(0, self.edges[0])
        return square.new_zeros(self.rows.size.numel() + 1).index_add(0, graph, square)[:-1]

    def sizes(self) -> Tensor:  # noqa: D102
        return self.rows.size.clamp(min=1)

    def total(self, value: Tensor) -> Tensor:  # noqa: D102
        sums = value.new_zeros(self.rows.size.numel() + 1, *value.shape[1:])
        return sums.index_add(0, self.rows.batch, value)[:-1]

    def broadcast(self, value: Tensor) -> Tensor:  # noqa: D102
        graph = self.rows.batch.clamp(max=self.rows.size.numel() - 1)
        return self._real(value.index_select(0, graph))

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        first, second = self.blocks.pad(left), self.blocks.pad(right)
        return self.blocks.total(_multiply(first.mT, second))

    def group_rows(self, value: Tensor) -> Tensor:  # noqa: D102
        return self.blocks.pad(value)

    def gram_matmul(self, grouped: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        matrix = self.blocks.total(_multiply(grouped.mT, self.blocks.pad(right)))
        own = matrix.index_select(0, self.blocks.owner.clamp(max=matrix.size(0) - 1))
        return self._real(self.blocks.rows(_multiply(grouped, own)))

    def _real(self, value: Tensor) -> Tensor:
        """Return the value with zeros on padding, which may hold values of other runs, [N, F]."""
        real = self.rows.batch < self.rows.size.numel()
        return torch.where(real.unsqueeze(1), value, 0.0)


class DenseAdjacency(NamedTuple):
    """Dense matrices of graphs with C clusters each; zeros for empty slots."""

    matrix: Tensor
    """A of each graph, [G, C, C]."""

    def degrees(self) -> Tensor:  # noqa: D102
        return ((self.matrix.sum(1) + self.matrix.sum(2)) / 2).flatten()

    def in_weight(self, *, absolute: bool = False) -> Tensor:  # noqa: D102
        return (self.matrix.abs() if absolute else self.matrix).sum(1).flatten()

    def normalized(self) -> Self:  # noqa: D102
        root = self._by_graph(sqrt_degree(self.degrees()))
        return self._replace(matrix=self.matrix / root.unsqueeze(2) / root.unsqueeze(1))

    def adj_t_matmul(self, value: Tensor) -> Tensor:  # noqa: D102
        return _multiply(self.matrix.mT, self._by_graph(value)).flatten(0, 1)

    def adj_matmul(self, value: Tensor) -> Tensor:  # noqa: D102
        return _multiply(self.matrix, self._by_graph(value)).flatten(0, 1)

    def squared_norm(self) -> Tensor:  # noqa: D102
        return self.matrix.square().sum((1, 2))

    def sizes(self) -> Tensor:  # noqa: D102
        return self.matrix.new_full(self.matrix.shape[:1], self.matrix.size(1))

    def total(self, value: Tensor) -> Tensor:  # noqa: D102
        return self._by_graph(value).sum(1)

    def broadcast(self, value: Tensor) -> Tensor:  # noqa: D102
        return value.unsqueeze(1).expand(-1, self.matrix.size(1), -1).flatten(0, 1)

    def products(self, left: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return _multiply(self._by_graph(left).mT, self._by_graph(right))

    def group_rows(self, value: Tensor) -> Tensor:  # noqa: D102
        return self._by_graph(value)

    def gram_matmul(self, grouped: Tensor, right: Tensor) -> Tensor:  # noqa: D102
        return _multiply(grouped, _multiply(grouped.mT, self._by_graph(right))).flatten(0, 1)

    def _by_graph(self, value: Tensor) -> Tensor:
        return value.unflatten(0, self.matrix.shape[:2])


def cluster_layout(rows: PaddedLayout, clusters: int) -> PaddedLayout:
    """Return the layout after a merge: ``clusters`` rows per slot, all padding if it is empty.

    Example:
        >>> from gtpool.ops.padded_segment import layout_of_sizes
        >>> cluster_layout(layout_of_sizes(torch.tensor([[5, 0, 1]]), 6), 2).batch.tolist()
        [0, 0, 3, 3, 2, 2]
    """
    there, places = rows.size > 0, rows.size.numel()
    graph = torch.arange(places, device=rows.size.device)
    batch = torch.where(there, graph, places).unsqueeze(1).expand(-1, clusters)
    return PaddedLayout(graph * clusters, there * clusters, batch.flatten())


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Return the batched matrix product, without autocast."""
    with torch.autocast(left.device.type, enabled=False):
        return left @ right


def _repeats(csr: PaddedCSR) -> Tensor:
    """Return the number of earlier, adjacent edges with the same source and target, [E]."""
    number = torch.arange(csr.source.numel(), device=csr.source.device)
    before = torch.stack([csr.source, csr.sink]).roll(1, 1)
    new = (before[0] != csr.source) | (before[1] != csr.sink) | (number == 0)
    return number - torch.where(new, number, 0).cummax(0).values
