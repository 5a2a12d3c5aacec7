"""Reading and writing CSV and TSV files; errors name the file and line."""

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BufferedReader, StringIO
from itertools import chain
from pathlib import Path

TABLE_SUFFIXES = (".csv", ".tsv", ".tab")
"""Suffixes of table files, each also with .gz."""
MAX_LINE = 1_000_000
"""Longest line that is read, in bytes; a longer one could fill the memory."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_SIGNS = ("+", "-")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A decimal number."""


def read_csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the header and then each row: its first line number and its cells.

    Blank lines are skipped. Cells keep surrounding spaces; a quoted cell may hold line breaks.

    Args:
        path: A UTF-8 file ending in .csv (commas, or semicolons if the header has no comma), .tsv
            or .tab (tabs), or one of these and .gz.
    """
    ending = suffix_without_gz(path)
    if ending not in TABLE_SUFFIXES:
        raise ValueError(f"{path}: a table ends in .csv, .tsv or .tab (or one of these and .gz)")
    lines = _lines(path)
    first = next(lines, "")
    comma = ";" if ";" in first and "," not in first else ","
    rows = _rows(path, chain([first], lines), comma if ending == ".csv" else "\t")
    header = next(rows, None)
    if header is None:
        raise ValueError(f"{path} is empty; its first line must name the columns")
    names = [name.strip() for name in header[1]]
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{path}: {times} columns are called {name!r}; give each its own name")
    yield header
    for line, cells in rows:
        if len(cells) != len(names):
            raise ValueError(
                f"{path}, line {line}: {len(cells)} cells, but the header has {len(names)} columns"
            )
        yield line, cells


def format_csv(records: Iterable[Iterable[object]], delimiter: str = ",") -> str:
    r"""Return CSV text that ``read_csv_rows`` reads back; each row ends in "\n".

    Args:
        records: The header and the rows. Pass text that does not come from the user's own table
            through ``safe_cell``.
        delimiter: The cell separator.
    """
    text = StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")  # so that \r is quoted
    lines: list[str] = []
    for cells in records:
        writer.writerow(cells)
        lines.append(text.getvalue().removesuffix("\r\n"))
        text.seek(0)
        text.truncate()
    return "\n".join([*lines, ""])


def safe_cell(cell: str) -> str:
    """Return text that a spreadsheet does not run as a formula: OWASP's rule, a leading quote.

    Numbers and a single sign are unchanged.

    Example:
        >>> [safe_cell(cell) for cell in ("=1+1", "-1", "+", "[Na+]")]
        ["'=1+1", '-1', '+', '[Na+]']
    """
    harmless = not cell.startswith(_FORMULA) or cell in _SIGNS or NUMBER.fullmatch(cell)
    return cell if harmless else f"'{cell}"


def name_without_gz(path: Path) -> str:
    """Return the file name without .gz."""
    return path.stem if is_gzipped(path) else path.name


def is_gzipped(path: Path) -> bool:
    """Whether a file name ends in .gz, in any case."""
    return path.suffix.lower() == ".gz"


def suffix_without_gz(path: Path) -> str:
    """Return the lower-case suffix before .gz, such as .csv."""
    return Path(name_without_gz(path)).suffix.lower()


def _rows(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        begin = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}: the row at line {begin} cannot be read: {error}") from error
        if cells:
            yield begin, cells


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file; a line longer than MAX_LINE is an error."""
    with gzip.open(path) if is_gzipped(path) else path.open("rb") as file:
        number = 0
        while line := _next(path, file):
            number += 1
            if len(line) > MAX_LINE:
                raise ValueError(
                    f"{path}, line {number}: longer than {MAX_LINE:,} bytes; is this a table?"
                )
            yield _decoded(path, number, line)


def _next(path: Path, file: gzip.GzipFile | BufferedReader) -> bytes:
    try:
        return file.readline(MAX_LINE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1} of line {number}"
        raise ValueError(f"{path} is not UTF-8 text ({place}); save it in UTF-8") from error
    if "\0" in text:
        raise ValueError(f"{path} is not text: line {number} holds a zero byte")
    return text
