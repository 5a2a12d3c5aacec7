"""Finished runs on disk: one small JSON file each, there whole or not at all. Needs no torch."""

import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4

from gtpool.atomic import rename_target
from gtpool.study.result import RunResult

_TEMP_FILES: set[Path] = set()  # files that this process is writing
_STALE = 60.0  # seconds after which nobody is still writing a small file
_ENVIRONMENT_FIELDS = frozenset(
    {
        "seconds",
        "peak_rss_mb",
        "peak_gpu_mb",
        "device",
        "versions",
        "commit",
        "finished",
        "together",
        "processes",
        "artifact_digest",
    }
)
_REQUIRED_FIELDS = (
    "metric",
    "higher_is_better",
    "test",
    "valid_loss",
    "valid_metric",
    "epoch",
    "epochs_run",
    "seconds",
    "device",
    "versions",
)


class Store:
    """A folder of finished runs, which any number of processes may read and write at once.

    Args:
        folder: Rows lie in ``runs/KEY.json`` below it; it is made when the first is put.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> RunResult | None:
        """Give the row of a run; None where there is none, or (which warns) a damaged one."""
        return _read_row(self._runs / f"{key}.json")

    def put(self, row: RunResult) -> None:
        """Keep a row under its key, in place of the one that is there."""
        text = json.dumps(row.to_json(), indent=1, allow_nan=False) + "\n"
        write_atomic(self._runs / f"{row.key}.json", text.encode())

    def rows(self) -> list[RunResult]:
        """Give all rows by key; a damaged one warns and is left out."""
        found = (_read_row(path) for path in sorted(self._runs.glob("*.json")))
        return [row for row in found if row is not None]

    def artifact(self, key: str) -> Path:
        """Say where the weights and test predictions of a run lie, if they were kept."""
        return self._runs / f"{key}.safetensors"

    def sweep(self) -> None:
        """Remove what processes that were killed while writing have left."""
        for left in (*self._runs.glob(".*.tmp"), *self.folder.glob(f".*.{'[0-9a-f]' * 32}.tmp")):
            with suppress(FileNotFoundError):  # finished or removed by another process
                if time.time() - left.stat().st_mtime > _STALE:
                    left.unlink()

    @property
    def _runs(self) -> Path:
        return self.folder / "runs"


def check_writable(folder: Path) -> None:
    """Say at once, not after hours of work, that a folder cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"{folder} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, now or after a crash, sees all of it or what was there.

    A symbolic link is followed. A device or FIFO is written into; a directory is an error.
    """
    target = rename_target(path)
    if target is None:
        path.write_bytes(content)
        return
    temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
    _TEMP_FILES.add(temporary)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise OSError(
            f"{target.parent} cannot be written: {error.strerror or error}; free some space or "
            "choose another folder, and start again: what is finished is kept"
        ) from error
    finally:  # after Ctrl-C as well
        with suppress(OSError):
            temporary.unlink()
        _TEMP_FILES.discard(temporary)


def remove_temp_files() -> None:
    """Remove what this process has written half, before it ends."""
    for temporary in list(_TEMP_FILES):
        with suppress(OSError):
            temporary.unlink()


def read_rows(source: Path | str) -> list[RunResult]:
    """Read rows from a store, from a file that ``collect`` wrote, or a folder of such files."""
    return [row for row, _ in locate_rows(source)]


def locate_rows(source: Path | str) -> Iterator[tuple[RunResult, str]]:
    """Read rows, each with the file and line where it stands."""
    path = Path(source)
    files = sorted(path.glob("*.jsonl")) if not (path / "runs").is_dir() else []
    for file in files:
        yield from locate_rows(file)
    if files:
        return
    if path.is_dir():
        for row in Store(path).rows():
            yield row, str(path / "runs" / f"{row.key}.json")
        return
    if not path.exists():
        raise FileNotFoundError(f"there is no store or file of rows at {path}")
    yield from _locate_lines(path)


def suggest_subfolder(sources: Iterable[Path | str]) -> str:
    """Ask, where folders have no rows, whether one right below them was meant that has some."""
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    below = (path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir())
    meant = next(filter(_has_rows, below), None)
    return "" if meant is None else f"; did you mean {meant}?"


def differing_fields(row: RunResult, other: RunResult) -> list[str]:
    """Name what two rows of a run say differently, apart from time, memory and machine."""
    one, two = row.to_json(), other.to_json()
    apart = set[str]() if "curves" in one and "curves" in two else {"curves"}
    # The key is the digest of the spec, which an older row may write without a later option.
    names = sorted((one.keys() | two.keys()) - _ENVIRONMENT_FIELDS - apart - {"spec"})
    return [name for name in names if one.get(name) != two.get(name)]


def collect(sources: Iterable[Path | str], out: Path, *, curves: bool = True) -> list[RunResult]:
    """Pack rows into one file of JSON lines, sorted by key, and give them.

    A run that is in several sources must have the same numbers in all; time, memory and machine may
    differ. Where it failed in one and was done in another, the done row counts.

    Args:
        sources: Folders of stores, and files that were collected before.
        out: The file to write. It is a source as well: rows that it has stay, with their curves.
        curves: Keep what each epoch gave, which is most of a row.
    """
    if out.is_dir():
        raise ValueError(f"{out} is a folder; name a file, such as {out / 'rows.jsonl'}")
    named = list(sources)
    found = [placed for source in named for placed in locate_rows(source)]
    if not found:
        where = ", ".join(map(str, named))
        raise ValueError(f"there are no rows to collect in {where}{suggest_subfolder(named)}")
    before = list(locate_rows(out)) if out.is_file() else []
    kept = _merged([*before, *found], curves=curves)
    whole = kept.keys() if curves else {row.key for row, _ in before if row.curves is not None}
    rows = [kept[key] if key in whole else kept[key].updated(curves=None) for key in sorted(kept)]
    lines = (json.dumps(row.to_json(), sort_keys=True, allow_nan=False) + "\n" for row in rows)
    write_atomic(out, "".join(lines).encode())
    return rows


def _locate_lines(path: Path) -> Iterator[tuple[RunResult, str]]:
    """Read the rows of a file; blank lines are none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row, place = _parse(line), f"{path}, line {number}"
            if row is None:
                raise ValueError(
                    f"{place}: not the row of a run; is the file cut off, or of another kind? Take "
                    "the line or the file out"
                )
            yield row, place


def _has_rows(folder: Path) -> bool:
    try:
        return next(locate_rows(folder), None) is not None
    except (ValueError, OSError):  # files of something else
        return False


def _merged(found: Iterable[tuple[RunResult, str]], *, curves: bool) -> dict[str, RunResult]:
    """Choose a row for each run, the first of those that are as good; with curves is better."""
    kept: dict[str, tuple[RunResult, str]] = {}
    for row, place in found:
        other, home = kept.get(row.key, (None, ""))
        if other is None or (other.status == "failed" and row.done):
            kept[row.key] = row, place
        elif row.status == other.status == "done":
            if names := differing_fields(row, other):
                raise ValueError(
                    f"run {row.key} has two rows, in {home} and in {place}, that differ in "
                    f"{', '.join(names)}; keep one of the two"
                )
            if curves and row.curves is not None and other.curves is None:
                kept[row.key] = row, place
    return {key: row for key, (row, _) in kept.items()}


def _read_row(path: Path) -> RunResult | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    row = _parse(content)
    if row is None or row.key != path.stem:
        warnings.warn(
            f"{path} is damaged and does not count: its run is to be done again", stacklevel=3
        )
        return None
    return row


def _parse(content: bytes | str) -> RunResult | None:
    """Read a row; None for what is no JSON object with all that its status asks for."""
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("key"), str):
        return None
    finished = row.get("status") == "done" and row.keys() >= set(_REQUIRED_FIELDS)
    parts = (row.get("spec"), row.get("split"), row.get("other_rules"))
    whole = finished and all(isinstance(part, dict) for part in parts)
    return RunResult.from_json(row) if whole or row.get("status") == "failed" else None


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
