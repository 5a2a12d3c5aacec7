"""Graphs by name or by path: one door to everything that can be read."""

import shutil
import warnings
from contextlib import suppress
from errno import EEXIST, ENOENT, ENOTEMPTY
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from safetensors import SafetensorError

from gtpool.data.dataset import GraphDataset
from gtpool.data.delimited import TABLES, ending_of
from gtpool.data.features import featurize, learn_recipe
from gtpool.data.jsonl import read_jsonl
from gtpool.data.locate import cache_dir, find_raw
from gtpool.data.molecule import load_b3db
from gtpool.data.ogb import read_ogb
from gtpool.data.registry import DATASETS, look_up
from gtpool.data.synthetic import long_range, low_scores_matter
from gtpool.data.table import read_table
from gtpool.data.tu import read_tu, tu_name
from gtpool.spec import AtomOrder

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
    if isinstance(source, str) and source in DATASETS:
        return _load_named(source, data_dir, features, atom_order)
    path = Path(source)
    if isinstance(source, str) and not path.exists() and path.name == source and not path.suffix:
        look_up(source)  # not a path: says which names there are
    return _load_path(path, features, atom_order)


def _load_named(
    name: str, data_dir: Path | None, features: str, atom_order: AtomOrder
) -> GraphDataset:
    """Take a dataset from the cache, or make it and leave it there."""
    source = DATASETS[name]
    if source.family != "TU":
        _refuse_features(name, features)
    if source.family == "synthetic":
        return _MAKERS[name](source.graphs)
    folder = find_raw(name, data_dir)
    variant = atom_order if source.family == "embedded" else features
    entry = cache_dir() / "graphs" / f"{name}-{variant}-{_digest(name, folder)}"
    with suppress(OSError, ValueError):  # not there, or damaged
        return GraphDataset.load(entry)
    data = _build(name, folder, features, atom_order)
    _keep(data, entry, f"{name}-{variant}-")
    return data


def _build(name: str, folder: Path, features: str, atom_order: AtomOrder) -> GraphDataset:
    if DATASETS[name].family == "TU":
        return _read_tu(folder, name, features)
    return load_b3db(atom_order) if name == "B3DB" else read_ogb(folder)


def _read_tu(folder: Path, name: str, features: str) -> GraphDataset:
    raw = read_tu(folder, name)
    return featurize(raw, learn_recipe(raw, features))


def _refuse_features(what: str, features: str) -> None:
    if features != "gmt":
        raise ValueError(f"{what} has features of its own: features={features!r} cannot be had")


def _digest(name: str, folder: Path) -> str:
    """Sum up what a dataset is made from: its files by name, size and time, and the code."""
    smiles = DATASETS[name].family == "embedded"  # read by rdkit, which no other set needs
    digest = sha256(version("rdkit").encode() if smiles else b"")
    for path in sorted(Path(__file__).parent.glob("*.py")):
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


def _load_path(path: Path, features: str, atom_order: AtomOrder) -> GraphDataset:
    """Read what lies at a path, by the ending of its name or by what is in the folder."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    if path.is_dir():
        return _load_folder(path, features)
    ending = ending_of(path)
    if ending == ".jsonl":
        return read_jsonl(path, features=features)
    if ending in TABLES:
        _refuse_features(str(path), features)
        table = read_table(path, atom_order=atom_order)
        if table.skipped:
            line, reason = table.skipped[0].line, table.skipped[0].reason
            warnings.warn(
                f"{path}: rows left out: {len(table.skipped)}, e.g. line {line}: {reason}",
                stacklevel=3,
            )
        return table.dataset
    raise ValueError(
        f"{path} is of no known kind: its name must end in .csv, .tsv, .tab or .jsonl, "
        "or one of these and .gz"
    )


def _load_folder(folder: Path, features: str) -> GraphDataset:
    if any(folder.glob("*_A.txt")):
        return _read_tu(folder, tu_name(folder), features)
    _refuse_features(str(folder), features)
    if (folder / "schema.json").exists():
        return GraphDataset.load(folder)
    if (folder / "raw" / "edge.csv.gz").exists():
        return read_ogb(folder)
    raise ValueError(
        f"{folder} holds no graphs: neither NAME_A.txt (TU format), nor raw/edge.csv.gz (OGB "
        "format), nor schema.json (a saved dataset)"
    )
