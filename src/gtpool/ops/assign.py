"""Sparse soft assignments of nodes to kept nodes, and the graphs that they merge to.

S [N, K] is the share of each node in the cluster of each kept node. Only its entries are stored:
pairs of a node and a kept node.
"""

import warnings

import torch
from torch import Tensor

from gtpool.ops.entry import no_compile
from gtpool.ops.merge import at_least_float32


@no_compile
def check_weights(weight: Tensor) -> None:
    """Raise a ValueError unless all weights are finite and non-negative."""
    wrong = ~weight.isfinite() | (weight < 0)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise ValueError(
            "edge weights must be finite and non-negative, "
            f"but edge {at} has weight {weight[at].item()}"
        )


@no_compile
def with_loops(edge_index: Tensor, weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return edges and weights, with listed self-loops replaced by N loops of weight 1."""
    between = edge_index[0] != edge_index[1]
    loops = torch.arange(num_nodes, device=edge_index.device).expand(2, -1)
    edges = torch.cat([edge_index[:, between], loops], 1)
    return edges, torch.cat([weight[between], weight.new_ones(num_nodes)])


@no_compile
def pairs_within_two(looped: Tensor, kept: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return the pairs of a node and a kept node at most two hops apart.

    Edges are followed in both directions.

    Args:
        looped: Source and target of each edge, with a self-loop of each node, [2, E].
        kept: The kept nodes, ascending, [K].
        num_nodes: Number N of nodes.

    Returns:
        The nodes and the kept nodes, [2, P], and whether they are at most one hop apart, bool [P].

    Example:
        >>> path = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [1, 2, 3, 0, 1, 2, 3]])
        >>> pairs, near = pairs_within_two(path, torch.tensor([0]), 4)
        >>> pairs.tolist(), near.tolist()
        ([[0, 1, 2], [0, 0, 0]], [True, True, False])
    """
    both = torch.cat([looped, looped.flip(0)], 1)
    column = _columns(kept, num_nodes).index_select(0, both[1])
    near = torch.stack([both[0], column])[:, column >= 0]
    one = torch.ones(both.size(1), device=both.device)
    step = _sparse(near, one[: near.size(1)], num_nodes, kept.numel())
    two = _product(_sparse(both, one, num_nodes, num_nodes), step)
    entries = torch.cat([two.indices(), step.indices()], 1)
    mark = torch.cat([torch.zeros_like(two.values()), step.values()])
    found = _sparse(entries, mark, num_nodes, kept.numel())
    node, cluster = found.indices()
    return torch.stack([node, kept.index_select(0, cluster)]), found.values() > 0


@no_compile
def coarsen(
    edges: Tensor, weight: Tensor, pairs: Tensor, share: Tensor, kept: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor]:
    """Return the edges of S^T A S without its diagonal, sorted by source and target.

    A S is computed first: it has one entry per node and cluster that an edge joins. The paths
    between clusters would number up to n^4 / 4 in a complete graph.

    Args:
        edges: Source and target of each edge, [2, E].
        weight: The entries of A, [E].
        pairs: A node and the centre of a cluster; pairs of other centres are ignored, [2, P].
        share: The entries of S: share of each pair's node in its cluster, [P].
        kept: Centres of the kept clusters, ascending, [K].
        num_nodes: Number N of nodes.

    Returns:
        The edges, as indices of kept clusters, [2, E'], and their weights, [E', 1].
    """
    column = _columns(kept, num_nodes).index_select(0, pairs[1])
    inside = column >= 0
    entries = torch.stack([pairs[0], column])[:, inside]
    assign = _sparse(entries, share[inside], num_nodes, kept.numel())
    adjacency = _sparse(edges, weight, num_nodes, num_nodes)
    joint = _product(assign.t(), _product(adjacency, assign))
    ends, value = joint.indices(), joint.values()
    between = ends[0] != ends[1]
    return ends[:, between], value[between].unsqueeze(1).to(share.dtype)


def _columns(kept: Tensor, num_nodes: int) -> Tensor:
    """Return the index of each node among the kept nodes, -1 for others, [N]."""
    number = torch.arange(kept.numel(), device=kept.device)
    return kept.new_full((num_nodes,), -1).index_copy_(0, kept, number)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two sparse matrices."""
    with torch.autocast(left.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")  # from torch
        return torch.sparse.mm(left, right).coalesce()


def _sparse(entries: Tensor, value: Tensor, rows: int, columns: int) -> Tensor:
    """Return a sparse matrix of the summed entries, in float32 or better (bf16 has none)."""
    matrix = torch.sparse_coo_tensor(
        entries, at_least_float32(value), (rows, columns), check_invariants=False
    )
    return matrix.coalesce()
