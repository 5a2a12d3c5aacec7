"""A dataset from which batches of fixed capacity are gathered without asking the host.

Which graphs a batch has is a tensor on the device; sizes are looked up there. So one captured
program serves every batch that fits its capacity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset, narrow
from gtpool.fixed import Bonds, Capacity, FixedBatch, Links
from gtpool.ops.sample import kept_counts
from gtpool.ops.segment import offsets
from gtpool.ops.steps import Steps, steps_on


class _Direction(NamedTuple):
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


@dataclass(frozen=True, eq=False)
class Stock:
    """The graphs of a dataset on one device, with their edges sorted by target and by source."""

    x: Tensor
    """Node features as floats; of codes, a column a category, [N, F]."""
    y: Tensor
    first_node: Tensor
    sizes: Tensor
    first_edge: Tensor
    edge_counts: Tensor
    entering: _Direction
    leaving: _Direction
    host_sizes: Tensor
    """Nodes of each graph, on the host, [G]."""
    host_edges: Tensor
    """Edges of each graph, on the host, [G]."""
    edge_attr: Tensor | None = None
    """Features of each edge, sorted by target as ``entering`` is, [E, F]."""

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
            _spread(data.x, categories) if categories else data.x,
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
        )

    @property
    def dtype(self) -> torch.dtype:
        """The type of the features in a batch."""
        return self.x.dtype if self.x.is_floating_point() else torch.float32

    @property
    def steps(self) -> Steps:
        """What a batch is gathered with."""
        return steps_on(self.x.device, self.dtype)

    def needs(self, index: Tensor, ratios: Sequence[float]) -> Tensor:
        """Say what each graph needs, on the host: rows at each level, edges, [..., levels + 1].

        Args:
            index: Graphs, on the host, -1 for an empty place, [...].
            ratios: Share of nodes kept by each pooling step.
        """
        known, none = index.clamp(min=0), index < 0
        columns = [self.host_sizes[known]]
        for ratio in ratios:
            columns.append(kept_counts(columns[-1], ratio))
        columns.append(self.host_edges[known])
        return torch.stack(columns, -1).masked_fill(none.unsqueeze(-1), 0)

    def capacity(self, index: Tensor, ratios: Sequence[float]) -> Capacity:
        """Say what a batch of these graphs needs, on the host, -1 for an empty place, [R, G]."""
        *nodes, edges = self.needs(index, ratios).sum(1).amax(0).tolist()
        return Capacity.rounded(index.size(1), nodes, edges)

    def gather(self, index: Tensor, capacity: Capacity, ratios: Sequence[float]) -> FixedBatch:
        """Gather graphs, without a look at the host.

        Args:
            index: Graphs of each run, -1 for an empty place, on the device, [R, G].
            capacity: What a run may hold; what does not fit would be cut off.
            ratios: Share of nodes kept by each pooling step.
        """
        steps, flat = self.steps, index.flatten()
        levels = tuple(
            steps.lay_out(index, self.sizes, ratios[:level], rows)
            for level, rows in enumerate(capacity.nodes)
        )
        edges = steps.lay_out(index, self.edge_counts, (), capacity.edges)
        node, own = steps.place(levels[0], flat, self.first_node)
        edge, _ = steps.place(edges, flat, self.first_edge)

        def lay_out(way: _Direction) -> tuple[Tensor, Tensor, Tensor]:
            other = steps.shift(way.other, edge, edges, levels[0].start)
            begin, end = (
                steps.shift(part, node, levels[0], edges.start) for part in (way.begin, way.end)
            )
            return other, begin, end

        entering = lay_out(self.entering)
        leaving = entering if self.leaving is self.entering else lay_out(self.leaving)
        sink = steps.shift(self.entering.own, edge, edges, levels[0].start)
        links = Links(entering[0], sink, *entering[1:], *leaving, own, own)
        x = steps.bring(self.x, node, self.dtype)
        y = self.y.index_select(0, flat.clamp(min=0))
        attr = None if self.edge_attr is None else steps.bring(self.edge_attr, edge, self.dtype)
        return FixedBatch(x, links, levels, y, flat >= 0, self._bonds(edge), attr)

    def _bonds(self, edge: Tensor) -> Bonds | None:
        """Bring the codes of edges, given their numbers in the dataset, -1 on padding, [E]."""
        if not self.entering.kinds.size(1):
            return None

        def bring(way: _Direction) -> Tensor:
            return self.steps.bring(way.kinds, edge, way.kinds.dtype)

        entering = bring(self.entering)
        same = self.leaving is self.entering
        return Bonds(entering, entering if same else bring(self.leaving))


def _kinds(data: GraphDataset, categories: Sequence[int]) -> Tensor:
    """Number the codes of edges on from column to column, in the smallest type, [E, F]."""
    if not categories:
        return data.edge_index.new_empty(data.edge_index.size(1), 0)
    if data.edge_attr is None:
        raise ValueError(f"{data.schema.name} has no edge features, of which codes are asked for")
    return narrow(data.edge_attr.long() + _first(categories).to(data.edge_attr.device))


def _features(data: GraphDataset, target: Tensor, source: Tensor) -> Tensor:
    """Give the features of edges sorted by target, then by source, [E, F]."""
    if data.edge_attr is None:
        raise ValueError(f"{data.schema.name} has no edge features, which are asked for")
    order = (target * data.x.size(0) + source).argsort(stable=True)
    dtype = data.x.dtype if data.x.is_floating_point() else torch.float32
    found = data.edge_attr[order].to(dtype)
    return found if order.numel() else found.new_zeros(1, found.size(1))


def _sorted_by(own: Tensor, other: Tensor, node: Tensor, edge: Tensor, kinds: Tensor) -> _Direction:
    """Sort edges by one end, given the first node of each edge's graph and edge of each node's."""
    # Equal ends by the other: both ways look alike.
    order = (own * edge.numel() + other).argsort(stable=True)
    count = own.bincount(minlength=edge.numel())
    begin = offsets(count)[:-1] - edge
    if not order.numel():  # so that padding has something to read
        nothing = torch.zeros_like(edge[:1])
        return _Direction(nothing, nothing, begin, begin, kinds.new_zeros(1, kinds.size(1)))
    ends = (other - node)[order], (own - node)[order]
    return _Direction(*ends, begin, begin + count, kinds[order])


def _spread(codes: Tensor, categories: Sequence[int]) -> Tensor:
    """Give each category a column that is 1 where a row has it, [N, sum of categories]."""
    columns = torch.zeros(codes.size(0), sum(categories), dtype=torch.uint8, device=codes.device)
    return columns.scatter_(1, codes.long() + _first(categories).to(codes.device), 1)


def _first(categories: Sequence[int]) -> Tensor:
    """Number the first category of each column."""
    return offsets(torch.tensor(categories))[:-1]
