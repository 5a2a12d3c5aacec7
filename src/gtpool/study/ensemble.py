"""Runs of one network side by side in one program; each leaves the row of a single run."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import perf_counter

import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.reader import Loaded
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.model.stack import why_not_stacked
from gtpool.spec import TU, RunSpec
from gtpool.study.build_result import add_environment, add_outcome, start_result
from gtpool.study.inputs import choose_split, load_data, shape_of
from gtpool.study.result import RunResult
from gtpool.study.run_one import choose_device, pack_artifact, reproducible_torch, write_artifact
from gtpool.train.course import Epoch, Outcome, TrainingError, unmeasurable
from gtpool.train.crossval import fit_many
from gtpool.train.fit import seeded


def group_by_network(
    specs: Sequence[RunSpec], most: int, data_dir: Path | None, loaded: Loaded | None = None
) -> tuple[list[list[RunSpec]], list[RunSpec]]:
    """Divide runs into groups that train side by side, and those that go by themselves.

    Those of a group differ in fold, seed, learning rate and weight decay alone.

    Args:
        specs: The runs.
        most: Largest number of runs in a group; with 1 all go by themselves.
        data_dir: Where to look first for a dataset known by name.
        loaded: Graphs of some of the runs, if they are loaded already.
    """
    if most == 1:
        return [], list(specs)
    kin: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        train = replace(spec.train, lr=TU.lr, weight_decay=TU.weight_decay)
        alike = replace(spec, seed=0, split=replace(spec.split, fold=0), train=train)
        kin.setdefault(alike, []).append(spec)
    groups: list[list[RunSpec]] = []
    alone: list[RunSpec] = []
    for alike, several in kin.items():
        shape = shape_of(load_data(alike.data, data_dir, loaded).dataset)
        if len(several) == 1 or why_not_stacked(alike.model, shape) is not None:
            alone += several
        else:
            groups += [several[at : at + most] for at in range(0, len(several), most)]
    return groups, alone


def run_ensemble(
    specs: Sequence[RunSpec],
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    artifact: Callable[[str], Path] | None = None,
    on_epoch: Callable[[RunSpec, Epoch], None] | None = None,
    loaded: Loaded | None = None,
) -> Iterator[RunResult]:
    """Do runs of one network, all at once, and give each row as its run ends.

    Where the memory does not suffice for all, halves of them train one after the other.

    Args:
        specs: The runs, as ``group_by_network`` puts them together.
        data_dir: Where to look first for a dataset known by name.
        device: As for ``run_one``.
        deterministic: As for ``run_one``.
        artifact: From a run's key to the file for its weights and test logits.
        on_epoch: Called at the end of each epoch of each run.
        loaded: The graphs, if they are loaded already.
    """
    place = choose_device(device)
    loaded = load_data(specs[0].data, data_dir, loaded)
    splits = [choose_split(spec.split, loaded, data_dir) for spec in specs]
    with reproducible_torch(place, deterministic):
        models = [_network(spec, loaded.dataset).to(place) for spec in specs]
        untested = unmeasurable(loaded.dataset, [split.test for split in splits], "test")
        rest = [run for run in range(len(specs)) if run not in untested]
        refused = [(run, error, 0.0, 1) for run, error in untested.items()]
        trained = _fit(rest, models, loaded.dataset.to(place), splits, specs, on_epoch)
        for run, outcome, seconds, beside in chain(refused, trained):
            spec, split, model = specs[run], splits[run], models[run]
            row = start_result(loaded.dataset, split, model, spec).having(
                source_digest=loaded.digest
            )
            row = add_outcome(row, outcome)
            if artifact is not None and row.done:  # on the CPU: the GPU is full of other runs
                data = _scaled(spec, loaded.dataset, split)
                content = pack_artifact(model.cpu(), data, split, spec)
                row = row.having(artifact_digest=write_artifact(artifact(spec.key), content))
            yield add_environment(row, place, seconds).having(together=beside)


def _network(spec: RunSpec, data: GraphDataset) -> Classifier:
    with seeded(spec.seed, torch.device("cpu")):
        return Classifier(spec.model, shape_of(data))


_RunEnd = tuple[int, Outcome | TrainingError, float, int]
"""The number of a run, what it gave, its share of the time, and how many trained at once."""


def _fit(
    runs: Sequence[int],
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[RunSpec],
    on_epoch: Callable[[RunSpec, Epoch], None] | None,
) -> Iterator[_RunEnd]:
    """Train some of the runs, in two halves if there is no memory for all of them at once."""
    left = list(runs)
    if not left:
        return
    try:
        for end in _fit_all(runs, models, data, splits, specs, on_epoch):
            left.remove(end[0])
            yield end
    except torch.OutOfMemoryError as error:
        if len(left) == 1:
            yield left[0], TrainingError(str(error)), 0.0, 1
            return
    half = len(left) // 2
    for part in (left[:half], left[half:]):
        yield from _fit(part, models, data, splits, specs, on_epoch)


def _fit_all(
    runs: Sequence[int],
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[RunSpec],
    on_epoch: Callable[[RunSpec, Epoch], None] | None,
) -> Iterator[_RunEnd]:
    """Train some of the runs to their ends; what fails but for memory, fails those that go on."""
    scaled = specs[0].data.standardize
    parts = [splits[run] for run in runs]
    ended: deque[tuple[int, Outcome | TrainingError]] = deque()
    epochs = fit_many(
        [models[run] for run in runs],
        data,
        parts,
        [specs[run].train for run in runs],
        seeds=[specs[run].seed for run in runs],
        standardize=scaled,
        on_end=lambda place, outcome: ended.append((place, outcome)),
    )
    going, seconds = set(range(len(runs))), [0.0] * len(runs)
    while going:
        start = perf_counter()
        heard, error = _next_epochs(epochs)
        full = isinstance(error, torch.OutOfMemoryError)
        if error is not None and not full:
            reason = TrainingError(str(error) or type(error).__name__)
            known = {place for place, _ in ended}
            ended.extend((place, reason) for place in sorted(going - known))
        share = (perf_counter() - start) / len(going)
        for place in going:
            seconds[place] += share
        for place, epoch in heard.items():
            if on_epoch is not None:
                on_epoch(specs[runs[place]], epoch)
        while ended:
            place, outcome = ended.popleft()
            going.remove(place)
            yield runs[place], outcome, seconds[place], len(runs)
        if error is not None and full:  # only now: what has ended must not train again
            raise error


def _next_epochs(
    epochs: Generator[dict[int, Epoch], None, object],
) -> tuple[dict[int, Epoch], Exception | None]:
    """Give the next epochs, or what torch has to complain of."""
    try:
        return next(epochs, {}), None
    except (RuntimeError, MemoryError) as error:
        # What failed holds the memory of the program, and its traceback would hold what failed.
        return {}, error.with_traceback(None)


def _scaled(spec: RunSpec, data: GraphDataset, split: Split) -> GraphDataset:
    return data.standardized(split.train) if spec.data.standardize else data
