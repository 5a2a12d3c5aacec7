"""Graphs as JSON lines, one object per line; ``docs/data-format.md`` describes the format."""

import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from gtpool.atomic import rename_target
from gtpool.data.dataset import GraphDataset
from gtpool.data.delimited import is_gzipped, name_without_gz
from gtpool.data.features import RawGraphs, featurize, learn_recipe
from gtpool.data.formats.reader import (
    InferenceData,
    InferenceOptions,
    InputRow,
    RawReader,
    inference_from_raw,
)
from gtpool.data.records import pack_records
from gtpool.data.schema import Schema, Task

LONGEST_LINE = 64 << 20
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_jsonl(
    path: Path, *, features: str = "gmt", task: Task | None = None, longest_line: int = LONGEST_LINE
) -> GraphDataset:
    """Return labelled graphs from a file.

    Args:
        path: A file of JSON lines, gzipped if its name ends in ``.gz``.
        features: How node features are made, a key of ``FEATURES``.
        task: Task of the labels; inferred from them by default.
        longest_line: Maximum length of a line, in bytes.
    """
    raw = read_jsonl_raw(path, task=task, longest_line=longest_line)
    return featurize(raw, learn_recipe(raw, features))


def read_jsonl_raw(
    path: Path,
    *,
    task: Task | None = None,
    need_targets: bool = True,
    longest_line: int = LONGEST_LINE,
) -> RawGraphs:
    """Return graphs without features, for ``featurize`` with the recipe of a trained model.

    Args:
        path: A file of JSON lines, gzipped if its name ends in ``.gz``.
        task: Task of the labels; inferred from them by default.
        need_targets: Whether every graph must have a label, and labels must differ. Prediction
            does not need labels.
        longest_line: Maximum length of a line, in bytes.
    """
    records = ((line.place, line.record) for line in read_lines(path, longest_line))
    return pack_records(records, jsonl_name(path), task=task, need_targets=need_targets)


class _JsonLines(RawReader):
    def raw(
        self, path: Path, *, name: str | None, task: Task | None, need_targets: bool
    ) -> RawGraphs:
        del name
        return read_jsonl_raw(path, task=task, need_targets=need_targets)

    def read_for_inference(
        self, path: Path, schema: Schema, options: InferenceOptions
    ) -> InferenceData:
        """Read graphs with unconverted labels: the class indices are the model's."""
        del options
        notes: list[InputRow] = []

        def records(lines: Iterator[Line]) -> Iterator[tuple[str, dict[str, Any]]]:
            for line in lines:
                name = line.record.get("id")
                label = line.record.get("label")
                known = "" if name is None else str(name)
                notes.append(InputRow(line.number, known, line.place, label, None))
                yield line.place, {**line.record, "label": None}

        raw = pack_records(records(read_lines(path)), jsonl_name(path), need_targets=False)
        return inference_from_raw(raw, schema, notes)


READER = _JsonLines()


class Line(NamedTuple):
    """One line of the file."""

    number: int
    """Line number, from 1."""
    place: str
    """File, line and id, for error messages."""
    record: dict[str, Any]


def read_lines(path: Path, longest_line: int = LONGEST_LINE) -> Iterator[Line]:
    """Yield the unchecked objects of a file; blank lines are skipped."""
    try:
        yield from _lines(path, longest_line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or not a gzip file: {error}") from error


def jsonl_name(path: Path) -> str:
    """Return the dataset name of a file."""
    return Path(name_without_gz(path)).stem


def write_jsonl(data: GraphDataset, path: Path) -> None:
    """Write graphs atomically, in the format that ``read_jsonl`` reads.

    Features are written as the dataset holds them, categorical codes as numbers.

    Args:
        data: The graphs.
        path: The file, gzipped if its name ends in ``.gz``.
    """
    target = rename_target(path)
    if target is None:
        _write(data, path)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        made = Path(scratch, path.name)
        _write(data, made)
        made.replace(target)


def _write(data: GraphDataset, path: Path) -> None:
    with _open(path, "wb") as file:
        for record in _written(data):
            file.write(json.dumps(record, allow_nan=False).encode() + b"\n")


def _lines(path: Path, longest_line: int) -> Iterator[Line]:
    number = 0
    with _open(path, "rb") as file:
        while line := file.readline(longest_line + 1):
            number += 1
            place = f"{path}, line {number}"
            if len(line) > longest_line:
                raise ValueError(
                    f"{place}: longer than {longest_line} bytes; a line must hold one graph"
                )
            if line.strip():
                record = _parse(line, place)
                name = record.get("id")
                told = f" (id {name!r:.80})" if isinstance(name, str | int | float) else ""
                yield Line(number, place + told, record)
    if number == 0:
        raise ValueError(f"{path} is empty")


def _open(path: Path, mode: str) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path, mode) if is_gzipped(path) else path.open(mode))


def _parse(line: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(
            line.decode("utf-8-sig"), parse_constant=_refuse_constant, object_pairs_hook=_once
        )
        if _SURROGATE.search(line):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise ValueError(f"{place}: not UTF-8 text; is this a file of JSON lines?") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(
            f"{place}: {half!r} is an unpaired surrogate; write the whole pair, or remove it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place}: a line must hold one object, {{...}}, for one graph")
    return cast("dict[str, Any]", value)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; write null for a missing label")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"duplicate key {next(key for key in keys if keys.count(key) > 1)!r}")
    return record


def _written(data: GraphDataset) -> Iterator[dict[str, Any]]:
    """Yield one object per graph."""
    classes = data.schema.task == "classes"
    weighted = data.schema.recipe.edge_weighted
    for graph in data.to_pyg():
        record: dict[str, Any] = {"node_features": graph["x"].tolist()}
        record["edges"] = graph["edge_index"].T.tolist()
        if data.edge_attr is not None:
            edge_attr = graph["edge_attr"]
            if weighted:
                record["edge_weights"] = edge_attr[:, 0].tolist()
            if edge_attr.size(1) > weighted:
                record["edge_features"] = edge_attr[:, int(weighted) :].tolist()
        if classes:
            record["label"] = data.schema.targets[int(graph["y"])]
        elif data.schema.targets:
            row = graph["y"].flatten().tolist()
            record["label"] = [None if value != value else value for value in row]  # noqa: PLR0124
        yield record
