"""Poolers by name, and their kinds."""

from collections.abc import Callable
from functools import partial
from typing import Literal, cast

from torch import nn

from gtpool.graph import Coarsening
from gtpool.pool.asap import ASAPool
from gtpool.pool.diffpool import DiffPool
from gtpool.pool.dmon import DMoN
from gtpool.pool.edgepool import EdgePool
from gtpool.pool.graclus import Graclus
from gtpool.pool.gtpool import GTPool
from gtpool.pool.haarpool import HaarPool
from gtpool.pool.kmispool import KMISPool
from gtpool.pool.maxcutpool import MaxCutPool
from gtpool.pool.mid import MIDPool
from gtpool.pool.mincutpool import MinCutPool
from gtpool.pool.ndp import NDP
from gtpool.pool.partition import ChainPool
from gtpool.pool.reppool import RepPool
from gtpool.pool.sagpool import SAGPool
from gtpool.pool.sepg import SEPG
from gtpool.pool.structpool import StructPool
from gtpool.pool.topkpool import TopKPool

POOLS: dict[str, Callable[..., nn.Module]] = {
    "gtpool": partial(GTPool, sampler="rws"),
    "gtpool-v": partial(GTPool, sampler="rwsv"),
    "sagpool": SAGPool,
    "topkpool": TopKPool,
    "asap": ASAPool,
    "mid": MIDPool,
    "maxcutpool": MaxCutPool,
    "reppool": RepPool,
    "diffpool": DiffPool,
    "mincutpool": MinCutPool,
    "dmon": DMoN,
    "structpool": StructPool,
    "kmis": KMISPool,
    "edgepool": EdgePool,
    "sepg": SEPG,
    "graclus": Graclus,
    "ndp": NDP,
    "haarpool": HaarPool,
}
"""Factory of each pooler; its arguments are the width, what ``sized_by`` says, and options."""


def kind_of(pool: str) -> Literal["dropping", "clustering"] | None:
    """Return whether a pooler drops nodes or clusters them; None for "none".

    Example:
        >>> kind_of("gtpool"), kind_of("diffpool"), kind_of("none")
        ('dropping', 'clustering', None)
    """
    return getattr(_class_of(pool), "kind", None)


def sized_by(pool: str) -> str:
    """Return what the second argument of a pooler is: "ratio", "clusters", "chain" or "nothing".

    The clusters along a chain follow from the graph, and the argument is the number of steps.
    "nothing" means that there is no such argument.

    Example:
        >>> sized_by("gtpool"), sized_by("diffpool"), sized_by("haarpool")
        ('ratio', 'clusters', 'chain')
    """
    return getattr(_class_of(pool), "sized_by", "ratio")


def chain_of(pool: str, steps: int) -> Coarsening | None:
    """Return the coarsening chain that ``steps`` levels of a pooler need; None if none.

    Example:
        >>> chain_of("haarpool", 3), chain_of("diffpool", 3)
        (Coarsening(steps=3, method='spectral'), None)
    """
    found = _class_of(pool)
    return Coarsening(steps, found.method) if issubclass(found, ChainPool) else None


def _class_of(pool: str) -> type:
    """Return the class of a pooler; ``object`` for "none" and unknown names."""
    make = POOLS.get(pool, object)
    found = make.func if isinstance(make, partial) else make
    return cast("type", found)


KINDS = {name: kind for name in POOLS if (kind := kind_of(name)) is not None}
"""Kind of each pooler: "dropping" or "clustering"."""


def weighs_edges(pool: str) -> bool:
    """Return whether edges have weights after a pooler; such a pooler takes ``weighted``.

    Example:
        >>> weighs_edges("asap"), weighs_edges("diffpool"), weighs_edges("gtpool")
        (True, True, False)
    """
    return pool in ("asap", "reppool") or kind_of(pool) == "clustering"
