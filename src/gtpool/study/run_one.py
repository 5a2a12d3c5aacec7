"""Train and test one run, or runs of one network as an ensemble: RunSpec -> RunResult."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.reader import Loaded
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import why_spec_not_captured
from gtpool.spec import TU, RunSpec
from gtpool.study.build_result import add_environment, add_outcome, start_result
from gtpool.study.inputs import load_data
from gtpool.study.result import RunResult
from gtpool.study.split_rules import choose_split
from gtpool.study.start import network_shape, new_network, run_data, start_recipes
from gtpool.study.store import write_atomic
from gtpool.train.distributed import Group, current_group, init_group
from gtpool.train.epoch import (
    Epoch,
    Outcome,
    TrainingError,
    check_metric_defined,
    undefined_metrics,
)
from gtpool.train.fit import fit, predict
from gtpool.train.fit_many import fit_many
from gtpool.train.metric import metric_of

_RunEnd = tuple[int, Outcome | TrainingError, float, int]
"""Index of a run, its outcome, its share of the time, and the size of its ensemble."""


def run_one(
    spec: RunSpec,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    artifact: Path | None = None,
    weights: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
    loaded: Loaded | None = None,
) -> RunResult:
    """Return the result of one run. On a CPU it is bitwise reproducible.

    A run that cannot continue (non-finite loss, out of memory) has status "failed". An invalid spec
    or dataset raises. Under torchrun the first process calls this and the others call
    ``join_process_group``: all train the run together.

    Args:
        spec: The run.
        data_dir: Folder searched first for a dataset known by name.
        device: "auto" (a GPU if available), "cpu", "cuda" or "cuda:N".
        deterministic: Use deterministic algorithms of torch only.
        artifact: File for the weights and test logits, in safetensors format.
        weights: Whether the artifact has the weights.
        on_epoch: Called after each epoch.
        loaded: Data that is already loaded.
    """
    group = current_group()
    place = group.device_for(choose_device(device))
    group.broadcast(
        {"spec": spec, "data_dir": data_dir, "device": device, "deterministic": deterministic}
    )
    loaded = load_data(spec.data, data_dir, loaded)
    split = choose_split(spec.split, loaded, data_dir)
    data = run_data(spec, loaded.dataset, split)
    with reproducible_torch(place, deterministic):
        model = new_network(spec, data)
        row = start_result(data, split, model, spec).updated(source_digest=loaded.digest)
        metric = metric_of(data.schema.task, spec.train.metric)
        start = perf_counter()
        try:
            check_metric_defined(data, split.test, "test", metric)
            with group.failing_together():
                group.check_same([row.source_digest, row.split])
                model, data = model.to(place), data.to(place)
            epochs = fit(model, data, split, spec.train, seed=spec.seed, group=group)
            outcome = _run_to_end(epochs, on_epoch, group)
        except TrainingError as error:
            row = add_outcome(row, error)
        else:
            row = add_outcome(row, outcome)
            if artifact is not None:
                content = pack_artifact(model, data, split, spec, weights=weights)
                row = row.updated(artifact_digest=write_artifact(artifact, content))
        row = add_environment(row, place, perf_counter() - start)
        return row if group.size == 1 else row.updated(processes=group.size)


def join_process_group() -> bool:
    """Join the process group of torchrun and, in all processes but the first, serve its runs.

    Returns:
        True in these processes, after the last run. False in the first process, which
        then calls ``run_one`` and finally ``current_group().close()``.
    """
    group = init_group()
    if group.rank == 0:
        return False
    try:
        while (task := _next_task(group)) is not None:
            run_one(**task)
    except KeyboardInterrupt:  # the first process reports it
        raise SystemExit(1) from None
    group.close()
    return True


follow = join_process_group
"""The name in version 0.2."""


def _next_task(group: Group) -> dict[str, Any] | None:
    try:
        return group.receive()
    except RuntimeError:  # the first process has exited and reported why
        raise SystemExit(1) from None


def choose_device(device: str) -> torch.device:
    """Return the torch device; "auto" is a GPU if available, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is not available: torch finds no such GPU")
    return place


@contextmanager
def reproducible_torch(place: torch.device, deterministic: bool) -> Generator[None]:
    """Make torch reproducible within the context and restore its settings afterwards.

    Sums depend on the number of threads, so a run on a CPU uses one.
    """
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        if place.type == "cpu":
            torch.set_num_threads(1)
        else:
            torch.cuda.reset_peak_memory_stats(place)
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by torch
            torch.use_deterministic_algorithms(True)
        with torch.cuda.device(place if place.type == "cuda" else -1):  # -1: no change
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def _run_to_end(
    epochs: Generator[Epoch, None, Outcome],
    on_epoch: Callable[[Epoch], None] | None,
    group: Group,
) -> Outcome:
    while True:
        with group.failing_together():
            try:
                epoch = next(epochs)
            except StopIteration as end:
                return end.value
        if on_epoch is not None:
            on_epoch(epoch)


def write_artifact(path: Path, content: bytes) -> str:
    """Write an artifact atomically and return its SHA-256."""
    write_atomic(path, content)
    return sha256(content).hexdigest()


def has_artifact(path: Path, row: RunResult) -> bool:
    """Return whether the artifact of a run exists and matches its digest; warn on a mismatch.

    Old rows have no digest: their artifact must only be readable.
    """
    digest = row.artifact_digest
    try:
        if digest is None:
            with safe_open(path, "pt"):
                return True
        if sha256(path.read_bytes()).hexdigest() == digest:
            return True
    except FileNotFoundError:
        return False
    except (OSError, SafetensorError):
        pass
    warnings.warn(f"{path} is damaged or belongs to another run; the run is repeated", stacklevel=2)
    return False


def pack_artifact(
    model: Classifier, data: GraphDataset, split: Split, spec: RunSpec, *, weights: bool = True
) -> bytes:
    """Serialize the weights, if wanted, test indices, test logits and test targets."""
    state = model.state_dict() if weights else {}
    tensors = {f"weights.{name}": part for name, part in state.items()}
    tensors["test_index"] = split.test
    tensors["test_logits"] = predict(model, data, split.test, spec.train.batch_size)
    tensors["test_y"] = data.y[split.test.to(data.y.device)]
    return save({name: part.cpu().contiguous() for name, part in tensors.items()})


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
            if artifact is not None and row.done:
                data = run_data(spec, loaded.dataset, split)
                try:
                    content = pack_artifact(model, data, split, spec, weights=weights)
                except torch.OutOfMemoryError:  # the other runs fill the GPU
                    content = pack_artifact(model.cpu(), data, split, spec, weights=weights)
                row = row.updated(artifact_digest=write_artifact(artifact(spec.key), content))
            yield add_environment(row, place, seconds).updated(together=beside)


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
