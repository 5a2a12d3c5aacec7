"""Messages on directed edges of packed and padded batches, in plain PyTorch."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from gtpool.ops.aggregate import Edges, ends
from gtpool.padded_batch import PaddedCSR


class DirectedEdges(NamedTuple):
    """The edges of one level and their reverse edges; rows of ``h`` are edges, [E, D].

    Inactive edges (padding, or with a dropped end) do not enter any sum.
    """

    source: Tensor
    """Source row of each edge, [E]."""
    target: Tensor
    """Target row of each edge, [E]."""
    counts: Tensor
    """Mask of active edges, bool [E]."""
    num_rows: int
    group: Tensor
    """Index of the group of edges with the same source and target, below E, [E]."""
    reverse: Tensor
    """Index of the group with source and target exchanged, [E]."""
    reversed: Tensor
    """Whether that group has edges, bool [E]."""
    mask: Tensor | None = None
    """Factor on the message of each edge, for PyG's ``Explainer``, [E]."""

    @classmethod
    def of(cls, csr: PaddedCSR | Edges) -> Self:
        """Return the edges with their reverse edges, found by sorting.

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
        """Return the source row of each edge, zeros for inactive edges, [N, D] -> [E, D]."""
        return self._counted(x.index_select(0, self.source))

    def total(self, h: Tensor) -> Tensor:
        """Return the sum over incoming edges of each row, [E, D] -> [N, D]."""
        h = self._carried(h)
        return h.new_zeros(self.num_rows, h.size(1)).index_add(0, self.target, h)

    def total_before(self, h: Tensor) -> Tensor:
        """Return the sum over incoming edges of each edge's source, without its reverse, [E, D]."""
        by_group = torch.zeros_like(h).index_add(0, self.group, self._carried(h))
        back = by_group.index_select(0, self.reverse)
        return self.from_sources(self.total(h)) - torch.where(self.reversed.unsqueeze(1), back, 0.0)

    def _counted(self, h: Tensor) -> Tensor:
        return torch.where(self.counts.unsqueeze(1), h, 0.0)  # padding may hold NaN of another run

    def _carried(self, h: Tensor) -> Tensor:
        h = h if self.mask is None else h * self.mask.unsqueeze(1).to(h.dtype)
        return self._counted(h)
