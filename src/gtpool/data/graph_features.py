"""Features of whole graphs: descriptors of molecules, and columns of the user's table."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

import torch
from torch import Tensor

from gtpool.data.dataset import GraphDataset
from gtpool.data.descriptors import describe_molecules, descriptor_names, load_descriptors
from gtpool.data.schema import Recipe

_SHOWN = 5


def with_graph_features(
    data: GraphDataset,
    smiles: Sequence[str],
    molecule_features: Sequence[str],
    columns: Sequence[str] = (),
    values: Tensor | None = None,
) -> GraphDataset:
    """Return training molecules with features of each whole molecule.

    Descriptors are kept in the user's cache. A warning names those that no molecule has.

    Args:
        data: The molecules.
        smiles: SMILES of each.
        molecule_features: Keys of ``MOLECULE_FEATURES``, in order.
        columns: Names of the user's own numbers.
        values: These numbers, NaN if missing, [G, columns].

    Example:
        >>> from gtpool.data.formats.memory import read_graphs
        >>> data = with_graph_features(read_graphs(["CO", "CCO"]), ["CO", "CCO"], ["morgan"])
        >>> data.graph_features.shape
        torch.Size([2, 2048])
    """
    if not molecule_features and not columns:
        return data
    names = descriptor_names(molecule_features)
    found = torch.from_numpy(load_descriptors(smiles, molecule_features))
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


def _with(
    data: GraphDataset, recipe: Recipe, descriptors: Tensor, values: Tensor | None
) -> GraphDataset:
    features = descriptors if values is None else torch.cat([descriptors, values.float()], 1)
    return replace(data, graph_features=features, schema=replace(data.schema, recipe=recipe))
