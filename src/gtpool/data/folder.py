"""A folder of tensors and plain values, on disk whole or not at all."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

_FORMAT = 1
_TENSORS, _SCHEMA = "graphs.safetensors", "schema.json"


def write_folder(folder: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write ``graphs.safetensors`` and ``schema.json``, in place of those that are there.

    A folder with anything else in it is refused. Both files are written beside the folder and
    moved there last, so a failure leaves what was there before.
    """
    _refuse_others(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made, old = Path(scratch, "made"), Path(scratch, "old")
        made.mkdir()
        try:
            save_file(
                {name: part.cpu().contiguous() for name, part in tensors.items()}, made / _TENSORS
            )
        except SafetensorError as error:
            raise OSError(f"{folder} cannot be written: {error}") from error
        text = json.dumps({"format": _FORMAT, **values}, indent=1)
        (made / _SCHEMA).write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        try:
            made.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise


def read_folder(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Map the tensors that ``write_folder`` wrote into memory and read the values."""
    try:
        values = json.loads((folder / _SCHEMA).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)
    except (ValueError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged ({error}); delete it and make it anew") from error
    if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
        raise ValueError(f"another version wrote {folder}; delete it and make it anew")
    return tensors, values


def _refuse_others(folder: Path) -> None:
    """Raise a FileExistsError where writing would delete what is not ours."""
    if not folder.exists():
        return
    others = sorted({path.name for path in folder.iterdir()} - {_TENSORS, _SCHEMA})
    if others:
        raise FileExistsError(
            f"{folder} holds {others[0]}, which is no part of a dataset; save to a new folder"
        )
