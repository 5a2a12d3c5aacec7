"""The panel that chose the recipe "best": candidate networks, their runs, and the choice. No torch.

The validation part of fold k is the test part of fold k - 1. A choice on all sets has therefore
seen every test label. The figure of a set is that of the choice made without that set.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any, NamedTuple

from gtpool.data.registry import DATASETS
from gtpool.model import METHODS
from gtpool.spec import RunSpec
from gtpool.study.recipe import ENCODE, MOLECULES, NORM, best_training, recipe
from gtpool.study.result import RunResult

PANEL = ("MUTAG", "PTC_MR", "ENZYMES", "Synthie", "PROTEINS", "IMDB-BINARY", "ogbg-molbbbp")
"""Datasets on which networks are compared."""
SEEDS = {"TU": 1, "OGB": 3}
"""Seeds of each candidate, by family; TU sets have ten folds as well."""
_WHEEL: dict[str, Any] = {"gate": "tanh", "order": "score"}


def _gtpool(**options: Any) -> dict[str, Any]:  # noqa: ANN401 - values of ModelSpec
    heads = {"heads": options.pop("heads")} if "heads" in options else {}
    return {
        "pool": "gtpool-v",
        "ratio": 0.75,
        "read_input": True,
        "pool_options": {**_WHEEL, **heads},
        **options,
    }


CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "gtpool-v": {
        "1 level, 2 gcn": _gtpool(levels=1, convs_per_level=2),
        "1 level, 3 gcn, norm": _gtpool(levels=1, convs_per_level=3, **NORM),
        "1 level, 3 gin, norm": _gtpool(levels=1, convs_per_level=3, conv="gin", heads=4, **NORM),
        "2 levels, 2 gin, norm": _gtpool(levels=2, convs_per_level=2, conv="gin", heads=4, **NORM),
    }
}
"""Networks of each method, by label. Those of rivals keep pooler, convolution and read-out."""
for _name in ("gcn", "gin", "gmt", "mincutpool", "sagpool_h"):
    _own = METHODS[_name].model
    _more = _own.get("convs_per_level", 1) + 1
    CANDIDATES[_name] = {
        "own": dict(_own),
        "norm": {**_own, **NORM},
        "one convolution more": {**_own, "convs_per_level": _more},
        "one convolution more, norm": {**_own, "convs_per_level": _more, **NORM},
    }


def candidate_runs(method: str, label: str, dataset: str) -> tuple[RunSpec, ...]:
    """Return the runs of a candidate on a dataset for the first seed, one per fold."""
    return _runs(CANDIDATES[method][label], dataset)


def _runs(model: Mapping[str, Any], dataset: str, **data: Any) -> tuple[RunSpec, ...]:  # noqa: ANN401
    return recipe(dataset, model, data={"encode": ENCODE, **data}, train=best_training(dataset))


@cache
def choices() -> dict[str, dict[str, str]]:
    """Return the committed choices: method, then dataset, then label of the network.

    The entry "" of a method is the choice on the whole panel.
    """
    return json.loads(files("gtpool.reproduce").joinpath("panel.json").read_text(encoding="utf-8"))


def is_chosen(method: str) -> bool:
    """Return whether validation chose the network of a method; else its panel is not complete."""
    return len(choices()[method]) > 1


def chosen_runs(method: str, dataset: str, *, descriptors: bool = False) -> tuple[RunSpec, ...]:
    """Return the runs of a method on a dataset with the network chosen without that dataset.

    GTPool-V runs with ``order="structure"``, which the panel did not have yet.

    Args:
        method: A key of ``CANDIDATES``.
        dataset: A name of the registry.
        descriptors: Add the descriptors of molecules and the dropout of "best" on SMILES.
    """
    known = choices()[method]
    model = CANDIDATES[method][known.get(dataset, known[""])]
    if "order" in model.get("pool_options", {}):
        model = {**model, "pool_options": {**model["pool_options"], "order": "structure"}}
    if not descriptors:
        return _runs(model, dataset)
    features = tuple(MOLECULES["data"]["molecule_features"])
    return _runs({**model, **MOLECULES["model"]}, dataset, molecule_features=features)


class Choice(NamedTuple):
    """The network of a method for one dataset."""

    label: str
    means: dict[str, float]
    """Mean validation metric of each candidate over the other datasets of the panel."""


def choose(method: str, rows: Iterable[RunResult], dataset: str | None = None) -> Choice:
    """Return the candidate with the best mean validation metric.

    Args:
        method: A key of ``CANDIDATES``.
        rows: Finished runs; those of other networks are ignored.
        dataset: Left out of the panel. None uses the whole panel.
    """
    by_key = {row.key: row for row in rows if row.done}
    others = [name for name in PANEL if name != dataset]
    means = {
        label: fmean(_valid_mean(method, label, name, by_key) for name in others)
        for label in CANDIDATES[method]
    }
    return Choice(max(means, key=means.__getitem__), means)


def _valid_mean(method: str, label: str, dataset: str, rows: Mapping[str, RunResult]) -> float:
    """Return the mean validation metric of a candidate; raise if a run is missing."""
    found: list[float] = []
    for spec in panel_runs(method, label, dataset):
        row = rows.get(spec.key)
        if row is None or row.valid_metric is None:
            raise ValueError(f"the panel lacks a run of {method}, {label!r}, on {dataset}")
        found.append(row.valid_metric)
    return fmean(found)


def panel_runs(method: str, label: str, dataset: str) -> list[RunSpec]:
    """Return all runs of a candidate on a dataset."""
    seeds = SEEDS["OGB" if DATASETS[dataset].family == "OGB" else "TU"]
    first = candidate_runs(method, label, dataset)
    return [replace(spec, seed=spec.seed + at) for at in range(seeds) for spec in first]
