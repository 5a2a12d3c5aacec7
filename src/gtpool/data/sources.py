"""Loading graphs by dataset name or by path, in any format."""

import shutil
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from errno import EEXIST, ENOENT, ENOTEMPTY
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError

from gtpool.data.dataset import GraphDataset
from gtpool.data.encodings import with_encodings
from gtpool.data.formats import FORMATS, Format, format_of
from gtpool.data.formats.ogb import mapped_smiles
from gtpool.data.formats.reader import (
    InferenceData,
    InferenceOptions,
    InferenceStream,
    InputRow,
    Loaded,
    inference_from_dataset,
)
from gtpool.data.graph_features import check_molecule_features, with_graph_features
from gtpool.data.locate import cache_dir, find_raw
from gtpool.data.molecule import b3db_smiles, load_b3db
from gtpool.data.registry import DATASETS, dataset_info
from gtpool.data.schema import Schema, parse_encodings
from gtpool.data.synthetic import long_range, low_scores_matter
from gtpool.ops import encodings
from gtpool.spec import AtomOrder, DataSpec

_SMILES = ("embedded", "OGB")
"""Families of datasets whose molecules have SMILES."""
_GENERATORS = {"long-range": long_range, "low-scores": low_scores_matter}


def load(
    source: str | Path,
    *,
    data_dir: Path | None = None,
    features: str = "gmt",
    atom_order: AtomOrder = "canonical",
    encode: Sequence[str] = (),
    molecule_features: Sequence[str] = (),
) -> GraphDataset:
    """Load a dataset by name, or your own graphs by path.

    A name is looked up in ``data_dir``, in the folder of the environment variable ``GTPOOL_DATA``,
    in this package and in the user's cache; otherwise it is downloaded. The result is cached until
    the files change. Synthetic datasets are generated from a fixed seed.

    Args:
        source: A name of ``DATASETS``, or a path: a table of SMILES (``.csv``, ``.tsv``) with
            one target column, JSON lines (``.jsonl``), both optionally gzipped, a folder in TU or
            OGB format, or a folder that ``GraphDataset.save`` wrote. For a table with several
            target columns use ``read_table``.
        data_dir: A folder laid out as ``GTPOOL_DATA`` is.
        features: How node features are made, a key of ``FEATURES``. Molecules, synthetic and saved
            datasets have their own features and accept only the default.
        atom_order: Atom order of SMILES, as in ``read_molecules``.
        encode: Structural encodings of nodes in order, such as ("rwse:16", "cycles"), the leading
            columns of ``x``; see ``gtpool.ops.encodings``.
        molecule_features: Descriptors of SMILES in order, such as ("rdkit2d", "morgan"), as
            ``graph_features``.

    Example:
        >>> data = load("MUTAG")
        >>> len(data), data.num_features, data.schema.targets
        (188, 7, ('-1', '1'))
    """
    parse_encodings(encode)
    check_molecule_features(molecule_features)
    spec = DataSpec(
        source=str(source),
        features=features,
        atom_order=atom_order,
        encode=tuple(encode),
        molecule_features=tuple(molecule_features),
    )
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
    """Return the graphs of a spec, with what else the source says about them.

    Args:
        spec: The source and the options of its format.
        data_dir: Where to look first for a dataset known by name.
    """
    parse_encodings(spec.encode)  # before files are read
    check_molecule_features(spec.molecule_features)
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
    """Read graphs for a trained model, with features made by the recipe of its schema.

    Args:
        source: A name of ``DATASETS`` or a path, as for ``load``.
        schema: Schema of the model's training data.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: SMILES column of a table; by default ``trained_column`` if it exists, else
            the one called "smiles".
        trained_column: SMILES column of the table that the model was trained on.
        target_columns: Target columns of a table; empty for ``trained_targets``, None to read no
            labels.
        trained_targets: Names of the model's targets. If there is one and the table has no such
            column, its only other column is used.
    """
    if not (isinstance(source, str) and source in DATASETS):
        path, form = _find(source)
        options = InferenceOptions(
            None, smiles_column, trained_column, target_columns, trained_targets
        )
        return form.reader.read_for_inference(path, schema, options)
    form = FORMATS.get(DATASETS[source].family)
    if form is not None and "features" in form.options:  # made by the recipe
        return form.reader.read_for_inference(
            find_raw(source, data_dir), schema, InferenceOptions(source)
        )
    recipe = schema.recipe
    spec = DataSpec(
        source=source,
        atom_order=recipe.atom_order,
        encode=recipe.encode,
        molecule_features=recipe.molecule_features * (DATASETS[source].family in _SMILES),
    )
    return inference_from_dataset(_load_named(spec, data_dir), schema)


def stream_for_inference(
    source: str | Path,
    schema: Schema,
    *,
    smiles_column: str | None = None,
    trained_column: str | None = None,
) -> InferenceStream | None:
    """Return the rows of a table one by one, to predict; None for a source that is read at once.

    Args:
        source: As for ``read_for_inference``.
        schema: Schema of the model's training data.
        smiles_column: SMILES column, as for ``read_for_inference``.
        trained_column: SMILES column of the table that the model was trained on.
    """
    if isinstance(source, str) and source in DATASETS:
        return None
    path, form = _find(source)
    if not path.is_file():  # a pipe is read once
        return None
    options = InferenceOptions(None, smiles_column, trained_column)
    return form.reader.stream_for_inference(path, schema, options)


def smiles_of(
    source: str | Path, rows: Sequence[InputRow], data_dir: Path | None = None
) -> list[str] | None:
    """Return the SMILES of each graph, or None if the source has none.

    Args:
        source: As for ``read_for_inference``.
        rows: The rows it returned, without those that have a reason.
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
    """Return the path and the format of the user's own graphs."""
    path = Path(source)
    if isinstance(source, str) and not path.exists() and path.name == source and not path.suffix:
        dataset_info(source)  # not a path: raises an error that lists the names
    return path, format_of(path)


def _load_path(source: str | Path, spec: DataSpec) -> Loaded:
    path, form = _find(source)
    if "features" not in form.options:
        _refuse_features(str(path), spec.features)
    if spec.molecule_features and not form.smiles:
        raise ValueError(f"molecule_features applies only to SMILES, not to {path}")
    found = form.reader.read(path, spec)
    return found._replace(dataset=with_encodings(found.dataset, spec.encode))


def _load_named(spec: DataSpec, data_dir: Path | None) -> GraphDataset:
    """Return a dataset from the cache, or build and cache it."""
    name, family = spec.source, DATASETS[spec.source].family
    form = FORMATS.get(family)
    if form is None or "features" not in form.options:
        _refuse_features(name, spec.features)
    if spec.molecule_features and family not in _SMILES:
        raise ValueError(f"molecule_features applies only to SMILES, not to {name}")
    if family == "synthetic":
        return with_encodings(_GENERATORS[name](DATASETS[name].graphs), spec.encode)
    folder = find_raw(name, data_dir)
    variant = spec.features if form is not None else spec.atom_order
    variant = "+".join([variant, *spec.encode, *spec.molecule_features]).replace(":", "")
    reads_smiles = form is None or bool(spec.molecule_features)
    digest = _digest(folder, reads_smiles=reads_smiles)
    entry = cache_dir() / "graphs" / f"{name}-{variant}-{digest}"
    with suppress(OSError, ValueError):  # not there, or damaged
        return GraphDataset.load(entry)
    if spec.molecule_features:
        data = _load_named(replace(spec, molecule_features=()), data_dir)
        smiles = b3db_smiles() if form is None else mapped_smiles(folder, len(data))
        if smiles is None:
            raise ValueError(
                f"molecule_features needs the SMILES of {name}, but "
                f"{folder / 'mapping' / 'mol.csv.gz'} does not have one for each molecule"
            )
        data = with_graph_features(data, smiles, spec.molecule_features, skip_unreadable=True)
    elif spec.encode:
        data = with_encodings(_load_named(replace(spec, encode=()), data_dir), spec.encode)
    elif form is None:
        data = load_b3db(spec.atom_order)
    else:
        data = form.reader.read(folder, spec, name).dataset
    _keep(data, entry, f"{name}-{variant}-")
    return data


def _refuse_features(what: str, features: str) -> None:
    if features != "gmt":
        raise ValueError(f"{what} has its own features and does not accept features={features!r}")


def _digest(folder: Path, *, reads_smiles: bool) -> str:
    """Digest of what a dataset is built from: size and time of its files, and the code."""
    digest = sha256(version("rdkit").encode() if reads_smiles else b"")
    for path in (Path(encodings.__file__), *sorted(Path(__file__).parent.rglob("*.py"))):
        digest.update(path.read_bytes())
    for path in sorted(folder.rglob("*")):
        state = path.stat()
        digest.update(f"{path.relative_to(folder)} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _keep(data: GraphDataset, entry: Path, prefix: str) -> None:
    """Save a dataset in the cache and delete entries of older files or code."""
    shutil.rmtree(entry, ignore_errors=True)  # damaged, or it would have been read
    try:
        data.save(entry)
    except (OSError, SafetensorError) as error:
        # Another process may be saving the same dataset.
        if getattr(error, "errno", None) not in {ENOENT, EEXIST, ENOTEMPTY}:
            warnings.warn(
                f"{data.schema.name} cannot be cached, as {entry.parent} cannot be written "
                f"({error}); set GTPOOL_CACHE to another folder",
                stacklevel=4,
            )
        return
    for old in entry.parent.glob(f"{prefix}*"):
        if old != entry:
            shutil.rmtree(old, ignore_errors=True)
