"""One run: from a spec to a row."""

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
from gtpool.model.classifier import Classifier
from gtpool.spec import RunSpec
from gtpool.study.build_result import add_environment, add_outcome, start_result
from gtpool.study.inputs import choose_split, load_data, shape_of
from gtpool.study.result import RunResult
from gtpool.study.store import write_atomic
from gtpool.train.course import Epoch, Outcome, TrainingError, check_measurable
from gtpool.train.fit import fit, predict, seeded
from gtpool.train.parallel import Group, join, joined


def run_one(
    spec: RunSpec,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    artifact: Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    loaded: Loaded | None = None,
) -> RunResult:
    """Do one run and give its row; on a CPU the same spec gives the same numbers, bit for bit.

    A run that cannot go on (the loss is not finite, the memory is full) gives a row of status
    "failed"; what is wrong with the spec or the data raises. In the first of several processes, the
    others of which ``follow``, all do the run together.

    Args:
        spec: The run.
        data_dir: Where to look first for a dataset known by name.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        deterministic: Forbid torch the algorithms that are not.
        artifact: A file for the weights and the logits of the test part, as safetensors.
        on_epoch: Called at the end of each epoch.
        loaded: The graphs, if they are loaded already.
    """
    group = joined()
    place = group.place(choose_device(device))
    group.tell(
        {"spec": spec, "data_dir": data_dir, "device": device, "deterministic": deterministic}
    )
    loaded = load_data(spec.data, data_dir, loaded)
    split = choose_split(spec.split, loaded, data_dir)
    data = loaded.dataset.standardized(split.train) if spec.data.standardize else loaded.dataset
    with reproducible_torch(place, deterministic):
        with seeded(spec.seed, torch.device("cpu")):
            model = Classifier(spec.model, shape_of(data))
        row = start_result(data, split, model, spec).having(source_digest=loaded.digest)
        start = perf_counter()
        try:
            check_measurable(data, split.test, "test")
            with group.guard():
                group.check_same([row.source_digest, row.split])
                model, data = model.to(place), data.to(place)
            epochs = fit(model, data, split, spec.train, seed=spec.seed, group=group)
            outcome = _run_to_end(epochs, on_epoch, group)
        except TrainingError as error:
            row = add_outcome(row, error)
        else:
            row = add_outcome(row, outcome)
            if artifact is not None:
                digest = write_artifact(artifact, pack_artifact(model, data, split, spec))
                row = row.having(artifact_digest=digest)
        row = add_environment(row, place, perf_counter() - start)
        return row if group.size == 1 else row.having(processes=group.size)


def follow() -> bool:
    """Join the processes of torchrun; all but the first do their share of its runs to the end.

    Returns:
        Whether this one has followed; the first does its runs, and then ``joined().leave()``.
    """
    group = join()
    if group.rank == 0:
        return False
    try:
        while (task := _next_task(group)) is not None:
            run_one(**task)
    except KeyboardInterrupt:  # the first has it too, and speaks for all
        raise SystemExit(1) from None
    group.leave()
    return True


def _next_task(group: Group) -> dict[str, Any] | None:
    try:
        return group.hear()
    except RuntimeError:  # the first has gone between two runs, and said why
        raise SystemExit(1) from None


def choose_device(device: str) -> torch.device:
    """Say where to run: "auto" is a GPU if there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {device!r} is asked for, but torch sees no such GPU here")
    return place


@contextmanager
def reproducible_torch(place: torch.device, deterministic: bool) -> Generator[None]:
    """Hold torch to what makes a run repeatable, and put its settings back after.

    A sum over several threads depends on their number, so a run on a CPU has one.
    """
    threads = torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        if place.type == "cpu":
            torch.set_num_threads(1)
        else:
            torch.cuda.reset_peak_memory_stats(place)
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
            torch.use_deterministic_algorithms(True)
        with torch.cuda.device(place if place.type == "cuda" else -1):  # -1 changes nothing
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def _run_to_end(
    epochs: Generator[Epoch, None, Outcome],
    on_epoch: Callable[[Epoch], None] | None,
    group: Group,
) -> Outcome:
    """Run to the end."""
    while True:
        with group.guard():
            try:
                epoch = next(epochs)
            except StopIteration as end:
                return end.value
        if on_epoch is not None:
            on_epoch(epoch)


def write_artifact(path: Path, content: bytes) -> str:
    """Write an artifact, and give its digest."""
    write_atomic(path, content)
    return sha256(content).hexdigest()


def has_artifact(path: Path, row: RunResult) -> bool:
    """Say whether the artifact of a run is there, whole and its own; a wrong one warns.

    A row from before digests were stored has none: its artifact need only be readable.
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
    warnings.warn(f"{path} is damaged or of another run: its run is done again", stacklevel=2)
    return False


def pack_artifact(model: Classifier, data: GraphDataset, split: Split, spec: RunSpec) -> bytes:
    """Pack the weights, and what they say of the test part."""
    tensors = {f"weights.{name}": part for name, part in model.state_dict().items()}
    tensors["test_index"] = split.test
    tensors["test_logits"] = predict(model, data, split.test, spec.train.batch_size)
    tensors["test_y"] = data.y[split.test.to(data.y.device)]
    return save({name: part.cpu().contiguous() for name, part in tensors.items()})
