"""The functions of ``gtpool.ops.padded_ops`` in plain PyTorch, on any device.

They can be compiled and exported. ``gtpool.ops.kernels.padded_triton`` has the same functions as
Triton kernels. Edges are never filtered: an edge is active if both its ends have a row at a level.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gtpool.ops import attention, structure
from gtpool.ops.aggregate import (
    bond_sum,
    ends,
    gcn_sum,
    gin_sum,
    root_degrees,
    root_out_degrees,
)
from gtpool.ops.padded_ops import KeptRows
from gtpool.ops.padded_segment import (
    compose,
    gather_features,
    gather_layout,
    gather_rows,
    gather_shifted,
    maximum,
    mean,
    number_rows,
    row_numbers,
    total,
)
from gtpool.ops.sample import Order, round_scores, sortable
from gtpool.ops.structure import order_by_colour
from gtpool.padded_batch import PaddedCSR, PaddedLayout

__all__ = [
    "attend",
    "attended_rows",
    "bond_sum",
    "gated_rows",
    "gather_features",
    "gather_layout",
    "gather_rows",
    "gather_shifted",
    "gcn_sum",
    "gin_sum",
    "induced_csr",
    "maximum",
    "mean",
    "mean_max",
    "node_colours",
    "root_degrees",
    "root_out_degrees",
    "row_numbers",
    "sample",
    "scores",
    "take",
    "total",
]


def attend(qkv: Tensor, rows: PaddedLayout, longest: int) -> tuple[Tensor, Tensor]:
    """Return the attention output [N, H, C] and log-sum-exp [N, H] of each row in its graph.

    Args:
        qkv: Queries, keys and values, [N, 3, H, C].
        rows: The layout.
        longest: Maximum nodes of a graph.
    """
    if not torch.compiler.is_compiling() and not qkv.is_cuda:
        q, k, v = qkv.unbind(1)
        return attention.attend(q, k, v, _pointers(rows))
    slot = _slots(rows, longest)
    places = rows.size.numel() * longest
    padded = qkv.new_zeros(places + 1, *qkv.shape[1:]).index_copy(0, slot, qkv)[:places]
    q, k, v = padded.unflatten(0, (-1, longest)).permute(2, 0, 3, 1, 4)  # [RG, H, longest, C]
    absent = torch.arange(longest, device=qkv.device) >= rows.size.clamp(min=1).unsqueeze(1)
    logits = (q @ k.mT * qkv.size(-1) ** -0.5).masked_fill(absent[:, None, None], -torch.inf)
    lse = logits.logsumexp(-1)
    out = (logits - lse.unsqueeze(-1)).exp() @ v
    there = slot.clamp(max=places - 1)
    out, lse = (part.transpose(1, 2).flatten(0, 1).index_select(0, there) for part in (out, lse))
    return out, lse


def attended_rows(
    qkv: Tensor, out: Tensor, lse: Tensor, chosen: KeptRows, rows: PaddedLayout, after: PaddedLayout
) -> Tensor:
    """Return the attention output of the kept rows, [K, H, C].

    ``out`` and ``lse`` come from ``attend``. In the Triton implementation this function computes
    the gradient of the kept rows, and ``attend`` needs none.
    """
    del qkv, lse, rows, after
    return take(out.flatten(1), chosen).unflatten(1, out.shape[1:])


def gated_rows(out: Tensor, score: Tensor, chosen: KeptRows) -> Tensor:
    """Return tanh(score) times the attention output of the kept rows, [K, H, C].

    Args:
        out: Attention output returned by ``scores``, [N, H, C].
        score: Score of each row, [N].
        chosen: The kept rows.
    """
    gate = take(score.unsqueeze(1), chosen).tanh()
    rows = take(out.flatten(1), chosen)
    return (rows * gate).to(rows.dtype).unflatten(1, out.shape[1:])  # scores may be float32


def scores(
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    theta_global: Tensor,
    theta_local: Tensor,
    lam: float,
    csr: PaddedCSR,
    rows: PaddedLayout,
    act: Callable[[Tensor], Tensor] = torch.tanh,
) -> tuple[Tensor, Tensor]:
    """Return the score of every row by equations (5) to (7) of GTPool, [N], and ``out``.

    In the Triton implementation the gradients of both pass attention together, so the kept rows
    are to be taken from the returned ``out``.

    Args:
        qkv: Queries, keys and values, [N, 3, H, C].
        out: Attention output, [N, H, C].
        lse: Log-sum-exp of each row of logits, [N, H].
        theta_global: Θ_g of each run, [R, H, C].
        theta_local: Θ_l of each run, [R, H, C].
        lam: Weight of the global score.
        csr: The edges.
        rows: The layout.
        act: The activation of the scores.
    """
    del rows
    q, k, v = qkv.unbind(1)
    scale = q.size(-1) ** -0.5
    source, target, counts = ends(csr, loops=False)
    near = _by_run(v, theta_local)
    product = (q.index_select(0, target) * k.index_select(0, source)).sum(-1) * scale
    weight = (product - lse.index_select(0, target)).exp()
    weight = torch.where(counts.unsqueeze(1), weight, 0.0)
    local = ((q * k).sum(-1) * scale - lse).exp() * near
    local = local.index_add(0, target, weight * near.index_select(0, source))
    score = lam * act(_by_run(out, theta_global)) + (1 - lam) * act(local)
    return score.sum(1) * (csr.origin >= 0), out


def sample(
    score: Tensor,
    rows: PaddedLayout,
    after: PaddedLayout,
    *,
    sampler: str,
    order: Order,
    longest: int,
    colour: Tensor | None = None,
) -> KeptRows:
    """Return the rows to keep; ``after`` gives their number in each graph.

    Args:
        score: Score of each row, [N].
        rows: The layout.
        after: The layout of the kept rows.
        sampler: A key of ``SAMPLERS``.
        order: Order of the nodes on the wheel.
        longest: Maximum nodes of a graph.
        colour: Integers that order nodes of equal score before their indices do, [N].
    """
    del longest
    score = score.detach()
    if colour is None:
        stay = keep_mask(score, rows, after.size, sampler=sampler, order=order)
        return number_rows(stay, rows, after)
    row = torch.arange(score.numel(), device=score.device)
    start = torch.cat([rows.start, rows.start.new_zeros(1)]).index_select(0, rows.batch)
    real = rows.batch < rows.size.numel()
    place = order_by_colour(colour, torch.where(real, start, row))
    found = keep_mask(score.index_select(0, place), rows, after.size, sampler=sampler, order=order)
    stay = torch.empty_like(real).index_copy(0, place, found)
    return number_rows(stay, rows, after)


def node_colours(score: Tensor, csr: PaddedCSR) -> Tensor:
    """Return integers that depend on the surroundings of each row and not on numbers, [N]."""
    return structure.node_colours(*ends(csr, loops=True), score.detach())


def take(x: Tensor, chosen: KeptRows) -> Tensor:
    """Return the kept rows, zeros on padding, [N, D] -> [K, D]."""
    there = (chosen.kept >= 0).unsqueeze(1)
    return torch.where(there, x.index_select(0, chosen.kept.clamp(min=0)), 0.0)


def induced_csr(csr: PaddedCSR, chosen: KeptRows) -> PaddedCSR:
    """Return the edges with the rows of their ends after pooling."""
    return csr._replace(
        origin=compose(csr.origin, chosen.kept), place=compose(chosen.number, csr.place)
    )


def mean_max(x: Tensor, rows: PaddedLayout) -> Tensor:
    """Return mean and maximum over the rows of each graph, concatenated, [N, D] -> [RG, 2D]."""
    return torch.cat([mean(x, rows), maximum(x, rows)], 1)


def _pointers(rows: PaddedLayout) -> Tensor:
    """Return the pointers of the graphs; each padding row is a graph of 1 row, to limit cost."""
    row = torch.arange(rows.batch.numel() + 1)
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    start = rows.start.index_select(0, graph)
    first = torch.where(rows.batch < rows.size.numel(), start, row[:-1])
    return torch.cat([first.unique_consecutive(), row[-1:]])


def _slots(rows: PaddedLayout, longest: int) -> Tensor:
    """Return the index of each row in [RG, longest]; padding gets the index past the end, [N]."""
    row = torch.arange(rows.batch.numel(), device=rows.batch.device)
    graph = rows.batch.clamp(max=rows.size.numel() - 1)
    slot = row + (graph * longest - rows.start.index_select(0, graph))
    return torch.where(rows.batch < rows.size.numel(), slot, rows.size.numel() * longest)


def _by_run(x: Tensor, theta: Tensor) -> Tensor:
    """Return the products of each row with its run's vector, [N, H, C] and [R, H, C] -> [N, H]."""
    return (x.unflatten(0, (theta.size(0), -1)) * theta.unsqueeze(1)).sum(-1).flatten(0, 1)


def keep_mask(
    score: Tensor, rows: PaddedLayout, kept: Tensor, *, sampler: str, order: Order
) -> Tensor:
    """Return the mask of kept rows, bool [N].

    Args:
        score: Score of each row, [N].
        rows: The layout.
        kept: Number of nodes to keep in each graph, [RG].
        sampler: "topk", "rws" or "rwsv".
        order: Order of the nodes on the wheel.
    """
    score = round_scores(score).double()
    layout = _Layout.of(rows, kept)
    place = None
    if sampler == "topk" or order == "score":
        place = _sorted(-score if sampler == "topk" else score, layout)
    if sampler == "topk":
        chosen = layout.nth < layout.broadcast(layout.kept)
    else:
        weight = _weights(score, layout)
        weight = weight if place is None else weight.index_select(0, place)
        chosen = _reached(_passed(weight, layout, midway=sampler == "rwsv"), layout)
    if place is not None:
        chosen = torch.empty_like(chosen).index_copy(0, place, chosen)
    return chosen & layout.real


class _Layout(NamedTuple):
    """Layout of rows [N] and of graphs [RG + 1]; the last graph is padding."""

    batch: Tensor
    real: Tensor
    row: Tensor
    first: Tensor
    """First row of each row's graph; for padding, the row itself, [N]."""
    nth: Tensor
    """Index of each row in its graph, [N]."""
    size: Tensor
    kept: Tensor

    @classmethod
    def of(cls, rows: PaddedLayout, kept: Tensor) -> "_Layout":
        nothing = rows.size.new_zeros(1)
        row = torch.arange(rows.batch.numel(), device=rows.batch.device)
        real = rows.batch < rows.size.numel()
        start = torch.cat([rows.start, nothing]).index_select(0, rows.batch)
        first = torch.where(real, start, row)
        size, kept = (torch.cat([part, nothing]) for part in (rows.size, kept))
        return cls(rows.batch, real, row, first, row - first, size, kept)

    def broadcast(self, value: Tensor) -> Tensor:
        """Return the value of each row's graph, [RG + 1] -> [N]."""
        return value.index_select(0, self.batch)

    def most(self, value: Tensor) -> Tensor:
        """Return the maximum over each row's graph, [N] -> [N]."""
        most = value.new_zeros(self.size.numel())
        return self.broadcast(most.scatter_reduce(0, self.batch, value, "amax", include_self=False))


def _sorted(score: Tensor, layout: _Layout) -> Tensor:
    """Return the rows sorted by score inside each graph, ties by index, [N]."""
    place = sortable(score, torch.int64).argsort(stable=True)
    return place.index_select(0, layout.first.index_select(0, place).argsort(stable=True))


def _weights(score: Tensor, layout: _Layout) -> Tensor:
    """Return the integer widths of the wheel, floor(unit * exp(s - max s)), [N]."""
    bits = layout.size.double().frexp()[1] + (layout.kept + 1).double().frexp()[1]
    unit = layout.broadcast(1 << (62 - bits.long()))
    share = (score - layout.most(score)).exp().nan_to_num(0.0)
    return (share * unit).long() * layout.real


def _passed(weight: Tensor, layout: _Layout, *, midway: bool) -> Tensor:
    """Return the number of points k/(M+1) up to each left border, [N]."""
    before = weight.cumsum(0) - weight
    border = before - before.index_select(0, layout.first)
    whole = torch.zeros_like(layout.size).index_add(0, layout.batch, weight)
    if midway:
        border, whole = torch.where(layout.nth == 0, 0, 2 * border + weight), 2 * whole
    points = border * layout.broadcast(layout.kept + 1)
    points = points.div(layout.broadcast(whole.clamp(min=1)), rounding_mode="trunc")
    return points.minimum(layout.broadcast(layout.kept))


def _reached(passed: Tensor, layout: _Layout) -> Tensor:
    """Return the mask of kept nodes, given the points up to each left border, [N]."""
    excess = passed - layout.nth
    below = torch.where(layout.real, layout.most(excess) - excess, 0)
    level = layout.first + below
    latest = torch.zeros_like(level).scatter_reduce(0, level, layout.row, "amax")
    again = latest.index_select(0, level) != layout.row
    return again | (below >= layout.broadcast(layout.size - layout.kept))
