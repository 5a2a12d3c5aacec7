"""Edges between kept nodes, beyond those of the induced subgraph.

``khop:2`` joins kept nodes at most two hops apart. ``closest`` assigns each dropped node to the
nearest kept node: the edges are those of S^T A S without its diagonal, where each row of S marks
one kept node.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.ops.aggregate import ends
from gtpool.ops.entry import no_compile
from gtpool.ops.memory import check_memory
from gtpool.ops.sample import round_scores, sortable
from gtpool.ops.segment import induced_edges
from gtpool.padded_batch import PaddedCSR, PaddedLayout

REACH = 8
"""Maximum hops of the search for the nearest kept node."""
_FAR = torch.iinfo(torch.int64).max
_LOW = 2**32 - 1  # the lower half of an int64
_PATH_BYTES = 64  # memory per path while pairs are sorted


@no_compile
def khop_edges(
    edge_index: Tensor, edge_attr: Tensor | None, kept: Tensor, num_nodes: int
) -> tuple[Tensor, Tensor | None]:
    """Return edges between kept nodes at most two hops apart; induced edges come first.

    Induced edges keep their features. An ordered pair that is only joined by a third node gets one
    edge with features of zeros, or codes of -1 (no code).

    Example:
        >>> path, kept = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 2, 3])
        >>> edges, attr = khop_edges(path, torch.tensor([5.0, 6.0, 7.0]), kept, 4)
        >>> edges.tolist(), attr.tolist()
        ([[1, 0], [2, 1]], [7.0, 0.0])
    """
    edges, attr = induced_edges(edge_index, edge_attr, kept, num_nodes)
    number = _numbers(kept, num_nodes)
    source, target = _two_steps(edge_index, number)
    count = max(kept.numel(), 1)
    pair = (source * count + target)[source != target].unique()
    pair = pair[~torch.isin(pair, edges[0] * count + edges[1])]
    joined = torch.stack([pair.div(count, rounding_mode="floor"), pair % count])
    if attr is not None:
        blank = attr.new_full(
            (pair.numel(), *attr.shape[1:]), 0 if attr.is_floating_point() else -1
        )
        attr = torch.cat([attr, blank])
    return torch.cat([edges, joined], 1), attr


@no_compile
def closest_edges(
    edge_index: Tensor, edge_attr: Tensor | None, kept: Tensor, score: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the edges with each dropped node replaced by its nearest kept node, in input order.

    Edges keep their features. Edges inside the part of one kept node are dropped, as are edges of
    nodes without a kept node within ``REACH`` hops.

    Example:
        >>> path, kept = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 3])
        >>> closest_edges(path, None, kept, torch.zeros(4))[0].tolist()
        [[0], [1]]
    """
    number = _numbers(kept, score.numel())
    source, target = edge_index
    near = nearest_kept(source, target, number, score)
    stays = joins_parts(source, target, number, near).nonzero().view(-1)
    edges = near.index_select(0, edge_index.index_select(1, stays).flatten()).view(2, -1)
    return edges, None if edge_attr is None else edge_attr.index_select(0, stays)


class Reordered(NamedTuple):
    """Edges sorted for the next level."""

    csr: PaddedCSR
    entering: Tensor
    """Input edge of each entry of ``csr.source``, [RE]."""
    leaving: Tensor
    """Input edge of each entry of ``csr.target``, [RE]."""


def closest_csr(
    csr: PaddedCSR, number: Tensor, score: Tensor, after: PaddedLayout, runs: int
) -> Reordered:
    """Return the edges of ``closest_edges`` for a padded batch; their number never grows.

    The pooled level becomes level 0 of the result.

    Args:
        csr: The edges.
        number: Row of the next level for each row, -1 if dropped or padding, [N].
        score: Score of each row, [N].
        after: The layout of the next level.
        runs: Number R of runs.
    """
    source, target, counts = ends(csr, loops=True)
    near = nearest_kept(source, target, number, score, counts)
    stays = counts & joins_parts(source, target, number, near)
    source, target = near.index_select(0, source), near.index_select(0, target)
    rows = after.batch.numel()
    row = torch.arange(rows, device=near.device)
    own = torch.where(after.batch < after.size.numel(), row, -1)
    run = torch.arange(stays.numel(), device=near.device) // (stays.numel() // runs)
    last = ((run + 1) * (rows // runs) - 1) * (rows + 1) + rows  # sorts after the edges of a run

    def order_by(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key = torch.where(stays, first * (rows + 1) + second, last)
        key, order = key.sort(stable=True)
        start = row * (rows + 1)
        return order, torch.searchsorted(key, start), torch.searchsorted(key, start + rows)

    entering, begin, end = order_by(target, source)
    leaving, out_begin, out_end = order_by(source, target)
    source, target = (torch.where(stays, part, -1) for part in (source, target))
    into = (source.index_select(0, entering), target.index_select(0, entering), begin, end)
    out = (target.index_select(0, leaving), out_begin, out_end)
    return Reordered(PaddedCSR(*into, *out, own, own), entering, leaving)


def nearest_kept(
    source: Tensor, target: Tensor, number: Tensor, score: Tensor, counts: Tensor | None = None
) -> Tensor:
    """Return the nearest kept node of each node, -1 if none is within ``REACH`` hops, [N].

    Edges are followed in both directions. Ties go to the highest rounded score, then to the lowest
    index.

    Args:
        source: Source of each edge, [E].
        target: Target of each edge, [E].
        number: Index of each node among the kept nodes, -1 for dropped ones, [N].
        score: Score of each node, [N].
        counts: Mask of active edges, bool [E].

    Example:
        >>> path = torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> nearest_kept(*path, torch.tensor([0, -1, 1, -1]), torch.tensor([1.0, 0, 2, 0])).tolist()
        [0, 1, 1, 1]
    """
    # One integer: minus the score in the high bits, the index in the low bits. The smallest wins.
    height = sortable(round_scores(score).float(), torch.int32).long()
    key = torch.where(number >= 0, (~height << 32) | number, _FAR)
    sent, got = torch.cat([source, target]), torch.cat([target, source])
    absent = None if counts is None else ~counts.repeat(2)
    for _ in range(REACH):
        passed = key.index_select(0, sent)
        passed = passed if absent is None else passed.masked_fill(absent, _FAR)
        found = torch.full_like(key, _FAR).scatter_reduce(0, got, passed, "amin")
        new = torch.where(key == _FAR, found, key)
        waits = key.device.type != "cpu" or torch.compiler.is_compiling()
        if not waits and torch.equal(new, key):
            break
        key = new
    return torch.where(key == _FAR, -1, key & _LOW)


def joins_parts(source: Tensor, target: Tensor, number: Tensor, near: Tensor) -> Tensor:
    """Return the mask of edges between different parts, and self-loops of kept nodes, bool [E].

    Args:
        source: Source of each edge, [E].
        target: Target of each edge, [E].
        number: Index of each node among the kept nodes, -1 for dropped ones, [N].
        near: Result of ``nearest_kept``, [N].
    """
    one, other = near.index_select(0, source), near.index_select(0, target)
    kept = number.index_select(0, source).minimum(number.index_select(0, target)) >= 0
    return (one.minimum(other) >= 0) & (kept | (one != other))


def _numbers(kept: Tensor, num_nodes: int) -> Tensor:
    """Return the index of each node among the kept nodes, -1 for others, [N]."""
    number = kept.new_full((num_nodes,), -1)
    return number.index_copy_(0, kept, torch.arange(kept.numel(), device=kept.device))


def _two_steps(edge_index: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends of all two-edge paths between kept nodes, as kept indices, [P] each."""
    source, target = edge_index
    first = number.index_select(0, source) >= 0
    second = number.index_select(0, target) >= 0
    start, middle = number.index_select(0, source[first]), target[first]
    order = source[second].argsort(stable=True)
    end = number.index_select(0, target[second][order])
    degree = source[second].bincount(minlength=number.numel())
    ways = degree.index_select(0, middle)
    paths = int(ways.sum())
    check_memory(
        _PATH_BYTES * paths,
        f"connect 'khop:2' follows {paths:,} paths of two edges, which need about",
        "use connect 'closest', whose edges never become more, or smaller batches",
        edge_index.device,
    )
    begin = (degree.cumsum(0) - degree).index_select(0, middle)  # first outgoing edge of the middle
    shift = (begin - (ways.cumsum(0) - ways)).repeat_interleave(ways, output_size=paths)
    place = torch.arange(paths, device=edge_index.device) + shift
    return start.repeat_interleave(ways, output_size=paths), end.index_select(0, place)
