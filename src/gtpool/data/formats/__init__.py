"""The registry of file formats: one entry and one module per format. Does not import torch.

Training, prediction, evaluation, explanation and ``gtpool.load`` look up the reader of a path here.
Graphs in memory are read by ``gtpool.data.formats.memory``.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gtpool.data.delimited import TABLE_SUFFIXES, suffix_without_gz

if TYPE_CHECKING:
    from gtpool.data.formats.reader import FormatReader


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a format is recognised, and its reader."""

    module: str
    """Module with a ``READER``, imported on first use."""
    called: str
    """Name in messages."""
    endings: tuple[str, ...] = ()
    """File suffixes, without ``.gz``, for a format of single files."""
    holds: str = ""
    """Glob pattern of a file in the folder, for a format of folders."""
    options: tuple[str, ...] = ()
    """Format-specific fields of ``DataSpec`` that this format accepts."""
    smiles: bool = False
    """Whether it holds SMILES."""

    def recognises(self, path: Path) -> bool:
        """Whether a path has this format; a file is recognised by its name."""
        if path.is_dir():
            return bool(self.holds) and any(path.glob(self.holds))
        return suffix_without_gz(path) in self.endings

    @property
    def reader(self) -> "FormatReader":
        """The reader, from ``module``."""
        return cast("FormatReader", import_module(self.module).READER)


FORMATS: dict[str, Format] = {
    "table": Format(
        module="gtpool.data.formats.table",
        called="a table",
        endings=TABLE_SUFFIXES,
        options=(
            "smiles_column",
            "target_columns",
            "split_column",
            "group_column",
            "time_column",
            "contradictions",
            "task",
            "feature_columns",
        ),
        smiles=True,
    ),
    "jsonl": Format(
        module="gtpool.data.formats.jsonl",
        called="JSON lines",
        endings=(".jsonl",),
        options=("task", "features"),
    ),
    "TU": Format(
        module="gtpool.data.formats.tu",
        called="TU format",
        holds="*_A.txt",
        options=("features",),
    ),
    "OGB": Format(
        module="gtpool.data.formats.ogb",
        called="OGB format",
        holds="raw/edge.csv.gz",
    ),
    "saved": Format(
        module="gtpool.data.formats.saved",
        called="a saved dataset",
        holds="schema.json",
    ),
}
"""Formats by name. Names of dataset families read the datasets of that family. The first format
that recognises a path reads it."""


def recognise(path: Path) -> Format | None:
    """Return the format of a path, or None; a file need not exist.

    Example:
        >>> [recognise(Path(name)).called for name in ("mine.csv.gz", "mine.jsonl")]
        ['a table', 'JSON lines']
    """
    return next((form for form in FORMATS.values() if form.recognises(path)), None)


def format_of(path: Path) -> Format:
    """Return the format of an existing path; raise an error if there is none."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    found = recognise(path)
    if found is not None:
        return found
    if path.is_dir():
        first, *others = [
            f"{form.holds.replace('*', 'NAME')} ({form.called})"
            for form in FORMATS.values()
            if form.holds
        ]
        listed = "".join(f", nor {other}" for other in others)
        raise ValueError(f"{path} holds no graphs: neither {first}{listed}")
    *others, last = [ending for form in FORMATS.values() for ending in form.endings]
    raise ValueError(
        f"{path} has no known format: its name must end in {', '.join(others)} or {last}, "
        "or one of these and .gz"
    )


def formats_with_option(option: str) -> str:
    """Return the names of the formats that accept a field of ``DataSpec``, joined by "or".

    Example:
        >>> formats_with_option("task")
        'a table or JSON lines'
    """
    return " or ".join(form.called for form in FORMATS.values() if option in form.options)
