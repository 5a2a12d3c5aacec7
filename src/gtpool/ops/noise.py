"""Gumbel noise for scores: of s + noise the M highest are M draws by softmax(s).

A wheel that is spun M times, where a node that was hit leaves it: each draw has the shares of what
is left. Noise follows from a key, as the masks of ``gtpool.ops.dropout`` do.
"""

from typing import Protocol

import torch
from torch import Tensor

from gtpool.ops.dropout import Keyed, next_key, random_bits

REST = 0x5EED
"""Which of the keys made from a size serves while nothing is trained."""
DIGITS = 52  # so that a random number and a half fit a float64


class Places(Protocol):
    """The layout of rows, as far as noise asks."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        ...

    def places(self) -> tuple[Tensor, Tensor]:
        """Give each row its number in its graph and the size of that graph, [N] each."""
        ...


class Gumbel(Keyed):
    """Noise for the nodes of a batch: drawn while training, at rest the same for the same graph."""

    def forward(self, rows: Places, like: Tensor) -> Tensor:
        """Give the noise of each row, [N], on the device of ``like``."""
        if not self.training:
            return by_number(*rows.places())
        anew = torch.randint(2**62, (1,), device=like.device) if self.key is None else self.key
        return by_row(rows.num_rows, anew)


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
