"""A folder that ``GraphDataset.save`` wrote."""

from collections.abc import Sequence
from pathlib import Path

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.ogb import mapped_smiles
from gtpool.data.formats.reader import DatasetReader, InputRow


class _Saved(DatasetReader):
    def dataset(self, path: Path) -> GraphDataset:
        return GraphDataset.load(path)

    def smiles(self, path: Path, rows: Sequence[InputRow]) -> list[str] | None:
        return mapped_smiles(path, len(rows))  # if the user added OGB's mapping file


READER = _Saved()
