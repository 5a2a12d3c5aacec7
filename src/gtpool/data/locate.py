"""Finding the files of a named dataset on this machine, or downloading them."""

import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from gtpool.data.fetch import fetch, publish_folder, unpack
from gtpool.data.registry import DatasetInfo, dataset_info

EMBEDDED = Path(__file__).parent / "embedded"
FOLDS_URL = "https://raw.githubusercontent.com/JinheonBaek/GMT/HEAD/datasets"
"""The public GMT repository, with the index files of the ten fixed folds."""


class Place(NamedTuple):
    """Where a dataset comes from, and the folder of its files if it exists."""

    origin: str
    """--data-dir, GTPOOL_DATA, embedded, cache, download, or made (generated, without files)."""
    folder: Path | None


def locate(name: str, data_dir: Path | None = None) -> Place:
    """Return where a dataset would be loaded from, without downloading it.

    Args:
        name: A name of ``DATASETS``.
        data_dir: A folder laid out as ``GTPOOL_DATA`` is: ``TU/NAME/raw/NAME_A.txt``,
            ``OGB/ogbg_molhiv/raw/edge.csv.gz``, ``splits/10fold_idx/NAME/test_idx-1.txt``.
    """
    if dataset_info(name).family == "synthetic":
        return Place("made", None)
    inside, _ = _layout(name)
    places = [Place(origin, root / inside) for origin, root in _roots(data_dir)]
    places.insert(-1, Place("embedded", EMBEDDED / name))
    for place in places:
        if place.folder is not None and place.folder.is_dir():
            return place
    return Place("download", None)


def find_raw(name: str, data_dir: Path | None = None) -> Path:
    """Return the folder of a dataset's files; download them into the cache if necessary.

    It holds ``NAME_A.txt`` and the other TU files, or ``raw`` and ``split`` (OGB).
    """
    place = locate(name, data_dir)
    if place.origin == "made":
        raise ValueError(f"{name} is generated: it has no files to download")
    return place.folder or download(name, dataset_info(name))


def splits_folder(name: str, data_dir: Path | None = None) -> Path | None:
    """Return the folder with the index files of the ten fixed folds, or None."""
    for _, root in _roots(data_dir):
        folder = root / "splits" / "10fold_idx" / name
        if folder.is_dir():
            return folder
    return None


def cache_dir() -> Path:
    """Return the cache folder: GTPOOL_CACHE, or ``gtpool`` in the user's cache folder."""
    if chosen := os.environ.get("GTPOOL_CACHE"):
        return Path(chosen).expanduser()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "gtpool"


def download(name: str, source: DatasetInfo) -> Path:
    """Download and unpack the archive of a dataset into the cache; return its folder."""
    inside, first = _layout(name)
    folder = cache_dir() / "raw" / inside
    archive = folder.parent / f"{name}.zip"
    try:
        fetch(source.url, archive, sha256=source.sha256)
    except OSError as error:
        raise OSError(
            f"{name} is not on this machine, and {error}; "
            f"download that archive and unpack it so that $GTPOOL_DATA/{inside / first} exists"
        ) from error
    try:
        unpack(archive, folder)
    except FileNotFoundError:  # another process has unpacked and removed it
        if not folder.is_dir():
            raise
    finally:
        archive.unlink(missing_ok=True)
    return folder


def download_folds(name: str, source: DatasetInfo, url: str = FOLDS_URL) -> Path:
    """Download the index files of the ten fixed folds into the cache; return their folder.

    Args:
        name: A dataset of the TU family.
        source: Its entry in ``DATASETS``, with the digest of the files.
        url: The address that holds ``NAME/10fold_idx/train_idx-1.txt`` and the other files.
    """
    if source.folds_sha256 is None:
        raise ValueError(f"{name} has no fixed folds")
    folder = cache_dir() / "raw" / "splits" / "10fold_idx" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
    made, digest = temporary / "made", sha256()
    try:
        made.mkdir()  # mkdtemp's own folder is not readable by other users
        for fold in range(1, 11):
            for part in ("train", "test"):
                file = made / f"{part}_idx-{fold}.txt"
                fetch(f"{url}/{name}/10fold_idx/{file.name}", file, progress=False)
                digest.update(file.read_bytes())
        if digest.hexdigest() != source.folds_sha256:
            raise ValueError(f"the folds of {name} at {url} are not those of the GMT protocol")
        publish_folder(made, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _layout(name: str) -> tuple[Path, str]:
    """Return the folder of a dataset inside a data folder, and a file that it must hold."""
    family = dataset_info(name).family
    if family == "OGB":
        return Path("OGB") / name.replace("-", "_"), "raw/edge.csv.gz"
    return Path(family) / name / "raw", f"{name}_A.txt"


def _roots(data_dir: Path | None) -> list[tuple[str, Path]]:
    """Return the data folders in the order of look-up; the last is in the cache."""
    roots: list[tuple[str, Path]] = []
    named = os.environ.get("GTPOOL_DATA")
    for origin, folder in (("--data-dir", data_dir), ("GTPOOL_DATA", named)):
        if folder:
            root = Path(folder).expanduser()
            if not root.is_dir():
                raise FileNotFoundError(f"{origin} names {root}, which is not a folder")
            roots.append((origin, root))
    return [*roots, ("cache", cache_dir() / "raw")]
