"""Graph classifiers: convolutions, poolers and read-outs. This module does not import torch."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class Method(NamedTuple):
    """A published network, as options of ``ModelSpec``."""

    paper: str
    """Authors, year, and the arXiv number or the conference."""
    kind: Literal["flat", "dropping", "clustering"]
    """Flat reads out all nodes at once; dropping and clustering pool at each level."""
    model: dict[str, Any]
    """Options that differ from the defaults of ``ModelSpec``."""
    auxiliary: bool = False
    """Whether the pooler adds an auxiliary loss."""


_FLAT: dict[str, Any] = {"pool": "none", "levels": 1, "convs_per_level": 3}
_SAGPOOL, _TOPK = "Lee et al. 2019, 1904.08082", "Gao and Ji 2019, 1905.05178"
_ASAP, _MID = "Ranjan et al. 2020, 1911.07979", "Liu et al. 2023, 2306.12726"
_KMIS = "Bacciu et al. 2023, 2208.03523"
_MAXCUT = "Abate and Bianchi 2024, 2409.05100"
_REP = "Li et al. 2020, ICDM"
_GTPOOL = "Li et al. 2023, 2310.20250"


def _sampled(pool: str, sampler: str) -> dict[str, Any]:
    return {"pool": pool, "pool_options": {"sampler": sampler}}


METHODS: dict[str, Method] = {
    "gtpool": Method(_GTPOOL, "dropping", {"pool": "gtpool"}),
    "gtpool-v": Method(_GTPOOL, "dropping", {"pool": "gtpool-v"}),
    "gtpool-topk": Method(_GTPOOL, "dropping", _sampled("gtpool", "topk")),
    "gcn": Method(
        "Kipf and Welling 2017, 1609.02907", "flat", {**_FLAT, "conv": "gcn", "readout": "mean"}
    ),
    "gin": Method("Xu et al. 2019, 1810.00826", "flat", {**_FLAT, "conv": "gin", "readout": "sum"}),
    "set2set": Method("Vinyals et al. 2016, 1511.06391", "flat", {**_FLAT, "readout": "set2set"}),
    "sortpool": Method(
        "Zhang et al. 2018, AAAI", "flat", {**_FLAT, "jump": True, "readout": "sortpool"}
    ),
    "gmt": Method(
        "Baek et al. 2021, 2102.11533",
        "flat",
        {**_FLAT, "jump": True, "readout": "gmt", "ratio": 0.25},
    ),
    "graphtrans": Method("Wu et al. 2021, 2201.08821", "flat", {**_FLAT, "readout": "graphtrans"}),
    "sagpool_g": Method(
        _SAGPOOL, "dropping", {**_FLAT, "pool": "sagpool", "jump": True, "readout": "mean-max"}
    ),
    "sagpool_h": Method(_SAGPOOL, "dropping", {"pool": "sagpool"}),
    "sagpool_h-rws": Method(_SAGPOOL, "dropping", _sampled("sagpool", "rws")),
    "sagpool_h-rwsv": Method(_SAGPOOL, "dropping", _sampled("sagpool", "rwsv")),
    "topkpool": Method(_TOPK, "dropping", {"pool": "topkpool"}),
    "topkpool-rws": Method(_TOPK, "dropping", _sampled("topkpool", "rws")),
    "topkpool-rwsv": Method(_TOPK, "dropping", _sampled("topkpool", "rwsv")),
    "asap": Method(_ASAP, "dropping", {"pool": "asap"}),
    "asap-rws": Method(_ASAP, "dropping", _sampled("asap", "rws")),
    "asap-rwsv": Method(_ASAP, "dropping", _sampled("asap", "rwsv")),
    "mid-sagpool": Method(_MID, "dropping", {"pool": "mid"}),
    "mid-topkpool": Method(
        _MID, "dropping", {"pool": "mid", "pool_options": {"scorer": "projection"}}
    ),
    "maxcutpool": Method(
        _MAXCUT, "dropping", {"pool": "maxcutpool", "connect": "closest"}, auxiliary=True
    ),
    "maxcutpool-rws": Method(
        _MAXCUT, "dropping", {**_sampled("maxcutpool", "rws"), "connect": "closest"}, auxiliary=True
    ),
    "maxcutpool-rwsv": Method(
        _MAXCUT,
        "dropping",
        {**_sampled("maxcutpool", "rwsv"), "connect": "closest"},
        auxiliary=True,
    ),
    "reppool": Method(_REP, "dropping", {"pool": "reppool"}),
    "reppool-rws": Method(_REP, "dropping", _sampled("reppool", "rws")),
    "reppool-rwsv": Method(_REP, "dropping", _sampled("reppool", "rwsv")),
    "diffpool": Method(
        "Ying et al. 2018, 1806.08804", "clustering", {"pool": "diffpool"}, auxiliary=True
    ),
    "mincutpool": Method(
        "Bianchi et al. 2020, 1907.00481", "clustering", {"pool": "mincutpool"}, auxiliary=True
    ),
    "dmon": Method(
        "Tsitsulin et al. 2020, 2006.16904", "clustering", {"pool": "dmon"}, auxiliary=True
    ),
    "structpool": Method("Yuan and Ji 2020, ICLR", "clustering", {"pool": "structpool"}),
    "haarpool": Method("Wang et al. 2020, 1909.11580", "clustering", {"pool": "haarpool"}),
    "sepg": Method("Wu et al. 2022, 2206.13510", "clustering", {"pool": "sepg"}),
    "graclus": Method("Dhillon et al. 2007, TPAMI", "clustering", {"pool": "graclus"}),
    "ndp": Method("Bianchi et al. 2022, 1910.11436", "clustering", {"pool": "ndp"}),
    "kmis": Method(_KMIS, "clustering", {"pool": "kmis"}),
    "kmis-rws": Method(_KMIS, "clustering", _sampled("kmis", "rws")),
    "kmis-rwsv": Method(_KMIS, "clustering", _sampled("kmis", "rwsv")),
    "edgepool": Method("Diehl 2019, 1905.10990", "clustering", {"pool": "edgepool"}),
    "mlp": Method(
        "Errica et al. 2020, 1912.09893",
        "flat",
        {"pool": "none", "levels": 1, "conv": "linear", "readout": "sum"},
    ),
}
"""Networks by name."""
WITH_BONDS = {"gcn": "ogb-gcn", "gin": "gine"}
"""Counterpart of each convolution that uses edge features."""
READS_EDGES = (*WITH_BONDS.values(), "dmpnn")
"""Convolutions that read all features of edges; "gcn" reads a weight alone."""


def method_name(model: Mapping[str, Any]) -> str:
    """Return the most specific method that a model matches, else its pooler or convolution.

    Example:
        >>> method_name({"pool": "gtpool", "pool_options": {"sampler": "topk"}, "width": 64})
        'gtpool-topk'
    """
    plain = {bonded: conv for conv, bonded in WITH_BONDS.items()}
    if model.get("conv") in plain:
        model = {**model, "conv": plain[model["conv"]]}
    fits = {name: _named_options(method.model) for name, method in METHODS.items()}
    own = _named_options(model)
    fits = {name: named for name, named in fits.items() if named.items() <= own.items()}
    if fits:
        return max(fits, key=lambda name: len(fits[name]))
    return str(model["conv"] if model["pool"] == "none" else model["pool"])


def _named_options(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a network, those of its pooler by dotted name."""
    flat = {name: value for name, value in model.items() if not isinstance(value, dict)}
    options: dict[str, Any] = model.get("pool_options", {})
    return {**flat, **{f"pool_options.{name}": value for name, value in options.items()}}
