"""Explanations of a saved model on graphs of a source."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.reader import InferenceData, InputRow, RowUnit
from gtpool.data.formats.tu import MUTAG_ATOMS
from gtpool.data.inference import check_fit
from gtpool.data.molecule import ATOM_FIELDS, atom_numbers, read_molecules
from gtpool.data.schema import Schema, Task
from gtpool.data.sources import read_for_inference, smiles_of
from gtpool.explain.connectivity import LevelEdges, connectivity
from gtpool.explain.diversity import Diversity, diversity
from gtpool.explain.explanation import Explanation, explain
from gtpool.model.bundle import Bundle
from gtpool.model.predictor import members_of
from gtpool.predict import schema_of
from gtpool.spec import AtomOrder
from gtpool.study.recipe import reads_smiles
from gtpool.study.run_one import choose_device


class Explained(NamedTuple):
    """A graph of a source and the explanation of its prediction."""

    number: int
    """Line of the file, or index of the graph."""
    id: str
    """The SMILES of a table, the id of JSON lines, else ""."""
    truth: str | None
    """The true class, if the source has it."""
    names: list[str]
    """Display name of each node: its element or label."""
    smiles: str | None
    """The SMILES, if it is known and its atoms are the nodes."""
    explanation: Explanation


class Explanations(NamedTuple):
    """Explanations of some graphs of a source, and the sampler diversity of all."""

    unit: RowUnit
    """Whether ``number`` of a graph is a line or its index."""
    task: Task
    targets: tuple[str, ...]
    """Names of the classes or tasks."""
    sampler: str | None
    """Sampler of the pooler; None if the model drops no nodes."""
    graphs: tuple[Explained, ...]
    diversity: Diversity | None
    """Diversity over all graphs; None if one graph was chosen or the model drops no nodes."""
    connectivity: tuple[LevelEdges, ...] = ()
    """Edges of all graphs, of the input and after each step; empty where diversity is None."""


def explain_source(
    bundle: Bundle,
    source: str | Path,
    *,
    graph: int | None = None,
    graphs: int = 3,
    target: str | None = None,
    epochs: int = 100,
    seed: int = 0,
    data_dir: Path | None = None,
    smiles_column: str | None = None,
    device: str = "auto",
) -> Explanations:
    """Return the explanation of one graph of a source, or of several with the sampler diversity.

    Args:
        bundle: A trained model, from ``load_bundle``.
        source: As for ``predict_source``.
        graph: Index of one graph; its line for a table or JSON lines.
        graphs: Number of graphs, evenly spaced over the source, if ``graph`` is None.
        target: The class or task to explain; by default the predicted one.
        epochs: Training steps of the explainer.
        seed: Seed of the explainer and of the random sampler.
        data_dir: Where to look first for a dataset known by name.
        smiles_column: SMILES column of a table; by default the one that the model was trained on
            if it exists, else the one called "smiles".
        device: "auto", "cpu" or "cuda".
    """
    model = bundle.model
    schema = schema_of(bundle)
    asked = None if target is None else _place(schema, target)
    read = read_for_inference(
        source,
        schema,
        data_dir=data_dir,
        smiles_column=smiles_column,
        trained_column=bundle.part("run", "data").get("smiles_column"),
    )
    if read.data is None:
        raise ValueError(f"{source} has no graph that the model can predict")
    check_fit(read.data, model.shape, edges=model.uses_edge_features)
    place = choose_device(device)
    model, data = model.to(place), read.data.to(place)
    rows = [row for row in read.rows if row.reason is None]
    chosen = (
        _evenly_spaced(len(rows), graphs) if graph is None else [_find(read, rows, graph, source)]
    )
    molecules = schema.recipe.kind == "molecule"
    smiles = smiles_of(source, rows, data_dir) if molecules else None
    order = schema.recipe.atom_order if reads_smiles(str(source)) else "given"
    found: list[Explained] = []
    for index in chosen:
        row, drawn, numbers = rows[index], None, None
        if smiles and _atoms(smiles[index], order) == name_nodes(data, index):
            drawn = smiles[index]
            numbers = atom_numbers(drawn, order)
        why = explain(
            model,
            data,
            index,
            epochs=epochs,
            seed=seed,
            target=asked,
            task=schema.task,
            numbers=numbers,
        )
        known = row.label if schema.task == "classes" else None
        truth = None if known is None else str(known)
        names = name_nodes(data, index, numbers)
        found.append(Explained(row.number, row.id, truth, names, drawn, why))
    first = members_of(model)[0]
    sampler = getattr(first.pools[0], "sampler", "topk") if model.ratios else None
    seen = diversity(model, data, seed=seed) if graph is None and model.ratios else None
    left = () if seen is None else connectivity(model, data)
    return Explanations(read.unit, schema.task, schema.targets, sampler, tuple(found), seen, left)


def name_nodes(
    data: GraphDataset, index: int = 0, numbers: Sequence[int] | None = None
) -> list[str]:
    """Return the element of each atom, else the label of each node, else its index.

    Args:
        data: The graphs, with the schema of their features.
        index: Index of the graph.
        numbers: Sort key of each node; by default its index.

    Example:
        >>> from gtpool.data.formats.memory import read_graphs
        >>> name_nodes(read_graphs(["CCO"]))
        ['C', 'C', 'O']
    """
    x, recipe = data.take([index]).x, data.schema.recipe
    if numbers is not None:
        x = x[sorted(range(len(numbers)), key=numbers.__getitem__)]
    if recipe.kind == "molecule":
        return [_element(code) for code in x[:, recipe.encoded].long().tolist()]
    if not recipe.labels:
        return [str(node) for node in range(x.size(0))]
    columns = x[:, recipe.continuous : recipe.continuous + len(recipe.labels)]
    parts = columns.split([len(part) for part in recipe.label_sets], 1)
    labels = [
        [words[column] for column in part.argmax(1).tolist()]
        for words, part in zip(recipe.label_sets, parts, strict=True)
    ]
    if data.schema.name == "MUTAG" and max(labels[0]) < len(MUTAG_ATOMS):
        return [MUTAG_ATOMS[label] for label in labels[0]]
    return [",".join(map(str, several)) for several in zip(*labels, strict=True)]


def _place(schema: Schema, target: str) -> int:
    if target not in schema.targets:
        raise ValueError(
            f"the model has no target {target!r}; its targets are {', '.join(schema.targets)}"
        )
    return schema.targets.index(target)


def _evenly_spaced(count: int, wanted: int) -> list[int]:
    """Return evenly spaced integers from 0 to below ``count``."""
    wanted = min(wanted, count)
    return [count * step // wanted for step in range(wanted)]


def _find(read: InferenceData, rows: Sequence[InputRow], number: int, source: str | Path) -> int:
    """Return the index of a row among those that can be explained."""
    for row in read.rows:
        if row.number == number and row.reason is not None:
            raise ValueError(f"{read.unit} {number} of {source} cannot be read: {row.reason}")
    numbers = [row.number for row in rows]
    if number not in numbers:
        kept = f"{min(numbers)} to {max(numbers)}"
        if read.unit == "line":
            raise ValueError(
                f"{source} has no graph on line {number}; for this file, graph (--graph) is a line "
                f"number, {kept}"
            )
        raise ValueError(f"{source} has no graph {number}: it has graphs {kept}")
    return numbers.index(number)


def _atoms(smiles: str, order: AtomOrder) -> list[str]:
    """Return the elements of a molecule; empty if it cannot be read."""
    molecules = read_molecules([smiles], atom_order=order)
    if molecules.failed:
        return []
    return name_nodes(molecules.to_dataset(torch.empty(1, 0), "molecule", "regression", ()))


def _element(code: int) -> str:
    from rdkit.Chem import GetPeriodicTable  # noqa: PLC0415 - only for molecules

    number = ATOM_FIELDS["atomic_number"][code]
    return GetPeriodicTable().GetElementSymbol(number) if isinstance(number, int) else "?"
