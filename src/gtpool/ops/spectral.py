"""Spectral clustering of all graphs of a batch at once, bitwise reproducible.

A graph of n nodes gets floor(n/2) + 1 clusters; a graph of at most two nodes gets one. It is first
split into connected components. Each component with several clusters is clustered by k-means on the
rows of D^(-1/2) U, where U holds the first k eigenvectors of the normalised Laplacian.

Two measures make the result independent of the rest of the batch. Equal eigenvalues (a complete
graph has n - 1) leave U ambiguous; a fixed pseudo-random diagonal of 1e-6 separates them. LAPACK
rounds differently for a matrix at an odd multiple of eight bytes, as every second matrix of odd
size is in a batch; matrices of odd size get one more row.
"""

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.segment import offsets

_NUDGE = 1e-6
_ROUNDS = 100  # maximum rounds of k-means; about ten are typical
_ROOM = 2**21  # entries of a batch of matrices (16 MiB); about ten such batches exist at a time


def cluster_counts(sizes: Tensor) -> Tensor:
    """Return the number of clusters of graphs of given sizes, [G].

    Example:
        >>> cluster_counts(torch.tensor([1, 2, 3, 4, 9])).tolist()
        [1, 1, 2, 3, 5]
    """
    return torch.where(sizes > 2, sizes // 2 + 1, 1)


def spectral_clusters(edge_index: Tensor, weight: Tensor, level: GraphLayout) -> Tensor:
    """Return the cluster of each node, numbered over the batch in order of first nodes, [N].

    The components of a graph get clusters in proportion to their nodes, at least one each
    (Sainte-Laguë's rule). If there are more components than clusters, the first isolated nodes are
    merged in pairs until the numbers agree; there are always enough of them.

    Args:
        edge_index: Source and target of each edge, on the host, [2, E]. Direction and self-loops
            have no effect.
        weight: Weight of each edge, positive, float64 [E].
        level: The layout of the batch, on the host.
    """
    between = edge_index[0] != edge_index[1]
    edge_index, weight = edge_index[:, between], weight[between]
    wanted = cluster_counts(level.sizes)
    part = connected_components(edge_index, level.batch.numel())
    part = _pair_isolated(part, wanted, level)
    count = _share_out(part, wanted, level)  # clusters of each component, [P]
    inside = _split(part, count, edge_index, weight)  # cluster of each node in its component
    return number_by_first(offsets(count)[part] + inside, int(wanted.sum()))


def connected_components(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the connected component of each node, numbered in order of first nodes, [N]."""
    first = torch.arange(num_nodes)
    while True:
        ends = first[edge_index]  # [2, E]
        if torch.equal(ends[0], ends[1]):
            return first.unique(return_inverse=True)[1]
        low = ends.amin(0).repeat(2)
        first = first.scatter_reduce(0, ends.flatten(), low, "amin")
        while not torch.equal(first, first[first]):
            first = first[first]


def _pair_isolated(part: Tensor, wanted: Tensor, level: GraphLayout) -> Tensor:
    """Return components with isolated nodes paired in graphs that have too many components, [N]."""
    size = part.bincount()
    home = torch.empty_like(size).index_copy_(0, part, level.batch)  # graph of each component
    excess = home.bincount(minlength=wanted.numel()) - wanted
    alone = size == 1
    rank = alone.cumsum(0) - alone.long()  # rank among the isolated nodes of all graphs
    rank -= offsets(torch.zeros_like(wanted).index_add_(0, home, alone.long()))[home]
    merged = (alone & (rank < 2 * excess[home])).nonzero().view(-1)
    number = torch.arange(size.numel())
    number[merged[1::2]] = merged[0::2]
    return number.unique(return_inverse=True)[1][part]


def _share_out(part: Tensor, wanted: Tensor, level: GraphLayout) -> Tensor:
    """Return the number of clusters of each component, [P].

    Each node represents a possible cluster of its component, and a graph takes those with the
    highest rank. In a component of n nodes, cluster j has rank n / (j + 1/2); cluster 0 comes
    before all.
    """
    size = part.bincount()
    order = part.argsort(stable=True)  # also sorted by graph
    part = part[order]
    beside = torch.arange(part.numel()) - offsets(size)[part]
    rank = size[part] / (beside + 0.5)
    rank[beside == 0] = torch.inf
    first = rank.argsort(descending=True, stable=True)
    first = first[level.batch[order][first].argsort(stable=True)]
    place = torch.arange(part.numel()) - level.ptr[level.batch]
    return part[first[place < wanted[level.batch]]].bincount(minlength=size.numel())


def _split(part: Tensor, count: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """Return the cluster of each node inside its component, [N]."""
    size = part.bincount()
    kinds, kind, many = torch.stack([size, count], 1).unique(
        dim=0, return_inverse=True, return_counts=True
    )
    # Sort components of the same size and cluster count together, with their nodes and edges.
    number = torch.empty_like(size)
    number[kind.argsort(stable=True)] = torch.arange(size.numel())
    part = number[part]
    nodes = part.argsort(stable=True)
    rank = torch.empty_like(part)
    rank[nodes] = torch.arange(part.numel()) - offsets(part.bincount())[part[nodes]]
    edge_part = part[edge_index[0]]
    edges = edge_part.argsort(stable=True)
    edge_ptr = offsets(edge_part.bincount(minlength=size.numel()))
    cluster = torch.where(count == 1, 0, 1)[number.argsort()][part] * rank
    seen_parts = seen_nodes = 0
    for (n, k), batch in zip(kinds.tolist(), many.tolist(), strict=True):
        chunk = max(1, _ROOM // n**2)
        for first in range(seen_parts, seen_parts + batch, chunk) if 1 < k < n else ():
            last = min(first + chunk, seen_parts + batch)
            rows = edges[edge_ptr[first] : edge_ptr[last]]
            source, target = rank[edge_index[:, rows]]
            adjacency = torch.zeros((last - first) * n * n, dtype=weight.dtype)
            place = ((edge_part[rows] - first) * n + source) * n + target
            adjacency = adjacency.index_add_(0, place, weight[rows]).view(-1, n, n)
            start = seen_nodes + (first - seen_parts) * n
            here = nodes[start : start + (last - first) * n]
            cluster[here] = _cluster(adjacency + adjacency.mT, k).flatten()
        seen_parts, seen_nodes = seen_parts + batch, seen_nodes + batch * n
    return cluster


def _cluster(adjacency: Tensor, k: int) -> Tensor:
    """Return the clusters of connected graphs of n nodes, [B, n, n] -> [B, n]."""
    n = adjacency.size(1)
    scale = 1 / adjacency.sum(2).sqrt()
    laplacian = nudged_laplacian(adjacency)
    if n % 2:  # the added row forms the last eigenvector, because no eigenvalue exceeds 2
        laplacian = torch.nn.functional.pad(laplacian, (0, 1, 0, 1))
        laplacian[:, n, n] = 3
    vectors = torch.linalg.eigh(laplacian).eigenvectors[:, :n, :k]
    return _kmeans(vectors * scale.unsqueeze(2), k)


def nudged_laplacian(adjacency: Tensor) -> Tensor:
    """Return normalised Laplacians whose diagonal separates equal eigenvalues, [..., n, n].

    Args:
        adjacency: Weights of the edges of connected graphs of several nodes, [..., n, n].
    """
    scale = 1 / adjacency.sum(-1).sqrt()
    laplacian = adjacency.mul(-scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    laplacian.diagonal(dim1=-2, dim2=-1).copy_(1 + _NUDGE * _noise(adjacency.size(-1)))
    return laplacian


def _noise(n: int) -> Tensor:
    """Return fixed pseudo-random numbers from 0 to 1, [n]."""
    prime = 2**31 - 1
    return (torch.arange(1, n + 1) ** 3 % prime * 1103515245 % prime).double() / prime


def _kmeans(rows: Tensor, k: int) -> Tensor:
    """Return non-empty k-means clusters; ties go to the first choice, [B, n, F] -> [B, n].

    The first initial centre is the point farthest from the origin; each further one is the point
    farthest from the centres before it.
    """
    centre = rows.gather(1, _far_apart(rows, k).unsqueeze(2).expand(-1, -1, rows.size(2)))
    cluster = rows.new_full(rows.shape[:2], -1, dtype=torch.long)
    for _ in range(_ROUNDS):
        before = cluster
        distance, cluster = _distance(rows, centre).min(2)
        cluster, size = _without_empty(cluster, distance, k)
        if torch.equal(cluster, before):
            break
        index = cluster.unsqueeze(2).expand_as(rows)
        centre = torch.zeros_like(centre).scatter_add_(1, index, rows).div_(size.unsqueeze(2))
    return cluster


def _distance(one: Tensor, two: Tensor) -> Tensor:
    """Return pairwise distances, computed per pair so that rounding is independent, [B, n, m]."""
    return torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist")


def _far_apart(rows: Tensor, k: int) -> Tensor:
    apart = _distance(rows, rows)
    nearest = _distance(rows, rows.new_zeros(rows.size(0), 1, rows.size(2))).squeeze(2)
    chosen: list[Tensor] = []
    for _ in range(k):
        point = nearest.argmax(1, keepdim=True)
        column = apart.gather(2, point.unsqueeze(1).expand(-1, rows.size(1), -1)).squeeze(2)
        nearest = column if not chosen else nearest.minimum(column)
        chosen.append(point)
        nearest = nearest.scatter(1, torch.cat(chosen, 1), -1.0)  # excludes chosen points
    return torch.cat(chosen, 1)


def _without_empty(cluster: Tensor, distance: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return clusters and sizes [B, k]; empty clusters get the points farthest from a centre."""
    batch = torch.arange(cluster.size(0))
    while True:
        size = cluster.new_zeros(cluster.size(0), k).scatter_add_(
            1, cluster, torch.ones_like(cluster)
        )
        empty = size == 0
        lacks = empty.any(1)
        if not lacks.any():
            return cluster, size
        spare = distance.masked_fill(size.gather(1, cluster) == 1, -1.0)
        point = spare.argmax(1)
        moved = cluster.clone()
        moved[batch, point] = empty.int().argmax(1)
        cluster = torch.where(lacks.unsqueeze(1), moved, cluster)


def number_by_first(cluster: Tensor, number: int) -> Tensor:
    """Return clusters renumbered in order of their first nodes, [N]."""
    node = torch.arange(cluster.numel())
    first = node.new_zeros(number).scatter_reduce_(0, cluster, node, "amin", include_self=False)
    return torch.empty_like(first).index_copy_(0, first.argsort(), torch.arange(number))[cluster]
