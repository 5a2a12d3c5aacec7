"""Structural encodings of nodes, of many graphs at once.

Graphs of similar size share padded matrices in float64, as many as fit ``_ENTRIES``. Graphs of more
than ``LARGE`` nodes are treated one by one with sparse matrices. Results are rounded to eight
decimals, so that nodes in equivalent positions get equal values.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self
from warnings import warn

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.coarsening import row_ranges
from gtpool.ops.segment import layout_from_sizes, offsets

LARGE = 2000
"""Graphs of more nodes get sparse matrices."""
PROBES = 512
"""Random vectors that estimate return probabilities of large graphs."""
MOST_WALKS = 10_000
"""Walks per node that cycles are counted from; graphs with more are too dense."""
_ENTRIES = 2**22  # of a batch of matrices
_BLOCK = 64  # probes at a time
_SPARSE = 0.06  # share of entries below which a sparse product is faster
_SAME = 1e-6
"""Largest gap between neighbours in a group of equal eigenvalues."""
_PADDING = 4.0  # an eigenvalue that no graph has: those of a Laplacian are 0 to 2
_PATHS = 2**20  # paths at a time
_ROUNDS = 16  # of removing nodes without cycles
_HOST = torch.device("cpu")


class PackedEdges(NamedTuple):
    """The edges of packed graphs on a CPU, numbered inside their graph."""

    edge_index: Tensor
    """Source and target of each edge, int64 [2, E]."""
    sizes: Tensor
    """Nodes of each graph, [G]."""
    counts: Tensor
    """Edges of each graph, [G]."""
    name: str = "the data"
    """Name of the graphs, for messages."""

    def simple(self) -> Self:
        """Return the edges in both directions, without loops and duplicates."""
        (source, target), start = self.packed()
        nodes = int(self.sizes.sum())
        between = source != target
        ends = torch.stack([source[between], target[between]])
        keys = torch.cat([ends[0] * nodes + ends[1], ends[1] * nodes + ends[0]]).unique()
        ends = torch.stack([keys // max(nodes, 1), keys % max(nodes, 1)])
        graph = torch.arange(self.sizes.numel()).repeat_interleave(self.sizes)[ends[0]]
        counts = graph.bincount(minlength=self.sizes.numel())
        return self._replace(edge_index=ends - start[graph], counts=counts)

    def packed(self) -> tuple[Tensor, Tensor]:
        """Return the edges numbered through all graphs, [2, E], and each graph's first node."""
        start = offsets(self.sizes)[:-1]
        return self.edge_index + start.repeat_interleave(self.counts), start


def degree(edges: PackedEdges) -> Tensor:
    """Return log1p of the number of outgoing edges of each node, [N, 1].

    Loops and parallel edges count.
    """
    (source, _), _ = edges.packed()
    return source.bincount(minlength=int(edges.sizes.sum())).double().log1p().float().unsqueeze(1)


def random_walk(edges: PackedEdges, steps: int) -> Tensor:
    """Return the probability that a random walk is back at its start after 2 … steps, [N, steps-1].

    A walk takes each outgoing edge of a node with equal probability, a loop or one of several
    parallel edges like any other. It ends at a node without outgoing edges, so the probabilities of
    an isolated node are 0. Weights of edges do not matter.

    Those of a graph of more than ``LARGE`` nodes are means over ``PROBES`` random vectors, with a
    relative standard error of at most sqrt(2 / PROBES), 6 %, at even steps of undirected graphs.
    """
    found = torch.zeros(int(edges.sizes.sum()), steps - 1, dtype=torch.double)
    for chunk in _chunks(edges):
        out = chunk.row.bincount(minlength=chunk.graphs * chunk.width).clamp(min=1).double()
        scale = out.rsqrt()
        # Similar to D^-1 A, so it has the same diagonals of powers; symmetric where edges are.
        value = scale[chunk.row] * scale[chunk.target]
        times, low = chunk.product(value), chunk.dense(value)
        high = low
        for step in range(2, steps + 1):
            found[chunk.nodes, step - 2] = (low * high.mT).sum(2).flatten()[chunk.at]
            if step < steps:
                low, high = (low, times(high)) if step % 2 == 0 else (high, high)
    large = _large(edges)
    if large:
        sizes = ", ".join(f"{size:,}" for size in edges.sizes[large].tolist()[:3])
        warn(
            f"rwse of graphs of more than {LARGE:,} nodes is an estimate from {PROBES} random "
            f"vectors: {len(large)} of {edges.name}, of {sizes} nodes",
            stacklevel=2,
        )
    for graph in large:
        rows, ends = _one_graph(edges, graph)
        found[rows] = _estimate_walks(ends, int(edges.sizes[graph]), steps)
    return _rounded(found)


def eigenspaces(edges: PackedEdges, count: int) -> Tensor:
    """Return diagonals of projectors on eigenspaces of the normalised Laplacian, [N, count].

    Column k belongs to the k-th lowest distinct eigenvalue, the first to 0. Eigenvalues belong
    together if neighbours in their order differ by at most 1e-6. Where a graph has fewer distinct
    eigenvalues, columns are 0. Directions, weights, loops and parallel edges do not matter, and the
    eigenvalue of an isolated node is 0.
    """
    for graph in _large(edges)[:1]:
        raise ValueError(
            f"encoding 'lappe' needs all eigenvectors of a graph, and graph {graph} of "
            f"{edges.name} has {int(edges.sizes[graph]):,} nodes, more than {LARGE:,}; "
            "choose rwse"
        )
    found = torch.zeros(int(edges.sizes.sum()), count, dtype=torch.double)
    for chunk in _chunks(edges.simple()):
        adjacency = chunk.dense(torch.ones(chunk.row.numel(), dtype=torch.double))
        degrees = adjacency.sum(2)
        scale = degrees.clamp(min=1).rsqrt()
        laplacian = -adjacency * scale.unsqueeze(1) * scale.unsqueeze(2)
        own = torch.full((chunk.graphs * chunk.width,), _PADDING, dtype=torch.double)
        own[chunk.at] = (degrees > 0).double().flatten()[chunk.at]
        laplacian.diagonal(dim1=1, dim2=2).add_(own.view_as(degrees))
        values, vectors = torch.linalg.eigh(laplacian)
        apart = values.diff(dim=1) > _SAME
        group = torch.cat([apart.new_zeros(chunk.graphs, 1), apart], 1).cumsum(1)
        member = group.unsqueeze(2) == torch.arange(count)
        member &= (values < (2 + _PADDING) / 2).unsqueeze(2)
        shares = torch.bmm(vectors.square_(), member.double())
        found[chunk.nodes] = shares.flatten(0, 1)[chunk.at]
    return _rounded(found)


def cycles(edges: PackedEdges, longest: int) -> Tensor:
    """Return log1p of the number of cycles through each node, of 3 … longest nodes, [N, longest-2].

    A cycle visits each of its nodes once and counts once, whatever its direction. Directions,
    weights, loops and parallel edges do not matter.

    Cycles of 3, 4 and 5 nodes have closed forms in powers of the adjacency matrix. Longer ones, and
    all cycles of a graph of more than ``LARGE`` nodes, are counted by following paths; a graph with
    more than ``MOST_WALKS`` walks per node that long is an error.
    """
    simple = edges.simple()
    found = torch.zeros(int(edges.sizes.sum()), longest - 2, dtype=torch.double)
    for chunk in _chunks(simple):
        short = _short_cycles(chunk)[:, : min(longest, 5) - 2]
        found[chunk.nodes, : short.size(1)] = short[chunk.at]
    if longest > 5:
        _follow_paths(simple, torch.arange(edges.sizes.numel()), longest, found)
    elif large := _large(edges):
        _follow_paths(simple, torch.tensor(large), longest, found)
    return _rounded(found.log1p())


def _rounded(found: Tensor) -> Tensor:
    return found.round(decimals=8).float()


class _Chunk(NamedTuple):
    """Graphs of similar size whose matrices are padded to one width."""

    graphs: int
    width: int
    nodes: Tensor
    """Nodes of these graphs, numbered through all graphs."""
    at: Tensor
    """Row of each of them: its graph times the width, plus its number in the graph."""
    row: Tensor
    """Row of the source of each edge."""
    target: Tensor
    """Row of the target of each edge."""

    def dense(self, value: Tensor) -> Tensor:
        """Return the matrices with a value for each edge, [graphs, width, width]."""
        matrix = value.new_zeros(self.graphs * self.width * self.width)
        matrix.index_add_(0, self.row * self.width + self.target % self.width, value)
        return matrix.view(self.graphs, self.width, self.width)

    def product(self, value: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product of those matrices with others, sparse where they have few entries."""
        rows = self.graphs * self.width
        if value.numel() > _SPARSE * rows * self.width:
            dense = self.dense(value)
            return lambda other: torch.bmm(dense, other)
        matrix = _sparse(self.row, self.target, value, rows)
        return lambda other: torch.sparse.mm(matrix, other.flatten(0, 1)).view_as(other)


def _chunks(edges: PackedEdges) -> Iterator[_Chunk]:
    """Yield the graphs of up to ``LARGE`` nodes in chunks whose matrices have ``_ENTRIES``."""
    first_node, first_edge = offsets(edges.sizes)[:-1], offsets(edges.counts)[:-1]
    order = edges.sizes.argsort(stable=True)
    order = order[edges.sizes[order] <= LARGE]
    steps = -(-edges.sizes[order] // 8)
    room = (64 * steps.double().square()).cumsum(0) / _ENTRIES
    shared = (room.long() + steps * (int(room[-1]) + 1)) if order.numel() else room.long()
    for graphs in order.split(shared.unique_consecutive(return_counts=True)[1].tolist()):
        sizes, width = edges.sizes[graphs], int(edges.sizes[graphs].max())
        nodes = layout_from_sizes(sizes, _HOST)
        links = layout_from_sizes(edges.counts[graphs], _HOST)
        ends = edges.edge_index[:, row_ranges(first_edge[graphs], links)]
        yield _Chunk(
            graphs.numel(),
            width,
            row_ranges(first_node[graphs], nodes),
            _numbered(nodes) + nodes.batch * width,
            *(ends + links.batch * width),
        )


def _numbered(level: GraphLayout) -> Tensor:
    """Return the number of each row inside its graph, [N]."""
    return torch.arange(level.batch.numel()) - level.ptr[:-1][level.batch]


def _large(edges: PackedEdges) -> list[int]:
    """Return the graphs of more than ``LARGE`` nodes."""
    return (edges.sizes > LARGE).nonzero().flatten().tolist()


def _one_graph(edges: PackedEdges, graph: int) -> tuple[slice, Tensor]:
    """Return the rows of a graph's nodes, and its edges."""
    nodes, links = offsets(edges.sizes), offsets(edges.counts)
    rows = slice(int(nodes[graph]), int(nodes[graph + 1]))
    return rows, edges.edge_index[:, int(links[graph]) : int(links[graph + 1])]


def _sparse(row: Tensor, column: Tensor, value: Tensor, rows: int) -> Tensor:
    """Return a square matrix; entries at one place are added up."""
    return torch.sparse_coo_tensor(
        torch.stack([row, column]), value, (rows, rows), check_invariants=False
    ).coalesce()


def _estimate_walks(ends: Tensor, nodes: int, steps: int) -> Tensor:
    """Return estimates of return probabilities, [N, steps - 1].

    For signs z, the mean of (M^a z)_i (M^T^b z)_i is the i-th diagonal entry of M^(a + b).
    """
    source, target = ends
    scale = source.bincount(minlength=nodes).clamp(min=1).double().rsqrt()
    value = scale[source] * scale[target]
    forward, backward = _sparse(source, target, value, nodes), _sparse(target, source, value, nodes)
    symmetric = torch.equal(forward.indices(), backward.indices())
    symmetric = symmetric and torch.equal(forward.values(), backward.values())
    generator = torch.Generator().manual_seed(nodes)
    total = torch.zeros(steps - 1, nodes, dtype=torch.double)
    for _ in range(PROBES // _BLOCK):
        signs = torch.randint(0, 2, (nodes, _BLOCK), generator=generator).double().mul_(2).sub_(1)
        low = torch.sparse.mm(forward, signs)
        high = low if symmetric else torch.sparse.mm(backward, signs)
        for step in range(2, steps + 1):
            total[step - 2] += (low * high).sum(1)
            if step == steps:
                break
            if step % 2 == 0:
                high = torch.sparse.mm(backward, high)
            else:
                low = high if symmetric else torch.sparse.mm(forward, low)
    return (total / PROBES).clamp(0, 1).T


def _short_cycles(chunk: _Chunk) -> Tensor:
    """Return the numbers of cycles of 3, 4 and 5 nodes through each row, [rows, 3].

    They are the closed walks of that length less those that visit a node twice.
    """
    ones = torch.ones(chunk.row.numel(), dtype=torch.double)
    times, one = chunk.product(ones), chunk.dense(ones)
    two = times(one)
    three = times(two)
    degrees = one.sum(2)
    shared = one * two  # common neighbours of the ends of each edge
    triangles = shared.sum(2) / 2
    pairs = two.square().sum(2) - two.sum(2) - degrees * (degrees - 1)
    walks = (two * three).sum(2) / 2
    through = torch.bmm(shared, degrees.unsqueeze(2)) + torch.bmm(one, triangles.unsqueeze(2))
    pentagons = walks - 2 * triangles * degrees - through.squeeze(2) + 5 * triangles
    return torch.stack([triangles, pairs / 2, pentagons], 2).flatten(0, 1)


class _Paths(NamedTuple):
    """A simple graph in which cycles are counted."""

    begin: Tensor
    """First edge that leaves each node, [N + 1]."""
    target: Tensor
    """Target of each edge, sorted by source, then by target, [E]."""
    keys: Tensor
    """Source times N + 1, plus target, of each edge, ascending, [E]."""


def _follow_paths(edges: PackedEdges, graphs: Tensor, longest: int, found: Tensor) -> None:
    """Add cycles of 3 (of large graphs) or 6 … ``longest`` nodes to the columns of ``found``."""
    (source, target), _ = edges.packed()
    batch = torch.arange(edges.sizes.numel()).repeat_interleave(edges.sizes)
    chosen = torch.isin(batch, graphs)[source]
    source, target = _peeled(source[chosen], target[chosen], batch.numel())
    walks = _count_walks(source, target, batch.numel(), longest)
    total = walks.new_zeros(edges.sizes.numel()).index_add_(0, batch, walks)
    for graph in (total > MOST_WALKS * edges.sizes).nonzero().flatten()[:1].tolist():
        raise ValueError(
            f"encoding 'cycles:{longest}' is for sparse graphs: graph {graph} of {edges.name} has "
            f"{float(total[graph] / edges.sizes[graph]):,.0f} walks per node of that length, more "
            f"than {MOST_WALKS:,}; choose cycles for graphs of up to {LARGE:,} nodes, or rwse"
        )
    begin = offsets(source.bincount(minlength=batch.numel()))
    paths = _Paths(begin, target, source * begin.numel() + target)
    first = torch.where(edges.sizes[batch] > LARGE, 3, 6)  # shortest that has no closed form
    starts = walks.nonzero().flatten()
    groups = (walks[starts].cumsum(0) / _PATHS).long().unique_consecutive(return_counts=True)[1]
    for part in starts.split(groups.tolist()):
        path = part.unsqueeze(1)
        for length in range(1, longest + 1):
            if length >= 3:
                closed = path[_closed(paths, path) & (first[path[:, 0]] <= length)]
                ones = torch.ones(closed.numel(), dtype=found.dtype)
                found[:, length - 3].index_add_(0, closed.flatten(), ones)
            if length < longest:
                path = _extended(paths, path)


def _extended(graph: _Paths, path: Tensor) -> Tensor:
    """Return paths with one more node; a path starts at its lowest node."""
    last = path[:, -1]
    leaving = layout_from_sizes(graph.begin[last + 1] - graph.begin[last], _HOST)
    old = path[leaving.batch]
    new = graph.target[row_ranges(graph.begin[last], leaving)]
    fresh = (new > old[:, 0]) & (old != new.unsqueeze(1)).all(1)
    return torch.cat([old[fresh], new[fresh].unsqueeze(1)], 1)


def _closed(graph: _Paths, path: Tensor) -> Tensor:
    """Whether an edge leads back from the end of each path; of two directions one counts."""
    key = path[:, -1] * graph.begin.numel() + path[:, 0]
    place = torch.searchsorted(graph.keys, key).clamp(max=graph.keys.numel() - 1)
    return (graph.keys[place] == key) & (path[:, 1] < path[:, -1])


def _peeled(source: Tensor, target: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Remove edges to nodes with one neighbour, which are on no cycle, some times over."""
    for _ in range(_ROUNDS):
        inner = source.bincount(minlength=nodes) > 1
        kept = inner[source] & inner[target]
        if kept.all():
            break
        source, target = source[kept], target[kept]
    return source, target


def _count_walks(source: Tensor, target: Tensor, nodes: int, length: int) -> Tensor:
    """Return the number of walks from each node that never turn back, float64 [N].

    Edges are sorted by source, then by target.
    """
    back = (target * nodes + source).argsort()
    walks = torch.ones(source.numel(), dtype=torch.double)
    for _ in range(length - 2):
        leaving = walks.new_zeros(nodes).index_add_(0, source, walks)
        walks = leaving[target] - walks[back]
    return walks.new_zeros(nodes).index_add_(0, source, walks)
