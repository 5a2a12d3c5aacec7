"""Per-graph arithmetic on a packed batch, whose nodes are grouped by graph.

``batch`` [N] is the graph of each node, sorted. ``sizes`` [G] is the number of nodes of each graph,
on the host, because shapes depend on it. No function loops over graphs.
"""

import torch
from torch import Tensor

from gtpool.graph import GraphLayout, LayoutCache
from gtpool.padded_batch import PaddedLayout


def sizes_of(batch: Tensor) -> Tensor:
    """Return the number of nodes of each graph, [G], on the host (one device sync).

    Example:
        >>> sizes_of(torch.tensor([0, 0, 0, 1])).tolist()
        [3, 1]
    """
    return batch.bincount().cpu()


def offsets(sizes: Tensor) -> Tensor:
    """Return the first node of each graph, then the number of nodes, [G + 1].

    Example:
        >>> offsets(torch.tensor([3, 1])).tolist()
        [0, 3, 4]
    """
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def layout_from_sizes(sizes: Tensor, device: torch.device) -> GraphLayout:
    """Return the layout on ``device`` of a packed batch of given sizes (on the host)."""
    ptr = offsets(sizes)
    counts = sizes.to(device, non_blocking=True)
    return GraphLayout(
        sizes, ptr, torch.repeat_interleave(counts, output_size=int(ptr[-1])), LayoutCache()
    )


def layout_from_batch(batch: Tensor) -> GraphLayout:
    """Return the layout computed from ``batch`` (one device sync)."""
    sizes = sizes_of(batch)
    return GraphLayout(sizes, offsets(sizes), batch, LayoutCache())


def device_layout(level: GraphLayout) -> PaddedLayout:
    """Return the cached copy of a layout on the device.

    Example:
        >>> layout = layout_from_sizes(torch.tensor([3, 1]), torch.device("cpu"))
        >>> device_layout(layout).start.tolist()
        [0, 3]
    """

    def bring() -> PaddedLayout:
        parts = torch.stack([level.ptr[:-1], level.sizes])
        start, size = parts.to(level.batch.device, non_blocking=True)
        return PaddedLayout(start, size, level.batch)

    return level.cached("rows", bring)


def induced_edges(
    edge_index: Tensor, edge_attr: Tensor | None, kept: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Return the edges between kept nodes, as indices of kept nodes, and their features.

    Example:
        >>> edges, kept = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 2])
        >>> induced_edges(edges, None, kept, 3)[0].tolist()
        [[1], [0]]
    """
    number = kept.new_full((num_nodes,), -1)
    number = number.index_copy_(0, kept, torch.arange(kept.numel(), device=kept.device))
    source, target = number.index_select(0, edge_index.flatten()).view_as(edge_index)
    stays = ((source | target) >= 0).nonzero().view(-1)  # -1 has all bits set
    edges = torch.stack([source.index_select(0, stays), target.index_select(0, stays)])
    return edges, None if edge_attr is None else edge_attr.index_select(0, stays)


def gather_by_graph(value: Tensor, batch: Tensor) -> Tensor:
    """Return the value of each node's graph, [G, ...] -> [N, ...]; may be a view for one graph.

    Example:
        >>> gather_by_graph(torch.tensor([7, 8]), torch.tensor([0, 0, 0, 1])).tolist()
        [7, 7, 7, 8]
    """
    return value.expand(batch.shape) if value.shape == (1,) else value.index_select(0, batch)


def segment_sum(value: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Return the sum over the rows of each graph, [N, ...] -> [G, ...]."""
    if num_graphs == 1 and torch.compiler.is_compiling():
        # Inductor fails at index_add to a single row on a CPU (pytorch/pytorch issue 160391).
        return value.sum(0, keepdim=True, dtype=value.dtype)
    return value.new_zeros(num_graphs, *value.shape[1:]).index_add(0, batch, value)


def segment_max(value: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Return the maximum of each graph, 0 for one without rows, [N] -> [G]."""
    if num_graphs == 1 and value.numel():
        return value.amax(0, keepdim=True)
    return value.new_zeros(num_graphs).scatter_reduce(0, batch, value, "amax", include_self=False)


def segment_softmax(value: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Return the softmax over the entries of each graph, [N] -> [N].

    Example:
        >>> segment_softmax(torch.zeros(3), torch.tensor([0, 0, 1]), 2).tolist()
        [0.5, 0.5, 1.0]
    """
    top = segment_max(value.detach(), batch, num_graphs)
    share = (value - gather_by_graph(top, batch)).exp()
    return share / gather_by_graph(segment_sum(share, batch, num_graphs), batch)
