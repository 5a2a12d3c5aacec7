"""Files and folders that are on disk whole or not at all."""

import stat
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


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
    """Give an empty folder to write into, which takes the place of ``folder`` at the end.

    A failure leaves what was there before. A symbolic link is followed.

    Args:
        folder: Where the folder is to stand.
        names: Files that may be there already and are replaced; others are not ours to delete.
        what: The thing that the files make up, for the message that refuses others.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    _refuse_others(folder, names, what)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made, old = Path(scratch, "made"), Path(scratch, "old")
        made.mkdir()
        try:
            yield made
        except SafetensorError as error:  # a full disk, for one
            raise OSError(f"{folder} cannot be written: {error}") from error
        if folder.exists():
            folder.rename(old)
        try:
            made.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise


def _refuse_others(folder: Path, names: Collection[str], what: str) -> None:
    """Raise a FileExistsError where writing would delete what is not ours."""
    if not folder.exists():
        return
    others = sorted({path.name for path in folder.iterdir()} - set(names))
    if others:
        raise FileExistsError(
            f"{folder} holds {others[0]}, which is no part of {what}; save to a new folder"
        )
