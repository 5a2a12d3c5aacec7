"""Train and test one run: RunSpec -> RunResult."""

import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.reader import Loaded
from gtpool.data.split import Split
from gtpool.deprecated import old_names
from gtpool.model.classifier import Classifier
from gtpool.spec import RunSpec
from gtpool.study.build_result import add_environment, add_outcome, start_result
from gtpool.study.inputs import load_data
from gtpool.study.result import RunResult
from gtpool.study.split_rules import choose_split
from gtpool.study.start import new_network, run_data
from gtpool.study.store import write_atomic
from gtpool.train.distributed import Group, current_group, init_group
from gtpool.train.epoch import Epoch, Outcome, TrainingError, check_metric_defined
from gtpool.train.fit import fit, predict
from gtpool.train.metric import metric_of


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


__getattr__ = old_names(__name__, {"follow": "join_process_group"})
