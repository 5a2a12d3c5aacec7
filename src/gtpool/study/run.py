"""The conductor: many runs, here, side by side or in processes, and their stored rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from gtpool.data.chain import with_chain
from gtpool.model.classifier import chain_steps
from gtpool.spec import RunSpec
from gtpool.study.inputs import load_data, source_digest
from gtpool.study.pool import work_in_processes
from gtpool.study.row import lost
from gtpool.study.store import Row, Store
from gtpool.study.together import group, run_together
from gtpool.study.unit import choose_device, run_unit
from gtpool.train.course import Epoch

TOGETHER = 100
"""Runs that train side by side on a GPU."""


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


def run_many(
    specs: Sequence[RunSpec],
    store: Store,
    *,
    jobs: int = 1,
    together: int | None = None,
    keep: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    deterministic: bool = False,
    watch: Watcher | None = None,
) -> list[Row]:
    """Do the runs that the store does not have as done, and give the rows of all, in order.

    Each row is stored as soon as it is there, those of runs that train side by side when all of
    them are over: after Ctrl-C, a crash or a loss of power the same
    call goes on where it stopped. Failed runs are tried again. A run on files of the user's counts
    as done only while those files are the same.

    Args:
        specs: The runs.
        store: Where rows are kept.
        jobs: How many at once, each in a process of its own if more than one.
        together: How many runs of one network may train side by side in one program; by default
            ``TOGETHER`` on a GPU and one on a CPU. More than one excludes several ``jobs``.
        keep: Keep the weights and test logits of each run beside its row.
        data_dir: Where to look first for a dataset known by name.
        device: As for ``run_unit``.
        deterministic: As for ``run_unit``.
        watch: Who is told of the progress.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    on_gpu = choose_device(device).type == "cuda"
    if together is None:
        together = TOGETHER if on_gpu and jobs == 1 else 1
    if together < 1 or (together > 1 and jobs > 1):
        raise ValueError(
            f"together must be at least 1, and 1 with several jobs, got {together} and jobs={jobs}"
        )
    store.sweep()
    watch = _Nobody() if watch is None else watch
    settings = _Settings(data_dir, device, deterministic)
    unit = partial(_run_stored, store=store, keep=keep, settings=settings)
    wanted = {spec.key: spec for spec in specs}
    rows = {key: _done(spec, store, keep) for key, spec in wanted.items()}
    todo = [wanted[key] for key, row in rows.items() if row is None]
    watch.begin(list(wanted.values()), [row for row in rows.values() if row is not None])
    _prepare(todo, data_dir, watch)
    groups, todo = group(todo, together, data_dir)
    jobs = min(jobs, len(todo))
    run = partial(_apart, jobs=jobs, store=store) if jobs > 1 else _here
    found = chain(_beside(groups, store, settings, watch, keep=keep), run(unit, todo, watch))
    rows.update((row["key"], row) for row in found)
    return [cast("Row", rows[spec.key]) for spec in specs]


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


def _beside(
    groups: Sequence[Sequence[RunSpec]],
    store: Store,
    settings: _Settings,
    watch: Watcher,
    *,
    keep: bool,
) -> Iterator[Row]:
    """Run group after group, the runs of each side by side in one program."""
    for specs in groups:
        for spec in specs:
            watch.started(spec)
        for row in run_together(
            specs,
            data_dir=settings.data_dir,
            device=settings.device,
            deterministic=settings.deterministic,
            artifact=store.artifact if keep else None,
            on_epoch=watch.epoch,
        ):
            store.put(row)
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
