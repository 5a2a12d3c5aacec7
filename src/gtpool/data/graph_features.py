"""Features of whole graphs: RDKit's 2D descriptors, Morgan fingerprints, columns of a table.

Rogers and Hahn: "Extended-connectivity fingerprints", 2010.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from gtpool.data.dataset import GraphDataset, read_folder, write_folder
from gtpool.data.locate import cache_dir
from gtpool.data.molecule import canonical_molecule
from gtpool.data.parallel import run_tasks, tell_progress, usable_cores
from gtpool.data.schema import FLOAT32_MAX, Recipe
from gtpool.spec import did_you_mean

# rdkit is imported by the functions that need it: other data load without it.
if TYPE_CHECKING:
    from rdkit.Chem import Mol

Matrix = NDArray[np.float32]
MAX_ATOMS = 250
"""Largest molecule with RDKit 2D descriptors; 222 atoms in B3DB and OGB's four sets.

The time of some grows with the fourth power of the atoms: 0.25 s at 200 atoms, 65 s at 900.
"""
MORGAN_RADIUS = 2
MORGAN_BITS = 2048
VERSION = 1
"""Version of the numbers; descriptors cached by another version are ignored."""
_SLOW = ("rdkit2d",)  # kept in the cache
_SHOWN = 5
_CHUNK, _MIN_PARALLEL = 250, 4000
"""Molecules of a task; fewer than this are described faster in one process."""


class _Descriptors(NamedTuple):
    columns: tuple[str, ...]
    describe: "Callable[[Mol], NDArray[Any]]"


def with_graph_features(
    data: GraphDataset,
    smiles: Sequence[str],
    molecule_features: Sequence[str],
    columns: Sequence[str] = (),
    values: Tensor | None = None,
    *,
    skip_unreadable: bool = False,
) -> GraphDataset:
    """Return training molecules with features of each whole molecule.

    Descriptors are kept in the user's cache. A warning names those that no molecule has.

    Args:
        data: The molecules.
        smiles: SMILES of each.
        molecule_features: Keys of ``MOLECULE_FEATURES``, in order.
        columns: Names of the user's own numbers.
        values: These numbers, NaN if missing, [G, columns].
        skip_unreadable: Whether SMILES that rdkit cannot read have no descriptors; else they are a
            ValueError.

    Example:
        >>> from gtpool.data.formats.memory import read_graphs
        >>> data = with_graph_features(read_graphs(["CO", "CCO"]), ["CO", "CCO"], ["morgan"])
        >>> data.graph_features.shape
        torch.Size([2, 2048])
    """
    if not molecule_features and not columns:
        return data
    names = descriptor_names(molecule_features)
    there = [row for row, text in enumerate(smiles) if not skip_unreadable or _is_readable(text)]
    found = torch.full((len(smiles), len(names)), torch.nan)
    described = load_descriptors([smiles[row] for row in there], molecule_features)
    found[torch.tensor(there, dtype=torch.long)] = torch.from_numpy(described)
    empty = found.isnan().all(0).nonzero().flatten().tolist()
    if empty:
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        listed = ", ".join(names[column] for column in empty[:_SHOWN])
        warnings.warn(
            f"{data.schema.name}: {len(empty)} of {len(names)} descriptors have no value for any "
            f"molecule and have no effect: {listed}{more}",
            stacklevel=2,
        )
    recipe = replace(
        data.schema.recipe,
        molecule_features=tuple(molecule_features),
        descriptors=names,
        feature_columns=tuple(columns),
    )
    return _with(data, recipe, found, values)


def apply_graph_features(
    data: GraphDataset, smiles: Sequence[str], recipe: Recipe, values: Tensor | None = None
) -> GraphDataset:
    """Return molecules with the features that a trained model reads.

    Args:
        data: The molecules.
        smiles: SMILES of each.
        recipe: Recipe of the model.
        values: The numbers of its feature columns, NaN if missing, [G, columns].
    """
    if not recipe.descriptors and values is None:
        return data
    names, found = descriptor_names(recipe.molecule_features), torch.empty(len(smiles), 0)
    if names:
        found = torch.from_numpy(describe_molecules(smiles, recipe.molecule_features))
    if names != recipe.descriptors:  # another version of rdkit
        lost = [name for name in recipe.descriptors if name not in names]
        if lost:
            raise ValueError(
                f"the model reads the descriptor {lost[0]!r}, which rdkit {version('rdkit')} does "
                "not have; install the version that the model was trained with"
            )
        place = {name: column for column, name in enumerate(names)}
        found = found[:, [place[name] for name in recipe.descriptors]]
    recipe = replace(
        data.schema.recipe,
        molecule_features=recipe.molecule_features,
        descriptors=recipe.descriptors,
        feature_columns=() if values is None else recipe.feature_columns,
    )
    return _with(data, recipe, found, values)


def other_graph_columns(name: str, found: Recipe, wanted: Recipe) -> str:
    """Return why graphs do not have the features of whole graphs that a model reads.

    Args:
        name: Name of the graphs.
        found: Their recipe.
        wanted: Recipe of the model.
    """
    lacking = [one for one in wanted.feature_columns if one not in found.feature_columns]
    if lacking:
        columns = ", ".join(map(repr, lacking))
        return (
            f"{name} lacks features that the model reads: {columns}; give a table of SMILES with "
            "these columns"
        )
    sets = " and ".join(wanted.molecule_features) or "none"
    return f"{name} has other features of whole graphs than the model, which reads {sets}"


def describe_molecules(smiles: Sequence[str], names: Sequence[str]) -> Matrix:
    """Return descriptors of molecules, float32 [G, columns], NaN where rdkit gives none.

    A molecule is described whole, with its counter-ions. Equivalent SMILES get equal numbers.

    Args:
        smiles: Molecules that ``read_molecules`` can read; another one is a ValueError.
        names: Keys of ``MOLECULE_FEATURES``, in the order of their columns.

    Example:
        >>> describe_molecules(["CCO", "c1ccccc1"], ["rdkit2d", "morgan"]).shape[0]
        2
    """
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    columns = len(descriptor_names(names))
    sets = [MOLECULE_FEATURES[name]() for name in names]
    found = np.empty((len(smiles), columns), np.float32)
    with BlockLogs(), np.errstate(all="ignore"):
        for row, text in enumerate(smiles):
            molecule = canonical_molecule(text)
            numbers = np.concatenate([np.empty(0), *(part.describe(molecule) for part in sets)])
            # Some descriptors exceed float32, such as Ipc of large molecules.
            found[row] = np.clip(numbers, -FLOAT32_MAX, FLOAT32_MAX)
    return found


def descriptor_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each column of ``describe_molecules``.

    Args:
        names: Keys of ``MOLECULE_FEATURES``, in order.

    Example:
        >>> descriptor_names(["morgan"])[:2]
        ('morgan:0', 'morgan:1')
    """
    check_molecule_features(names)
    return tuple(column for name in names for column in MOLECULE_FEATURES[name]().columns)


def load_descriptors(smiles: Sequence[str], names: Sequence[str]) -> Matrix:
    """Return ``describe_molecules``, kept in the user's cache: RDKit 2D takes milliseconds each.

    Args:
        smiles: The molecules.
        names: Keys of ``MOLECULE_FEATURES``, in order.
    """
    check_molecule_features(names)
    parts = [
        _load_slow(smiles, name) if name in _SLOW else describe_molecules(smiles, [name])
        for name in names
    ]
    return np.concatenate([np.empty((len(smiles), 0), np.float32), *parts], 1)


def check_molecule_features(names: Sequence[str]) -> None:
    """Raise a ValueError that names an unknown or repeated name."""
    for number, name in enumerate(names):
        if name not in MOLECULE_FEATURES:
            hint, known = did_you_mean(name, MOLECULE_FEATURES), ", ".join(MOLECULE_FEATURES)
            raise ValueError(f"unknown molecule features {name!r}{hint}; known: {known}")
        if name in names[:number]:
            raise ValueError(f"molecule features {name!r} are given twice")


def _is_readable(smiles: str) -> bool:
    from rdkit.rdBase import BlockLogs  # noqa: PLC0415

    with BlockLogs(), suppress(ValueError):
        canonical_molecule(smiles)
        return True
    return False


def _with(
    data: GraphDataset, recipe: Recipe, descriptors: Tensor, values: Tensor | None
) -> GraphDataset:
    features = descriptors if values is None else torch.cat([descriptors, values.float()], 1)
    return replace(data, graph_features=features, schema=replace(data.schema, recipe=recipe))


def _load_slow(smiles: Sequence[str], name: str) -> Matrix:
    """Return the columns of one set, from the cache if they are there."""
    text = "\n".join([str(VERSION), version("rdkit"), name, *smiles])
    entry = cache_dir() / "descriptors" / sha256(text.encode()).hexdigest()[:16]
    with suppress(OSError, ValueError, KeyError):  # not there, or damaged
        return read_folder(entry)[0]["found"].numpy()
    found = _describe_many(smiles, name)
    with suppress(OSError, SafetensorError):  # it is computed again next time
        write_folder(entry, {"found": torch.from_numpy(found)}, {"set": name})
    return found


def _describe_many(smiles: Sequence[str], name: str) -> Matrix:
    """Return the columns of one set; many molecules are described on all cores."""
    alone = len(smiles) < _MIN_PARALLEL or current_process().daemon  # daemons start no workers
    jobs = 1 if alone else usable_cores()
    chunks = [smiles[at : at + _CHUNK] for at in range(0, len(smiles), _CHUNK)]
    parts = [describe_molecules([], [name])]
    describe = partial(describe_molecules, names=[name])
    for part in run_tasks(describe, chunks, jobs, "describes molecules"):
        parts.append(part)
        tell_progress("descriptors of molecules", sum(map(len, parts)), len(smiles))
    return np.concatenate(parts)


def _rdkit2d() -> _Descriptors:
    """Return rdkit's 2D descriptors."""
    from rdkit.Chem import Descriptors  # noqa: PLC0415

    names, functions = zip(*Descriptors.descList, strict=True)

    def describe(molecule: "Mol") -> NDArray[Any]:
        if molecule.GetNumAtoms() > MAX_ATOMS:
            return np.full(len(functions), np.nan)
        return np.array([_value(function, molecule) for function in functions], np.double)

    return _Descriptors(names, describe)


def _value(function: "Callable[[Mol], float]", molecule: "Mol") -> float:
    try:
        return float(function(molecule))
    except (ValueError, RuntimeError, ZeroDivisionError, OverflowError):  # e.g. without parameters
        return float("nan")


def _morgan() -> _Descriptors:
    """Return log(1 + count) of each bit of Morgan fingerprints."""
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator  # noqa: PLC0415

    generator = GetMorganGenerator(radius=MORGAN_RADIUS, fpSize=MORGAN_BITS)

    def describe(molecule: "Mol") -> NDArray[Any]:
        return np.log1p(generator.GetCountFingerprintAsNumPy(molecule).astype(float))

    return _Descriptors(tuple(f"morgan:{bit}" for bit in range(MORGAN_BITS)), describe)


MOLECULE_FEATURES: dict[str, Callable[[], _Descriptors]] = {"rdkit2d": _rdkit2d, "morgan": _morgan}
"""Sets of descriptors by name."""
