"""Store of results on disk: one JSON file per run, written atomically. No torch."""

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

_TEMP_FILES: set[Path] = set()  # being written by this process
_STALE = 60.0  # seconds after which a temporary file is abandoned
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
    """Folder of results that several processes may read and write at once.

    Args:
        folder: Results are in ``runs/KEY.json`` below it. It is created on the first ``put``.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, key: str) -> RunResult | None:
        """Return the result of a run; None if missing or, with a warning, damaged."""
        return _read_row(self._runs / f"{key}.json")

    def put(self, row: RunResult) -> None:
        """Store a result under its key, replacing an existing one."""
        text = json.dumps(row.to_json(), indent=1, allow_nan=False) + "\n"
        write_atomic(self._runs / f"{row.key}.json", text.encode())

    def rows(self) -> list[RunResult]:
        """Return all results, sorted by key; damaged ones are skipped with a warning."""
        found = (_read_row(path) for path in sorted(self._runs.glob("*.json")))
        return [row for row in found if row is not None]

    def artifact(self, key: str) -> Path:
        """Return the path of the weights and test logits of a run."""
        return self._runs / f"{key}.safetensors"

    def predictions(self, key: str) -> Path:
        """Return the path of the test logits of a run whose weights are not kept."""
        return self._runs / f"{key}.test.safetensors"

    def remove_stale_files(self) -> None:
        """Remove temporary files of processes that were killed while writing."""
        for left in (*self._runs.glob(".*.tmp"), *self.folder.glob(f".*.{'[0-9a-f]' * 32}.tmp")):
            with suppress(FileNotFoundError):  # removed by another process
                if time.time() - left.stat().st_mtime > _STALE:
                    left.unlink()

    @property
    def _runs(self) -> Path:
        return self.folder / "runs"


def check_writable(folder: Path) -> None:
    """Raise an OSError if a folder cannot be created or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"{folder} cannot be written: {error.strerror or error}; choose another folder"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old or the new content, even after a crash.

    Symbolic links are followed. Devices and FIFOs are written directly. A directory is an error.
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
            "choose another folder, then repeat the command to resume"
        ) from error
    finally:  # also after Ctrl-C
        with suppress(OSError):
            temporary.unlink()
        _TEMP_FILES.discard(temporary)


def remove_temp_files() -> None:
    """Remove the temporary files of this process."""
    for temporary in list(_TEMP_FILES):
        with suppress(OSError):
            temporary.unlink()


def read_rows(source: Path | str) -> list[RunResult]:
    """Return the results in a store, a file of ``collect``, or a folder of such files."""
    return [row for row, _ in locate_rows(source)]


def locate_rows(source: Path | str) -> Iterator[tuple[RunResult, str]]:
    """Yield the results in a store, file or folder, each with its file and line."""
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
        raise FileNotFoundError(f"no store or file of results at {path}")
    yield from _locate_lines(path)


def suggest_subfolder(sources: Iterable[Path | str]) -> str:
    """Return a hint that names a subfolder with results; empty if there is none."""
    folders = [Path(source) for source in sources if Path(source).is_dir()]
    below = (path for folder in folders for path in sorted(folder.iterdir()) if path.is_dir())
    meant = next(filter(_has_rows, below), None)
    return "" if meant is None else f"; did you mean {meant}?"


def differing_fields(row: RunResult, other: RunResult) -> list[str]:
    """Return the fields in which two results differ, except time, memory and machine."""
    one, two = row.to_json(), other.to_json()
    apart = set[str]() if "curves" in one and "curves" in two else {"curves"}
    # Equal keys imply equal specs, even if an older row lacks newer options.
    names = sorted((one.keys() | two.keys()) - _ENVIRONMENT_FIELDS - apart - {"spec"})
    return [name for name in names if one.get(name) != two.get(name)]


def collect(sources: Iterable[Path | str], out: Path, *, curves: bool = True) -> list[RunResult]:
    """Merge results into one JSON lines file, sorted by key, and return them.

    Results of a run from several sources must agree, except for time, memory and machine. A
    finished result replaces a failed one.

    Args:
        sources: Stores and files of ``collect``.
        out: File to write. Its existing results are kept, with their curves.
        curves: Keep the curves, which are most of a result.
    """
    if out.is_dir():
        raise ValueError(f"{out} is a folder; give a file, such as {out / 'rows.jsonl'}")
    named = list(sources)
    found = [placed for source in named for placed in locate_rows(source)]
    if not found:
        where = ", ".join(map(str, named))
        raise ValueError(f"no results to collect in {where}{suggest_subfolder(named)}")
    before = list(locate_rows(out)) if out.is_file() else []
    kept = _merged([*before, *found], curves=curves)
    whole = kept.keys() if curves else {row.key for row, _ in before if row.curves is not None}
    rows = [kept[key] if key in whole else kept[key].updated(curves=None) for key in sorted(kept)]
    lines = (json.dumps(row.to_json(), sort_keys=True, allow_nan=False) + "\n" for row in rows)
    write_atomic(out, "".join(lines).encode())
    return rows


def _locate_lines(path: Path) -> Iterator[tuple[RunResult, str]]:
    """Yield the results of a file with their lines; blank lines are skipped."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row, place = _parse(line), f"{path}, line {number}"
            if row is None:
                raise ValueError(
                    f"{place}: not the result of a run; remove the line if it is truncated, or the "
                    "file"
                )
            yield row, place


def _has_rows(folder: Path) -> bool:
    try:
        return next(locate_rows(folder), None) is not None
    except (ValueError, OSError):  # other files
        return False


def _merged(found: Iterable[tuple[RunResult, str]], *, curves: bool) -> dict[str, RunResult]:
    """Return one result per run: finished before failed, with curves before without."""
    kept: dict[str, tuple[RunResult, str]] = {}
    for row, place in found:
        other, home = kept.get(row.key, (None, ""))
        if other is None or (other.status == "failed" and row.done):
            kept[row.key] = row, place
        elif row.status == other.status == "done":
            if names := differing_fields(row, other):
                raise ValueError(
                    f"run {row.key} has different results in {home} and in {place}: "
                    f"{', '.join(names)}; remove one of them"
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
        warnings.warn(f"{path} is damaged and ignored; its run must be repeated", stacklevel=3)
        return None
    return row


def _parse(content: bytes | str) -> RunResult | None:
    """Return a result, or None if it is not valid JSON or lacks required fields."""
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
    """Flush a rename to disk, on POSIX."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
