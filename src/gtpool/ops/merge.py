"""Merging of nodes into clusters, without n x n matrices.

A is the adjacency matrix of a graph: entry (i, j) is the weight of the edge from node i to node j;
repeated edges add up. S [N, C] is the soft assignment of nodes to the clusters of their graph.
"""

import torch
from torch import Tensor

from gtpool.graph import GraphLayout
from gtpool.ops.bucket import Buckets
from gtpool.ops.entry import no_compile
from gtpool.ops.segment import layout_from_sizes, segment_sum


def edge_weight(
    edge_index: Tensor, edge_attr: Tensor | None, like: Tensor, *, weighted: bool
) -> Tensor:
    """Return the weight of each edge: the first column of its features, or 1, [E].

    Example:
        >>> edges = torch.tensor([[0, 1], [1, 2]])
        >>> edge_weight(edges, None, torch.zeros(3), weighted=False).tolist()
        [1.0, 1.0]
    """
    if not weighted:
        return like.new_ones(edge_index.size(1))
    if edge_attr is None:
        raise ValueError("the layer needs weighted edges, but edge_attr is None; pass the weights")
    return (edge_attr if edge_attr.dim() == 1 else edge_attr[:, 0]).to(like.dtype)


def at_least_float32(value: Tensor) -> Tensor:
    """Return the value in float32 or better; a sum of ones stops growing at 256 in bf16."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def adj_t_matmul(value: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum over incoming edges of each node: A^T v, [N, F].

    Example:
        >>> adj_t_matmul(torch.eye(2), torch.tensor([[0], [1]]), torch.tensor([5.0])).tolist()
        [[0.0, 0.0], [5.0, 0.0]]
    """
    source, target = edge_index
    sent = value.index_select(0, source) * weight.unsqueeze(1)
    return torch.zeros_like(value).index_add(0, target, sent)


def sqrt_degree(degree: Tensor) -> Tensor:
    """Return the divisor for D^-1/2; infinity where the degree is 0, so that results are 0.

    Division has finite gradients down to the smallest degree; the power -1/2 does not.

    Example:
        >>> sqrt_degree(torch.tensor([4.0, 0.0])).tolist()
        [2.0, inf]
    """
    return degree.where(degree > 0, torch.inf).sqrt()


def keep_diagonal(matrix: Tensor) -> Tensor:
    """Return the diagonal part of each matrix, [G, C, C].

    Example:
        >>> keep_diagonal(torch.ones(1, 2, 2)).tolist()
        [[[1.0, 0.0], [0.0, 1.0]]]
    """
    # Not torch.diag_embed: inductor emits a warning when it lowers it.
    return matrix * torch.eye(matrix.size(1), dtype=matrix.dtype, device=matrix.device)


def between(coarse: Tensor) -> Tensor:
    """Return the matrix without its diagonal, normalised by degrees, [G, C, C].

    The diagonal is the largest part; with it a convolution would hardly mix clusters.
    """
    coarse = coarse - keep_diagonal(coarse)
    root = sqrt_degree((coarse.sum(1) + coarse.sum(2)) / 2)
    return coarse / root.unsqueeze(2) / root.unsqueeze(1)


@no_compile
def products(left: Tensor, right: Tensor, level: GraphLayout) -> Tensor:
    """Return left^T right of each graph, [N, A] x [N, B] -> [G, A, B].

    Graphs of similar size are padded with zeros, which do not change a sum.
    """
    buckets = Buckets.of(level.ptr, left.unsqueeze(1))
    rows = buckets.each(buckets.pad(left), buckets.pad(right))
    with torch.autocast(left.device.type, enabled=False):
        found = torch.cat([first.transpose(1, 2) @ second for _, first, second in rows])
    if len(buckets.shapes) == 1 and buckets.slot is None:
        return found
    place = level.sizes.sort(stable=True)[1].argsort()  # buckets are ordered by size
    return found.index_select(0, place.to(left.device, non_blocking=True))


@no_compile
def squared_norm(edge_index: Tensor, weight: Tensor, level: GraphLayout) -> Tensor:
    """Return the squared Frobenius norm of each graph's adjacency matrix, [G].

    Weights of repeated edges are added before squaring.

    Example:
        >>> one = layout_from_sizes(torch.tensor([2]), torch.device("cpu"))
        >>> squared_norm(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), one).tolist()
        [4.0]
    """
    nodes = level.batch.numel()
    pair, which = (edge_index[0] * nodes + edge_index[1]).unique(return_inverse=True)
    entry = weight.new_zeros(pair.numel()).index_add(0, which, weight)
    graph = level.batch.index_select(0, pair.div(nodes, rounding_mode="floor"))
    return segment_sum(entry.square(), graph, level.sizes.numel())


@no_compile
def coarse_graph(adjacency: Tensor) -> tuple[Tensor, Tensor, GraphLayout]:
    """Return dense matrices [G, C, C] as edges of a packed batch, including zeros.

    The edge from cluster i to cluster j of a graph has weight ``adjacency[g, i, j]``.

    Returns:
        The edges [2, G*C*C], their weights as one column of features, and the layout.

    Example:
        >>> edges, weight, layout = coarse_graph(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]))
        >>> edges.tolist(), weight.flatten().tolist(), layout.batch.tolist()
        ([[0, 0, 1, 1], [0, 1, 0, 1]], [1.0, 2.0, 3.0, 4.0], [0, 0])
    """
    graphs, clusters, _ = adjacency.shape
    device = adjacency.device
    number = torch.arange(graphs * clusters, device=device).view(graphs, clusters)
    source = number.unsqueeze(2).expand(-1, -1, clusters)
    target = number.unsqueeze(1).expand(-1, clusters, -1)
    edges = torch.stack([source.reshape(-1), target.reshape(-1)])
    layout = layout_from_sizes(torch.full((graphs,), clusters), device)
    return edges, adjacency.reshape(-1, 1), layout
