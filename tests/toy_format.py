"""The format of CONTRIBUTING's "Add a format": a graph a line, its class and its edges.

ring 0-1 1-2 2-0
"""

from pathlib import Path

from gtpool.data.features import RawGraphs
from gtpool.data.formats.reader import RawReader
from gtpool.data.records import pack_records
from gtpool.data.schema import Task


class _Edges(RawReader):
    def raw(
        self, path: Path, *, name: str | None, task: Task | None, need_targets: bool
    ) -> RawGraphs:
        records = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            label, *edges = line.split()
            pairs = [[int(end) for end in edge.split("-")] for edge in edges]
            record = {"nodes": 1 + max(map(max, pairs)), "edges": pairs, "undirected": True}
            told = None if label == "?" else label
            records.append((f"{path}, line {number}", {**record, "label": told}))
        return pack_records(records, name or path.stem, task=task, need_targets=need_targets)


READER = _Edges()
