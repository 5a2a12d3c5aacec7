"""The paper's protocol for each dataset. No torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gtpool.data.formats import recognise
from gtpool.data.registry import DATASETS
from gtpool.model import WITH_BONDS
from gtpool.spec import OGB, TU, DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec

_Options = Mapping[str, Any]
_WITH_ORDER = (
    "gtpool",
    "gtpool-v",
    "sagpool",
    "topkpool",
    "asap",
)  # poolers with the option ``order``


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
