"""Recipes: the paper's protocol for each dataset, and "best", our default. No torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gtpool.data.formats import recognise
from gtpool.data.registry import DATASETS
from gtpool.model import METHODS, WITH_BONDS
from gtpool.spec import OGB, TU, DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec, did_you_mean

_Options = Mapping[str, Any]
_WITH_ORDER = (
    "gtpool",
    "gtpool-v",
    "sagpool",
    "topkpool",
    "asap",
    "reppool",
    "mid",
    "maxcutpool",
    "kmis",
)  # poolers with the option ``order``

RECIPES = ("best", "paper")
"""Names of recipes; the first is the default of commands and estimators."""
ENCODE = ("rwse:16",)
"""Structural encodings of "best"."""
NORM: dict[str, Any] = {"norm": "batch", "residual": True}
"""Blocks of "best", for all methods."""
NETWORK: dict[str, Any] = {
    "levels": 1,
    "convs_per_level": 3,
    "ratio": 0.75,
    "read_input": True,
    "pool_options": {"gate": "tanh", "order": "structure"},
}
"""Network of "best", for GTPool and its samplers; the panel in ``gtpool.reproduce`` chose it."""


MOLECULES: dict[str, dict[str, Any]] = {
    "data": {"molecule_features": ["rdkit2d", "morgan"]},
    "model": {"dropout": 0.1},
    "train": {"epochs": 50, "batch_size": 32},
}
"""What "best" adds for SMILES; the choosing half of ``gtpool.reproduce.molecules`` chose it.

OGB's sets get its first two parts: on each, validation on the others prefers them.
"""


def recipe_options(
    name: str, source: str, pool: str, *, smiles: bool | None = None
) -> dict[str, dict[str, Any]]:
    """Return the options that a recipe adds where the user gives none, by part of a ``RunSpec``.

    Args:
        name: One of ``RECIPES``; "paper" adds nothing to the protocol.
        source: The data.
        pool: Name of the method or pooler.
        smiles: Whether the graphs are read from SMILES; by default the source tells.

    Example:
        >>> recipe_options("best", "MUTAG", "gin")["model"]
        {'norm': 'batch', 'residual': True}
        >>> recipe_options("paper", "MUTAG", "gin")
        {'data': {}, 'split': {}, 'model': {}, 'train': {}}
    """
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES)
        raise ValueError(f"unknown recipe {name!r}{hint}; choose one of {', '.join(RECIPES)}")
    added: dict[str, dict[str, Any]] = {"data": {}, "split": {}, "model": {}, "train": {}}
    if name == "paper":
        return added
    added["data"] = {"encode": list(ENCODE)}
    added["model"] = {**NORM, **NETWORK} if pool.startswith("gtpool") else dict(NORM)
    layer = METHODS[pool].model["pool"] if pool in METHODS else pool
    if layer in _WITH_ORDER:  # no result may depend on the numbering of the nodes
        added["model"].setdefault("pool_options", {"order": "structure"})
    added["train"] = best_training(source)
    if source not in DATASETS:
        added["split"] = {"folds": 5, "valid": "half"}
    if _is_ogb(source):  # its other training options have been measured
        added["data"] |= MOLECULES["data"]
        added["model"] |= MOLECULES["model"]
    elif reads_smiles(source) if smiles is None else smiles:
        added = {part: {**options, **MOLECULES.get(part, {})} for part, options in added.items()}
        added["train"]["warmup"] = added["train"]["epochs"] // 10
    return added


def best_training(source: str) -> dict[str, Any]:
    """Return the training options of "best" for a source."""
    epochs = 200 if source in DATASETS and not _is_ogb(source) else 100
    return {"epochs": epochs, "warmup": epochs // 10, "lr": 1e-3, "patience": None, "ema": 0.99}


def recipe(
    dataset: str,
    model: _Options,
    *,
    data: _Options | None = None,
    train: _Options | None = None,
) -> tuple[RunSpec, ...]:
    """Return the runs of a network on a dataset under the paper's protocol, for the first seed.

    Args:
        dataset: A name of the registry.
        model: Options that differ from the defaults of ``ModelSpec``.
        data: Options that differ from the defaults of ``DataSpec``.
        train: Options that differ from the protocol of the dataset.
    """
    family = DATASETS[dataset].family
    conv = resolve_conv(dataset, str(model.get("conv", "gcn")))
    network = ModelSpec.from_json({**model, "conv": conv})
    folded = family != "OGB"
    split = SplitSpec(
        rule="scaffold" if not folded else "fixed" if family == "TU" else "stratified"
    )
    run = RunSpec(
        data=DataSpec(source=dataset, **(data or {})),
        split=split,
        model=network,
        train=replace(protocol(dataset), **(train or {})),
    )
    folds = range(split.folds if folded else 1)
    return tuple(replace(run, split=replace(split, fold=fold)) for fold in folds)


def protocol(source: str) -> TrainSpec:
    """Return the training options of a dataset; unknown datasets use those of TU.

    Example:
        >>> protocol("ogbg-molhiv").batch_size, protocol("MUTAG").patience
        (512, 50)
    """
    if not _is_ogb(source):
        return TU
    return replace(OGB, batch_size=512) if source == "ogbg-molhiv" else OGB


def resolve_conv(source: str, conv: str) -> str:
    """Return the convolution to use: for OGB and SMILES its variant with bond features.

    Example:
        >>> [resolve_conv(*pair) for pair in (("ogbg-molbbbp", "gcn"), ("mine.csv", "gin"))]
        ['ogb-gcn', 'gine']
    """
    return WITH_BONDS.get(conv, conv) if has_bonds(source) else conv


def set_score_order(source: str, model: dict[str, Any]) -> None:
    """Set ``order="score"`` for samplers on a user table, unless an order is given.

    Args:
        source: The data.
        model: Options of a ``ModelSpec``; ``pool_options`` is replaced.

    Example:
        >>> model = {"pool": "gtpool-v"}
        >>> set_score_order("mine.csv", model)
        >>> model
        {'pool': 'gtpool-v', 'pool_options': {'order': 'score'}}
    """
    pool, options = str(model.get("pool", ModelSpec.pool)), model.get("pool_options", {})
    if pool not in _WITH_ORDER or not isinstance(options, dict) or not is_table(source):
        return
    default = "rwsv" if pool.startswith("gtpool") else "topk"
    if options.get("sampler", default) != "topk":
        model["pool_options"] = {"order": "score", **cast("_Options", options)}


def has_bonds(source: str) -> bool:
    """Return whether a source has bond features."""
    return _is_ogb(source) or reads_smiles(source)


def reads_smiles(source: str) -> bool:
    """Return whether molecules are read from SMILES: a user table, or B3DB.

    Example:
        >>> [reads_smiles(source) for source in ("mine.csv.gz", "B3DB", "ogbg-molhiv", "a.jsonl")]
        [True, True, False, False]
    """
    return is_table(source) or source == "B3DB"


def is_table(source: str) -> bool:
    """Return whether a source is a user file with SMILES."""
    found = None if source in DATASETS else recognise(Path(source))
    return found is not None and found.smiles


def _is_ogb(source: str) -> bool:
    return source in DATASETS and DATASETS[source].family == "OGB"
