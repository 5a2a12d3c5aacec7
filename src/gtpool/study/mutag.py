"""Why MUTAG is hard: what each line of that study changes of GTPool-V. No torch."""

from typing import Any

from gtpool.model import METHODS

_GIN_SUM = {"conv": "gin", "readout": "sum"}

HYPOTHESES: dict[str, dict[str, Any]] = {
    "gtpool-v": {},
    "gtpool-topk": {"model": METHODS["gtpool-topk"].model},
    "score order": {"model": {"pool_options": {"order": "score"}}},
    "ratio 0.8": {"model": {"ratio": 0.8}},
    "ratio 1.0": {"model": {"ratio": 1.0}},
    "3 convs a level": {"model": {"convs_per_level": 3}},
    "read_input": {"model": {"read_input": True}},
    "sum": {"model": {"readout": "sum"}},
    "patience 200": {"train": {"patience": 200}},
    "gin": {"model": {"conv": "gin"}},
    "gin, sum": {"model": _GIN_SUM},
    "gin, sum, read_input": {"model": {**_GIN_SUM, "read_input": True}},
    "gin, sum, read_input, score order": {
        "model": {
            **_GIN_SUM,
            "read_input": True,
            "pool_options": {"order": "score"},
        }
    },
    "gin, sum, read_input, 3 convs": {
        "model": {**_GIN_SUM, "read_input": True, "convs_per_level": 3}
    },
    "gine (bonds), sum, read_input": {
        "model": {"conv": "gine", "readout": "sum", "read_input": True}
    },
    "flat gcn": {"model": METHODS["gcn"].model},
    "flat gin": {"model": METHODS["gin"].model},
    "flat gine (bonds)": {"model": {**METHODS["gin"].model, "conv": "gine"}},
    "flat gin, mean": {"model": {**METHODS["gin"].model, "readout": "mean"}},
    "flat gcn, sum": {"model": {**METHODS["gcn"].model, "readout": "sum"}},
}
"""Options of the model and the training, by the name of the line."""
