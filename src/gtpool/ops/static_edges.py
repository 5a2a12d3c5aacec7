"""Sums over the neighbours in a batch of fixed capacity, in plain PyTorch."""

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from gtpool.fixed import Bonds, Links

_SLOPE = 0.2  # of GAT's leaky ReLU


def root_degrees(links: Links, like: Tensor) -> Tensor:
    """Give d^(-1/2) of each row, with d the degree of A + I and 0 on padding, [N]."""
    _, target, counts = ends(links, loops=False)
    degree = like.new_ones(links.origin.numel()).index_add(0, target, counts.to(like.dtype))
    return degree.rsqrt() * (links.origin >= 0)


def gcn_sum(x: Tensor, scale: Tensor, links: Links) -> Tensor:
    """Multiply by D^(-1/2) (A + I) D^(-1/2), given ``root_degrees``, [N, D] -> [N, D]."""
    source, target, counts = ends(links, loops=False)
    sent = x * scale.unsqueeze(1)
    passed = sent.index_select(0, source) * counts.unsqueeze(1)
    return sent.index_add(0, target, passed) * scale.unsqueeze(1)


def gin_sum(x: Tensor, links: Links) -> Tensor:
    """Add to each row the rows of its neighbours, [N, D] -> [N, D]."""
    source, target, counts = ends(links, loops=True)
    return x.index_add(0, target, x.index_select(0, source) * counts.unsqueeze(1))


def root_out_degrees(links: Links, like: Tensor) -> Tensor:
    """Give d^(-1/2) of each row, d one more than the edges that leave it, 0 on padding, [N]."""
    source, _, counts = ends(links, loops=True)
    degree = like.new_ones(links.origin.numel()).index_add(0, source, counts.to(like.dtype))
    return degree.rsqrt() * (links.origin >= 0)


def bond_sum(x: Tensor, table: Tensor, scale: Tensor, links: Links, bonds: Bonds) -> Tensor:
    """Give s_i (s_i relu(x_i + r) + sum of s_j relu(x_j + e_ij) over edges j -> i), [N, D].

    Args:
        x: Features of the rows, [N, D].
        table: What each code adds to e, and at the end r, of each run, [R, codes + 1, D].
        scale: The s, such as ``root_out_degrees``, 0 on padding, [N].
        links: The edges; loops count as others do.
        bonds: Their codes.
    """
    source, target, counts = ends(links, loops=True)
    runs, kinds = table.size(0), table.size(1)
    # A product with a column a code: on a CPU its gradient takes a seventh of that of a look-up.
    codes = table.new_zeros(source.numel(), kinds).scatter(1, bonds.entering.long(), 1.0)
    bond = torch.bmm(codes.unflatten(0, (runs, -1)), table).flatten(0, 1)
    passed = (x.index_select(0, source) + bond).relu()
    passed = passed * (scale.index_select(0, source) * scale.index_select(0, target)).unsqueeze(1)
    passed = torch.where(counts.unsqueeze(1), passed, 0.0)  # NaN of another run may be among it
    own = (x.unflatten(0, (runs, -1)) + table[:, -1:]).relu().flatten(0, 1)
    return (own * scale.square().unsqueeze(1)).index_add(0, target, passed)


def gat_sum(x: Tensor, sent: Tensor, got: Tensor, links: Links) -> Tensor:
    """Average each row and its neighbours by attention, as PyG's ``GATConv`` does, [N, H, C].

    Args:
        x: Features of the rows by head, [N, H, C].
        sent: What a row adds to the logits of the edges that leave it, [N, H].
        got: What it adds to those that enter it, [N, H].
        links: The edges; a listed loop does not count beside a row itself.
    """
    source, target, counts = ends(links, loops=False)
    own = leaky_relu(sent + got, _SLOPE)
    logit = leaky_relu(sent.index_select(0, source) + got.index_select(0, target), _SLOPE)
    logit = logit.masked_fill(~counts.unsqueeze(1), -torch.inf)
    top = own.detach().scatter_reduce(
        0, target.unsqueeze(1).expand_as(logit), logit.detach(), "amax"
    )
    own, part = (own - top).exp(), (logit - top.index_select(0, target)).exp()
    total = own.index_add(0, target, part)
    passed = x.index_select(0, source) * part.unsqueeze(2)
    out = (x * own.unsqueeze(2)).index_add(0, target, passed) / total.unsqueeze(2)
    return torch.where((links.origin >= 0).view(-1, 1, 1), out, 0.0)


def ends(links: Links, *, loops: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Give both ends of each edge at this level, and whether it counts, [E] each.

    What does not count joins rows that are spread out, so that no row is written by many.
    """
    both = torch.stack([links.source, links.sink])
    source, target = links.place.index_select(0, both.clamp(min=0).flatten()).view_as(both)
    counts = (links.source >= 0) & (source >= 0) & (target >= 0)
    if not loops:
        counts = counts & (source != target)
    spare = torch.arange(counts.numel(), device=counts.device) % links.origin.numel()
    source, target = (torch.where(counts, end, spare) for end in (source, target))
    return source, target, counts
