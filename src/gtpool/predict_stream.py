"""Prediction of a table of any length: in parts, on all cores, continued after an interruption."""

import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, partial
from hashlib import file_digest, sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gtpool import __version__
from gtpool.atomic import rename_target
from gtpool.data.formats.reader import InferenceData
from gtpool.data.parallel import usable_cores
from gtpool.data.sources import stream_for_inference
from gtpool.model.bundle import FILES, Bundle, load_bundle
from gtpool.predict import (
    delimiter_of,
    predict_read,
    predict_source,
    predictions_text,
    schema_of,
    write_predictions,
)
from gtpool.resumable import resumable_file
from gtpool.study.ordered_map import limit_kernel_cache, ordered_map
from gtpool.study.run_one import choose_device

FEW = 4096
"""Rows of a table that are predicted at once, by this process."""
PART = 1024
"""Rows of a part of a longer table, a multiple of the batch size."""
_GPU_PROCESSES = 4  # each needs memory of the GPU
_REASONS = 1000  # different reasons that are counted, at most

Tell = Callable[[int, int], None]
"""Function of the number of finished rows and of all rows."""


class Summary(NamedTuple):
    """What became of the rows of a source."""

    rows: int
    predicted: int
    reasons: dict[str, int]
    """Number of rows for each reason why there is no prediction; at most 1,000 reasons."""

    def plus(self, rows: int, predicted: int, reasons: dict[str, int]) -> "Summary":
        """Return the sums, without new reasons above the limit."""
        counts = Counter(self.reasons)
        for reason, count in reasons.items():
            if reason in counts or len(counts) < _REASONS:
                counts[reason] += count
        return Summary(self.rows + rows, self.predicted + predicted, dict(counts))


_NONE = Summary(0, 0, {})


class _Job(NamedTuple):
    """What predicts a part of a table, beside its rows."""

    model: Path
    read: Callable[[Sequence[Any]], InferenceData]
    device: str
    delimiter: str
    coverage: float | None


def predict_file(
    model: Path,
    source: str,
    output: Path | BinaryIO,
    *,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    device: str = "auto",
    coverage: float | None = None,
    tell: Tell | None = None,
) -> Summary:
    """Write the predictions for a source as CSV or TSV, as ``predictions_text`` returns them.

    A table of more than ``FEW`` rows is read in parts, by one process per core, so that memory
    does not grow with the table. Its predictions appear under the name of the output at the end.
    Until then they are in the folder ``.NAME.partial`` beside it, where a call with equal arguments
    and files continues.

    Args:
        model: Folder of a trained model.
        source: As for ``predict_source``.
        output: File to write, with tabs if it ends in .tsv or .tab; or an open file, to which each
            part is written when it is finished.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: SMILES column of a table, as for ``predict_source``.
        device: "auto", "cpu" or "cuda".
        coverage: Stated coverage of conformal sets or intervals, as for ``predict_source``.
        tell: Called at the start and after each part of a long table.
    """
    limit_kernel_cache()
    bundle = load_bundle(model)
    if coverage is not None:
        bundle.calibration.limits(coverage)  # raises before the table is read
    options: dict[str, Any] = {
        "smiles_column": smiles_column,
        "device": device,
        "coverage": coverage,
    }
    open_stream = partial(
        stream_for_inference,
        source,
        schema_of(bundle),
        smiles_column=smiles_column,
        trained_column=bundle.part("run", "data").get("smiles_column"),
    )
    stream = open_stream()
    total = 0 if stream is None else sum(1 for _ in stream.rows)  # also checks the whole file
    stream = open_stream() if total > FEW else None
    if stream is None:
        return _predict_at_once(bundle, source, output, data_dir=data_dir, **options)
    if isinstance(output, Path) and rename_target(output) is None:  # a device or a pipe
        with output.open("wb") as opened:
            return predict_file(model, source, opened, tell=tell, **options)
    delimiter = delimiter_of(output) if isinstance(output, Path) else ","
    job = _Job(model, stream.read, device, delimiter, coverage)

    def report(done: int) -> None:
        if tell is not None:
            tell(done, total)

    if not isinstance(output, Path):
        return _predict_parts(job, stream.rows, _NONE, lambda part, _: output.write(part), report)
    with resumable_file(output, _digest(job, source, smiles_column)) as file:
        done = _NONE if file.note is None else Summary(*file.note)
        return _predict_parts(job, stream.rows, done, file.add, report)


def _predict_at_once(
    bundle: Bundle,
    source: str,
    output: Path | BinaryIO,
    **options: Any,  # noqa: ANN401
) -> Summary:
    found = predict_source(bundle, source, **options)
    if isinstance(output, Path):
        write_predictions(output, found)
    else:
        output.write(predictions_text(found).encode())
    return _NONE.plus(*_counts([row.reason for row in found.rows]))


def _predict_parts(
    job: _Job,
    rows: Iterator[Any],
    done: Summary,
    write: Callable[[bytes, Summary], object],
    report: Callable[[int], None],
) -> Summary:
    """Predict and write the rows after those that are done; return what became of all."""
    report(done.rows)
    _load_once.cache_clear()  # the folder may hold another model than at the last call
    tasks = _tasks(islice(rows, done.rows, None), header=not done.rows)
    gpu = choose_device(job.device).type == "cuda"
    processes = min(usable_cores(), _GPU_PROCESSES) if gpu else usable_cores()
    with closing(ordered_map(partial(_predict_part, job), tasks, processes)) as parts:
        for content, counts in parts:
            done = done.plus(*counts)
            write(content, done)
            report(done.rows)
    return done


def _tasks(rows: Iterator[Any], *, header: bool) -> Generator[tuple[list[Any], bool]]:
    """Yield the rows of each part, and whether the names of the columns come first."""
    while part := list(islice(rows, PART)):
        yield part, header
        header = False


def _predict_part(
    job: _Job, task: tuple[list[Any], bool]
) -> tuple[bytes, tuple[int, int, dict[str, int]]]:
    """Return the predictions for some rows as text, and what became of the rows."""
    rows, header = task
    read = job.read(rows)
    smiles = [row.id for row in read.rows if row.reason is None]
    found = predict_read(_load_once(job.model), read, job.device, smiles, job.coverage)
    text = predictions_text(found, job.delimiter, header=header)
    _trim_memory()
    return text.encode(), _counts([row.reason for row in found.rows])


def _trim_memory() -> None:
    """Return freed memory to the system if the C library is glibc, else it grows with parts."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


_load_once = lru_cache(maxsize=1)(load_bundle)


def _counts(reasons: Sequence[str | None]) -> tuple[int, int, dict[str, int]]:
    """Return the number of rows, of predictions, and of rows for each reason."""
    found = Counter(reason for reason in reasons if reason is not None)
    return len(reasons), len(reasons) - found.total(), dict(found)


def _digest(job: _Job, source: str, smiles_column: str | None) -> str:
    """Return a digest of all that the predictions follow from."""
    options = (source, smiles_column, *job[2:], PART)
    digest = sha256(repr((__version__, version("rdkit"), version("torch"), options)).encode())
    files = [path for name in FILES if (path := job.model / name).is_file()]
    for path in (Path(source), *files):
        with path.open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()
