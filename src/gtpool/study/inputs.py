"""Inputs of a run: its dataset, split and model shape."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats import formats_with_option, recognise
from gtpool.data.formats.reader import Loaded
from gtpool.data.inference import check_codes
from gtpool.data.locate import find_raw, locate, splits_folder
from gtpool.data.molecule import ATOM_SIZES, BOND_SIZES, scaffolds
from gtpool.data.registry import DATASETS
from gtpool.data.sources import load_source
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
from gtpool.deprecated import old_names
from gtpool.spec import FOLD_RULES, DataSpec, RunSpec, ShapeSpec, SplitRule, SplitSpec

FIXED_FOLDS = 10
_TABLE_OPTIONS = ("smiles_column", "target_columns", "split_column", "task", "feature_columns")
_State = tuple[tuple[Path, int, int], ...]


def load_data(spec: DataSpec, data_dir: Path | None = None, loaded: Loaded | None = None) -> Loaded:
    """Return the dataset of a spec. Repeated loads are cached while the files do not change.

    Args:
        spec: The source and its options; an option that does not apply is an error.
        data_dir: Folder searched first for a dataset known by name.
        loaded: Data that is already loaded; returned if it belongs to the same spec.
    """
    if loaded is not None and loaded.spec == spec:
        return loaded
    return _load_data(spec, data_dir, _file_state(spec.source, data_dir))


def choose_split(spec: SplitSpec, loaded: Loaded, data_dir: Path | None = None) -> Split:
    """Return the split of a dataset, with the rule that made it.

    "auto" selects OGB's own split for OGB, the fixed folds of the GMT protocol for a TU dataset
    whose index files are present, the split column of a table that has one, stratified folds for
    classes, and otherwise a random split.

    With a bag, training and validation part are drawn anew from both; the test part stays.

    Args:
        spec: Rule, fold, seed and bag.
        loaded: Data from ``load_data``.
        data_dir: Folder searched first for index files.
    """
    if spec.bag < 0:
        raise ValueError(f"split.bag must be at least 0, got {spec.bag}")
    split = _split(spec, loaded, data_dir)
    if not spec.bag:
        return split
    data = loaded.dataset
    return bag_split(split, spec.bag, data.y if data.schema.task == "classes" else None)


def _split(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    """Return the split of the rule, without regard to bags."""
    rule = _rule(spec, loaded, data_dir)
    if rule in FOLD_RULES and not 0 <= spec.fold < spec.folds:
        raise ValueError(f"fold must be 0 to {spec.folds - 1}, got {spec.fold}")
    split = _SPLITS[rule](spec, loaded, data_dir)
    if rule != "stratified" or not _has_fixed_folds(loaded):
        return split
    missing = _fixed_folder(loaded, data_dir) is None
    hint = f": `gtpool data get {loaded.name}` gets them" if missing else ""  # stored in results
    return replace(split, rule=f"{split.rule} (not the fixed folds of the protocol{hint})")


def expand_folds(
    spec: RunSpec,
    *,
    seeds: int = 1,
    bag: bool = False,
    data_dir: Path | None = None,
    loaded: Loaded | None = None,
) -> list[RunSpec]:
    """Return the runs of a cross-validation: all folds (or the single split), for each seed.

    The split rule "auto" is resolved, so that runs on different splits have different keys.

    Args:
        spec: A run with the first seed; its fold is ignored.
        seeds: Number of consecutive seeds.
        bag: Give the runs of the n-th seed bag n, from 1: other training and validation graphs.
        data_dir: Folder searched first for a dataset known by name.
        loaded: Data that is already loaded.
    """
    rule = _rule(spec.split, load_data(spec.data, data_dir, loaded), data_dir)
    folds = spec.split.folds if rule in FOLD_RULES else 1
    bags = range(1, seeds + 1) if bag else [spec.split.bag] * seeds
    return [
        replace(
            spec, split=replace(spec.split, rule=rule, fold=fold, bag=own), seed=spec.seed + seed
        )
        for seed, own in enumerate(bags)
        for fold in range(folds)
    ]


def shape_of(dataset: GraphDataset) -> ShapeSpec:
    """Return the input and output sizes of a model for this dataset."""
    kind = dataset.schema.recipe.kind
    atoms, bonds = (ATOM_SIZES, BOND_SIZES) if kind == "molecule" else (None, None)
    coded = kind in {"molecule", "given"}  # others store one-hot columns as small integers
    recipe = dataset.schema.recipe
    if recipe.coded:
        node_width = recipe.encoded
        _, node_categories = _columns(dataset.x[:, node_width:].long(), atoms, coded)
    else:
        node_width, node_categories = _columns(dataset.x, atoms, coded)
    edge_width, edge_categories = _columns(dataset.edge_attr, bonds, coded)
    check_codes(dataset, node_categories, edge_categories)
    return ShapeSpec(
        outputs=dataset.schema.num_outputs,
        node_width=node_width,
        node_categories=node_categories,
        edge_width=edge_width,
        edge_categories=edge_categories,
        edge_weighted=dataset.schema.recipe.edge_weighted,
        graph_width=0 if dataset.graph_features is None else dataset.graph_features.size(1),
        mean_nodes=-(-int(dataset.sizes.sum()) // len(dataset)),
        common_nodes=int(dataset.sizes.sort()[0][4 * (len(dataset) - 1) // 10]),
    )


def source_digest(source: str) -> str | None:
    """Return a digest of the user files of a source; None for a dataset known by name."""
    return None if source in DATASETS else _digest(_file_state(source, None))


def _columns(
    features: Tensor | None, sizes: tuple[int, ...] | None, coded: bool
) -> tuple[int, tuple[int, ...]]:
    """Return the number of numeric columns, or the number of categories of each column."""
    if features is None:
        return 0, ()
    if features.is_floating_point() or not coded:
        return features.size(1), ()
    if not features.size(0):
        return 0, sizes or (1,) * features.size(1)
    return 0, sizes or tuple(int(top) + 1 for top in features.long().amax(0))


@lru_cache(maxsize=64)
def _digest(state: _State) -> str:
    digest = sha256()
    for path, _, _ in state:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


@lru_cache(maxsize=4)
def _load_data(spec: DataSpec, data_dir: Path | None, state: _State) -> Loaded:
    found = None if spec.source in DATASETS else recognise(Path(spec.source))
    for option in _TABLE_OPTIONS:
        if getattr(spec, option) and (found is None or option not in found.options):
            raise ValueError(
                f"{option} applies only to {formats_with_option(option)}, not to {spec.source}"
            )
    digest = None if spec.source in DATASETS else _digest(state)
    return load_source(spec, data_dir)._replace(spec=spec, digest=digest)


def _file_state(source: str, data_dir: Path | None) -> _State:
    """Return the folder of a known dataset, or path, mtime and size of each user file."""
    if source in DATASETS:
        folder = locate(source, data_dir).folder
        return () if folder is None else ((folder, 0, 0),)
    top = Path(source).absolute()
    files = sorted(top.rglob("*")) if top.is_dir() else [top] if top.exists() else []
    stats = ((path, path.stat()) for path in files if path.is_file())
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


def _rule(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> SplitRule:
    """Resolve the split rule "auto"."""
    if spec.rule != "auto":
        return spec.rule
    if _is_ogb(loaded):
        return "scaffold"
    if _has_fixed_folds(loaded) and spec.folds == FIXED_FOLDS:
        return "stratified" if _fixed_folder(loaded, data_dir) is None else "fixed"
    if loaded.split_values is not None:
        return "column"
    return "stratified" if loaded.dataset.schema.task == "classes" else "folds"


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
    del data_dir
    return stratified_folds(loaded.dataset.y, spec.folds, spec.seed)[spec.fold]


def _folds(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del data_dir
    return random_folds(len(loaded.dataset), spec.folds, spec.seed)[spec.fold]


def _scaffold(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del spec
    if _is_ogb(loaded) and loaded.name is not None:
        return ogb_split(find_raw(loaded.name, data_dir))
    if loaded.smiles is None:
        raise ValueError(
            f"a scaffold split requires a table of SMILES, got {_display_name(loaded)}"
        )
    return scaffold_split(scaffolds(loaded.smiles))


def _random(spec: SplitSpec, loaded: Loaded, data_dir: Path | None) -> Split:
    del data_dir
    return random_split(len(loaded.dataset), seed=spec.seed)


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
    "random": _random,
    "column": _column,
}


def _is_ogb(loaded: Loaded) -> bool:
    return loaded.name is not None and DATASETS[loaded.name].family == "OGB"


def _has_fixed_folds(loaded: Loaded) -> bool:
    return loaded.name is not None and DATASETS[loaded.name].folds_sha256 is not None


def _fixed_folder(loaded: Loaded, data_dir: Path | None) -> Path | None:
    return None if loaded.name is None else splits_folder(loaded.name, data_dir)


def _display_name(loaded: Loaded) -> str:
    return loaded.name or loaded.dataset.schema.name


__getattr__ = old_names(__name__, {"lay_out": "expand_folds"})
