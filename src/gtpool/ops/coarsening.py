"""Coarsening chains: repeated clustering of all graphs of a batch; HaarPool's chain and transform.

In HaarPool's chain, from the second step on, nodes are numbered cluster by cluster, so the children
of a cluster are contiguous. ``gtpool.ops.chains`` lists the other chains.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gtpool.graph import CoarseningStep, GraphLayout, check_count
from gtpool.ops.entry import no_compile
from gtpool.ops.segment import layout_from_sizes, offsets, segment_sum
from gtpool.ops.spectral import cluster_counts, spectral_clusters

HOST = torch.device("cpu")


@no_compile
def build_chain(edge_index: Tensor, level: GraphLayout, steps: int) -> tuple[CoarseningStep, ...]:
    """Return the coarsening steps of a batch; the last step reduces each graph to one node.

    They are computed on the host in float64. The chain of a graph does not depend on its batch.

    Args:
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        steps: Number of coarsening steps.

    Example:
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> chain = build_chain(path, layout_from_sizes(torch.tensor([5]), HOST), steps=3)
        >>> [step.cluster.tolist() for step in chain]
        [[0, 0, 1, 2, 2], [0, 1, 1], [0, 0]]
        >>> chain[1].edge_index.tolist(), chain[1].edge_attr.flatten().tolist()
        ([[0, 0, 1], [0, 1, 1]], [1.0, 1.0, 2.0])
    """
    check_count("steps", steps)
    edges, weight = edge_index.cpu(), torch.ones(edge_index.size(1), dtype=torch.double)
    levels = [level._replace(batch=level.batch.cpu())]
    clusters: list[Tensor] = []
    coarse, mass = edges, weight
    for _ in range(steps - 1):
        clusters.append(spectral_clusters(coarse, mass, levels[-1]))
        levels.append(layout_from_sizes(cluster_counts(levels[-1].sizes), HOST))
        coarse, mass = contract(coarse, mass, clusters[-1], levels[-1])
    clusters.append(levels[-1].batch)
    levels.append(layout_from_sizes(torch.ones_like(level.sizes), HOST))
    chain: list[CoarseningStep] = []
    for cluster, above in zip(_sort_by_cluster(clusters), levels[1:], strict=True):
        edges, weight = contract(edges, weight, cluster, above)
        chain.append(CoarseningStep(cluster, edges, weight.float().unsqueeze(1), above))
    return tuple(step.to(edge_index.device) for step in chain)


def contract(
    edge_index: Tensor, weight: Tensor, cluster: Tensor, level: GraphLayout
) -> tuple[Tensor, Tensor]:
    """Return the weighted edges between and inside clusters: S^T A S.

    Args:
        edge_index: Source and target of each edge, [2, E].
        weight: Weight of each edge, [E].
        cluster: Cluster of each node, [N].
        level: The layout of the clusters.

    Returns:
        The edges in ascending order [2, E'] and their weights [E'].
    """
    number = level.batch.numel()
    source, target = cluster[edge_index]
    pair, which = (source * number + target).unique(return_inverse=True)
    total = weight.new_zeros(pair.numel()).index_add_(0, which, weight)
    return torch.stack([pair // number, pair % number]), total


def contract_between(
    edge_index: Tensor, weight: Tensor, cluster: Tensor, level: GraphLayout
) -> tuple[Tensor, Tensor]:
    """Return the edges of ``contract`` without those inside clusters, and their weights."""
    edges, total = contract(edge_index, weight, cluster, level)
    between = edges[0] != edges[1]
    return edges[:, between], total[between]


def edge_pointers(chain: Sequence[CoarseningStep]) -> tuple[Tensor, ...]:
    """Return the first edge of each graph, then the number of edges, [G + 1] for each step."""
    return tuple(
        offsets(step.level.batch[step.edge_index[0]].bincount(minlength=step.level.sizes.numel()))
        for step in (step.to(HOST) for step in chain)
    )


def take_chain(
    chain: Sequence[CoarseningStep],
    edge_ptrs: Sequence[Tensor],
    index: Tensor,
    level: GraphLayout,
    nodes: Tensor,
) -> tuple[CoarseningStep, ...]:
    """Return the chain of a batch, gathered from the chain of a dataset.

    Args:
        chain: Chain of all graphs of the dataset.
        edge_ptrs: Result of ``edge_pointers``.
        index: Graphs of the batch, on the host, [B].
        level: The layout of the batch.
        nodes: Row in the dataset of each node of the batch, [N].
    """
    device, taken = level.batch.device, list[CoarseningStep]()
    for step, edge_ptr in zip(chain, edge_ptrs, strict=True):
        first = step.level.ptr.index_select(0, index)
        above = layout_from_sizes(step.level.sizes.index_select(0, index), device)
        shift = (above.ptr[:-1] - first).to(device, non_blocking=True)
        edge_first = edge_ptr.index_select(0, index)
        edge_level = layout_from_sizes(edge_ptr.index_select(0, index + 1) - edge_first, device)
        edges = row_ranges(edge_first, edge_level)
        ends = torch.stack([row.index_select(0, edges) for row in step.edge_index])
        cluster = step.cluster.index_select(0, nodes)
        taken.append(
            CoarseningStep(
                cluster.add_(shift.index_select(0, level.batch)),
                ends.add_(shift.index_select(0, edge_level.batch)),
                step.edge_attr.index_select(0, edges),
                above,
                step.method,
                None if step.share is None else step.share.index_select(0, nodes),
            )
        )
        level, nodes = above, row_ranges(first, above)
    return tuple(taken)


def join_chains(chains: Sequence[Sequence[CoarseningStep]]) -> tuple[CoarseningStep, ...]:
    """Return the concatenated chain of several batches, on the host."""
    joined: list[CoarseningStep] = []
    for parts in zip(*chains, strict=True):
        level = layout_from_sizes(torch.cat([part.level.sizes for part in parts]), HOST)
        first = offsets(torch.tensor([part.level.batch.numel() for part in parts]))[:-1].tolist()
        placed = list(zip(parts, first, strict=True))
        joined.append(
            CoarseningStep(
                torch.cat([part.cluster + at for part, at in placed]),
                torch.cat([part.edge_index + at for part, at in placed], 1),
                torch.cat([part.edge_attr for part in parts]),
                level,
                parts[0].method,
                _join_shares(parts),
            )
        )
    return tuple(joined)


def _join_shares(parts: Sequence[CoarseningStep]) -> Tensor | None:
    """Return the concatenated shares of steps of one method; None if they have none."""
    shares = [part.share for part in parts if part.share is not None]
    return torch.cat(shares) if shares else None


def row_ranges(first: Tensor, level: GraphLayout) -> Tensor:
    """Return the source rows of graphs that start at ``first``, in the order of ``level``, [N].

    Example:
        >>> row_ranges(torch.tensor([7, 2]), layout_from_sizes(torch.tensor([2, 3]), HOST)).tolist()
        [7, 8, 2, 3, 4]
    """
    shift = (first - level.ptr[:-1]).to(level.batch.device, non_blocking=True)
    rows = torch.arange(level.batch.numel(), device=level.batch.device)
    return rows.add_(shift.index_select(0, level.batch))


def _sort_by_cluster(clusters: Sequence[Tensor]) -> list[Tensor]:
    """Return the clusters with the nodes of all levels but the lowest sorted by cluster."""
    sorted_up = list(clusters)
    for step in range(len(sorted_up) - 1, 0, -1):
        order = sorted_up[step].argsort(stable=True)
        sorted_up[step] = sorted_up[step][order]
        sorted_up[step - 1] = order.argsort()[sorted_up[step - 1]]
    return sorted_up


@no_compile
def haar_transform(x: Tensor, chain: Sequence[CoarseningStep]) -> Tensor:
    """Return the Haar features after the first step of a chain: Phi^T X, [N, D] -> [N', D].

    Example:
        >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> chain = build_chain(path, layout_from_sizes(torch.tensor([4]), HOST), steps=1)
        >>> haar_transform(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), chain).tolist()
        [[5.0]]
    """
    cluster, level = chain[0].cluster, chain[0].level
    exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
    size = _sizes(cluster, level).to(exact.dtype)
    total = segment_sum(exact, cluster, size.numel()) / size.sqrt().unsqueeze(1)
    return _coefficients(total, level, chain[1:]).to(x.dtype)


def _coefficients(z: Tensor, level: GraphLayout, chain: Sequence[CoarseningStep]) -> Tensor:
    """Return all coefficients of each graph in the Haar basis of a level, U^T z, [N, D].

    The nodes of a cluster are contiguous. Each of them except the last has a detail coefficient;
    the scaled sum of the cluster goes to the next level.
    """
    if chain:
        cluster, above = chain[0].cluster, chain[0].level
    elif level.batch.numel() == level.sizes.numel():
        return z
    else:
        cluster, above = level.batch, layout_from_sizes(torch.ones_like(level.sizes), z.device)
    size = _sizes(cluster, above)
    end = size.cumsum(0)
    node = torch.arange(z.size(0), device=z.device)
    after = end.index_select(0, cluster) - 1 - node  # later nodes of the same cluster, k - j
    most = int((level.sizes - above.sizes).max()) + 1
    suffix = _suffix_sums(z, after, most)
    share = suffix.index_select(0, end - size) / size.to(z.dtype).sqrt().unsqueeze(1)
    share = _coefficients(share, above, chain[1:])
    left = after.to(z.dtype).unsqueeze(1)  # 0 for the last node of a cluster
    detail = (left / (left + 1)).sqrt() * (z - (suffix - z) / left.clamp(min=1))
    from_above, own = _places(cluster, level, above)
    own = torch.where(after > 0, own, from_above.index_select(0, cluster))
    return torch.empty_like(z).index_copy(0, own, detail).index_copy(0, from_above, share)


def _sizes(cluster: Tensor, level: GraphLayout) -> Tensor:
    """Return the number of nodes of each cluster, [N']."""
    return segment_sum(torch.ones_like(cluster), cluster, level.batch.numel())


def _suffix_sums(z: Tensor, after: Tensor, most: int) -> Tensor:
    """Return the sum of each node and the later nodes of its cluster, [N, D].

    It takes a logarithmic number of passes. A cumulative sum over the batch would take one pass,
    but mix rounding errors of different graphs.

    Args:
        z: The values, [N, D].
        after: Number of later nodes in the same cluster, [N].
        most: Maximum nodes of a cluster.
    """
    step = 1
    while step < most:
        reaches = (after[:-step] >= step).to(z.dtype).unsqueeze(1)
        z = torch.cat([z[:-step].addcmul(z[step:], reaches), z[-step:]])
        step *= 2
    return z


def _places(cluster: Tensor, level: GraphLayout, above: GraphLayout) -> tuple[Tensor, Tensor]:
    """Return the rows of the coefficients of the next level, [N'], and of the details, [N].

    There are i - cluster details before node i, because one node of each cluster has none.
    """
    node = torch.arange(cluster.numel(), device=cluster.device)
    ptr = torch.stack([level.ptr[:-1] - above.ptr[:-1], above.ptr[1:]])
    shift, behind = ptr.to(cluster.device, non_blocking=True)
    from_above = node[: above.batch.numel()] + shift.index_select(0, above.batch)
    return from_above, node - cluster + behind.index_select(0, level.batch)
