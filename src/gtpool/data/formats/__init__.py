"""The formats that graphs are read from: a line here and a module each. No torch.

Training, predicting, evaluating, explaining and ``gtpool.load`` all find the reader of a path here.
Graphs that a program holds in memory have a line each in ``gtpool.data.formats.memory``.
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
    """How a format is recognised, and where its reader is."""

    module: str
    """The module that reads it: it has a ``READER``, imported on first use."""
    called: str
    """What it is called in messages."""
    endings: tuple[str, ...] = ()
    """Of a format that is a file: how its name ends, before ``.gz`` if it is packed."""
    holds: str = ""
    """Of a format that is a folder: a pattern of a file that is in it."""
    options: tuple[str, ...] = ()
    """Fields of ``DataSpec`` that not every format takes and this one does."""
    smiles: bool = False
    """Whether it holds SMILES, so that graphs are molecules with atoms and bonds."""

    def recognises(self, path: Path) -> bool:
        """Say whether a path is of this format; a file is known by its name alone."""
        if path.is_dir():
            return bool(self.holds) and any(path.glob(self.holds))
        return suffix_without_gz(path) in self.endings

    @property
    def reader(self) -> "FormatReader":
        """What reads it."""
        return cast("FormatReader", import_module(self.module).READER)


FORMATS: dict[str, Format] = {
    "table": Format(
        module="gtpool.data.formats.table",
        called="a table",
        endings=TABLE_SUFFIXES,
        options=("smiles_column", "target_columns", "split_column", "task"),
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
"""By name; that of a family of the registry reads its datasets. The first that recognises a path
reads it."""


def recognise(path: Path) -> Format | None:
    """Give the format of a path, or None; a file need not be there.

    Example:
        >>> [recognise(Path(name)).called for name in ("mine.csv.gz", "mine.jsonl")]
        ['a table', 'JSON lines']
    """
    return next((form for form in FORMATS.values() if form.recognises(path)), None)


def format_of(path: Path) -> Format:
    """Give the format of what lies at a path; nothing there, or nothing known, is an error."""
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
        f"{path} is of no known kind: its name must end in {', '.join(others)} or {last}, "
        "or one of these and .gz"
    )


def formats_with_option(option: str) -> str:
    """Name the formats that take an option of ``DataSpec``.

    Example:
        >>> formats_with_option("task")
        'a table or JSON lines'
    """
    return " or ".join(form.called for form in FORMATS.values() if option in form.options)
