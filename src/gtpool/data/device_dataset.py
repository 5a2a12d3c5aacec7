"""A dataset from which batches of fixed capacity are gathered without asking the host.

Which graphs a batch has is a tensor on the device; sizes are looked up there. So one captured
program serves every batch that fits its capacity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset, to_smallest_int
from gtpool.fixed import Capacity, ChainStep, EdgeTypes, PaddedBatch, PaddedCSR, Rows, Triplets
from gtpool.ops.chain import transform
from gtpool.ops.sample import kept_counts
from gtpool.ops.segment import offsets
from gtpool.ops.steps import Steps, steps_on

_ENTRIES = 2**24
"""Entries of the matrices that are held while sparse ones are written."""
_ROUNDING = 1e-12
"""Entries of a transform below it are zero but for rounding."""


class _SortedEdges(NamedTuple):
    """The edges of all graphs, sorted by one end; nodes and edges are numbered in their graph."""

    other: Tensor
    """The other end of each edge, [E]."""
    own: Tensor
    """The end they are sorted by, [E]."""
    begin: Tensor
    """First edge of each node, [N]."""
    end: Tensor
    """One past its last, [N]."""
    kinds: Tensor
    """Codes of each edge, numbered on from column to column; maybe of no columns, [E, F]."""


class _RaggedSparse(NamedTuple):
    """A sparse matrix of each graph of a dataset, graph by graph; nodes numbered in their graph."""

    first: Tensor
    """First entry of each graph, [G]."""
    counts: Tensor
    """Entries of each graph, [G]."""
    host_counts: Tensor
    """The same on the host."""
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
        """Take entries sorted by graph, all on the host, to the device and floats of ``like``."""
        counts = graph.bincount(minlength=graphs)
        if not row.numel():  # so that padding has something to read
            row, column, value = (torch.zeros(1, dtype=part.dtype) for part in (row, column, value))
        device = like.device
        first = offsets(counts)[:-1].to(device)
        ends = row.long().to(device), column.long().to(device)
        return cls(first, counts.to(device), counts, *ends, value.to(like).unsqueeze(1))

    def gather(
        self, stock: "DeviceDataset", index: Tensor, room: int, rows: Rows, columns: Rows
    ) -> Triplets:
        """Gather the entries of some graphs; ``rows`` and ``columns`` lay out what they join."""
        steps = stock.steps
        layout = steps.lay_out(index, self.counts, (), room)
        number, _ = steps.place(layout, index.flatten(), self.first)
        row = steps.shift(self.row, number, layout, rows.start)
        column = steps.shift(self.column, number, layout, columns.start)
        value = steps.bring(self.value, number, stock.dtype)
        spare = torch.arange(number.numel(), device=number.device)
        row = torch.where(number >= 0, row, spare % rows.batch.numel())
        column = torch.where(number >= 0, column, spare % columns.batch.numel())
        return Triplets(row, column, value)


class _CoarseningStep(NamedTuple):
    """One step of the chain of clusterings of a dataset."""

    sizes: Tensor
    """Clusters of each graph, [G]."""
    host_sizes: Tensor
    transform: _RaggedSparse
    edges: _RaggedSparse


@dataclass(frozen=True, eq=False)
class DeviceDataset:
    """The graphs of a dataset on one device, with their edges sorted by target and by source."""

    x: Tensor
    """Node features as floats; of codes, a column a category, [N, F]."""
    y: Tensor
    first_node: Tensor
    sizes: Tensor
    first_edge: Tensor
    edge_counts: Tensor
    entering: _SortedEdges
    leaving: _SortedEdges
    host_sizes: Tensor
    """Nodes of each graph, on the host, [G]."""
    host_edges: Tensor
    """Edges of each graph, on the host, [G]."""
    edge_attr: Tensor | None = None
    """Features of each edge, sorted by target as ``entering`` is, [E, F]."""
    chain: tuple[_CoarseningStep, ...] = ()
    """The steps by which the graphs are clustered, where the dataset has them."""

    @classmethod
    def of(
        cls,
        data: GraphDataset,
        categories: Sequence[int] = (),
        edge_categories: Sequence[int] = (),
        *,
        edge_features: bool = False,
    ) -> Self:
        """Sort the edges of a dataset and spread its codes.

        Args:
            data: The graphs, on the device where batches are wanted.
            categories: Number of categories of each column of codes; none where nodes have floats.
            edge_categories: The same of edges; none where a batch needs no codes of edges.
            edge_features: Whether batches need the features of edges as floats.
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
            leaving = entering  # undirected, as most graphs are: one copy does for both
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
        )

    @property
    def dtype(self) -> torch.dtype:
        """The type of the features in a batch."""
        return self.x.dtype if self.x.is_floating_point() else torch.float32

    @property
    def steps(self) -> Steps:
        """What a batch is gathered with."""
        return steps_on(self.x.device, self.dtype)

    def requirements(self, index: Tensor, ratios: Sequence[float]) -> Tensor:
        """Say what each graph needs, on the host: rows at each level, edges, chain, [..., K].

        Args:
            index: Graphs, on the host, -1 for an empty place, [...].
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
        """Say what a batch of these graphs needs, on the host, -1 for an empty place, [R, G]."""
        return self.capacity_for(index.size(1), self.requirements(index, ratios).sum(1).amax(0))

    def capacity_for(self, places: int, needs: Tensor) -> Capacity:
        """Make a capacity of so many places and a row of ``requirements``."""
        counts, links = needs.tolist(), needs.numel() - 1 - 2 * len(self.chain)
        return Capacity.rounded(places, counts[:links], counts[links], counts[links + 1 :])

    def gather(self, index: Tensor, capacity: Capacity, ratios: Sequence[float]) -> PaddedBatch:
        """Gather graphs, without a look at the host.

        Args:
            index: Graphs of each run, -1 for an empty place, on the device, [R, G].
            capacity: What a run may hold; what does not fit would be cut off.
            ratios: Share of nodes kept by each pooling step.
        """
        steps, flat = self.steps, index.flatten()
        ratios = ratios if not self.chain else ()
        counts = [(self.sizes, ratios[:level]) for level in range(len(ratios) + 1)]
        counts += [(step.sizes, ()) for step in self.chain]
        levels = tuple(
            steps.lay_out(index, *count, rows)
            for count, rows in zip(counts, capacity.nodes, strict=True)
        )
        edges = steps.lay_out(index, self.edge_counts, (), capacity.edges)
        node, own = steps.place(levels[0], flat, self.first_node)
        edge, _ = steps.place(edges, flat, self.first_edge)

        def lay_out(way: _SortedEdges) -> tuple[Tensor, Tensor, Tensor]:
            other = steps.shift(way.other, edge, edges, levels[0].start)
            begin, end = (
                steps.shift(part, node, levels[0], edges.start) for part in (way.begin, way.end)
            )
            return other, begin, end

        entering = lay_out(self.entering)
        leaving = entering if self.leaving is self.entering else lay_out(self.leaving)
        sink = steps.shift(self.entering.own, edge, edges, levels[0].start)
        links = PaddedCSR(entering[0], sink, *entering[1:], *leaving, own, own)
        x = steps.bring(self.x, node, self.dtype)
        y = self.y.index_select(0, flat.clamp(min=0))
        attr = None if self.edge_attr is None else steps.bring(self.edge_attr, edge, self.dtype)
        chain = self._gather_chain(index, capacity, levels)
        return PaddedBatch(x, links, levels, y, flat >= 0, self._bonds(edge), attr, chain)

    def _gather_chain(
        self, index: Tensor, capacity: Capacity, levels: Sequence[Rows]
    ) -> tuple[ChainStep, ...]:
        """Gather the clusterings of the graphs, step by step."""
        found: list[ChainStep] = []
        for number, step in enumerate(self.chain):
            before, after = levels[number : number + 2]
            room = capacity.chain[2 * number : 2 * number + 2]
            matrix = step.transform.gather(self, index, room[0], after, before)
            edges = step.edges.gather(self, index, room[1], after, after)
            found.append(ChainStep(matrix, edges))
        return tuple(found)

    def _bonds(self, edge: Tensor) -> EdgeTypes | None:
        """Bring the codes of edges, given their numbers in the dataset, -1 on padding, [E]."""
        if not self.entering.kinds.size(1):
            return None

        def bring(way: _SortedEdges) -> Tensor:
            return self.steps.bring(way.kinds, edge, way.kinds.dtype)

        entering = bring(self.entering)
        same = self.leaving is self.entering
        return EdgeTypes(entering, entering if same else bring(self.leaving))


def _kinds(data: GraphDataset, categories: Sequence[int]) -> Tensor:
    """Number the codes of edges on from column to column, in the smallest type, [E, F]."""
    if not categories:
        return data.edge_index.new_empty(data.edge_index.size(1), 0)
    if data.edge_attr is None:
        raise ValueError(f"{data.schema.name} has no edge features, of which codes are asked for")
    return to_smallest_int(data.edge_attr.long() + _first(categories).to(data.edge_attr.device))


def _chain(data: GraphDataset) -> tuple[_CoarseningStep, ...]:
    """Write the transform and the edges of each step of a chain as sparse matrices."""
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
    """Put graphs of similar size together, so that their transforms fit the memory as matrices."""
    order = sizes.argsort(stable=True)
    room = (sizes[order].double() ** 2).cumsum(0) / _ENTRIES
    yield from order.split(room.long().unique_consecutive(return_counts=True)[1].tolist())


def _transform(data: GraphDataset, number: int, graphs: Tensor) -> tuple[Tensor, ...]:
    """Give the entries of a step's transform of some graphs: graph, row, column and value."""
    chain = tuple(step.to("cpu") for step in data.take(graphs).chain)[number:]
    before = (data.sizes if number == 0 else data.chain[number - 1].level.sizes)[graphs]
    place = torch.cat([torch.arange(size) for size in before.tolist()])
    columns = torch.zeros(place.numel(), int(before.max()), dtype=torch.double)
    matrix = transform(columns.scatter_(1, place.unsqueeze(1), 1.0), chain)
    row, column = (matrix.abs() > _ROUNDING).nonzero().T
    batch, ptr = chain[0].level.batch, chain[0].level.ptr
    return graphs[batch[row]], row - ptr[:-1][batch[row]], column, matrix[row, column]


def _features(data: GraphDataset, target: Tensor, source: Tensor) -> Tensor:
    """Give the features of edges sorted by target, then by source, [E, F]."""
    if data.edge_attr is None:
        raise ValueError(f"{data.schema.name} has no edge features, which are asked for")
    order = (target * data.x.size(0) + source).argsort(stable=True)
    dtype = data.x.dtype if data.x.is_floating_point() else torch.float32
    found = data.edge_attr[order].to(dtype)
    return found if order.numel() else found.new_zeros(1, found.size(1))


def _sorted_by(
    own: Tensor, other: Tensor, node: Tensor, edge: Tensor, kinds: Tensor
) -> _SortedEdges:
    """Sort edges by one end, given the first node of each edge's graph and edge of each node's."""
    # Equal ends by the other: both ways look alike.
    order = (own * edge.numel() + other).argsort(stable=True)
    count = own.bincount(minlength=edge.numel())
    begin = offsets(count)[:-1] - edge
    if not order.numel():  # so that padding has something to read
        nothing = torch.zeros_like(edge[:1])
        return _SortedEdges(nothing, nothing, begin, begin, kinds.new_zeros(1, kinds.size(1)))
    ends = (other - node)[order], (own - node)[order]
    return _SortedEdges(*ends, begin, begin + count, kinds[order])


def _one_hot(codes: Tensor, categories: Sequence[int]) -> Tensor:
    """Give each category a column that is 1 where a row has it, [N, sum of categories]."""
    columns = torch.zeros(codes.size(0), sum(categories), dtype=torch.uint8, device=codes.device)
    return columns.scatter_(1, codes.long() + _first(categories).to(codes.device), 1)


def _first(categories: Sequence[int]) -> Tensor:
    """Number the first category of each column."""
    return offsets(torch.tensor(categories))[:-1]
