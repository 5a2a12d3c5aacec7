"""Inputs of a run: its dataset and model shape; the runs of a cross-validation."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats import formats_with_option, recognise
from gtpool.data.formats.reader import InputRow, Loaded
from gtpool.data.inference import check_codes
from gtpool.data.locate import locate
from gtpool.data.molecule import ATOM_SIZES, BOND_SIZES
from gtpool.data.registry import DATASETS
from gtpool.data.sources import load_source, smiles_of
from gtpool.spec import FOLD_RULES, DataSpec, RunSpec, ShapeSpec
from gtpool.study.split_rules import resolve_split

_TABLE_OPTIONS = (
    "smiles_column",
    "target_columns",
    "split_column",
    "group_column",
    "time_column",
    "contradictions",
    "task",
    "feature_columns",
)
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


def expand_folds(
    spec: RunSpec,
    *,
    seeds: int = 1,
    bag: bool = False,
    data_dir: Path | None = None,
    loaded: Loaded | None = None,
) -> list[RunSpec]:
    """Return the runs of a cross-validation: all folds (or the single split), for each seed.

    "auto" in split rule and copies is resolved, so that runs on different splits have different
    keys.

    Args:
        spec: A run with the first seed; its fold is ignored.
        seeds: Number of consecutive seeds.
        bag: Give the runs of the n-th seed bag n, from 1: other training and validation graphs.
        data_dir: Folder searched first for a dataset known by name.
        loaded: Data that is already loaded.
    """
    split = resolve_split(spec.split, load_data(spec.data, data_dir, loaded), data_dir)
    folds = split.folds if split.rule in FOLD_RULES else 1
    bags = range(1, seeds + 1) if bag else [split.bag] * seeds
    return [
        replace(spec, split=replace(split, fold=fold, bag=own), seed=spec.seed + seed)
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


def graph_smiles(loaded: Loaded, data_dir: Path | None = None) -> Sequence[str] | None:
    """Return the SMILES of each graph, or None if the source has none.

    Args:
        loaded: Data from ``load_data``.
        data_dir: Folder searched first for a dataset known by name.
    """
    if loaded.smiles is not None or loaded.name is None:
        return loaded.smiles
    rows = [InputRow(at, "", "", None, None) for at in range(len(loaded.dataset))]
    return smiles_of(loaded.name, rows, data_dir)


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
        if getattr(spec, option) != getattr(DataSpec, option) and (
            found is None or option not in found.options
        ):
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
