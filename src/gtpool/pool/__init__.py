"""Poolers by name, and their kinds."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from gtpool.pool.asap import ASAPool
from gtpool.pool.diffpool import DiffPool
from gtpool.pool.dmon import DMoN
from gtpool.pool.gtpool import GTPool
from gtpool.pool.haarpool import HaarPool
from gtpool.pool.mid import MIDPool
from gtpool.pool.mincutpool import MinCutPool
from gtpool.pool.sagpool import SAGPool
from gtpool.pool.structpool import StructPool
from gtpool.pool.topkpool import TopKPool

POOLS: dict[str, Callable[..., nn.Module]] = {
    "gtpool": partial(GTPool, sampler="rws"),
    "gtpool-v": partial(GTPool, sampler="rwsv"),
    "sagpool": SAGPool,
    "topkpool": TopKPool,
    "asap": ASAPool,
    "mid": MIDPool,
    "diffpool": DiffPool,
    "mincutpool": MinCutPool,
    "dmon": DMoN,
    "structpool": StructPool,
    "haarpool": HaarPool,
}
"""Factory of each pooler; its arguments are the width, the ratio or clusters, and options.

HaarPool has neither ratio nor clusters; its clusters follow from the graph.
"""


def kind_of(pool: str) -> Literal["dropping", "clustering"] | None:
    """Return whether a pooler drops nodes or clusters them; None for "none".

    Example:
        >>> kind_of("gtpool"), kind_of("diffpool"), kind_of("none")
        ('dropping', 'clustering', None)
    """
    make = POOLS.get(pool)
    return getattr(make.func if isinstance(make, partial) else make, "kind", None)


KINDS = {name: kind for name in POOLS if (kind := kind_of(name)) is not None}
"""Kind of each pooler: "dropping" or "clustering"."""


def weighs_edges(pool: str) -> bool:
    """Return whether edges have weights after a pooler; such a pooler takes ``weighted``.

    Example:
        >>> weighs_edges("asap"), weighs_edges("diffpool"), weighs_edges("gtpool")
        (True, True, False)
    """
    return pool == "asap" or kind_of(pool) == "clustering"
