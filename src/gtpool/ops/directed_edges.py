"""Messages on directed edges, packed or in a batch of fixed capacity, in plain PyTorch."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from gtpool.ops.aggregate import Edges, ends
from gtpool.padded_batch import PaddedCSR


class DirectedEdges(NamedTuple):
    """The edges of one level, with the reverse of each; rows of ``h`` are edges, [E, D].

    Edges that do not count (padding, or an end that was dropped) are in no sum, whatever they hold.
    """

    source: Tensor
    """Source row of each edge, [E]."""
    target: Tensor
    """Target row of each edge, [E]."""
    counts: Tensor
    """Whether each edge counts, bool [E]."""
    num_rows: int
    group: Tensor
    """Number of the group of edges with the same source and target, below E, [E]."""
    reverse: Tensor
    """Number of the group with source and target exchanged, [E]."""
    reversed: Tensor
    """Whether that group has edges, bool [E]."""
    mask: Tensor | None = None
    """Factor for what each edge carries, for PyG's ``Explainer``, [E]."""

    @classmethod
    def of(cls, csr: PaddedCSR | Edges) -> Self:
        """Find the reverse of each edge by sorting.

        Example:
            >>> edges = DirectedEdges.of(Edges(torch.tensor([[0, 1, 1], [1, 0, 2]]), 3))
            >>> edges.reversed.tolist()
            [True, True, False]
        """
        packed = isinstance(csr, Edges)
        source, target, counts = ends(csr._replace(mask=None) if packed else csr, loops=True)
        rows = csr.num_nodes if packed else csr.origin.numel()
        number = torch.arange(source.numel(), device=source.device)
        pair = torch.where(counts, source * rows + target, rows * rows + number)
        pairs = pair.sort().values
        wanted = target * rows + source
        reverse = torch.searchsorted(pairs, wanted).clamp(max=source.numel() - 1)
        found = counts & (pairs.index_select(0, reverse) == wanted)
        group = torch.searchsorted(pairs, pair)
        mask = csr.mask if packed else None
        return cls(source, target, counts, rows, group, reverse, found, mask)

    def from_sources(self, x: Tensor) -> Tensor:
        """Give each edge the row of its source, or zeros if it does not count, [N, D] -> [E, D]."""
        return self._counted(x.index_select(0, self.source))

    def total(self, h: Tensor) -> Tensor:
        """Add up the edges that enter each row, [E, D] -> [N, D]."""
        h = self._carried(h)
        return h.new_zeros(self.num_rows, h.size(1)).index_add(0, self.target, h)

    def total_before(self, h: Tensor) -> Tensor:
        """Add up the edges that enter the source of each edge, without its reverse, [E, D]."""
        by_group = torch.zeros_like(h).index_add(0, self.group, self._carried(h))
        back = by_group.index_select(0, self.reverse)
        return self.from_sources(self.total(h)) - torch.where(self.reversed.unsqueeze(1), back, 0.0)

    def _counted(self, h: Tensor) -> Tensor:
        return torch.where(self.counts.unsqueeze(1), h, 0.0)  # NaN of another run may be among it

    def _carried(self, h: Tensor) -> Tensor:
        h = h if self.mask is None else h * self.mask.unsqueeze(1).to(h.dtype)
        return self._counted(h)
