"""The split of a run: its rule resolved for the data and applied, with groups kept together."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, reduce
from pathlib import Path

import torch
from torch import Tensor

from gtpool.data.duplicates import count_copies, merge_groups, number_groups
from gtpool.data.formats.reader import Loaded
from gtpool.data.grouped_split import (
    grouped_bag,
    grouped_folds,
    grouped_split,
    halve_validation,
    hold_out,
    read_times,
    strata_of,
    time_split,
    train_subset,
)
from gtpool.data.locate import find_raw, splits_folder
from gtpool.data.molecule import scaffolds
from gtpool.data.registry import DATASETS
from gtpool.data.split import (
    Split,
    bag_split,
    column_split,
    fixed_folds,
    ogb_split,
    random_folds,
    random_split,
    scaffold_split,
    stratified_folds,
)
from gtpool.spec import FOLD_RULES, SplitRule, SplitSpec

FIXED_FOLDS = 10
_OWN_PARTS: tuple[SplitRule, ...] = ("fixed", "scaffold", "column")
"""Rules that give each graph its part, whether it has copies or not."""
_COLUMN_RULES: dict[str, SplitRule] = {
    "split_values": "column",
    "group_values": "groups",
    "time_values": "time",
}


def choose_split(spec: SplitSpec, loaded: Loaded, data_dir: Path | None = None) -> Split:
    """Return the split of a dataset, with the rule that made it.

    "auto" selects OGB's own split for OGB, the fixed folds of the GMT protocol for a TU dataset
    whose index files are present, the split, group or time column of a table that has one,
    stratified folds for classes, and otherwise random folds.

    Copies of a molecule in a table stay in one part, except with the rules "scaffold" and "column".
    With ``valid="half"``, half of the validation fold trains. With a bag, training and validation
    part are drawn anew from both; the test part stays. A share below 1 leaves out graphs of the
    training part. ``hold_out`` sets a fifth of all graphs apart.

    Args:
        spec: Rule, fold, seed, bag, share and hold_out.
        loaded: Data from ``load_data``.
        data_dir: Folder searched first for index files.
    """
    if spec.bag < 0:
        raise ValueError(f"split.bag must be at least 0, got {spec.bag}")
    spec = resolve_split(spec, loaded, data_dir)
    split = _split(spec, loaded, data_dir)
    data, groups = loaded.dataset, _groups(spec, loaded)
    own = torch.arange(len(data)) if groups is None else groups
    strata = strata_of(data.y, data.schema.task)
    if spec.valid == "half" and spec.rule in FOLD_RULES:
        split = halve_validation(split, spec.seed, groups=own, strata=strata)
    if spec.hold_out != "none":
        tested = spec.hold_out == "test"
        split = hold_out(split, spec.seed, groups=own, strata=strata, test=tested)
    if spec.bag and groups is not None:
        split = grouped_bag(split, spec.bag, groups, strata)
    elif spec.bag:
        split = bag_split(split, spec.bag, data.y if data.schema.task == "classes" else None)
    if spec.share == 1:
        return split
    return train_subset(split, spec.share, spec.seed, groups=groups, strata=strata)


def resolve_split(spec: SplitSpec, loaded: Loaded, data_dir: Path | None = None) -> SplitSpec:
    """Return a split with the rule "auto" resolved, and ``copies`` if a table has copies.

    Args:
        spec: The split.
        loaded: Data from ``load_data``.
        data_dir: Folder searched first for index files.
    """
    rule, copies = _rule(spec, loaded, data_dir), spec.copies
    if copies == "auto" and rule not in _OWN_PARTS and count_copies(loaded.molecules or ()):
        copies = "together"
    if copies == "together" and (loaded.molecules is None or rule == "column"):
        raise ValueError(
            "copies of molecules can be kept together by the split of a table of SMILES, not by "
            f"split rule {rule!r} of {_display_name(loaded)}"
        )
    return replace(spec, rule=rule, copies=copies)


def _rule(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> SplitRule:
    """Resolve the split rule "auto"."""
    if spec.rule != "auto":
        return spec.rule
    if _is_ogb(loaded):
        return "scaffold"
    if _has_fixed_folds(loaded) and spec.folds == FIXED_FOLDS:
        return "stratified" if _fixed_folder(loaded, data_dir) is None else "fixed"
    given: list[SplitRule] = [
        rule for values, rule in _COLUMN_RULES.items() if getattr(loaded, values) is not None
    ]
    if len(given) > 1:
        raise ValueError(
            f"the table has columns for several split rules ({', '.join(given)}); say which one "
            "with --split-type (split.rule)"
        )
    if given:
        return given[0]
    return "stratified" if loaded.dataset.schema.task == "classes" else "folds"


def _split(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    """Return the split of the rule, without regard to bags."""
    if spec.rule in FOLD_RULES and not 0 <= spec.fold < spec.folds:
        raise ValueError(f"fold must be 0 to {spec.folds - 1}, got {spec.fold}")
    split = _SPLITS[spec.rule](spec, loaded, data_dir)
    if spec.rule != "stratified" or not _has_fixed_folds(loaded):
        return split
    missing = _fixed_folder(loaded, data_dir) is None
    hint = f": `gtpool data get {loaded.name}` gets them" if missing else ""  # stored in results
    return replace(split, rule=f"{split.rule} (not the fixed folds of the protocol{hint})")


def _groups(spec: SplitSpec, loaded: Loaded) -> Tensor | None:
    """Return the groups that no part separates: of the rule, and copies of molecules, [G]."""
    found = [_RULE_GROUPS[spec.rule](loaded)] if spec.rule in _RULE_GROUPS else []
    if spec.copies == "together" and loaded.molecules is not None:
        found.append(number_groups(loaded.molecules))
    return reduce(merge_groups, found) if found else None


def _column_groups(loaded: Loaded) -> Tensor:
    """Return the groups of the group column; a blank cell is a group of its own."""
    if loaded.group_values is None:
        raise ValueError(
            "split rule 'groups' requires group_column (--group-column), a column of the table"
        )
    return number_groups([value or at for at, value in enumerate(loaded.group_values)])


def _scaffold_groups(loaded: Loaded) -> Tensor:
    return number_groups(_scaffolds(_smiles(loaded)))


_RULE_GROUPS: dict[str, Callable[[Loaded], Tensor]] = {
    "groups": _column_groups,
    "scaffold-folds": _scaffold_groups,
}


@lru_cache(maxsize=4)
def _scaffolds(smiles: tuple[str, ...]) -> list[str]:
    return scaffolds(smiles)


def _smiles(loaded: Loaded) -> tuple[str, ...]:
    if loaded.smiles is None:
        raise ValueError(
            f"a scaffold split requires a table of SMILES, got {_display_name(loaded)}"
        )
    return loaded.smiles


def _fixed(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    if not _has_fixed_folds(loaded):
        raise ValueError(f"{_display_name(loaded)} has no fixed folds; choose another split type")
    if spec.folds != FIXED_FOLDS:
        raise ValueError(f"there are {FIXED_FOLDS} fixed folds, got folds={spec.folds}")
    folder = _fixed_folder(loaded, data_dir)
    if folder is None:
        raise FileNotFoundError(
            f"the fixed folds of {loaded.name} are missing; run `gtpool data get {loaded.name}` "
            "or set GTPOOL_DATA"
        )
    return fixed_folds(folder, len(loaded.dataset))[spec.fold]


def _stratified(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    if _groups(spec, loaded) is not None:
        return _grouped(spec, loaded, data_dir)
    return stratified_folds(loaded.dataset.y, spec.folds, spec.seed)[spec.fold]


def _folds(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    if _groups(spec, loaded) is not None:
        return _grouped(spec, loaded, data_dir)
    return random_folds(len(loaded.dataset), spec.folds, spec.seed)[spec.fold]


def _grouped(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    """Return folds that keep groups together, stratified as far as possible unless random."""
    del data_dir
    groups, data = _groups(spec, loaded), loaded.dataset
    if groups is None:  # each graph for itself
        groups = torch.arange(len(data))
    strata = None if spec.rule == "folds" else strata_of(data.y, data.schema.task)
    rule = rule_text(spec, loaded)
    return grouped_folds(groups, spec.folds, spec.seed, strata=strata, rule=rule)[spec.fold]


def _scaffold(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del spec
    if _is_ogb(loaded) and loaded.name is not None:
        return ogb_split(find_raw(loaded.name, data_dir))
    return scaffold_split(_scaffolds(_smiles(loaded)))


def _random(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del data_dir
    groups = _groups(spec, loaded)
    if groups is None:
        return random_split(len(loaded.dataset), seed=spec.seed)
    return grouped_split(groups, seed=spec.seed, rule=rule_text(spec, loaded))


def _time(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del data_dir
    if loaded.time_values is None or loaded.lines is None:
        raise ValueError(
            "split rule 'time' requires time_column (--time-column), a column of the table"
        )
    times = read_times(loaded.time_values, loaded.lines)
    return time_split(times, groups=_groups(spec, loaded), rule=rule_text(spec, loaded))


def _column(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del spec, data_dir
    if loaded.split_values is None:
        raise ValueError(
            "split rule 'column' requires split_column, the name of a column of the table"
        )
    return column_split(loaded.split_values)


_SPLITS: dict[str, Callable[[SplitSpec, Loaded, Path | None], Split]] = {
    "fixed": _fixed,
    "stratified": _stratified,
    "folds": _folds,
    "scaffold": _scaffold,
    "groups": _grouped,
    "scaffold-folds": _grouped,
    "random": _random,
    "time": _time,
    "column": _column,
}
_TEXTS = {
    "stratified": "stratified folds",
    "folds": "random folds",
    "groups": "group folds",
    "scaffold-folds": "scaffold folds",
    "random": "random split",
    "time": "time split",
}


def rule_text(spec: SplitSpec, loaded: Loaded) -> str:
    """Describe a resolved split rule, its column and whether copies stay together."""
    data = loaded.spec
    columns = {} if data is None else {"groups": data.group_column, "time": data.time_column}
    column = columns.get(spec.rule)
    of = "" if column is None else f" of column {column!r}"
    together = ", copies together" if spec.copies == "together" else ""
    return f"{_TEXTS.get(spec.rule, spec.rule)}{of}{together}"


def _is_ogb(loaded: Loaded) -> bool:
    return loaded.name is not None and DATASETS[loaded.name].family == "OGB"


def _has_fixed_folds(loaded: Loaded) -> bool:
    return loaded.name is not None and DATASETS[loaded.name].folds_sha256 is not None


def _fixed_folder(loaded: Loaded, data_dir: Path | None) -> Path | None:
    return None if loaded.name is None else splits_folder(loaded.name, data_dir)


def _display_name(loaded: Loaded) -> str:
    return loaded.name or loaded.dataset.schema.name
