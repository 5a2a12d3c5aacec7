"""Gumbel noise for scores: of s + noise the M highest are M draws by softmax(s).

A wheel that is spun M times, where a node that was hit leaves it: each draw has the shares of what
is left. Noise follows from a key, as the masks of ``gtpool.ops.dropout`` do.
"""

import torch
from torch import Tensor

from gtpool.fixed import Rows
from gtpool.graph import Level
from gtpool.ops.dropout import Keyed, next_key, random_bits
from gtpool.ops.entry import eager
from gtpool.ops.segment import spread

REST = 0x5EED
"""Which of the keys made from a size serves while nothing is trained."""
DIGITS = 52  # so that a random number and a half fit a float64


class Gumbel(Keyed):
    """Noise for the nodes of a batch: drawn while training, at rest the same for the same graph."""

    @eager
    def forward(self, level: Level) -> Tensor:
        """Give the noise of each node, [N]."""
        batch = level.batch
        if self.training:
            anew = torch.randint(2**62, (1,), device=batch.device) if self.key is None else self.key
            return by_row(batch.numel(), anew)
        start, size = (
            spread(part.to(batch.device, non_blocking=True), batch)
            for part in (level.ptr[:-1], level.sizes)
        )
        return by_number(torch.arange(batch.numel(), device=batch.device) - start, size)


def noise_of(rows: Rows, key: Tensor | None) -> Tensor:
    """Give what ``Gumbel`` gives each run of a batch of fixed capacity, [N].

    Args:
        rows: The layout.
        key: One a run, int64 [R]; None at rest.
    """
    if key is not None:
        return by_row(rows.batch.numel(), key)
    parts = (torch.cat([part, part.new_zeros(1)]) for part in (rows.start, rows.size))
    start, size = (part.index_select(0, rows.batch) for part in parts)
    return by_number(torch.arange(rows.batch.numel(), device=rows.batch.device) - start, size)


def by_row(count: int, key: Tensor) -> Tensor:
    """Draw for the rows of R runs, run after run, [R * n], from a key a run, [R]."""
    place = torch.arange(count // key.numel(), device=key.device)
    return _gumbel(place, key.unsqueeze(1)).flatten()


def by_number(number: Tensor, size: Tensor) -> Tensor:
    """Draw for nodes by their number in a graph of that size, [N] each: never anything else.

    The size is there so that not all graphs, and not all levels of a network, favour one number.
    """
    return _gumbel(number, next_key(size, REST))


def _gumbel(place: Tensor, key: Tensor) -> Tensor:
    """Turn random bits into -log(-log u), u uniform between 0 and 1 and never one of them."""
    uniform = (random_bits(place, key, DIGITS).double() + 0.5) * 2.0**-DIGITS
    return -(-uniform.log()).log().float()
