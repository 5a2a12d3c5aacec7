"""Tables of all poolers for docs/tables.py: what the code knows, and a line of facts for each.

A new line of ``gtpool.pool.POOLS`` appears by itself once it has a line in ``FACTS``.
"""

import inspect
from typing import NamedTuple

from figures import figure, find, table
from torch import nn

from gtpool.model import METHODS
from gtpool.pool import KINDS, POOLS, sized_by

SETS = ("MUTAG", "PTC_MR", "PROTEINS")
"""Datasets of the accuracies."""
STUDIES = ("table1", "poolers")
"""Studies that may have them, the first that does decides."""


class Facts(NamedTuple):
    """What the code of a pooler does not say of itself."""

    learns: str
    """What is trained, and by what."""
    time: str
    """Beyond reading the graph, with n nodes, E edges, width D and C clusters."""
    memory: str
    """Beyond the graph and its features."""
    connected: str
    """Whether the pooled graph of a connected one is connected."""
    numbering: str = 'with `order="structure"`'
    """Whether the result is independent of the numbering of the nodes."""


_SCALED = "features scaled by scores"
_PARTS = 'with `connect="closest"`'
_COLOURS = "where colours tell nodes apart"
_DENSE = "yes: all clusters are joined"
_SOFT = ("n C D + E C", "n C + C²", _DENSE, "yes")
_ATTENTION = Facts(
    "attention of kept nodes; the score with `gate`", "n² D, linear: n D²", "n D + E", _PARTS
)
FACTS: dict[str, Facts] = {
    "gtpool": _ATTENTION,
    "gtpool-v": _ATTENTION,
    "sagpool": Facts(_SCALED, "E + n D", "n", _PARTS),
    "topkpool": Facts(_SCALED, "n D", "n", _PARTS),
    "asap": Facts(
        f"attention in clusters, {_SCALED}",
        "E D + edges within three hops",
        "E D + edges within three hops",
        "where clusters lie within three hops",
    ),
    "mid": Facts(_SCALED, "E D", "n D", _PARTS),
    "maxcutpool": Facts(f"{_SCALED}; loss: edges cut", "twelve convolutions", "n D", _PARTS),
    "reppool": Facts(
        f"{_SCALED}, assignment of dropped nodes",
        "k rounds of E, pairs within two hops times D",
        "pairs within two hops times D",
        "where kept nodes lie within five hops",
    ),
    "diffpool": Facts("the assignment; losses: edges inside clusters, entropy", *_SOFT),
    "mincutpool": Facts("the assignment; losses: edges cut, overlap of clusters", *_SOFT),
    "dmon": Facts("the assignment; losses: modularity, collapse", *_SOFT),
    "structpool": Facts("the assignment", "n C D + E D", "n (C + D) + C²", _DENSE, "yes"),
    "kmis": Facts(_SCALED, "n D + rounds of E", "n + E", "yes"),
    "edgepool": Facts(
        "features scaled by scores of edges", "n D + rounds of E", "n + E", "yes", "up to ties"
    ),
    "haarpool": Facts(
        "nothing: no parameters", "n D; eigenvectors once a dataset", "n D", "yes", "no"
    ),
    "sepg": Facts("nothing: no parameters", "n D; a tree once a dataset", "n + E", "yes", _COLOURS),
    "graclus": Facts(
        "nothing: no parameters", "n D; a matching once a dataset", "n + E", "yes", _COLOURS
    ),
    "ndp": Facts(
        "nothing: no parameters",
        "n D; an eigenvector and n³ once a dataset",
        "n D + edges of the Kron reduction",
        "where no weak edge is dropped",
        _COLOURS,
    ),
}
"""One line for each of ``POOLS``."""


def facts(pool: str) -> Facts:
    """Return the facts of a pooler; raise a ValueError that says what to add."""
    if pool not in FACTS:
        names = ", ".join(Facts._fields)
        raise ValueError(
            f"docs/pooler_tables.py has no facts of {pool!r}: add FACTS[{pool!r}] = Facts({names})"
        )
    return FACTS[pool]


def make(pool: str, width: int, ratio: float, clusters: int) -> nn.Module:
    """Return a pooler of a width, of the size that its kind asks for."""
    size = {"ratio": (ratio,), "clusters": (clusters,), "chain": (3,), "nothing": ()}
    return POOLS[pool](width, *size[sized_by(pool)])


def method_of(pool: str) -> str:
    """Return the method that uses a pooler with the fewest further options."""
    uses = [name for name, method in METHODS.items() if method.model.get("pool") == pool]
    if not uses:
        raise ValueError(f"gtpool.model.METHODS has no method with the pooler {pool!r}: add one")
    return min(uses, key=lambda name: len(METHODS[name].model))


def properties() -> str:
    """Return what each pooler is and costs, one line each."""
    heads = ("pooler", "paper", "kind", "learns", "time", "memory")
    lines = [
        (pool, METHODS[method_of(pool)].paper, KINDS[pool], *facts(pool)[:3]) for pool in POOLS
    ]
    return table(heads, lines)


def promises() -> str:
    """Return what holds of the pooled graphs, and accuracies, one line a pooler."""
    heads = ("pooler", "connected graphs stay connected", "independent of the numbering")
    lines = [
        (pool, _connected(pool), facts(pool).numbering, _captured(pool), *_scores(pool))
        for pool in POOLS
    ]
    return table((*heads, "captured", *SETS), lines)


def _connected(pool: str) -> str:
    """Return the fact, unless it names an option that the pooler does not have."""
    said = facts(pool).connected
    if said == _PARTS and "connect" not in inspect.signature(POOLS[pool]).parameters:
        raise ValueError(f"docs/pooler_tables.py: {pool!r} has no option connect; correct FACTS")
    return said


def _captured(pool: str) -> str:
    """Return "yes", or why a training step cannot be captured."""
    why: str | None = getattr(make(pool, 8, 0.5, 4), "why_not_captured", None)
    return "yes" if why is None else f"no: {why.partition(': ')[2]}"


def _scores(pool: str) -> list[str]:
    """Return the accuracies of the plain method, by dataset."""
    cells = [[find(study, method_of(pool), name) for study in STUDIES] for name in SETS]
    known = [[cell for cell in found if cell is not None] for found in cells]
    return [figure(found[0]) if found else "missing" for found in known]
