"""A dataset on a device, from which padded batches are gathered without a host sync.

The indices of a batch are a tensor on the device, and sizes are looked up there. So one captured
CUDA graph serves every batch that fits its capacity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset, to_smallest_int
from gtpool.ops.chains import pool_features
from gtpool.ops.padded_ops import FeatureScaler, PaddedOps, padded_ops_for
from gtpool.ops.sample import kept_counts
from gtpool.ops.segment import offsets
from gtpool.padded_batch import (
    Capacity,
    COOMatrix,
    EdgeTypes,
    PaddedBatch,
    PaddedCoarseningStep,
    PaddedCSR,
    PaddedLayout,
)

_ENTRIES = 2**24
"""Maximum number of entries of a dense matrix while it is made sparse."""
_ROUNDING = 1e-12
"""Smaller entries of a transform are rounding errors."""


class _SortedEdges(NamedTuple):
    """Edges of all graphs, sorted by one end; node and edge indices count inside their graph."""

    other: Tensor
    """The other end of each edge, [E]."""
    own: Tensor
    """The end that edges are sorted by, [E]."""
    begin: Tensor
    """First edge of each node, [N]."""
    end: Tensor
    """One past its last, [N]."""
    kinds: Tensor
    """Codes of each edge, with an offset per column; F may be 0, [E, F]."""


class _RaggedSparse(NamedTuple):
    """One sparse matrix per graph, concatenated; indices count inside their graph."""

    first: Tensor
    """First entry of each graph, [G]."""
    counts: Tensor
    """Entries of each graph, [G]."""
    host_counts: Tensor
    """The same on the CPU."""
    row: Tensor
    """[M]"""
    column: Tensor
    """[M]"""
    value: Tensor
    """[M, 1]"""

    @classmethod
    def of(
        cls, graph: Tensor, graphs: int, row: Tensor, column: Tensor, value: Tensor, like: Tensor
    ) -> Self:
        """Return matrices from CPU entries sorted by graph, on the device and dtype of ``like``."""
        counts = graph.bincount(minlength=graphs)
        if not row.numel():  # padding reads entry 0
            row, column, value = (torch.zeros(1, dtype=part.dtype) for part in (row, column, value))
        device = like.device
        first = offsets(counts)[:-1].to(device)
        ends = row.long().to(device), column.long().to(device)
        return cls(first, counts.to(device), counts, *ends, value.to(like).unsqueeze(1))

    def gather(
        self,
        stock: "DeviceDataset",
        index: Tensor,
        room: int,
        rows: PaddedLayout,
        columns: PaddedLayout,
    ) -> COOMatrix:
        """Return the entries of some graphs, with the row and column layouts of the batch."""
        ops = stock.ops
        layout = ops.gather_layout(index, self.counts, (), room)
        number, _ = ops.row_numbers(layout, index.flatten(), self.first)
        row = ops.gather_shifted(self.row, number, layout, rows.start)
        column = ops.gather_shifted(self.column, number, layout, columns.start)
        value = ops.gather_features(self.value, number, stock.dtype)
        spare = torch.arange(number.numel(), device=number.device)
        row = torch.where(number >= 0, row, spare % rows.batch.numel())
        column = torch.where(number >= 0, column, spare % columns.batch.numel())
        return COOMatrix(row, column, value)


class _CoarseningStep(NamedTuple):
    """One step of the coarsening chains of a dataset."""

    sizes: Tensor
    """Clusters of each graph, [G]."""
    host_sizes: Tensor
    transform: _RaggedSparse
    edges: _RaggedSparse


@dataclass(frozen=True, eq=False)
class DeviceDataset:
    """The graphs of a dataset on one device, with their edges sorted by target and by source."""

    x: Tensor
    """Node features as numbers; codes are one-hot, after the others, [N, F]."""
    y: Tensor
    first_node: Tensor
    sizes: Tensor
    first_edge: Tensor
    edge_counts: Tensor
    entering: _SortedEdges
    leaving: _SortedEdges
    host_sizes: Tensor
    """Nodes of each graph, on the CPU, [G]."""
    host_edges: Tensor
    """Edges of each graph, on the CPU, [G]."""
    edge_attr: Tensor | None = None
    """Edge features, sorted by target as ``entering`` is, [E, F]."""
    chain: tuple[_CoarseningStep, ...] = ()
    """Coarsening steps, if the dataset has them."""
    graph_features: Tensor | None = None
    """Features of each graph, [G, D]."""

    @classmethod
    def of(
        cls,
        data: GraphDataset,
        categories: Sequence[int] = (),
        edge_categories: Sequence[int] = (),
        *,
        edge_features: bool = False,
    ) -> Self:
        """Return a dataset with sorted edges and one-hot codes.

        Args:
            data: The graphs, on the device where batches are needed.
            categories: Number of categories of each of the last node features, which are codes.
            edge_categories: The same for edge features; empty if batches need no edge codes.
            edge_features: Whether batches need edge features as floats.
        """
        device = data.x.device
        graph = torch.arange(len(data)).repeat_interleave(data.edge_counts).to(device)
        node_first, edge_first = (ptr[:-1].to(device) for ptr in (data.node_ptr, data.edge_ptr))
        source, target = data.edge_index.long() + node_first[graph]
        of_node = torch.arange(len(data)).repeat_interleave(data.sizes).to(device)
        kinds = _kinds(data, edge_categories)
        entering = _sorted_by(target, source, node_first[graph], edge_first[of_node], kinds)
        leaving = _sorted_by(source, target, node_first[graph], edge_first[of_node], kinds)
        if all(map(torch.equal, entering, leaving)):
            leaving = entering  # undirected graphs share one copy
        return cls(
            _one_hot(data.x, categories) if categories else data.x,
            data.y,
            node_first,
            data.sizes.to(device),
            edge_first,
            data.edge_counts.to(device),
            entering,
            leaving,
            data.sizes,
            data.edge_counts,
            _features(data, target, source) if edge_features else None,
            _chain(data),
            data.graph_features,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the features in a batch."""
        return self.x.dtype if self.x.is_floating_point() else torch.float32

    @property
    def ops(self) -> PaddedOps:
        """The functions that gather a batch: Triton kernels or plain PyTorch."""
        return padded_ops_for(self.x.device, self.dtype)

    def requirements(self, index: Tensor, ratios: Sequence[float]) -> Tensor:
        """Return what each graph needs: rows at each level, edges, chain entries, on CPU, [..., K].

        Args:
            index: Indices of graphs, on the CPU, -1 for an empty place, [...].
            ratios: Share of nodes kept by each pooling step.
        """
        known, none = index.clamp(min=0), index < 0
        columns = [self.host_sizes[known]]
        for ratio in ratios:
            columns.append(kept_counts(columns[-1], ratio))
        columns += [step.host_sizes[known] for step in self.chain]
        columns.append(self.host_edges[known])
        for step in self.chain:
            columns += [part.host_counts[known] for part in (step.transform, step.edges)]
        return torch.stack(columns, -1).masked_fill(none.unsqueeze(-1), 0)

    def capacity(self, index: Tensor, ratios: Sequence[float]) -> Capacity:
        """Return the capacity for graphs: indices on the CPU, -1 for an empty place, [R, G]."""
        return self.capacity_for(index.size(1), self.requirements(index, ratios).sum(1).amax(0))

    def capacity_for(self, places: int, needs: Tensor) -> Capacity:
        """Return the capacity for so many graphs and a row of ``requirements``."""
        counts, levels = needs.tolist(), needs.numel() - 1 - 2 * len(self.chain)
        return Capacity.rounded(places, counts[:levels], counts[levels], counts[levels + 1 :])

    def gather(
        self,
        index: Tensor,
        capacity: Capacity,
        ratios: Sequence[float],
        scaler: FeatureScaler | None = None,
    ) -> PaddedBatch:
        """Return a padded batch, without a host sync.

        Args:
            index: Indices of the graphs of each run, -1 for an empty place, on the device, [R, G].
            capacity: Capacity per run; it must hold the graphs, which is not checked.
            ratios: Share of nodes kept by each pooling step.
            scaler: Scales the first node features of each run; None for none.
        """
        ops, flat = self.ops, index.flatten()
        ratios = ratios if not self.chain else ()
        counts = [(self.sizes, ratios[:level]) for level in range(len(ratios) + 1)]
        counts += [(step.sizes, ()) for step in self.chain]
        levels = tuple(
            ops.gather_layout(index, *count, rows)
            for count, rows in zip(counts, capacity.nodes, strict=True)
        )
        edges = ops.gather_layout(index, self.edge_counts, (), capacity.edges)
        ways = [self.entering] if self.leaving is self.entering else [self.entering, self.leaving]
        spans = [part for way in ways for part in (way.begin, way.end)]
        ends = [self.entering.own, *(way.other for way in ways)]
        node, own, *spans = ops.gather_rows(levels[0], flat, self.first_node, spans, edges.start)
        edge, _, sink, *others = ops.gather_rows(
            edges, flat, self.first_edge, ends, levels[0].start
        )
        csr = PaddedCSR(
            others[0], sink, spans[0], spans[1], others[-1], spans[-2], spans[-1], own, own
        )
        x = ops.gather_features(self.x, node, self.dtype, scaler)
        own_or_first, features = flat.clamp(min=0), self.graph_features
        y = self.y.index_select(0, own_or_first)
        features = None if features is None else features.index_select(0, own_or_first)
        attr = self.edge_attr
        attr = None if attr is None else ops.gather_features(attr, edge, self.dtype)
        chain = self._gather_chain(index, capacity, levels)
        bonds = self._bonds(edge)
        return PaddedBatch(x, csr, levels, y, flat >= 0, bonds, attr, chain, features)

    def _gather_chain(
        self, index: Tensor, capacity: Capacity, levels: Sequence[PaddedLayout]
    ) -> tuple[PaddedCoarseningStep, ...]:
        """Return the coarsening steps of the graphs."""
        found: list[PaddedCoarseningStep] = []
        for number, step in enumerate(self.chain):
            before, after = levels[number : number + 2]
            room = capacity.chain[2 * number : 2 * number + 2]
            matrix = step.transform.gather(self, index, room[0], after, before)
            edges = step.edges.gather(self, index, room[1], after, after)
            found.append(PaddedCoarseningStep(matrix, edges))
        return tuple(found)

    def _bonds(self, edge: Tensor) -> EdgeTypes | None:
        """Return the codes of edges, given their indices in the dataset, -1 on padding, [E]."""
        if not self.entering.kinds.size(1):
            return None

        def bring(way: _SortedEdges) -> Tensor:
            return self.ops.gather_features(way.kinds, edge, way.kinds.dtype)

        entering = bring(self.entering)
        same = self.leaving is self.entering
        return EdgeTypes(entering, entering if same else bring(self.leaving))


def _kinds(data: GraphDataset, categories: Sequence[int]) -> Tensor:
    """Return the edge codes with an offset per column, in the smallest dtype, [E, F]."""
    if not categories:
        return data.edge_index.new_empty(data.edge_index.size(1), 0)
    if data.edge_attr is None:
        raise ValueError(f"{data.schema.name} has no edge features, but the model needs edge codes")
    return to_smallest_int(data.edge_attr.long() + _first(categories).to(data.edge_attr.device))


def _chain(data: GraphDataset) -> tuple[_CoarseningStep, ...]:
    """Return the transform and the edges of each coarsening step as sparse matrices."""
    like = data.x[:0, :0] if data.x.is_floating_point() else data.x[:0, :0].float()
    found: list[_CoarseningStep] = []
    before = data.sizes
    for number, step in enumerate(data.chain):
        matrices = [_transform(data, number, part) for part in _by_size(before)]
        graph, row, column, value = (torch.cat(parts) for parts in zip(*matrices, strict=True))
        order = graph.argsort(stable=True)
        entries = row[order], column[order], value[order]
        matrix = _RaggedSparse.of(graph[order], len(data), *entries, like)
        level = step.level
        source, target = step.edge_index.cpu()
        graph = level.batch.cpu()[source]
        order = graph.argsort(stable=True)
        first = level.ptr[:-1][graph]
        weight = step.edge_attr[:, 0].cpu()
        entries = (source - first)[order], (target - first)[order], weight[order]
        edges = _RaggedSparse.of(graph[order], len(data), *entries, like)
        found.append(_CoarseningStep(level.sizes.to(data.x.device), level.sizes, matrix, edges))
        before = level.sizes
    return tuple(found)


def _by_size(sizes: Tensor) -> Iterator[Tensor]:
    """Yield groups of graphs of similar size whose dense transforms fit ``_ENTRIES``."""
    order = sizes.argsort(stable=True)
    room = (sizes[order].double() ** 2).cumsum(0) / _ENTRIES
    yield from order.split(room.long().unique_consecutive(return_counts=True)[1].tolist())


def _transform(data: GraphDataset, number: int, graphs: Tensor) -> tuple[Tensor, ...]:
    """Return the entries of a step's transform of some graphs: graph, row, column and value."""
    chain = tuple(step.to("cpu") for step in data.take(graphs).chain)[number:]
    before = (data.sizes if number == 0 else data.chain[number - 1].level.sizes)[graphs]
    place = torch.cat([torch.arange(size) for size in before.tolist()])
    columns = torch.zeros(place.numel(), int(before.max()), dtype=torch.double)
    matrix = pool_features(columns.scatter_(1, place.unsqueeze(1), 1.0), chain)
    row, column = (matrix.abs() > _ROUNDING).nonzero().T
    batch, ptr = chain[0].level.batch, chain[0].level.ptr
    return graphs[batch[row]], row - ptr[:-1][batch[row]], column, matrix[row, column]


def _features(data: GraphDataset, target: Tensor, source: Tensor) -> Tensor:
    """Return the edge features sorted by target, then by source, [E, F]."""
    if data.edge_attr is None:
        raise ValueError(f"{data.schema.name} has no edge features, but the model needs them")
    order = (target * data.x.size(0) + source).argsort(stable=True)
    dtype = data.x.dtype if data.x.is_floating_point() else torch.float32
    found = data.edge_attr[order].to(dtype)
    return found if order.numel() else found.new_zeros(1, found.size(1))


def _sorted_by(
    own: Tensor, other: Tensor, node: Tensor, edge: Tensor, kinds: Tensor
) -> _SortedEdges:
    """Sort edges by one end.

    Args:
        own: The end to sort by, [E].
        other: The other end, [E].
        node: First node of the graph of each edge, [E].
        edge: First edge of the graph of each node, [N].
        kinds: Codes of each edge, [E, F].
    """
    # Ties by the other end, so that both directions of an undirected graph are equal.
    order = (own * edge.numel() + other).argsort(stable=True)
    count = own.bincount(minlength=edge.numel())
    begin = offsets(count)[:-1] - edge
    if not order.numel():  # padding reads entry 0
        nothing = torch.zeros_like(edge[:1])
        return _SortedEdges(nothing, nothing, begin, begin, kinds.new_zeros(1, kinds.size(1)))
    ends = (other - node)[order], (own - node)[order]
    return _SortedEdges(*ends, begin, begin + count, kinds[order])


def _one_hot(x: Tensor, categories: Sequence[int]) -> Tensor:
    """Return the columns before the codes, then the one-hot codes, [N, ... + sum of categories]."""
    before = x.size(1) - len(categories)
    dtype = x.dtype if x.is_floating_point() else torch.uint8
    columns = torch.zeros(x.size(0), before + sum(categories), dtype=dtype, device=x.device)
    columns[:, :before] = x[:, :before]
    return columns.scatter_(1, x[:, before:].long() + before + _first(categories).to(x.device), 1)


def _first(categories: Sequence[int]) -> Tensor:
    """Return the offset of each column."""
    return offsets(torch.tensor(categories))[:-1]
