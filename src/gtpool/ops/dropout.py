"""Counter-based dropout and Gumbel noise: random numbers as a function of key and position.

A run draws the same masks alone, in an ensemble, and when a captured step is replayed.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

STRIDE = 0x9E3779B97F4A7C15 - 2**64  # the odd number nearest 2^64 / golden ratio, signed
FIRST, SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
DIGITS = 24  # bits of a mask's random numbers; p is exact to 6e-8


class KeyedModule(nn.Module):
    """Base of layers that draw random numbers from a key, if one is set."""

    def __init__(self) -> None:
        super().__init__()
        self.key: Tensor | None = None


class Dropout(KeyedModule):
    """``nn.Dropout`` with a mask determined by key and position if a key is set.

    Args:
        p: Probability of dropping an entry.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` with dropout applied in training mode."""
        if not self.training or self.p == 0:
            return x
        if self.key is None:
            return dropout(x, self.p)
        if x.dtype != torch.float64 and _uses_kernel(x):
            return import_module("gtpool.ops.kernels.dropout").drop(x, self.p, self.key)
        return drop_by_key(x, self.p, self.key)

    def extra_repr(self) -> str:
        """Return the dropout probability."""
        return f"p={self.p}"


class HasModules(Protocol):
    """Interface of a module or a wrapper that can be trained like one."""

    def modules(self) -> Iterator[nn.Module]: ...  # noqa: D102 - nn.Module's own


def set_keys(model: HasModules, key: Tensor | None) -> None:
    """Set a distinct key for each keyed layer, derived from one, int64 [R]; None removes them."""
    layers = [part for part in model.modules() if isinstance(part, KeyedModule)]
    keys: Sequence[Tensor | None] = [None] * len(layers)
    if key is not None:  # all at once: a few kernels
        keys = _next_keys(key, len(layers)).unbind()
    for layer, own in zip(layers, keys, strict=True):
        layer.key = own if getattr(layer, "p", 1) > 0 else None


def next_key(key: Tensor, number: int | Tensor) -> Tensor:
    """Return the number-th key derived from a key, [R]."""
    if isinstance(number, Tensor) and number.numel() == 1 and _uses_kernel(key):
        return import_module("gtpool.ops.kernels.dropout").next_keys(key, 1, number).squeeze(0)
    return _mix(key + number + 1)


def _next_keys(key: Tensor, count: int) -> Tensor:
    """Return the first ``count`` keys derived from a key, [count, R]."""
    if _uses_kernel(key):
        return import_module("gtpool.ops.kernels.dropout").next_keys(key, count)
    return _mix(key + torch.arange(count, device=key.device).unsqueeze(1) + 1)


def drop_by_key(x: Tensor, p: float, key: Tensor) -> Tensor:
    """Return ``x`` with dropout by a mask that depends only on key and position.

    Args:
        x: The rows of R runs, run after run, [R * n, D].
        p: Probability of dropping an entry.
        key: Key of each run, int64 [R].

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
    """Return a random integer of ``digits`` bits (at most 62) for each position and key."""
    return _mix(place * STRIDE + key) >> 63 - digits & 2**digits - 1


def _mix(bits: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of 64 bits; the masks undo the sign extension of shifts."""
    if _uses_kernel(bits):
        return import_module("gtpool.ops.kernels.dropout").mix(bits)
    bits = (bits ^ (bits >> 30 & 2**34 - 1)) * FIRST
    bits = (bits ^ (bits >> 27 & 2**37 - 1)) * SECOND
    return bits ^ (bits >> 31 & 2**33 - 1)


def _uses_kernel(x: Tensor) -> bool:
    return x.is_cuda and not torch.compiler.is_compiling() and find_spec("triton") is not None


EVAL_KEY = 0x5EED
"""Index of the key, derived from a graph's size, for noise in evaluation mode."""
NOISE_DIGITS = 52  # the integer plus 1/2 is then exact in float64


class Places(Protocol):
    """Row layout as noise needs it."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        ...

    def positions(self) -> tuple[Tensor, Tensor]:
        """Return the index of each row in its graph and the size of that graph, [N] each."""
        ...


class GumbelNoise(KeyedModule):
    """Gumbel noise for the nodes of a batch: random in training, fixed per graph in evaluation."""

    def forward(self, rows: Places, like: Tensor) -> Tensor:
        """Return the noise of each row, [N], on the device of ``like``."""
        if not self.training:
            return gumbel_by_number(*rows.positions())
        anew = torch.randint(2**62, (1,), device=like.device) if self.key is None else self.key
        return gumbel_by_row(rows.num_rows, anew)


def gumbel_by_row(count: int, key: Tensor) -> Tensor:
    """Return Gumbel noise for the rows of R runs, run after run, [R * n], given keys [R]."""
    place = torch.arange(count // key.numel(), device=key.device)
    return _gumbel(place, key.unsqueeze(1)).flatten()


def gumbel_by_number(number: Tensor, size: Tensor) -> Tensor:
    """Return Gumbel noise that depends only on a node's index and its graph's size, [N] each.

    The size is included so that graphs and levels of different sizes do not favour the same index.
    """
    return _gumbel(number, next_key(size, EVAL_KEY))


def _gumbel(place: Tensor, key: Tensor) -> Tensor:
    """Return -log(-log u) for u uniform in the open interval (0, 1)."""
    uniform = (random_bits(place, key, NOISE_DIGITS).double() + 0.5) * 2.0**-NOISE_DIGITS
    return -(-uniform.log()).log().float()
