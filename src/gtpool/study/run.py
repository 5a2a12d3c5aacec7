"""The conductor: from a spec to a stored row, once or many times."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Protocol, cast

import torch
from safetensors.torch import save

from gtpool.data.chain import with_chain
from gtpool.data.dataset import GraphDataset
from gtpool.data.split import Split
from gtpool.model.classifier import Classifier, chain_steps
from gtpool.spec import RunSpec
from gtpool.study.inputs import choose_split, load_data, shape_of, source_digest
from gtpool.study.pool import work_in_processes
from gtpool.study.row import blank, circumstances, lost, numbers, opening
from gtpool.study.store import Row, Store, write_whole
from gtpool.train.fit import Epoch, Outcome, TrainingError, check_measurable, fit, predict, seeded


class Watcher(Protocol):
    """Whoever wants to see how far many runs have come."""

    def begin(self, specs: Sequence[RunSpec], done: Sequence[Row]) -> None:
        """All runs are known, and the rows of those that were done before."""
        ...

    def preparing(self, what: str, done: int, total: int) -> None:
        """So much is done of what the runs wait for."""
        ...

    def started(self, spec: RunSpec) -> None:
        """A run has started."""
        ...

    def epoch(self, spec: RunSpec, epoch: Epoch) -> None:
        """A run has come to the end of an epoch."""
        ...

    def finished(self, row: Row) -> None:
        """A run is stored."""
        ...


def run_unit(
    spec: RunSpec,
    *,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    artifact: Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Row:
    """Do one run and give its row; on a CPU the same spec gives the same numbers, bit for bit.

    A run that cannot go on (the loss is not finite, the memory is full) gives a row of status
    "failed"; what is wrong with the spec or the data raises.

    Args:
        spec: The run.
        data_dir: Where to look first for a dataset known by name.
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        deterministic: Forbid torch the algorithms that are not.
        artifact: A file for the weights and the logits of the test part, as safetensors.
        on_epoch: Called at the end of each epoch.
    """
    place = choose_device(device)
    loaded = load_data(spec.data, data_dir)
    split = choose_split(spec.split, loaded, data_dir)
    data = loaded.dataset.standardized(split.train) if spec.data.standardize else loaded.dataset
    with _settled(place, deterministic):
        with seeded(spec.seed, torch.device("cpu")):
            model = Classifier(spec.model, shape_of(data))
        row = blank(spec) | opening(data, split, model)
        start = perf_counter()
        try:
            check_measurable(data, split.test, "test")
            model, data = model.to(place), data.to(place)
            outcome = _drain(fit(model, data, split, spec.train, seed=spec.seed), on_epoch)
        except (TrainingError, torch.OutOfMemoryError) as error:
            row |= {"status": "failed", "error": str(error)}
        else:
            row |= numbers(outcome)
            if artifact is not None:
                write_whole(artifact, _pack(model, data, split, spec))
        return row | circumstances(place, perf_counter() - start)


def run_many(
    specs: Sequence[RunSpec],
    store: Store,
    *,
    jobs: int = 1,
    keep: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    watch: Watcher | None = None,
) -> list[Row]:
    """Do the runs that the store does not have as done, and give the rows of all, in order.

    Each row is stored as soon as it is there: after Ctrl-C, a crash or a loss of power the same
    call goes on where it stopped. Failed runs are tried again. A run on files of the user's counts
    as done only while those files are the same.

    Args:
        specs: The runs.
        store: Where rows are kept.
        jobs: How many at once, each in a process of its own if more than one.
        keep: Keep the weights and test logits of each run beside its row.
        data_dir: Where to look first for a dataset known by name.
        device: As for ``run_unit``.
        deterministic: As for ``run_unit``.
        watch: Who is told of the progress.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    choose_device(device)
    store.sweep()
    watch = _Nobody() if watch is None else watch
    unit = partial(
        _run_stored, store=store, keep=keep, settings=_Settings(data_dir, device, deterministic)
    )
    wanted = {spec.key: spec for spec in specs}
    rows = {key: _done(spec, store, keep) for key, spec in wanted.items()}
    todo = [wanted[key] for key, row in rows.items() if row is None]
    watch.begin(list(wanted.values()), [row for row in rows.values() if row is not None])
    _prepare(todo, data_dir, watch)
    jobs = min(jobs, len(todo))
    run = partial(_apart, jobs=jobs, store=store) if jobs > 1 else _here
    rows.update((row["key"], row) for row in run(unit, todo, watch))
    return [cast("Row", rows[spec.key]) for spec in specs]


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


class _Nobody:
    """A watcher that does not look."""

    def begin(self, specs: Sequence[RunSpec], done: Sequence[Row]) -> None: ...
    def preparing(self, what: str, done: int, total: int) -> None: ...
    def started(self, spec: RunSpec) -> None: ...
    def epoch(self, spec: RunSpec, epoch: Epoch) -> None: ...
    def finished(self, row: Row) -> None: ...


class _Settings(NamedTuple):
    data_dir: Path | None
    device: str
    deterministic: bool


@contextmanager
def _settled(place: torch.device, deterministic: bool) -> Generator[None]:
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
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def _drain(
    epochs: Generator[Epoch, None, Outcome], on_epoch: Callable[[Epoch], None] | None
) -> Outcome:
    """Run to the end; what torch has to complain of is a run that failed."""
    while True:
        try:
            epoch = next(epochs)
        except StopIteration as end:
            return end.value
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(str(error) or type(error).__name__) from error
        if on_epoch is not None:
            on_epoch(epoch)


def _pack(model: Classifier, data: GraphDataset, split: Split, spec: RunSpec) -> bytes:
    """Pack the weights, and what they say of the test part."""
    tensors = {f"weights.{name}": part for name, part in model.state_dict().items()}
    tensors["test_index"] = split.test
    tensors["test_logits"] = predict(model, data, split.test, spec.train.batch_size)
    tensors["test_y"] = data.y[split.test.to(data.y.device)]
    return save({name: part.cpu().contiguous() for name, part in tensors.items()})


def _prepare(specs: Sequence[RunSpec], data_dir: Path | None, watch: Watcher) -> None:
    """Compute once, and leave in the cache, what several runs need of the same graphs."""
    for data, steps in dict.fromkeys((spec.data, chain_steps(spec.model)) for spec in specs):
        if steps:
            dataset = load_data(data, data_dir).dataset
            told = partial(watch.preparing, f"clusterings of {dataset.schema.name}")
            with_chain(dataset, steps, tell=told)


def _done(spec: RunSpec, store: Store, keep: bool) -> Row | None:
    """Give the row of a run that need not be repeated."""
    row = store.get(spec.key)
    if row is None or row["status"] != "done":
        return None
    if keep and not store.artifact(spec.key).exists():
        return None
    same = row.get("source_digest") == source_digest(spec.data.source)
    return row if same else None


def _run_stored(
    spec: RunSpec,
    on_epoch: Callable[[Epoch], None],
    *,
    store: Store,
    keep: bool,
    settings: _Settings,
) -> Row:
    """Do a run and store its row, unless another process on the store has done it by now."""
    row = _done(spec, store, keep)
    if row is None:
        row = run_unit(
            spec,
            data_dir=settings.data_dir,
            device=settings.device,
            deterministic=settings.deterministic,
            artifact=store.artifact(spec.key) if keep else None,
            on_epoch=on_epoch,
        )
        store.put(row)
    return row


_Unit = Callable[[RunSpec, Callable[[Epoch], None]], Row]


def _here(unit: _Unit, specs: Sequence[RunSpec], watch: Watcher) -> Iterator[Row]:
    """Run one after the other in this process."""
    for spec in specs:
        watch.started(spec)
        row = unit(spec, partial(watch.epoch, spec))
        watch.finished(row)
        yield row


def _apart(
    unit: _Unit, specs: Sequence[RunSpec], watch: Watcher, *, jobs: int, store: Store
) -> Iterator[Row]:
    """Run several at once in processes of their own, which store what they finish themselves."""
    with closing(work_in_processes(unit, specs, jobs)) as heard:
        for spec, kind, value in heard:
            if kind == "started":
                watch.started(spec)
            elif kind == "report":
                watch.epoch(spec, value)
            else:
                row = value if kind == "result" else lost(spec, value)
                if kind == "died":
                    store.put(row)
                watch.finished(row)
                yield row
