"""Triton kernel for the input checks of a pooler: one launch and two device syncs."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Kernels are written in Triton's language, which Python type checkers do not understand.

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


def sizes_if_valid(
    x: Tensor, edge_index: Tensor, batch: Tensor | None, largest: float
) -> Tensor | None:
    """Return the nodes of each graph, on the host, [G]; None if the inputs are invalid.

    Args:
        x: Node features, [N, D].
        edge_index: Source and target of each edge, int64 [2, E].
        batch: Graph of each node, int64 [N]; None for one graph.
        largest: Maximum absolute value in ``x``; NaN is invalid.
    """
    nodes, edges = x.size(0), edge_index.size(1)
    found = torch.zeros(3, dtype=torch.float64, device=x.device)
    ends = torch.empty(nodes if batch is not None else 0, dtype=torch.long, device=x.device)
    found[0] = torch.linalg.vector_norm(x.detach(), torch.inf)
    _check[(triton.cdiv(max(nodes, edges), _BLOCK),)](
        edge_index if batch is None else batch.contiguous(),
        edge_index.contiguous(),
        ends,
        found,
        nodes,
        edges,
        BATCHED=batch is not None,
        BLOCK=_BLOCK,
    )
    most, wrong, last = found.tolist()
    if wrong or not most <= largest:
        return None
    if batch is None:
        return torch.tensor([nodes])
    ends = ends[: int(last) + 1].cpu()
    return ends.diff(prepend=ends.new_zeros(1))


@triton.jit
def _check(
    batch_ptr: tl.tensor,
    edge_ptr: tl.tensor,
    end_ptr: tl.tensor,
    found_ptr: tl.tensor,
    nodes: int,
    edges: int,
    BATCHED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Set found[1] if batch or edges are invalid, found[2] to the last graph, and graph ends."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if BATCHED:
        here = row < nodes
        graph = tl.load(batch_ptr + row, mask=here, other=0)
        before = tl.load(batch_ptr + row - 1, mask=here & (row > 0), other=-1)
        after = tl.load(batch_ptr + row + 1, mask=row + 1 < nodes, other=-1)
        step = graph - before
        sound = (graph >= 0) & ((step == 1) | ((step == 0) & (row > 0)))
        tl.store(found_ptr + 1 + tl.zeros_like(row), 1.0, mask=here & ~sound)
        ends = here & (graph != after) & (graph >= 0) & (graph < nodes)
        tl.store(end_ptr + graph, row + 1, mask=ends)
        tl.store(found_ptr + 2 + tl.zeros_like(row), graph.to(tl.float64), mask=row == nodes - 1)
    here = row < edges
    source = tl.load(edge_ptr + row, mask=here, other=0)
    target = tl.load(edge_ptr + edges + row, mask=here, other=0)
    sound = (source >= 0) & (source < nodes) & (target >= 0) & (target < nodes)
    if BATCHED:
        known = here & sound
        left = tl.load(batch_ptr + source, mask=known, other=0)
        right = tl.load(batch_ptr + target, mask=known, other=0)
        sound = sound & (left == right)
    tl.store(found_ptr + 1 + tl.zeros_like(row), 1.0, mask=here & ~sound)
