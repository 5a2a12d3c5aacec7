"""Sums over the neighbours, packed or in a batch of fixed capacity, in plain PyTorch."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from gtpool.padded_batch import EdgeTypes, PaddedCSR

_SLOPE = 0.2  # of GAT's leaky ReLU


class Edges(NamedTuple):
    """The edges of a packed batch."""

    edge_index: Tensor
    """Source and target of each edge, [2, E]."""
    num_nodes: int
    mask: Tensor | None = None
    """What edges carry is scaled by it, [E]; None leaves it as it is."""
    padded: bool = False
    """Whether edges of weight 0 are padding, which may read what is another run's."""


def root_degrees(csr: PaddedCSR | Edges, like: Tensor) -> Tensor:
    """Give d^(-1/2) of each row, with d the degree of A + I and 0 on padding, [N]."""
    _, target, counts = ends(_unmasked(csr), loops=False)
    degree = like.new_ones(_rows(csr)).index_add(0, target, counts.to(like.dtype))
    return degree.rsqrt() if isinstance(csr, Edges) else degree.rsqrt() * (csr.origin >= 0)


def gcn_sum(x: Tensor, scale: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Multiply by D^(-1/2) (A + I) D^(-1/2), given ``root_degrees``, [N, D] -> [N, D]."""
    source, target, counts = ends(csr, loops=False)
    sent = x * scale.unsqueeze(1)
    passed = sent.index_select(0, source) * counts.to(sent.dtype).unsqueeze(1)
    return sent.index_add(0, target, passed) * scale.unsqueeze(1)


def weighted_gcn_sum(x: Tensor, weight: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Multiply by D^(-1/2) (A + I) D^(-1/2) with weights in A; a loop of A replaces that of I.

    Args:
        x: Features of the rows, [N, D].
        weight: Of each edge, [E].
        csr: The edges.
    """
    source, target, counts = ends(_unmasked(csr), loops=True)
    loop = (source == target) & (counts != 0)
    own = torch.where(loop, weight, 1.0).to(weight.dtype)
    there = torch.where(loop, target, _rows(csr))
    own = torch.cat([weight.new_ones(_rows(csr)), weight.new_ones(1)]).index_copy(0, there, own)
    between = torch.where(loop, 0.0, weight * counts.to(weight.dtype))
    return _weighted_sum(x, own[:-1], between, csr)


def coarse_gcn_sum(x: Tensor, weight: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Multiply by D^(-1/2) (A + I) D^(-1/2) with weights in A, loops of A and I added up."""
    _, _, counts = ends(_unmasked(csr), loops=True)
    return _weighted_sum(x, weight.new_ones(_rows(csr)), weight * counts.to(weight.dtype), csr)


def _weighted_sum(x: Tensor, own: Tensor, weight: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Normalise by degrees and add up, given the weight of each row's own and of each edge."""
    source, target, _ = ends(_unmasked(csr), loops=True)
    scale = own.index_add(0, target, weight).pow(-0.5)
    scale = scale.masked_fill(scale.isinf(), 0.0).unsqueeze(1)
    real = weight != 0
    if isinstance(csr, Edges) and csr.mask is not None:
        weight = weight * csr.mask
    sent = x * scale
    passed = sent.index_select(0, source) * weight.unsqueeze(1)
    if not isinstance(csr, Edges) or csr.padded:  # NaN of another run may be among it
        passed = torch.where(real.unsqueeze(1), passed, 0.0)
    return (sent * own.unsqueeze(1)).index_add(0, target, passed.to(sent.dtype)) * scale


def gin_sum(x: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Add to each row the rows of its neighbours, [N, D] -> [N, D]."""
    source, target, counts = ends(csr, loops=True)
    passed = x.index_select(0, source) * counts.to(x.dtype).unsqueeze(1)
    return torch.zeros_like(x).index_add(0, target, passed) + x


def edge_sum(x: Tensor, edge: Tensor, scale: Tensor | None, csr: PaddedCSR | Edges) -> Tensor:
    """Give s_i times the sum of s_j relu(x_j + e_ij) over edges j -> i, [N, D].

    Args:
        x: Features of the rows, [N, D].
        edge: The e of each edge, [E, D].
        scale: The s, [N]; None makes it 1.
        csr: The edges; loops count as others do.
    """
    source, target, counts = ends(csr, loops=True)
    passed = (x.index_select(0, source) + edge).relu()
    factor = counts.to(passed.dtype)
    if scale is not None:
        factor = factor * scale.index_select(0, source) * scale.index_select(0, target)
    passed = passed * factor.unsqueeze(1)
    if not isinstance(csr, Edges):  # NaN of another run may be among it
        passed = torch.where(counts.unsqueeze(1), passed, 0.0)
    return passed.new_zeros(x.shape).index_add(0, target, passed)


def root_out_degrees(csr: PaddedCSR | Edges, like: Tensor) -> Tensor:
    """Give d^(-1/2) of each row, d one more than the edges that leave it, 0 on padding, [N]."""
    degree = out_degrees(csr, like)
    return degree.rsqrt() if isinstance(csr, Edges) else degree.rsqrt() * (csr.origin >= 0)


def out_degrees(csr: PaddedCSR | Edges, like: Tensor) -> Tensor:
    """Give one more than the edges that leave each row, [N]."""
    source, _, counts = ends(_unmasked(csr), loops=True)
    return like.new_ones(_rows(csr)).index_add(0, source, counts.to(like.dtype))


def bond_sum(
    x: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
) -> Tensor:
    """Give s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

    Args:
        x: Features of the rows, [N, D].
        table: What each code adds to e, and at the end r, of each run, [R, codes + 1, D].
        scale: The s, such as ``root_out_degrees``, 0 on padding, [N].
        csr: The edges; loops count as others do.
        edge_types: Their codes.
    """
    source, target, counts = ends(csr, loops=True)
    runs, kinds = table.size(0), table.size(1)
    # A product with a column a code: on a CPU its gradient takes a seventh of that of a look-up.
    codes = table.new_zeros(source.numel(), kinds).scatter(1, edge_types.entering.long(), 1.0)
    bond = torch.bmm(codes.unflatten(0, (runs, -1)), table).flatten(0, 1)
    passed = (x.index_select(0, source) + bond).relu()
    passed = passed * (scale.index_select(0, source) * scale.index_select(0, target)).unsqueeze(1)
    passed = torch.where(counts.unsqueeze(1), passed, 0.0)  # NaN of another run may be among it
    own = (x.unflatten(0, (runs, -1)) + table[:, -1:]).relu().flatten(0, 1)
    return (own * scale.square().unsqueeze(1)).index_add(0, target, passed)


def gat_sum(x: Tensor, sent: Tensor, got: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Average each row and its neighbours by attention, as PyG's ``GATConv`` does, [N, H, C].

    Args:
        x: Features of the rows by head, [N, H, C].
        sent: What a row adds to the logits of the edges that leave it, [N, H].
        got: What it adds to those that enter it, [N, H].
        csr: The edges; a listed loop does not count beside a row itself.
    """
    source, target, counts = ends(_unmasked(csr), loops=False)
    own = leaky_relu(sent + got, _SLOPE)
    logit = leaky_relu(sent.index_select(0, source) + got.index_select(0, target), _SLOPE)
    mask = counts.unsqueeze(1)
    logit = logit.masked_fill(mask == 0, -torch.inf)
    top = own.detach().scatter_reduce(
        0, target.unsqueeze(1).expand_as(logit), logit.detach(), "amax"
    )
    own, part = (own - top).exp(), (logit - top.index_select(0, target)).exp()
    total = own.index_add(0, target, part)
    if isinstance(csr, Edges) and csr.mask is not None:
        part = part * csr.mask.unsqueeze(1)
    passed = x.index_select(0, source) * part.unsqueeze(2)
    out = (x * own.unsqueeze(2)).index_add(0, target, passed) / total.unsqueeze(2)
    return (
        out if isinstance(csr, Edges) else torch.where((csr.origin >= 0).view(-1, 1, 1), out, 0.0)
    )


def ends(csr: PaddedCSR | Edges, *, loops: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Give both ends of each edge at this level, and how much it counts, [E] each.

    What does not count joins rows that are spread out, so that no row is written by many.
    """
    if isinstance(csr, Edges):
        source, target = csr.edge_index
        counts = torch.ones_like(source, dtype=torch.bool) if loops else source != target
        return source, target, counts if csr.mask is None else counts * csr.mask
    both = torch.stack([csr.source, csr.sink])
    source, target = csr.place.index_select(0, both.clamp(min=0).flatten()).view_as(both)
    counts = (csr.source >= 0) & (source >= 0) & (target >= 0)
    if not loops:
        counts = counts & (source != target)
    spare = torch.arange(counts.numel(), device=counts.device) % csr.origin.numel()
    source, target = (torch.where(counts, end, spare) for end in (source, target))
    return source, target, counts


def _rows(csr: PaddedCSR | Edges) -> int:
    return csr.num_nodes if isinstance(csr, Edges) else csr.origin.numel()


def _unmasked(csr: PaddedCSR | Edges) -> PaddedCSR | Edges:
    """Leave a mask out where degrees are counted: it scales what edges carry."""
    return csr._replace(mask=None) if isinstance(csr, Edges) else csr
