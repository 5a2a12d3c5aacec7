"""Molecules in the folder format of the Open Graph Benchmark.

Hu et al.: "Open Graph Benchmark: datasets for machine learning on graphs", 2020.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset, to_smallest_int
from gtpool.data.delimited import read_csv_rows
from gtpool.data.formats.reader import DatasetReader, InputRow
from gtpool.data.molecule import ATOM_SIZES, BOND_SIZES
from gtpool.data.numbers import read_numbers
from gtpool.data.schema import Recipe, Schema

# Atoms keep the order of the files; atom_order applies to SMILES that a trained model reads later.
_RECIPE = Recipe("molecule", atom_order="canonical")
_MOST = torch.iinfo(torch.int32).max


def read_ogb(folder: Path) -> GraphDataset:
    """Return molecules with binary tasks; each bond becomes two directed edges.

    Args:
        folder: The folder with ``raw/edge.csv.gz`` and the other files, such as ``ogbg_molhiv``.
    """
    raw = folder / "raw"
    sizes = read_numbers(raw / "num-node-list.csv.gz", 1).flatten()
    bonds = read_numbers(raw / "num-edge-list.csv.gz", 1).flatten()
    x = read_numbers(raw / "node-feat.csv.gz", 9)
    edges = read_numbers(raw / "edge.csv.gz", 2)
    edge_attr = read_numbers(raw / "edge-feat.csv.gz", 3)
    labels = raw / "graph-label.csv.gz"
    y = read_numbers(labels, real=True, blanks=True)
    _check_range(raw / "num-node-list.csv.gz", sizes.unsqueeze(1), 1, [_MOST])
    _check_range(raw / "num-edge-list.csv.gz", bonds.unsqueeze(1), 0, [_MOST])
    _check_range(raw / "node-feat.csv.gz", x, 0, [size - 1 for size in ATOM_SIZES])
    _check_range(raw / "edge-feat.csv.gz", edge_attr, 0, [size - 1 for size in BOND_SIZES])
    for name, found, expected, counted in (
        ("num-edge-list", bonds.numel(), sizes.numel(), "molecules of num-node-list"),
        ("graph-label", y.size(0), sizes.numel(), "molecules of num-node-list"),
        ("node-feat", x.size(0), int(sizes.sum()), "atoms of num-node-list"),
        ("edge", edges.size(0), int(bonds.sum()), "bonds of num-edge-list"),
        ("edge-feat", edge_attr.size(0), int(bonds.sum()), "bonds of num-edge-list"),
    ):
        if found != expected:
            path = raw / f"{name}.csv.gz"
            raise ValueError(f"{path} has {found} lines for the {expected} {counted}.csv.gz")
    wrong = ((y != 0) & (y != 1) & ~y.isnan()).nonzero()
    if wrong.numel():
        row, task = wrong[0].tolist()
        raise ValueError(f"{labels}, line {row + 1}: {y[row, task].item()} is neither 0 nor 1")
    _check_edges(raw / "edge.csv.gz", edges, sizes, bonds)
    both_ways = torch.stack([edges, edges.flip(1)], 1).view(-1, 2)  # u → v, v → u, bond by bond
    return GraphDataset(
        to_smallest_int(x),
        both_ways.T.int().contiguous(),
        to_smallest_int(edge_attr).repeat_interleave(2, 0),
        sizes,
        2 * bonds,
        y.float(),
        Schema(folder.name.replace("_", "-"), "binary", _tasks(folder, y), _RECIPE),
    )


class _OGB(DatasetReader):
    def dataset(self, path: Path) -> GraphDataset:
        return read_ogb(path)

    def smiles(self, path: Path, rows: Sequence[InputRow]) -> list[str] | None:
        return mapped_smiles(path, len(rows))


READER = _OGB()


def mapped_smiles(folder: Path, count: int) -> list[str] | None:
    """Return the SMILES of ``mapping/mol.csv.gz``, or None unless it has so many."""
    mapping = folder / "mapping" / "mol.csv.gz"
    if not mapping.is_file():
        return None
    (_, header), *lines = read_csv_rows(mapping)
    if len(lines) != count or "smiles" not in header:
        return None
    column = header.index("smiles")
    return [cells[column] for _, cells in lines]


def _check_range(path: Path, values: Tensor, least: int, most: list[int]) -> None:
    """Raise a ValueError if a value is outside the range of its column."""
    wrong = ((values < least) | (values > torch.tensor(most))).nonzero()
    if wrong.numel():
        row, column = wrong[0].tolist()
        raise ValueError(
            f"{path}, line {row + 1}, column {column + 1}: {int(values[row, column])} is not in "
            f"the range {least} to {most[column]}"
        )


def _check_edges(path: Path, edges: Tensor, sizes: Tensor, bonds: Tensor) -> None:
    """Raise a ValueError if a bond names an atom outside its molecule."""
    graph = torch.arange(sizes.numel()).repeat_interleave(bonds)
    outside = ((edges < 0) | (edges >= sizes[graph].unsqueeze(1))).any(1).nonzero()
    if outside.numel():
        row = int(outside[0])
        raise ValueError(
            f"{path}, line {row + 1}: edge {edges[row].tolist()}, but graph {int(graph[row])} has "
            f"nodes 0 to {int(sizes[graph[row]]) - 1}"
        )


def _tasks(folder: Path, y: Tensor) -> tuple[str, ...]:
    """Return the task names: the columns of ``mapping/mol.csv.gz`` if it exists."""
    path = folder / "mapping" / "mol.csv.gz"
    if path.exists():
        _, header = next(read_csv_rows(path))
        names = tuple(name for name in header if name not in {"smiles", "mol_id"})
        if len(names) == y.size(1):
            return names
    return tuple(f"task {number}" for number in range(1, y.size(1) + 1))
