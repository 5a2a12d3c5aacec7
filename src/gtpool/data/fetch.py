"""Downloads that resume and appear atomically, and archives that cannot write outside.

``pooch`` downloads atomically too, but does not resume a broken download.
"""

import secrets
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import file_digest
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from socket import gaierror
from urllib.error import HTTPError, URLError
from urllib.request import Request, build_opener
from zipfile import BadZipFile, ZipFile

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

Report = Callable[[int, int | None], None]


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
