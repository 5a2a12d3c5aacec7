"""Atomic writes of files and folders."""

import re
import shutil
import stat
import tempfile
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_STALE = 60.0  # seconds after which a temporary folder without a lock is abandoned
_LOCK, _MADE, _OLD = "lock", "made", "old"


def rename_target(path: Path) -> Path | None:
    """Return the path that a finished file is renamed to: ``path`` with symbolic links followed.

    None means a device, FIFO or socket: open ``path`` and write into it, since a rename would
    replace it. A directory is an IsADirectoryError.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):  # a new file, or an error when it is written
        mode = stat.S_IFREG
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a directory; give the name of a file")
    if not stat.S_ISREG(mode):
        return None
    return path.resolve() if path.is_symlink() else path


@contextmanager
def new_folder(folder: Path, names: Collection[str], what: str) -> Generator[Path]:
    """Yield an empty folder to write to, which replaces ``folder`` at the end.

    On failure the previous folder is unchanged. A process that is killed between the two renames
    leaves a temporary folder, from which ``recover_folder`` finishes the replacement. Files get the
    permissions of the umask, for any library that writes them. Symbolic links are followed.

    Args:
        folder: The target folder.
        names: Files that may exist and are replaced; any other file raises an error.
        what: Description of the files, for this error message.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    recover_folder(folder)
    _refuse_others(folder, names, what)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        scratch = Path(name)
        with (scratch / _LOCK).open("wb") as lock:
            with suppress(OSError):  # a disk without locks
                lock_file(lock)
            made = scratch / _MADE
            made.mkdir()
            try:
                yield made
            except SafetensorError as error:  # a full disk, for one
                raise OSError(f"{folder} cannot be written: {error}") from error
            with suppress(OSError):  # a disk without permissions
                for path in made.iterdir():
                    path.chmod((scratch / _LOCK).stat().st_mode)
            _replace(folder, scratch)


def recover_folder(folder: Path) -> None:
    """Finish or undo writes of killed processes, and delete their temporary folders.

    Args:
        folder: The target folder of these writes.
    """
    for scratch in _scratch_folders(folder):
        with suppress(OSError), _abandoned(scratch) as old_enough:
            made, old = scratch / _MADE, scratch / _OLD
            replacing = old.exists()
            if replacing and not folder.exists():
                (made if made.exists() else old).rename(folder)
            if old_enough or replacing:
                shutil.rmtree(scratch)


def _replace(folder: Path, scratch: Path) -> None:
    """Rename the written folder into place; after an interruption the old or new one exists."""
    try:
        if folder.exists():
            folder.rename(scratch / _OLD)
        (scratch / _MADE).rename(folder)
    finally:  # after Ctrl-C and SIGTERM as well
        if not folder.exists() and (scratch / _OLD).exists():
            (scratch / _OLD).rename(folder)


def _scratch_folders(folder: Path) -> Iterator[Path]:
    """Return the temporary folders of a folder; ``tempfile`` adds eight characters to its name."""
    pattern = re.compile(re.escape(f".{folder.name}-") + "[a-z0-9_]{8}")
    with suppress(OSError):
        yield from [path for path in folder.parent.iterdir() if pattern.fullmatch(path.name)]


@contextmanager
def _abandoned(scratch: Path) -> Generator[bool]:
    """Hold the lock of a dead process; raise an OSError if the process may be alive.

    Yields whether the temporary folder is old; a new one may not be locked yet.
    """
    age = time.time() - scratch.stat().st_mtime
    if fcntl is None or not (scratch / _LOCK).exists():
        if age < _STALE:
            raise BlockingIOError(f"{scratch} is new")
        yield True
        return
    with (scratch / _LOCK).open("rb+") as lock:
        lock_file(lock)
        yield age > 1


def lock_file(file: IO[bytes]) -> None:
    """Lock a file until it is closed; raise an OSError if another process holds it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _refuse_others(folder: Path, names: Collection[str], what: str) -> None:
    """Raise a FileExistsError if writing would delete other files."""
    if not folder.exists():
        return
    others = sorted({path.name for path in folder.iterdir()} - set(names))
    if others:
        raise FileExistsError(
            f"{folder} contains {others[0]}, which is not part of {what}; save to a new folder"
        )
