"""A file written in parts, which a repeated command completes after an interruption."""

import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gtpool.atomic import lock_file, rename_target

_CONTENT, _STATE, _LOCK = "content", "state.json", "lock"


class ResumableFile:
    """The finished parts of a file, and what the writer noted about them.

    Args:
        folder: Folder of the unfinished file.
        digest: What the content follows from. Parts with another digest are discarded.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder, self._digest = folder, digest
        self.note: Any = None
        """The note given with the last part; None at the start."""
        size = self._read_state()
        if not size:  # else a later call could take it for the state of other content
            (folder / _STATE).unlink(missing_ok=True)
        self._file: IO[bytes] = (folder / _CONTENT).open("r+b" if size else "wb")
        self._file.truncate(size)
        self._file.seek(size)

    def add(self, content: bytes, note: object) -> None:
        """Append a part and store a note of JSON types, so that both survive the process."""
        self._file.write(content)
        self._sync()
        state = {"digest": self._digest, "size": self._file.tell(), "note": note}
        new = self._folder / f"{_STATE}.new"
        new.write_text(json.dumps(state), encoding="utf-8")
        new.replace(self._folder / _STATE)
        self.note = note

    def finish(self, target: Path) -> None:
        """Give the file its final name."""
        self.close()
        (self._folder / _CONTENT).replace(target)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read_state(self) -> int:
        """Read the note and return the bytes of the finished parts, 0 if there are none to use."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # not there, or damaged
            state = json.loads((self._folder / _STATE).read_text(encoding="utf-8"))
            size, there = int(state["size"]), (self._folder / _CONTENT).stat().st_size
            if state["digest"] == self._digest and there >= size:
                self.note = state["note"]
                return size
        return 0


@contextmanager
def resumable_file(path: Path, digest: str) -> Generator[ResumableFile]:
    """Yield a file to append to; it appears under its name at the end, whole.

    On failure or Ctrl-C its parts stay in the folder ``.NAME.partial`` beside it, and the next call
    with the same digest continues there. Symbolic links are followed.

    Args:
        path: The target, a regular or new file.
        digest: Digest of all that the content follows from.
    """
    target = rename_target(path) or path
    folder = target.with_name(f".{target.name}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("wb") as lock:
        try:
            lock_file(lock)
        except BlockingIOError as error:
            raise ValueError(f"another process is writing {path}; wait for it to end") from error
        except OSError:  # a disk without locks
            pass
        file = ResumableFile(folder, digest)
        try:
            yield file
            file.finish(target)
            file.note = None
        finally:
            file.close()
            if file.note is None:  # nothing to continue from
                shutil.rmtree(folder, ignore_errors=True)
