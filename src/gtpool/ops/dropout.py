"""Dropout whose masks follow from a key and a place, not from the state of a random source.

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


class Keyed(nn.Module):
    """A layer that draws random numbers from a key of its own, once it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.key: Tensor | None = None


class Dropout(Keyed):
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
    layers = [part for part in model.modules() if isinstance(part, Keyed)]
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
