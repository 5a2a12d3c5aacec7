"""A folder with a safetensors and a JSON file, written atomically."""

import json
from collections.abc import Mapping
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
