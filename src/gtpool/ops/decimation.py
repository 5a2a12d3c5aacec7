"""Chains of node decimation: half of a maximum cut stays, with edges by Kron reduction.

Each connected component is cut by the sign of the eigenvector of the largest eigenvalue of its
normalised Laplacian, or greedily where that cuts less than half of the weight. The smaller side
stays. The reduced Laplacian is the Schur complement of the dropped nodes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.graph import CoarseningStep, GraphLayout, check_count
from gtpool.ops.entry import no_compile
from gtpool.ops.partitions import ordered_edges
from gtpool.ops.segment import layout_from_batch
from gtpool.ops.spectral import connected_components, nudged_laplacian

SPARSIFY = 1e-2
"""Edges of less weight are left out of the pooled graphs, but not of the next reduction."""
_ZERO = 1e-4  # smaller entries of an eigenvector are zero
_ROUNDING = 1e6  # probabilities are compared after rounding to six digits
_HALF = 0.5 - 1e-9


class Component(NamedTuple):
    """A connected component of a graph."""

    nodes: Tensor
    """Nodes of the batch, in an order that follows from the structure, [N]."""
    adjacency: Tensor
    """Weights of the edges, symmetric, float64 [N, N]."""


@no_compile
def decimation_chain(
    edge_index: Tensor, level: GraphLayout, steps: int
) -> tuple[CoarseningStep, ...]:
    """Return the coarsening steps of a batch; the share of a dropped node is 0.

    A dropped node is in the cluster of the kept node that a random walk most likely reaches first.

    Args:
        edge_index: Source and target of each edge, [2, E].
        level: The layout of the batch.
        steps: Number of coarsening steps.
    """
    check_count("steps", steps)
    device, count = edge_index.device, level.batch.numel()
    batch = level.batch.cpu()
    parts = _components(edge_index.cpu(), level._replace(batch=batch))
    nodes, chain = torch.arange(count), list[CoarseningStep]()
    for _ in range(steps):
        parts, goes = _decimate(parts, count)
        kept = goes[nodes].unique()
        number = torch.empty_like(goes).index_copy_(0, kept, torch.arange(kept.numel()))
        edges, weight = _edges(parts, number)
        cluster, share = number[goes[nodes]], (goes[nodes] == nodes).float()
        above = layout_from_batch(batch[kept])
        step = CoarseningStep(cluster, edges, weight.float().unsqueeze(1), above, "ndp", share)
        chain.append(step.to(device))
        nodes = kept
    return tuple(chain)


def _components(edge_index: Tensor, level: GraphLayout) -> list[Component]:
    """Return the connected components of all graphs; an edge both ways has the weight 1."""
    order, pairs, weight = ordered_edges(edge_index, level)
    part = connected_components(pairs, order.numel())
    by_part = order[part[order].argsort(stable=True)]
    sizes = part.bincount()
    place = torch.empty_like(order).index_copy_(
        0, by_part, torch.cat([torch.arange(size) for size in sizes.tolist()])
    )
    edge_part = part[pairs[0]]
    edges = edge_part.argsort(stable=True)
    counts = edge_part.bincount(minlength=sizes.numel()).tolist()
    found: list[Component] = []
    for nodes, rows in zip(by_part.split(sizes.tolist()), edges.split(counts), strict=True):
        adjacency = torch.zeros(nodes.numel(), nodes.numel(), dtype=torch.double)
        adjacency[tuple(place[pairs[:, rows]])] = weight[rows].double() / 2
        found.append(Component(nodes, adjacency))
    return found


def _decimate(parts: list[Component], count: int) -> tuple[list[Component], Tensor]:
    """Return the reduced components, and the kept node of each node's cluster, [count]."""
    goes, reduced = torch.zeros(count, dtype=torch.long), list[Component]()
    for nodes, adjacency in parts:
        kept = _side_to_keep(adjacency)
        smaller, first = kron_reduction(adjacency, kept)
        goes[nodes] = nodes[kept][first]
        reduced.append(Component(nodes[kept], smaller))
    return reduced, goes


def kron_reduction(adjacency: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the graph of kept nodes that has the same effective resistances.

    Args:
        adjacency: Weights of the edges of a connected graph, symmetric, [N, N].
        kept: Mask of the kept nodes, at least one, bool [N].

    Returns:
        The weights between kept nodes, [K, K], and for each node the index of the kept node that a
        random walk most likely reaches first, [N].

    Example:
        >>> path = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
        >>> kron_reduction(path, torch.tensor([True, False, True]))
        (tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]]), tensor([0, 0, 1]))
    """
    dropped = ~kept
    laplacian = adjacency.sum(1).diag() - adjacency
    reach = torch.linalg.solve(laplacian[dropped][:, dropped], adjacency[dropped][:, kept])
    smaller = adjacency[kept][:, kept] + adjacency[kept][:, dropped] @ reach
    smaller = ((smaller + smaller.T) / 2).fill_diagonal_(0)
    first = torch.empty(kept.numel(), dtype=torch.long)
    first[kept] = torch.arange(smaller.size(0))
    first[dropped] = (reach * _ROUNDING).round().argmax(1)
    return smaller, first


def _side_to_keep(adjacency: Tensor) -> Tensor:
    """Return the smaller side of a cut of a connected graph as a mask; ties go to the first node.

    A single node stays.
    """
    size = adjacency.size(0)
    if size == 1:
        return torch.ones(1, dtype=torch.bool)
    side = _spectral_cut(adjacency)
    if adjacency[side][:, ~side].sum() < _HALF * adjacency.sum() / 2:
        side = _greedy_cut(adjacency)
    side = side if side[0] else ~side
    return side if 2 * int(side.sum()) <= size else ~side


def _spectral_cut(adjacency: Tensor) -> Tensor:
    """Return the sign of the last eigenvector of the normalised Laplacian as a mask, [N]."""
    vector = torch.linalg.eigh(nudged_laplacian(adjacency)).eigenvectors[:, -1]
    leads = (vector.abs() > _ZERO).nonzero()[0]
    return vector * vector[leads].sign() > -_ZERO


def _greedy_cut(adjacency: Tensor) -> Tensor:
    """Return a side of a cut of at least half of the weight, as a mask, [N].

    Node by node joins the side opposite to most of its edges to nodes before it.
    """
    side = torch.ones(adjacency.size(0), dtype=torch.double)
    for node, row in enumerate(adjacency):
        if float(row[:node] @ side[:node]) > 0:
            side[node] = -1
    return side > 0


def _edges(parts: list[Component], number: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges of the reduced components and their weights, without the lightest."""
    ends, weights = list[Tensor](), list[Tensor]()
    for nodes, adjacency in parts:
        row, column = (adjacency >= SPARSIFY).nonzero().T
        ends.append(torch.stack([number[nodes[row]], number[nodes[column]]]))
        weights.append(adjacency[row, column])
    edges, weight = torch.cat(ends, 1), torch.cat(weights)
    order = (edges[0] * number.numel() + edges[1]).argsort()
    return edges[:, order], weight[order]
