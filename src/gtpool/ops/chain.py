"""The chain of ever coarser graphs that a graph is clustered into, for all graphs of a batch.

From the second step on, nodes are numbered cluster by cluster: what works its way up a chain finds
the children of each cluster side by side.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gtpool.graph import Coarse, Level, check_count
from gtpool.ops.entry import eager
from gtpool.ops.segment import offsets, plan
from gtpool.ops.spectral import cluster_counts, spectral_clusters

HOST = torch.device("cpu")


@eager
def build_chain(edge_index: Tensor, level: Level, steps: int) -> tuple[Coarse, ...]:
    """Cluster graphs step by step; the last step makes each graph one node.

    It is computed on the host in float64. A graph alone and in a batch gives the same chain.

    Args:
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        steps: How many times to cluster.

    Example:
        >>> path = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
        >>> chain = build_chain(path, plan(torch.tensor([5]), HOST), steps=3)
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
        levels.append(plan(cluster_counts(levels[-1].sizes), HOST))
        coarse, mass = contract(coarse, mass, clusters[-1], levels[-1])
    clusters.append(levels[-1].batch)
    levels.append(plan(torch.ones_like(level.sizes), HOST))
    chain: list[Coarse] = []
    for cluster, above in zip(_side_by_side(clusters), levels[1:], strict=True):
        edges, weight = contract(edges, weight, cluster, above)
        chain.append(Coarse(cluster, edges, weight.float().unsqueeze(1), above))
    return tuple(step.to(edge_index.device) for step in chain)


def contract(
    edge_index: Tensor, weight: Tensor, cluster: Tensor, level: Level
) -> tuple[Tensor, Tensor]:
    """Add up the weights of the edges between clusters and inside them: S^T A S.

    Args:
        edge_index: Source and target of each edge, [2, E].
        weight: Of each edge, [E].
        cluster: The one that each node is in, [N].
        level: The layout of the clusters.

    Returns:
        The edges in ascending order [2, E'] and their weights [E'].
    """
    number = level.batch.numel()
    source, target = cluster[edge_index]
    pair, which = (source * number + target).unique(return_inverse=True)
    total = weight.new_zeros(pair.numel()).index_add_(0, which, weight)
    return torch.stack([pair // number, pair % number]), total


def edge_pointers(chain: Sequence[Coarse]) -> tuple[Tensor, ...]:
    """Give the first edge of each graph, and the number of all edges at the end, [G + 1] a step."""
    return tuple(
        offsets(step.level.batch[step.edge_index[0]].bincount(minlength=step.level.sizes.numel()))
        for step in (step.to(HOST) for step in chain)
    )


def take_chain(
    chain: Sequence[Coarse], edge_ptrs: Sequence[Tensor], index: Tensor, level: Level, nodes: Tensor
) -> tuple[Coarse, ...]:
    """Gather the chains of some graphs into those of a batch.

    Args:
        chain: Of all graphs.
        edge_ptrs: What ``edge_pointers`` gives.
        index: Which graphs, on the host, [B].
        level: The layout of the batch.
        nodes: The rows of its nodes among all nodes, [N].
    """
    device, taken = level.batch.device, list[Coarse]()
    for step, edge_ptr in zip(chain, edge_ptrs, strict=True):
        first = step.level.ptr.index_select(0, index)
        above = plan(step.level.sizes.index_select(0, index), device)
        shift = (above.ptr[:-1] - first).to(device, non_blocking=True)
        edge_first = edge_ptr.index_select(0, index)
        edge_level = plan(edge_ptr.index_select(0, index + 1) - edge_first, device)
        edges = spans(edge_first, edge_level)
        ends = torch.stack([row.index_select(0, edges) for row in step.edge_index])
        cluster = step.cluster.index_select(0, nodes)
        taken.append(
            Coarse(
                cluster.add_(shift.index_select(0, level.batch)),
                ends.add_(shift.index_select(0, edge_level.batch)),
                step.edge_attr.index_select(0, edges),
                above,
            )
        )
        level, nodes = above, spans(first, above)
    return tuple(taken)


def join_chains(chains: Sequence[Sequence[Coarse]]) -> tuple[Coarse, ...]:
    """Pack the chains of several batches into those of one, on the host."""
    joined: list[Coarse] = []
    for parts in zip(*chains, strict=True):
        level = plan(torch.cat([part.level.sizes for part in parts]), HOST)
        first = offsets(torch.tensor([part.level.batch.numel() for part in parts]))[:-1].tolist()
        placed = list(zip(parts, first, strict=True))
        joined.append(
            Coarse(
                torch.cat([part.cluster + at for part, at in placed]),
                torch.cat([part.edge_index + at for part, at in placed], 1),
                torch.cat([part.edge_attr for part in parts]),
                level,
            )
        )
    return tuple(joined)


def spans(first: Tensor, level: Level) -> Tensor:
    """List the rows of graphs that begin at ``first`` and are laid out anew by ``level``, [N].

    Example:
        >>> spans(torch.tensor([7, 2]), plan(torch.tensor([2, 3]), HOST)).tolist()
        [7, 8, 2, 3, 4]
    """
    shift = (first - level.ptr[:-1]).to(level.batch.device, non_blocking=True)
    rows = torch.arange(level.batch.numel(), device=level.batch.device)
    return rows.add_(shift.index_select(0, level.batch))


def _side_by_side(clusters: Sequence[Tensor]) -> list[Tensor]:
    """Number the nodes of each level but the lowest cluster by cluster, from the top down."""
    sorted_up = list(clusters)
    for step in range(len(sorted_up) - 1, 0, -1):
        order = sorted_up[step].argsort(stable=True)
        sorted_up[step] = sorted_up[step][order]
        sorted_up[step - 1] = order.argsort()[sorted_up[step - 1]]
    return sorted_up
