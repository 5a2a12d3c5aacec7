"""Finding the files of a named dataset on this machine, or downloading them.

Downloads resume and appear atomically, and archives cannot write outside. ``pooch`` downloads
atomically too, but does not resume a broken download.
"""

import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from socket import gaierror
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener
from zipfile import BadZipFile, ZipFile

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from gtpool.data.registry import DatasetInfo, dataset_info

EMBEDDED = Path(__file__).parent / "embedded"
FOLDS_URL = "https://raw.githubusercontent.com/JinheonBaek/GMT/HEAD/datasets"
"""The public GMT repository, with the index files of the ten fixed folds."""

Report = Callable[[int, int | None], None]
"""Called with the bytes received so far, and in all if known."""


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


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    progress: bool = True,
    timeout: float = 30.0,
    tries: int = 4,
    pause: float = 0.5,
) -> None:
    """Download a file, resuming an earlier attempt that was interrupted.

    Args:
        url: An http or https address.
        target: The file to write; it appears once it is complete.
        sha256: Expected digest of the file, if known.
        progress: Whether to show a progress bar, or plain lines if stderr is not a terminal.
        timeout: Seconds to wait for the server in each attempt.
        tries: Number of attempts.
        pause: Seconds between the first two attempts; each further pause is twice as long.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url!r} is not an http or https address")
    target.parent.mkdir(parents=True, exist_ok=True)
    interrupted = target.with_name(f"{target.name}.part")
    # A unique name, so that two downloads at once do not write into one file.
    part = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    try:
        if interrupted.exists():
            interrupted.replace(part)
        with _progress(url, progress) as report:
            _download_with_retries(url, part, report, timeout, tries, pause)
        _check_digest(url, part, sha256)
        part.replace(target)
    finally:
        if part.exists():
            part.replace(interrupted)


def unpack(archive: Path, folder: Path, *, limit: int = 4 << 30) -> None:
    """Unpack a zip file into a new folder, without a single top-level folder around it.

    Args:
        archive: The zip file.
        folder: Appears once it is complete; an existing folder is left unchanged.
        limit: Maximum size of the unpacked files, in bytes.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with ZipFile(archive) as packed:
            _check_members(archive, packed, limit)
            made = temporary / "made"  # mkdtemp's own folder is not readable by other users
            made.mkdir()
            packed.extractall(made)
        inside = list(made.iterdir())
        top = inside[0] if len(inside) == 1 and inside[0].is_dir() else made
        publish_folder(top, folder)
    except (BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
        raise ValueError(f"{archive} is not a sound zip file: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish_folder(made: Path, folder: Path) -> None:
    """Rename a finished folder to its final name, unless another process has done so already."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


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


@contextmanager
def _progress(url: str, progress: bool) -> Generator[Report]:
    """Show download progress: a bar on a terminal, else a line before and after."""
    if progress and sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(url.rsplit("/", 1)[-1], total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    received = 0

    def count(done: int, _: int | None) -> None:
        nonlocal received
        received = done

    if progress:
        sys.stderr.write(f"downloading {url}\n")
    yield count
    if progress:
        sys.stderr.write(f"downloaded {received / 1e6:.1f} MB\n")


def _download_with_retries(
    url: str, part: Path, report: Report, timeout: float, tries: int, pause: float
) -> None:
    """Retry until the file is complete; permanent errors are raised at once."""
    for attempt in range(tries):
        try:
            return _download(url, part, report, timeout)
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError) and error.code == 416:  # range not satisfiable: restart
                part.unlink(missing_ok=True)
            elif attempt + 1 == tries or _is_permanent(error):
                raise OSError(f"{url} cannot be downloaded ({_reason(error, timeout)})") from error
            time.sleep(pause * 2**attempt)
    raise OSError(f"{url} cannot be downloaded (the server does not send it)")


def _download(url: str, part: Path, report: Report, timeout: float) -> None:
    """Download the file, or the rest of it if the server supports ranges."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "gtpool"} | ({"Range": f"bytes={done}-"} if done else {})
    # A new opener: urllib's shared one keeps the proxies of its first use.
    request = Request(url, headers=headers)  # noqa: S310 - our own addresses, all https
    with build_opener().open(request, timeout=timeout) as reply:
        rest = reply.status == 206
        if rest and not reply.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            part.unlink()
            raise ConnectionError("the server sent another range than requested")
        done = done if rest else 0
        length = reply.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with part.open("ab" if rest else "wb") as file:
            while chunk := reply.read(1 << 16):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection broke off after {done} of {total} bytes")


def _is_permanent(error: Exception) -> bool:
    """Whether another attempt would fail in the same way."""
    if isinstance(error, HTTPError):
        return error.code < 500
    return isinstance(error, URLError) and isinstance(
        error.reason, ConnectionRefusedError | gaierror
    )


def _reason(error: Exception, timeout: float) -> str:
    if isinstance(error, HTTPError):
        return f"the server answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    return f"no answer in {timeout:g} s" if isinstance(cause, TimeoutError) else str(cause)


def _check_digest(url: str, part: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with part.open("rb") as file:
        found = file_digest(file, "sha256").hexdigest()
    if found != sha256:
        part.unlink()
        raise ValueError(f"{url} has SHA-256 {found}, expected {sha256}; the file was deleted")


def _check_members(archive: Path, packed: ZipFile, limit: int) -> None:
    """Raise a ValueError if a member is outside the folder or a link, or if all are too large."""
    for member in packed.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        outside = path.is_absolute() or ".." in path.parts or ":" in member.filename
        if outside or stat.S_ISLNK(member.external_attr >> 16):
            raise ValueError(f"{archive} holds {member.filename!r}, which leads outside; refused")
    size = sum(member.file_size for member in packed.infolist())
    if size > limit:
        raise ValueError(f"{archive} unpacks to {size} bytes, more than the {limit} allowed")
