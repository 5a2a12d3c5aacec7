"""A folder with a safetensors and a JSON file, written atomically."""

import ctypes
import json
import mmap
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gtpool.atomic import new_folder, recover_folder

_FORMAT = 1
_TENSORS, _SCHEMA = "graphs.safetensors", "schema.json"


def write_folder(folder: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write ``graphs.safetensors`` and ``schema.json``, replacing existing ones.

    A folder with any other file is an error.
    """
    text = json.dumps({"format": _FORMAT, **values}, indent=1)
    with new_folder(folder, (_TENSORS, _SCHEMA), "a dataset") as made:
        save_file(
            {name: part.cpu().contiguous() for name, part in tensors.items()}, made / _TENSORS
        )
        (made / _SCHEMA).write_text(text, encoding="utf-8")


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors (memory-mapped) and the values that ``write_folder`` wrote."""
    if not folder.exists():
        recover_folder(folder)
    try:
        values = json.loads((folder / _SCHEMA).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)
    except (ValueError, RecursionError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged ({error}); delete it and save it again") from error
    if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
        raise ValueError(f"another version wrote {folder}; delete it and save it again")
    return tensors, values


def read_pages_alone(tensors: Iterable[Tensor]) -> None:
    """Have Linux read mapped tensors by the page; else it reads up to megabytes around each row."""
    for part in tensors:
        _advise(part.data_ptr(), part.nbytes, "MADV_RANDOM")


def read_ahead(tensor: Tensor, starts: Tensor, ends: Tensor) -> None:
    """Have Linux read ranges of rows of a mapped tensor in the background.

    Args:
        tensor: A contiguous tensor.
        starts: First row of each range.
        ends: The row after each range.
    """
    first, row = tensor.data_ptr(), tensor.stride(0) * tensor.element_size()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        _advise(first + start * row, (end - start) * row, "MADV_WILLNEED")


def _advise(address: int, size: int, advice: str) -> None:
    if size and (libc := _libc()) is not None:
        start = address // mmap.PAGESIZE * mmap.PAGESIZE
        libc.madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(address + size - start), _ADVICE[advice]
        )


_ADVICE = {"MADV_RANDOM": 1, "MADV_WILLNEED": 3}  # Linux's numbers


@cache
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
