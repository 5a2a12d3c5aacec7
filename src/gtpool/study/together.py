"""Runs of one network side by side in one program; each leaves the row of a single run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.model.stack import why_not_stacked
from gtpool.spec import RunSpec
from gtpool.study.inputs import choose_split, load_data, shape_of
from gtpool.study.row import blank, circumstances, numbers, opening
from gtpool.study.store import Row, write_whole
from gtpool.study.unit import choose_device, pack, settled
from gtpool.train.course import Epoch, Outcome, TrainingError, unmeasurable
from gtpool.train.crossval import fit_many
from gtpool.train.fit import seeded


def group(
    specs: Sequence[RunSpec], most: int, data_dir: Path | None
) -> tuple[list[list[RunSpec]], list[RunSpec]]:
    """Divide runs into groups that differ in fold and seed alone, and those that go by themselves.

    Args:
        specs: The runs.
        most: Largest number of runs in a group; with 1 all go by themselves.
        data_dir: Where to look first for a dataset known by name.
    """
    if most == 1:
        return [], list(specs)
    kin: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        alike = replace(spec, seed=0, split=replace(spec.split, fold=0))
        kin.setdefault(alike, []).append(spec)
    groups: list[list[RunSpec]] = []
    alone: list[RunSpec] = []
    for alike, several in kin.items():
        shape = shape_of(load_data(alike.data, data_dir).dataset)
        if len(several) == 1 or why_not_stacked(alike.model, shape) is not None:
            alone += several
        else:
            groups += [several[at : at + most] for at in range(0, len(several), most)]
    return groups, alone


def run_together(
    specs: Sequence[RunSpec],
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    artifact: Callable[[str], Path] | None = None,
    on_epoch: Callable[[RunSpec, Epoch], None] | None = None,
) -> Iterator[Row]:
    """Do runs that differ in fold and seed alone, all at once, and give their rows in order.

    Where the memory does not suffice for all, halves of them train one after the other.

    Args:
        specs: The runs, as ``group`` puts them together.
        data_dir: Where to look first for a dataset known by name.
        device: As for ``run_unit``.
        deterministic: As for ``run_unit``.
        artifact: From a run's key to the file for its weights and test logits.
        on_epoch: Called at the end of each epoch of each run.
    """
    place = choose_device(device)
    loaded = load_data(specs[0].data, data_dir)
    splits = [choose_split(spec.split, loaded, data_dir) for spec in specs]
    with settled(place, deterministic):
        start = perf_counter()
        models = [_network(spec, loaded.dataset).to(place) for spec in specs]
        outcomes = _fit(models, loaded.dataset.to(place), splits, specs, on_epoch)
        seconds = (perf_counter() - start) / len(specs)
        for spec, split, model, outcome in zip(specs, splits, models, outcomes, strict=True):
            row = blank(spec) | opening(loaded.dataset, split, model)
            if isinstance(outcome, TrainingError):
                row |= {"status": "failed", "error": str(outcome)}
            else:
                row |= numbers(outcome)
                if artifact is not None:
                    data = _as_trained(spec, loaded.dataset, split).to(place)
                    write_whole(artifact(spec.key), pack(model, data, split, spec))
            yield row | circumstances(place, seconds) | {"together": len(specs)}


def _network(spec: RunSpec, data: GraphDataset) -> Classifier:
    with seeded(spec.seed, torch.device("cpu")):
        return Classifier(spec.model, shape_of(data))


def _fit(
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[RunSpec],
    on_epoch: Callable[[RunSpec, Epoch], None] | None,
) -> list[Outcome | TrainingError]:
    """Train to the end, in two halves if there is no memory for all; what else fails, fails all."""
    try:
        return _fit_all(models, data, splits, specs, on_epoch)
    except torch.OutOfMemoryError as error:
        if len(specs) == 1:
            return [TrainingError(str(error))]
    outcomes: list[Outcome | TrainingError] = []
    half = len(specs) // 2
    for part in (slice(half), slice(half, None)):
        outcomes += _fit(models[part], data, splits[part], specs[part], on_epoch)
    return outcomes


def _fit_all(
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[RunSpec],
    on_epoch: Callable[[RunSpec, Epoch], None] | None,
) -> list[Outcome | TrainingError]:
    train, scaled = specs[0].train, specs[0].data.standardize
    seeds = [spec.seed for spec in specs]
    untested = unmeasurable(data, [split.test for split in splits], "test")
    epochs = fit_many(models, data, splits, train, seeds=seeds, standardize=scaled)
    while True:
        try:
            heard = next(epochs)
        except StopIteration as end:
            outcomes: list[Outcome | TrainingError] = end.value
            return [untested.get(run, outcome) for run, outcome in enumerate(outcomes)]
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, MemoryError) as error:
            return [TrainingError(str(error) or type(error).__name__)] * len(specs)
        for run, epoch in heard.items():
            if on_epoch is not None:
                on_epoch(specs[run], epoch)


def _as_trained(spec: RunSpec, data: GraphDataset, split: Split) -> GraphDataset:
    return data.standardized(split.train) if spec.data.standardize else data
