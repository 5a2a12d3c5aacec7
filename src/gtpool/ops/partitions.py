"""Chains of partitions that follow from the structure: one graph at a time, on the host.

The clusters of a step are numbered in the order of their first nodes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gtpool.graph import CoarseningStep, GraphLayout, check_count
from gtpool.ops.canonical import canonical_order
from gtpool.ops.coarsening import contract, contract_between
from gtpool.ops.entry import no_compile
from gtpool.ops.merge import at_least_float32
from gtpool.ops.segment import layout_from_batch, segment_sum
from gtpool.ops.spectral import number_by_first

Weights = list[dict[int, float]]
"""Weights of the edges of a graph: of each node, by neighbour."""
Labels = list[list[int]]
"""Cluster of each node of the input graph after each step, with any numbers from 0 to 2 n - 1."""


@no_compile
def partition_chain(
    edge_index: Tensor,
    level: GraphLayout,
    steps: int,
    *,
    method: str,
    split: Callable[[Weights, int], Labels],
    mean: bool,
) -> tuple[CoarseningStep, ...]:
    """Return the coarsening steps of a batch, with edges S^T A S without the diagonal.

    Args:
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        steps: Number of coarsening steps.
        method: A key of ``gtpool.ops.chains.CHAINS``.
        split: Computes the clusters of one graph; the numbers of its nodes follow from the
            structure.
        mean: Whether the features of a cluster are the mean of its nodes, not the sum.
    """
    check_count("steps", steps)
    device, edges = edge_index.device, edge_index.cpu()
    level = level._replace(batch=level.batch.cpu())
    order, graphs = ordered_graphs(edges, level)
    cluster, below = torch.arange(level.batch.numel()), level
    chain: list[CoarseningStep] = []
    for labels in _labels([split(graph, steps) for graph in graphs], level, order):
        above, batch = _numbered(labels, level)
        node = torch.empty_like(below.batch).index_copy_(0, cluster, above)
        cluster, below = above, layout_from_batch(batch)
        pairs, weight = contract_between(edges, torch.ones(edges.size(1)), cluster, below)
        share = torch.ones(node.numel())
        share = share / node.bincount()[node] if mean else share
        step = CoarseningStep(node, pairs, weight.unsqueeze(1), below, method, share)
        chain.append(step.to(device))
    return tuple(chain)


def ordered_graphs(edge_index: Tensor, level: GraphLayout) -> tuple[Tensor, list[Weights]]:
    """Return the nodes in an order that follows from the structure, [N], and the graphs in it.

    The weight of an edge is the number of edges between its nodes, either way; loops are dropped.

    Args:
        edge_index: Source and target of each edge, on the host, [2, E].
        level: The layout of the batch, on the host.
    """
    order, pairs, weight = ordered_edges(edge_index, level)
    place = order.argsort() - level.ptr[level.batch]
    graphs = [list[dict[int, float]]({} for _ in range(size)) for size in level.sizes.tolist()]
    source, target = place[pairs].tolist()
    for graph, one, other, times in zip(
        level.batch[pairs[0]].tolist(), source, target, weight.tolist(), strict=True
    ):
        graphs[graph][one][other] = float(times)
    return order, graphs


def ordered_edges(edge_index: Tensor, level: GraphLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes in an order that follows from the structure, the edges and their weights.

    Args:
        edge_index: Source and target of each edge, on the host, [2, E].
        level: The layout of the batch, on the host.

    Returns:
        The order [N], the edges both ways without loops [2, E'], and the number of edges between
        their nodes, either way, [E'].
    """
    both = torch.cat([edge_index, edge_index.flip(0)], 1)
    both = both[:, both[0] != both[1]]
    nodes = torch.arange(level.batch.numel())
    pairs, weight = contract(both, torch.ones_like(both[0]), nodes, level)
    return canonical_order(pairs, weight, level), pairs, weight


def pool_shares(x: Tensor, chain: Sequence[CoarseningStep]) -> Tensor:
    """Return the sums of each cluster of the first step, weighted by shares, [N, D] -> [N', D]."""
    step = chain[0]
    assert step.share is not None  # noqa: S101 - the chain of this method has them
    exact = at_least_float32(x)
    shared = exact * step.share.to(exact.dtype).unsqueeze(1)
    return segment_sum(shared, step.cluster, step.level.batch.numel()).to(x.dtype)


def _labels(found: list[Labels], level: GraphLayout, order: Tensor) -> Tensor:
    """Return the labels of all nodes after each step, different in each graph, [steps, N]."""
    labels = torch.cat([torch.tensor(labels) for labels in found], 1) + 2 * level.ptr[level.batch]
    return torch.empty_like(labels).index_copy_(1, order, labels)


def _numbered(labels: Tensor, level: GraphLayout) -> tuple[Tensor, Tensor]:
    """Return the clusters in order of first nodes, [N], and the graph of each, [N']."""
    dense = labels.unique(return_inverse=True)[1]
    cluster = number_by_first(dense, int(dense.max()) + 1)
    batch = torch.empty(int(dense.max()) + 1, dtype=torch.long)
    return cluster, batch.index_copy_(0, cluster, level.batch)
