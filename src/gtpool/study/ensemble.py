"""Train several runs of one network as an ensemble: one program, one result per run."""

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
from gtpool.model.ensemble import why_spec_not_captured
from gtpool.spec import TU, RunSpec
from gtpool.study.build_result import add_environment, add_outcome, start_result
from gtpool.study.inputs import load_data
from gtpool.study.result import RunResult
from gtpool.study.run_one import choose_device, pack_artifact, reproducible_torch, write_artifact
from gtpool.study.split_rules import choose_split
from gtpool.study.start import network_shape, new_network, run_data, start_recipes
from gtpool.train.epoch import Epoch, Outcome, TrainingError, undefined_metrics
from gtpool.train.fit_many import fit_many
from gtpool.train.metric import metric_of


def group_by_network(
    specs: Sequence[RunSpec], max_size: int, data_dir: Path | None, loaded: Loaded | None = None
) -> tuple[list[list[RunSpec]], list[RunSpec]]:
    """Return groups of runs that can train as one ensemble, and the runs that cannot.

    Runs of a group differ only in fold, bag, seed, learning rate and weight decay.

    Args:
        specs: The runs.
        max_size: Maximum number of runs in a group; 1 disables grouping.
        data_dir: Folder searched first for a dataset known by name.
        loaded: Data that is already loaded.
    """
    if max_size == 1:
        return [], list(specs)
    by_network: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        train = replace(spec.train, lr=TU.lr, weight_decay=TU.weight_decay)
        template = replace(spec, seed=0, split=replace(spec.split, fold=0, bag=0), train=train)
        by_network.setdefault(template, []).append(spec)
    groups: list[list[RunSpec]] = []
    alone: list[RunSpec] = []
    for template, several in by_network.items():
        shape = network_shape(template, load_data(template.data, data_dir, loaded).dataset)
        if len(several) == 1 or why_spec_not_captured(template.model, shape) is not None:
            alone += several
        else:
            groups += [several[at : at + max_size] for at in range(0, len(several), max_size)]
    return groups, alone


def run_ensemble(
    specs: Sequence[RunSpec],
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    artifact: Callable[[str], Path] | None = None,
    weights: bool = True,
    on_epoch: Callable[[RunSpec, Epoch], None] | None = None,
    loaded: Loaded | None = None,
) -> Iterator[RunResult]:
    """Train runs of one network at once and yield the result of each when it ends.

    If memory runs out, the runs are split into halves that train one after the other.

    Args:
        specs: A group from ``group_by_network``.
        data_dir: Folder searched first for a dataset known by name.
        device: As for ``run_one``.
        deterministic: As for ``run_one``.
        artifact: Maps the key of a run to the file for its weights and test logits.
        weights: As for ``run_one``.
        on_epoch: Called after each epoch of each run.
        loaded: Data that is already loaded.
    """
    place = choose_device(device)
    loaded = load_data(specs[0].data, data_dir, loaded)
    splits = [choose_split(spec.split, loaded, data_dir) for spec in specs]
    with reproducible_torch(place, deterministic):
        models = [new_network(spec, loaded.dataset).to(place) for spec in specs]
        metric = metric_of(loaded.dataset.schema.task, specs[0].train.metric)
        tests = [split.test for split in splits]
        untested = undefined_metrics(loaded.dataset, tests, "test", metric)
        rest = [run for run in range(len(specs)) if run not in untested]
        refused = [(run, error, 0.0, 1) for run, error in untested.items()]
        trained = _fit(rest, models, loaded.dataset.to(place), splits, specs, on_epoch)
        for run, outcome, seconds, beside in chain(refused, trained):
            spec, split, model = specs[run], splits[run], models[run]
            row = start_result(loaded.dataset, split, model, spec).updated(
                source_digest=loaded.digest
            )
            row = add_outcome(row, outcome)
            if artifact is not None and row.done:  # on the CPU: other runs occupy the GPU
                data = run_data(spec, loaded.dataset, split)
                content = pack_artifact(model.cpu(), data, split, spec, weights=weights)
                row = row.updated(artifact_digest=write_artifact(artifact(spec.key), content))
            yield add_environment(row, place, seconds).updated(together=beside)


_RunEnd = tuple[int, Outcome | TrainingError, float, int]
"""Index of a run, its outcome, its share of the time, and the size of its ensemble."""


def _fit(
    runs: Sequence[int],
    models: Sequence[Classifier],
    data: GraphDataset,
    splits: Sequence[Split],
    specs: Sequence[RunSpec],
    on_epoch: Callable[[RunSpec, Epoch], None] | None,
) -> Iterator[_RunEnd]:
    """Train some of the runs; split them into halves when memory runs out."""
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
    """Train some of the runs; an error other than out-of-memory fails all that are unfinished."""
    several, parts = [specs[run] for run in runs], [splits[run] for run in runs]
    ended: deque[tuple[int, Outcome | TrainingError]] = deque()
    epochs = fit_many(
        [models[run] for run in runs],
        data,
        parts,
        [spec.train for spec in several],
        seeds=[spec.seed for spec in several],
        standardize=several[0].data.standardize,
        recipes=start_recipes(several, data),
        on_end=lambda place, outcome: ended.append((place, outcome)),
    )
    going, seconds = set(range(len(runs))), [0.0] * len(runs)
    while going:
        start = perf_counter()
        reports, error = _next_epochs(epochs)
        full = isinstance(error, torch.OutOfMemoryError)
        if error is not None and not full:
            reason = TrainingError(str(error) or type(error).__name__)
            known = {place for place, _ in ended}
            ended.extend((place, reason) for place in sorted(going - known))
        share = (perf_counter() - start) / len(going)
        for place in going:
            seconds[place] += share
        for place, epoch in reports.items():
            if on_epoch is not None:
                on_epoch(specs[runs[place]], epoch)
        while ended:
            place, outcome = ended.popleft()
            going.remove(place)
            yield runs[place], outcome, seconds[place], len(runs)
        if error is not None and full:  # after yielding finished runs, which must not train again
            raise error


def _next_epochs(
    epochs: Generator[dict[int, Epoch], None, object],
) -> tuple[dict[int, Epoch], Exception | None]:
    """Return the next epoch of each run, or the error of torch."""
    try:
        return next(epochs, {}), None
    except (RuntimeError, MemoryError) as error:
        # The traceback would keep the tensors of the failed step alive.
        return {}, error.with_traceback(None)
