"""Graph pooling and graph classification on PyTorch Geometric, after the GTPool paper.

The names below are resolved on first use, so that ``import gtpool`` alone does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtpool.graph import NodeDrop, unpool
    from gtpool.pool import POOLS
    from gtpool.pool.gtpool import GTPool
    from gtpool.pool.select import SelectRWS, SelectRWSV

__version__ = "0.1.0"
__all__ = ["POOLS", "GTPool", "NodeDrop", "SelectRWS", "SelectRWSV", "unpool"]

_HOMES = {
    "POOLS": "gtpool.pool",
    "GTPool": "gtpool.pool.gtpool",
    "NodeDrop": "gtpool.graph",
    "SelectRWS": "gtpool.pool.select",
    "SelectRWSV": "gtpool.pool.select",
    "unpool": "gtpool.graph",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home module the first time it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gtpool' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names too, so that completion finds them before they are imported."""
    return sorted({*globals(), *_HOMES})
