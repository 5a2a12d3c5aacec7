"""Dropout and Gumbel noise that follow from a key and a place, not from a random source.

A run then draws the same masks alone, beside other runs in one program, and when a captured step is
replayed.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

STRIDE = 0x9E3779B97F4A7C15 - 2**64  # the odd number nearest 2^64 / golden ratio, signed
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
DIGITS = 24  # of a mask's random numbers, so that a share is exact to 6e-8


class KeyedModule(nn.Module):
    """A layer that draws random numbers from a key of its own, once it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.key: Tensor | None = None


class Dropout(KeyedModule):
    """``nn.Dropout`` until it has a key; then its mask follows from key and place.

    Args:
        p: Share of entries dropped.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries while training, and scale the others up."""
        if not self.training or self.p == 0:
            return x
        if self.key is None:
            return dropout(x, self.p)
        kernel = x.is_cuda and x.dtype != torch.float64 and not torch.compiler.is_compiling()
        if kernel and find_spec("triton") is not None:
            return import_module("gtpool.ops.kernels.dropout").drop(x, self.p, self.key)
        return drop_by_key(x, self.p, self.key)

    def extra_repr(self) -> str:
        """Name the share."""
        return f"p={self.p}"


class HasModules(Protocol):
    """A module, or what can be trained like one."""

    def modules(self) -> Iterator[nn.Module]: ...  # noqa: D102 - nn.Module's own


def set_keys(model: HasModules, key: Tensor | None) -> None:
    """Give each layer that draws a key of its own, made from one, int64 [R]; None takes it."""
    layers = [part for part in model.modules() if isinstance(part, KeyedModule)]
    for number, layer in enumerate(layers):
        layer.key = None
        if key is not None and getattr(layer, "p", 1) > 0:
            layer.key = next_key(key, number)


def next_key(key: Tensor, number: int | Tensor) -> Tensor:
    """Make the number-th key out of a key, [R]."""
    return _mix(key + number + 1)


def drop_by_key(x: Tensor, p: float, key: Tensor) -> Tensor:
    """Drop a share ``p`` of the entries of each run's rows, and scale the others up.

    Args:
        x: The rows of R runs, run after run, [R * n, D].
        p: Share of entries dropped.
        key: One a run, int64 [R].

    Example:
        >>> x, key = torch.ones(2, 4), torch.tensor([7])
        >>> drop_by_key(x, 0.5, key).equal(drop_by_key(x, 0.5, key))
        True
    """
    place = torch.arange(x.numel() // key.numel(), device=x.device)
    bits = random_bits(place, key.unsqueeze(1), DIGITS)
    keep = (bits >= round(p * 2**DIGITS)).view_as(x)
    return x * keep * (1 / (1 - p) if p < 1 else 0.0)


def random_bits(place: Tensor, key: Tensor, digits: int) -> Tensor:
    """Draw an integer of so many binary digits, up to 62, for each place from its key."""
    return _mix(place * STRIDE + key) >> 63 - digits & 2**digits - 1


def _mix(bits: Tensor) -> Tensor:
    """Scramble 64 bits (SplitMix64's finaliser); shifts of int64 bring the sign in, so mask it."""
    bits = (bits ^ (bits >> 30 & 2**34 - 1)) * FIRST
    bits = (bits ^ (bits >> 27 & 2**37 - 1)) * SECOND
    return bits ^ (bits >> 31 & 2**33 - 1)


EVAL_KEY = 0x5EED
"""Which of the keys made from a size serves while nothing is trained."""
NOISE_DIGITS = 52  # so that a random number and a half fit a float64


class Places(Protocol):
    """The layout of rows, as far as noise asks."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        ...

    def positions(self) -> tuple[Tensor, Tensor]:
        """Give each row its number in its graph and the size of that graph, [N] each."""
        ...


class GumbelNoise(KeyedModule):
    """Noise for the nodes of a batch: drawn while training, at rest the same for the same graph."""

    def forward(self, rows: Places, like: Tensor) -> Tensor:
        """Give the noise of each row, [N], on the device of ``like``."""
        if not self.training:
            return gumbel_by_number(*rows.positions())
        anew = torch.randint(2**62, (1,), device=like.device) if self.key is None else self.key
        return gumbel_by_row(rows.num_rows, anew)


def gumbel_by_row(count: int, key: Tensor) -> Tensor:
    """Draw for the rows of R runs, run after run, [R * n], from a key a run, [R]."""
    place = torch.arange(count // key.numel(), device=key.device)
    return _gumbel(place, key.unsqueeze(1)).flatten()


def gumbel_by_number(number: Tensor, size: Tensor) -> Tensor:
    """Draw for nodes by their number in a graph of that size, [N] each: never anything else.

    The size is there so that not all graphs, and not all levels of a network, favour one number.
    """
    return _gumbel(number, next_key(size, EVAL_KEY))


def _gumbel(place: Tensor, key: Tensor) -> Tensor:
    """Turn random bits into -log(-log u), u uniform between 0 and 1 and never one of them."""
    uniform = (random_bits(place, key, NOISE_DIGITS).double() + 0.5) * 2.0**-NOISE_DIGITS
    return -(-uniform.log()).log().float()
