"""Poolers by name; each is called as ``POOLS[name](in_channels, ratio, ...)``."""

from collections.abc import Callable
from functools import partial

from torch import nn

from gtpool.pool.gtpool import GTPool

POOLS: dict[str, Callable[..., nn.Module]] = {
    "gtpool": partial(GTPool, sampler="rws"),
    "gtpool-v": partial(GTPool, sampler="rwsv"),
}
