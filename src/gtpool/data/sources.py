"""Graphs by name or by path: one door to everything that can be read."""

import shutil
import warnings
from collections.abc import Sequence
from contextlib import suppress
from errno import EEXIST, ENOENT, ENOTEMPTY
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats import FORMATS, Format, format_of
from gtpool.data.formats.reader import (
    InferenceData,
    InferenceOptions,
    InputRow,
    Loaded,
    inference_from_dataset,
)
from gtpool.data.locate import cache_dir, find_raw
from gtpool.data.molecule import b3db_smiles, load_b3db
from gtpool.data.registry import DATASETS, dataset_info
from gtpool.data.schema import Schema
from gtpool.data.synthetic import long_range, low_scores_matter
from gtpool.spec import AtomOrder, DataSpec

_MAKERS = {"long-range": long_range, "low-scores": low_scores_matter}


def load(
    source: str | Path,
    *,
    data_dir: Path | None = None,
    features: str = "gmt",
    atom_order: AtomOrder = "canonical",
) -> GraphDataset:
    """Load a dataset by its name, or graphs of the user's by their path.

    A name is looked up in ``data_dir``, then in the folder that the environment variable
    ``GTPOOL_DATA`` names, in this package, in the user's cache, and is downloaded at last. What was
    made of its files is kept in the cache and used again while the files stay the same. Synthetic
    sets have no files: they are made on the spot, the same each time.

    Args:
        source: A name of ``DATASETS``, or a path: a table of SMILES (``.csv``, ``.tsv``) with
            one column of classes or numbers, JSON lines (``.jsonl``), either packed by gzip or
            not, a folder in TU or OGB format, or a folder that ``GraphDataset.save`` wrote.
            ``read_table`` takes tables of other kinds.
        data_dir: A folder laid out as ``GTPOOL_DATA`` is.
        features: How nodes become features, a key of ``FEATURES``; molecules, synthetic and saved
            datasets have features of their own, and take the default alone.
        atom_order: How the atoms of SMILES are numbered, as in ``read_molecules``.

    Example:
        >>> data = load("MUTAG")
        >>> len(data), data.num_features, data.schema.targets
        (188, 7, ('-1', '1'))
    """
    spec = DataSpec(source=str(source), features=features, atom_order=atom_order)
    if isinstance(source, str) and source in DATASETS:
        return _load_named(spec, data_dir)
    found = _load_path(source, spec)
    if found.skipped:
        line, reason = found.skipped[0].line, found.skipped[0].reason
        warnings.warn(
            f"{source}: rows left out: {len(found.skipped)}, e.g. line {line}: {reason}",
            stacklevel=2,
        )
    return found.dataset


def load_source(spec: DataSpec, data_dir: Path | None = None) -> Loaded:
    """Load what a spec names, with all that its source says of the graphs.

    Args:
        spec: The source and the options of its format.
        data_dir: Where to look first for a dataset known by name.
    """
    if spec.source in DATASETS:
        return Loaded(_load_named(spec, data_dir), spec.source)
    return _load_path(spec.source, spec)


def read_for_inference(
    source: str | Path,
    schema: Schema,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    trained_column: str | None = None,
    target_columns: Sequence[str] | None = None,
    trained_targets: Sequence[str] = (),
) -> InferenceData:
    """Read a source and make features by the recipe of a schema.

    Args:
        source: A name of ``DATASETS`` or a path, as for ``load``.
        schema: What the model was trained on.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: Of a table; None takes ``trained_column`` if it is there, else the one
            called "smiles".
        trained_column: The SMILES column of the table that the model was trained on.
        target_columns: Of a table, where labels are wanted: their columns, or none for
            ``trained_targets``; without (None) no labels are read.
        trained_targets: The names of the model's targets. Where there is one, and no such column,
            the only other column is taken.
    """
    if not (isinstance(source, str) and source in DATASETS):
        path, form = _find(source)
        options = InferenceOptions(
            None, smiles_column, trained_column, target_columns, trained_targets
        )
        return form.reader.read_for_inference(path, schema, options)
    form = FORMATS.get(DATASETS[source].family)
    if form is not None and "features" in form.options:  # the recipe is to make them
        return form.reader.read_for_inference(
            find_raw(source, data_dir), schema, InferenceOptions(source)
        )
    spec = DataSpec(source=source, atom_order=schema.recipe.atom_order)
    return inference_from_dataset(_load_named(spec, data_dir), schema)


def smiles_of(
    source: str | Path, rows: Sequence[InputRow], data_dir: Path | None = None
) -> list[str] | None:
    """Give the SMILES of each graph, where the source has them.

    Args:
        source: As for ``read_for_inference``.
        rows: What that gave, without those that have a reason.
        data_dir: Where to look first for a dataset known by name.
    """
    if source == "B3DB":
        return b3db_smiles()
    if isinstance(source, str) and source in DATASETS:
        form = FORMATS.get(DATASETS[source].family)
        return None if form is None else form.reader.smiles(find_raw(source, data_dir), rows)
    path, form = _find(source)
    return form.reader.smiles(path, rows)


def _find(source: str | Path) -> tuple[Path, Format]:
    """Give the path and the format of graphs of the user's."""
    path = Path(source)
    if isinstance(source, str) and not path.exists() and path.name == source and not path.suffix:
        dataset_info(source)  # not a path: says which names there are
    return path, format_of(path)


def _load_path(source: str | Path, spec: DataSpec) -> Loaded:
    path, form = _find(source)
    if "features" not in form.options:
        _refuse_features(str(path), spec.features)
    return form.reader.read(path, spec)


def _load_named(spec: DataSpec, data_dir: Path | None) -> GraphDataset:
    """Take a dataset from the cache, or make it and leave it there."""
    name, family = spec.source, DATASETS[spec.source].family
    form = FORMATS.get(family)
    if form is None or "features" not in form.options:
        _refuse_features(name, spec.features)
    if family == "synthetic":
        return _MAKERS[name](DATASETS[name].graphs)
    folder = find_raw(name, data_dir)
    variant = spec.features if form is not None else spec.atom_order
    entry = cache_dir() / "graphs" / f"{name}-{variant}-{_digest(name, folder)}"
    with suppress(OSError, ValueError):  # not there, or damaged
        return GraphDataset.load(entry)
    data = (
        load_b3db(spec.atom_order) if form is None else form.reader.read(folder, spec, name).dataset
    )
    _keep(data, entry, f"{name}-{variant}-")
    return data


def _refuse_features(what: str, features: str) -> None:
    if features != "gmt":
        raise ValueError(f"{what} has features of its own: features={features!r} cannot be had")


def _digest(name: str, folder: Path) -> str:
    """Sum up what a dataset is made from: its files by name, size and time, and the code."""
    smiles = DATASETS[name].family == "embedded"  # read by rdkit, which no other set needs
    digest = sha256(version("rdkit").encode() if smiles else b"")
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    for path in sorted(folder.rglob("*")):
        state = path.stat()
        digest.update(f"{path.relative_to(folder)} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _keep(data: GraphDataset, entry: Path, prefix: str) -> None:
    """Save a dataset in the cache and drop what was made of other files or by other code."""
    shutil.rmtree(entry, ignore_errors=True)  # damaged, or it would have been taken
    try:
        data.save(entry)
    except (OSError, SafetensorError) as error:
        # Another process that saves the same at this moment does no harm.
        if getattr(error, "errno", None) not in {ENOENT, EEXIST, ENOTEMPTY}:
            warnings.warn(
                f"{data.schema.name} is made anew each time, as {entry.parent} cannot be written "
                f"({error}); set GTPOOL_CACHE to another folder",
                stacklevel=4,
            )
        return
    for old in entry.parent.glob(f"{prefix}*"):
        if old != entry:
            shutil.rmtree(old, ignore_errors=True)
