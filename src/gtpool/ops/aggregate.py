"""Neighbour sums on packed and padded batches, in plain PyTorch."""

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
    """Factor on the message of each edge, [E]; None for no scaling."""
    padded: bool = False
    """Whether edges of weight 0 are padding, which may read rows of other runs."""


def root_degrees(csr: PaddedCSR | Edges, like: Tensor) -> Tensor:
    """Return d^(-1/2) of each row, with d the degree of A + I, 0 on padding, [N]."""
    _, target, counts = ends(_unmasked(csr), loops=False)
    degree = like.new_ones(_rows(csr)).index_add(0, target, counts.to(like.dtype))
    return degree.rsqrt() if isinstance(csr, Edges) else degree.rsqrt() * (csr.origin >= 0)


def gcn_sum(x: Tensor, scale: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Return D^(-1/2) (A + I) D^(-1/2) x, given ``root_degrees``, [N, D] -> [N, D]."""
    source, target, counts = ends(csr, loops=False)
    sent = x * scale.unsqueeze(1)
    passed = sent.index_select(0, source) * counts.to(sent.dtype).unsqueeze(1)
    return sent.index_add(0, target, passed) * scale.unsqueeze(1)


def weighted_gcn_sum(x: Tensor, weight: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Return D^(-1/2) (A + I) D^(-1/2) x with weights in A; self-loops of A replace those of I.

    Args:
        x: Features of the rows, [N, D].
        weight: Weight of each edge, [E].
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
    """Return D^(-1/2) (A + I) D^(-1/2) x with weights in A; self-loops of A and I add up."""
    _, _, counts = ends(_unmasked(csr), loops=True)
    return _weighted_sum(x, weight.new_ones(_rows(csr)), weight * counts.to(weight.dtype), csr)


def _weighted_sum(x: Tensor, own: Tensor, weight: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Return the normalised sum, given the self-loop weight of each row and the edge weights."""
    source, target, _ = ends(_unmasked(csr), loops=True)
    scale = own.index_add(0, target, weight).pow(-0.5)
    scale = scale.masked_fill(scale.isinf(), 0.0).unsqueeze(1)
    real = weight != 0
    if isinstance(csr, Edges) and csr.mask is not None:
        weight = weight * csr.mask
    sent = x * scale
    passed = sent.index_select(0, source) * weight.unsqueeze(1)
    if not isinstance(csr, Edges) or csr.padded:  # padding may hold NaN of another run
        passed = torch.where(real.unsqueeze(1), passed, 0.0)
    return (sent * own.unsqueeze(1)).index_add(0, target, passed.to(sent.dtype)) * scale


def gin_sum(x: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Return the sum of each row and its neighbours, [N, D] -> [N, D]."""
    source, target, counts = ends(csr, loops=True)
    passed = x.index_select(0, source) * counts.to(x.dtype).unsqueeze(1)
    return torch.zeros_like(x).index_add(0, target, passed) + x


def edge_sum(x: Tensor, edge: Tensor, scale: Tensor | None, csr: PaddedCSR | Edges) -> Tensor:
    """Return s_i times the sum of s_j relu(x_j + e_ij) over edges j -> i, [N, D].

    Args:
        x: Features of the rows, [N, D].
        edge: Embedding e of each edge, [E, D].
        scale: Factors s, [N]; None means 1.
        csr: The edges, including self-loops.
    """
    source, target, counts = ends(csr, loops=True)
    passed = (x.index_select(0, source) + edge).relu()
    factor = counts.to(passed.dtype)
    if scale is not None:
        factor = factor * scale.index_select(0, source) * scale.index_select(0, target)
    passed = passed * factor.unsqueeze(1)
    if not isinstance(csr, Edges):  # padding may hold NaN of another run
        passed = torch.where(counts.unsqueeze(1), passed, 0.0)
    return passed.new_zeros(x.shape).index_add(0, target, passed)


def root_out_degrees(csr: PaddedCSR | Edges, like: Tensor) -> Tensor:
    """Return d^(-1/2) of each row, with d the out-degree plus 1, 0 on padding, [N]."""
    degree = out_degrees(csr, like)
    return degree.rsqrt() if isinstance(csr, Edges) else degree.rsqrt() * (csr.origin >= 0)


def out_degrees(csr: PaddedCSR | Edges, like: Tensor) -> Tensor:
    """Return the out-degree of each row plus 1, [N]."""
    source, _, counts = ends(_unmasked(csr), loops=True)
    return like.new_ones(_rows(csr)).index_add(0, source, counts.to(like.dtype))


def bond_sum(
    x: Tensor, table: Tensor, scale: Tensor, csr: PaddedCSR, edge_types: EdgeTypes
) -> Tensor:
    """Return s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

    Args:
        x: Features of the rows, [N, D].
        table: Embedding of each code, then r as the last row, for each run, [R, codes + 1, D].
        scale: Factors s, such as ``root_out_degrees``, 0 on padding, [N].
        csr: The edges, including self-loops.
        edge_types: Codes of the edges.
    """
    source, target, counts = ends(csr, loops=True)
    runs, kinds = table.size(0), table.size(1)
    # A product with one-hot codes: on a CPU its gradient is seven times faster than a look-up's.
    codes = table.new_zeros(source.numel(), kinds).scatter(1, edge_types.entering.long(), 1.0)
    bond = torch.bmm(codes.unflatten(0, (runs, -1)), table).flatten(0, 1)
    passed = (x.index_select(0, source) + bond).relu()
    passed = passed * (scale.index_select(0, source) * scale.index_select(0, target)).unsqueeze(1)
    passed = torch.where(counts.unsqueeze(1), passed, 0.0)  # padding may hold NaN of another run
    own = (x.unflatten(0, (runs, -1)) + table[:, -1:]).relu().flatten(0, 1)
    return (own * scale.square().unsqueeze(1)).index_add(0, target, passed)


def gat_sum(x: Tensor, sent: Tensor, got: Tensor, csr: PaddedCSR | Edges) -> Tensor:
    """Return the attention-weighted mean of each row and its neighbours, as PyG's ``GATConv``.

    Args:
        x: Features of the rows by head, [N, H, C].
        sent: Logit of each row as a source, [N, H].
        got: Logit of each row as a target, [N, H].
        csr: The edges; listed self-loops are ignored, because every row has one.

    Returns:
        [N, H, C].
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
    """Return source, target and weight (0 if inactive) of each edge at this level, [E] each.

    Inactive edges get distinct dummy rows, so that no row receives many atomic writes.
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
    """Return the edges without their mask, to count degrees; the mask scales messages only."""
    return csr._replace(mask=None) if isinstance(csr, Edges) else csr
