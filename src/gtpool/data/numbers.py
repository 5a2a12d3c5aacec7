"""Reading text files of numbers into tensors; errors name the file and line."""

import gzip
import re
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gtpool.data.delimited import NUMBER, is_gzipped
from gtpool.data.schema import FLOAT32_MAX

_LONGEST_LINE = 1 << 20
_COMMA, _NEWLINE = b",\n"
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_SATURATED = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)  # what numpy reads for larger numbers


def read_numbers(
    path: Path, columns: int | None = None, *, real: bool = False, blanks: bool = False
) -> Tensor:
    """Return the comma-separated finite numbers of a file, [lines, columns].

    Args:
        path: A text file, gzipped if its name ends in ``.gz``.
        columns: Numbers per line; by default as many as on the first line.
        real: Read real numbers (float64, within float32 range) instead of integers (int64).
        blanks: Read empty fields of real numbers as NaN.
    """
    text = read_text(path)
    octets = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((octets == _COMMA) | (octets == _NEWLINE))  # where each field ends
    last = np.flatnonzero(octets[ends] == _NEWLINE)  # which fields are the last of their line
    columns = columns or int(last[0]) + 1
    filled = np.diff(ends, prepend=-1) > 1
    try:
        values = np.fromstring(text.replace(b",", b" "), np.double if real else np.int64, sep=" ")
    except ValueError:
        raise ValueError(_fault(path, text, columns, real, blanks)) from None
    even = bool((np.diff(last, prepend=-1) == columns).all())
    complete = values.size == filled.sum() and (blanks or bool(filled.all()))
    small = np.abs(values) <= FLOAT32_MAX if real else ~np.isin(values, _SATURATED)
    if not (even and complete and small.all()):
        raise ValueError(_fault(path, text, columns, real, blanks))
    if blanks:
        sparse = values
        values = np.full(ends.size, np.nan)
        values[filled] = sparse
    return torch.from_numpy(values.reshape(-1, columns))


def read_text(path: Path) -> bytes:
    r"""Return the bytes of a text file; each line ends in "\n", without blank lines at the end."""
    try:
        with gzip.open(path) if is_gzipped(path) else path.open("rb") as file:
            text = file.readline(_LONGEST_LINE)
            if len(text) == _LONGEST_LINE:
                raise ValueError(f"{path}, line 1: longer than 1 MiB; is this a table of numbers?")
            text += file.read()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or not a gzip file: {error}") from error
    if b"\0" in text:
        raise ValueError(f"{path} is not a text file")
    text = text.replace(b"\r\n", b"\n").rstrip()
    if not text:
        raise ValueError(f"{path} is empty")
    return text + b"\n"


def _fault(path: Path, text: bytes, columns: int, real: bool, blanks: bool) -> str:
    """Return an error message for the first invalid line."""
    pattern, wanted = (NUMBER, "a finite number") if real else (_WHOLE, "an integer")
    for number, line in enumerate(text.decode(errors="replace").split("\n")[:-1], 1):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != columns:
            found = "is empty" if fields == [""] else f"has {len(fields)} fields"
            return f"{path}, line {number}: {found}, expected {columns}"
        for field in fields:
            if not pattern.fullmatch(field) and not (blanks and not field):
                return f"{path}, line {number}: {field[:40]!r} is not {wanted}"
            if field and _is_too_large(field, real):
                limit = f"{FLOAT32_MAX:.4g} (float32)" if real else "2^63 (int64)"
                return f"{path}, line {number}: {field[:40]!r} is beyond {limit}"
    return f"{path} is not a table of numbers separated by commas"


def _is_too_large(field: str, real: bool) -> bool:
    if real:
        return abs(float(field)) > FLOAT32_MAX
    digits = field.lstrip("+-0")
    return len(digits) > 19 or int(field) in _SATURATED or abs(int(field)) > _SATURATED[1]
