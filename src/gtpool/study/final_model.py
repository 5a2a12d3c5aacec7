"""The model that a cross-validation hands over: an ensemble of its runs, or the best of them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from gtpool.data.formats.reader import Loaded
from gtpool.data.schema import Recipe, Schema
from gtpool.data.similarity import training_fingerprints
from gtpool.model.classifier import Classifier
from gtpool.model.predictor import EnsemblePredictor, Predictor
from gtpool.study.inputs import graph_smiles
from gtpool.study.plan import Plan
from gtpool.study.result import RunResult
from gtpool.study.scores import first_seed
from gtpool.study.split_rules import choose_split
from gtpool.study.start import network_shape, run_data
from gtpool.study.store import Store
from gtpool.study.summarize import split_name

_PREFIX = "weights."


class FinalModel(NamedTuple):
    """The model that a cross-validation hands over, and the runs that trained it."""

    runs: tuple[RunResult, ...]
    """One run per member, sorted by seed and fold."""
    model: Predictor
    """One network, or an ensemble of several; on the CPU, in evaluation mode."""
    schema: Schema
    """Inputs and outputs of the model. One network has the feature scaling of its training part in
    the recipe; the members of an ensemble have their own."""
    trained: tuple[int, ...]
    """Indices of the graphs that at least one member was trained on."""
    fingerprints: Tensor | None = None
    """Packed fingerprints of these molecules, as in ``Bundle``; None for other graphs."""

    @property
    def run(self) -> RunResult:
        """The run of the first member."""
        return self.runs[0]

    @property
    def valid_loss(self) -> float | None:
        """Mean over the members of the validation loss; None if one is not finite."""
        loss = _valid_loss(self.runs)
        return None if loss == inf else loss


def runs_of_model(runs: Sequence[RunResult], plan: Plan) -> tuple[RunResult, ...]:
    """Return the runs whose networks are handed over; empty if all failed.

    With ``handover="folds"`` these are all folds of one ensemble of seeds, with "best" one fold.
    Among several, the one with most finished runs is taken, then the one with the lowest mean
    validation loss.

    Args:
        runs: All runs of the plan.
        plan: The runs.
    """
    groups: dict[tuple[int, int], list[RunResult]] = {}
    for row in runs:
        if row.done:
            fold = row.spec.split.fold if plan.handover == "best" else 0
            groups.setdefault((first_seed(row.spec.seed, plan), fold), []).append(row)
    best = min(groups.values(), key=lambda group: (-len(group), _valid_loss(group)), default=[])
    return tuple(best)


def load_final(
    runs: Sequence[RunResult], plan: Plan, loaded: Loaded, store: Store, data_dir: Path | None
) -> FinalModel | None:
    """Load the model that a cross-validation hands over; None if all runs failed.

    Args:
        runs: All runs of the plan.
        plan: The runs.
        loaded: Their data.
        store: Holds their weights.
        data_dir: Folder searched first for index files.
    """
    picked = runs_of_model(runs, plan)
    if not picked:
        return None
    members = [load_member(run, loaded, store, data_dir) for run in picked]
    networks, recipes = zip(*members, strict=True)
    schema, trained = loaded.dataset.schema, _trained_graphs(picked, loaded, data_dir)
    bits = _fingerprints(trained, loaded, data_dir)
    if len(picked) == 1:
        own = replace(schema, recipe=recipes[0])
        return FinalModel(picked, networks[0], own, trained, bits)
    return FinalModel(picked, make_ensemble(networks, recipes, schema), schema, trained, bits)


def _trained_graphs(
    runs: Sequence[RunResult], loaded: Loaded, data_dir: Path | None
) -> tuple[int, ...]:
    """Return the graphs in the training part of any run."""
    specs = dict.fromkeys(run.spec.split for run in runs)
    parts = [choose_split(spec, loaded, data_dir).train for spec in specs]
    return tuple(torch.cat(parts).unique().tolist())


def _fingerprints(graphs: Sequence[int], loaded: Loaded, data_dir: Path | None) -> Tensor | None:
    """Return fingerprints of training molecules; None if the graphs are not molecules."""
    is_molecule = loaded.dataset.schema.recipe.kind == "molecule"
    smiles = graph_smiles(loaded, data_dir) if is_molecule else None
    if smiles is None:
        return None
    bits = training_fingerprints([smiles[at] for at in graphs])
    return torch.from_numpy(bits) if len(bits) else None


def make_ensemble(
    networks: Sequence[Classifier], recipes: Sequence[Recipe], schema: Schema
) -> EnsemblePredictor:
    """Return an ensemble whose members standardise features by their own recipes.

    Args:
        networks: The trained members.
        recipes: Recipe of the training part of each.
        schema: Schema of the data before members standardise it.
    """
    if schema.recipe.mean is not None:  # the data was standardised when it was saved
        recipes = []
    mean, std = (_stacked([getattr(part, name) for part in recipes]) for name in ("mean", "std"))
    return EnsemblePredictor(networks, schema.task, mean, std)


def _stacked(parts: Sequence[Any]) -> Tensor | None:
    """Return the statistics of the members, [M, C]; None if features are not standardised."""
    return torch.tensor(parts, dtype=torch.double) if parts and parts[0] is not None else None


def load_member(
    run: RunResult, loaded: Loaded, store: Store, data_dir: Path | None
) -> tuple[Classifier, Recipe]:
    """Return the network of a run and the recipe of its training part.

    Args:
        run: A finished run.
        loaded: Its data.
        store: Holds its weights.
        data_dir: Folder searched first for index files.
    """
    spec = run.spec
    split = choose_split(spec.split, loaded, data_dir)
    if split.digest != run.split.digest:
        raise ValueError(
            f"{store.folder} holds runs on an outdated split ({split_name(run.split.rule)}); "
            "choose another folder (--output-dir)"
        )
    data = run_data(spec, loaded.dataset, split)
    weights = {
        name.removeprefix(_PREFIX): part
        for name, part in load_file(store.artifact(run.key)).items()
        if name.startswith(_PREFIX)
    }
    model = Classifier(spec.model, network_shape(spec, data)).eval()
    model.load_state_dict(weights)
    return model, data.schema.recipe


def _valid_loss(runs: Sequence[RunResult]) -> float:
    """Return the mean validation loss; infinite if one is missing."""
    losses = [run.valid_loss for run in runs]
    return fmean(inf if loss is None else loss for loss in losses)
