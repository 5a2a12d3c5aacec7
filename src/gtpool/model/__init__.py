"""A classifier of graphs: convolutions, a pooler and read-outs. This file needs no torch."""

from collections.abc import Mapping
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "gcn": {
        "pool": "none",
        "conv": "gcn",
        "readout": "mean",
        "levels": 1,
        "convs_per_level": 3,
    },
    "gin": {
        "pool": "none",
        "conv": "gin",
        "readout": "sum",
        "levels": 1,
        "convs_per_level": 3,
    },
    "gtpool": {"pool": "gtpool"},
    "gtpool-v": {"pool": "gtpool-v"},
    "gtpool-topk": {"pool": "gtpool", "pool_options": {"sampler": "topk"}},
}
"""Networks by name: what differs from the defaults of ``ModelSpec``."""


def method_name(model: Mapping[str, Any]) -> str:
    """Name a network: the method that says most of it, else its pooler or convolution.

    Example:
        >>> method_name({"pool": "gtpool", "pool_options": {"sampler": "topk"}, "width": 64})
        'gtpool-topk'
    """
    fits = [name for name, method in METHODS.items() if {**model, **method} == model]
    if fits:
        return max(fits, key=lambda name: len(METHODS[name]))
    return str(model["conv"] if model["pool"] == "none" else model["pool"])
