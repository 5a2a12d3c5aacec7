"""Choose a network on validation parts alone, by successive halving: `gtpool study tune`.

Many configurations train for a few epochs; the better third goes on to longer trainings, the last
of which is the protocol itself. Each fold chooses by its own validation part. The choice by the
mean over folds is made beside it and is another thing: in the fixed folds the validation part of
one fold is the test part of the one before, so that a mean over folds has seen every test label.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from shlex import join
from statistics import fmean
from time import monotonic
from typing import Any, NamedTuple, cast

from rich.console import Console

from gtpool.data.registry import look_up
from gtpool.model import METHODS
from gtpool.model.parts import CONVS
from gtpool.ops.sample import check_choice
from gtpool.report.progress import Numbered, spell_time
from gtpool.reproduce.candidates import Options, configured, draw, possible, space_of
from gtpool.spec import RunSpec
from gtpool.study.result import RunResult
from gtpool.study.run import run_many
from gtpool.study.store import Store, write_whole

_PAUSE = 5.0  # seconds between two lines
_QUIET = 30.0  # seconds without a line after which an epoch is worth one

Run = Callable[[Sequence[RunSpec]], Sequence[RunResult]]
"""Does runs and gives their rows, in order; such as ``run_many`` with a store."""


class Budget(NamedTuple):
    """How much is tried."""

    configs: int = 48
    """Configurations that start, the defaults among them."""
    epochs: tuple[int, ...] = (40, 120)
    """Length of each short training; the protocol follows."""
    keep: float = 1 / 3
    """Share that goes on from each of them."""
    seeds: int = 2
    """Of the last round, from 42 on."""


class Tried(NamedTuple):
    """What a run of the search gave: all that a choice may look at."""

    config: int
    fold: int
    epochs: int
    seed: int
    loss: float | None
    """What is minimised on the fold's own validation part; None where the run failed."""


class Tuned(NamedTuple):
    """What a search chose, and its log."""

    per_fold: tuple[Options, ...]
    """The choice of each fold, by its own validation part."""
    pooled: Options
    """The choice by the mean over folds."""
    configs: tuple[Options, ...]
    log: tuple[Tried, ...]


def tune(
    dataset: str,
    model: Mapping[str, Any],
    run: Run,
    *,
    space: Mapping[str, Sequence[Any]] | None = None,
    budget: Budget = Budget(),  # noqa: B008 - a value that does not change
    seed: int = 0,
) -> Tuned:
    """Search the space of a network on a dataset; no test part is looked at.

    Args:
        dataset: A name of the registry.
        model: The network before it is tuned, as what differs from the defaults of ``ModelSpec``.
        run: Does the runs.
        space: The choices of each option; by default those of ``space_of``.
        budget: How much to try.
        seed: Of the configurations that are drawn.
    """
    if budget.configs < 1:
        raise ValueError(f"at least one configuration starts, got {budget.configs}")
    if not 0 < budget.keep <= 1:
        raise ValueError(f"a round keeps a share above 0 and up to 1, got {budget.keep}")
    fits = partial(possible, dataset, model)
    configs = draw(space or space_of(dataset, model), budget.configs, seed, fits)
    if not configs:
        raise ValueError("no choices of this space go together in a network")
    specs = [configured(dataset, model, options) for options in configs]
    whole = specs[0][0].train.epochs
    rounds = (*budget.epochs, whole)
    if list(rounds) != sorted(set(rounds)):
        raise ValueError(
            f"each short round has fewer epochs than the next, the last fewer epochs than the "
            f"protocol ({whole}), got {', '.join(map(str, budget.epochs))}"
        )
    folds = range(len(specs[0]))
    every = list(range(len(configs)))
    alive, pooled, log = dict.fromkeys(folds, every), every, list[Tried]()
    for epochs in rounds:
        last = epochs == whole
        seeds = budget.seeds if last else 1
        pairs = [
            (config, fold)
            for config in every
            for fold in folds
            if config in alive[fold] or config in pooled
        ]
        runs = [
            _shortened(replace(specs[config][fold], seed=specs[config][fold].seed + at), epochs)
            for config, fold in pairs
            for at in range(seeds)
        ]
        tried = [
            Tried(config, fold, epochs, spec.seed, _loss(row))
            for (config, fold), spec, row in zip(
                [pair for pair in pairs for _ in range(seeds)], runs, run(runs), strict=True
            )
        ]
        log += tried
        share = 0.0 if last else budget.keep
        alive = {
            fold: best([one for one in tried if one.fold == fold], alive[fold], share)
            for fold in folds
        }
        pooled = best(tried, pooled, share)
    for fold in folds:
        ended = (alive[fold][0], fold, whole)
        if all(one.loss is None for one in log if (one.config, one.fold, one.epochs) == ended):
            raise ValueError(f"all runs on fold {fold + 1} of {dataset} failed; nothing is chosen")
    chosen = tuple(configs[alive[fold][0]] for fold in folds)
    return Tuned(chosen, configs[pooled[0]], configs, tuple(log))


def best(tried: Sequence[Tried], among: Sequence[int], share: float) -> list[int]:
    """Give the configurations of the lowest mean loss, best first, at least one.

    One that failed once is behind all that did not.

    Args:
        tried: What runs gave.
        among: The configurations that take part.
        share: How many of them to keep.

    Example:
        >>> losses = [Tried(0, 0, 40, 42, 0.7), Tried(1, 0, 40, 42, 0.5), Tried(2, 0, 40, 42, None)]
        >>> best(losses, [0, 1, 2], 0.5)
        [1, 0]
    """
    found: dict[int, list[float | None]] = {config: [] for config in among}
    for one in tried:
        if one.config in found:
            found[one.config].append(one.loss)

    def rank(config: int) -> tuple[bool, float, int]:
        losses = [loss for loss in found[config] if loss is not None]
        whole = len(losses) == len(found[config]) > 0
        return not whole, fmean(losses) if losses else inf, config

    return sorted(among, key=rank)[: max(1, ceil(share * len(among)))]


def _shortened(spec: RunSpec, epochs: int) -> RunSpec:
    """Give the same run of fewer epochs, of which a tenth warms up, as in the protocol."""
    if epochs == spec.train.epochs:
        return spec
    return replace(spec, train=replace(spec.train, epochs=epochs, warmup=epochs // 10))


def _loss(row: RunResult) -> float | None:
    """Give what a run is judged by: the measure on its validation part that picks its epoch."""
    if not row.done:
        return None
    if row.spec.train.select == "loss":
        return row.valid_loss
    value = row.valid_metric
    return value if value is None or not row.higher_is_better else -value


def tune_dataset(
    dataset: str,
    method: str,
    folder: Path,
    *,
    budget: tuple[int, tuple[int, ...], float],
    convs: tuple[str, ...],
    running: tuple[int, int | None, str, Path | None],
) -> list[str]:
    """Tune a method on a dataset, write the choices, and say in lines what was chosen.

    Args:
        dataset: A name of the registry.
        method: A key of ``METHODS``.
        folder: Where runs, choices and log go.
        budget: Configurations that start, epochs of the short rounds, share that goes on.
        convs: The convolutions to try; a method that is one keeps its own.
        running: Jobs, runs side by side, device, and where to look first for the data.
    """
    look_up(dataset)
    if method not in METHODS:
        raise ValueError(f"no method {method!r}; there are {', '.join(METHODS)}")
    model, (jobs, together, device, data_dir) = METHODS[method].model, running
    space = space_of(dataset, model)
    for conv in convs:
        check_choice("conv", conv, CONVS)
    if "model.conv" in space:  # its own first, which is among those that start
        own = space["model.conv"][0]
        space["model.conv"] = tuple(sorted(convs, key=lambda conv: conv != own))
    chosen = folder / "tuned.json"
    _known(chosen)  # what cannot be read is said before the work
    do = partial(
        run_many,
        store=Store(folder),
        jobs=jobs,
        together=together,
        device=device,
        data_dir=data_dir,
        watch=Rounds(),
    )
    tuned = tune(dataset, model, do, space=space, budget=Budget(*budget))
    rounds = list(dict.fromkeys(tried.epochs for tried in tuned.log))
    choice = {"rounds": rounds, "per_fold": tuned.per_fold, "pooled": tuned.pooled}
    known = _known(chosen)  # again: another process may have written meanwhile
    known.setdefault(method, {})[dataset] = choice
    write_whole(chosen, (json.dumps(known, indent=1) + "\n").encode())
    log = folder / f"{method}-{dataset}.jsonl"
    write_whole(log, ("\n".join(map(json.dumps, _log(dataset, method, tuned))) + "\n").encode())
    run = ("gtpool", "study", "run", "tuned", "--choices", chosen, "--output-dir", folder)
    return [
        *tell(dataset, model, tuned),
        f"choices:         {chosen}",
        f"log:             {log}",
        f"to run them:     {join(map(str, run))}",
    ]


def tell(dataset: str, model: Mapping[str, Any], tuned: Tuned) -> list[str]:
    """Say in lines what was chosen, as far as it differs from the defaults; no figure."""
    plain = configured(dataset, model, {})
    changed = [
        f"{name} {value}"
        for name, value in tuned.pooled.items()
        if configured(dataset, model, {name: value}) != plain
    ]
    count = len({json.dumps(options, sort_keys=True) for options in tuned.per_fold})
    return [
        f"pooled choice:   {', '.join(changed) or 'the defaults'}",
        f"folds chose:     {count} network{'s' * (count > 1)} in {len(tuned.per_fold)} folds",
    ]


def _known(path: Path) -> dict[str, dict[str, Any]]:
    """Read the choices of other methods and datasets, beside which the new one goes."""
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; move it out of the way") from error
    if not isinstance(known, dict):
        raise ValueError(f"{path} holds no choices of `gtpool study tune`; move it out of the way")
    return cast("dict[str, dict[str, Any]]", known)


def _log(dataset: str, method: str, tuned: Tuned) -> Iterator[object]:
    """Give what was tried and chosen, then one line for each run, in the order of the columns."""
    yield {
        "dataset": dataset,
        "method": method,
        "configs": tuned.configs,
        "chosen": [tuned.configs.index(options) for options in tuned.per_fold],
        "pooled": tuned.configs.index(tuned.pooled),
        "columns": Tried._fields,
    }
    yield from tuned.log


class Rounds:
    """A watcher for the rounds of a search; prints a line now and then.

    Args:
        console: Where to; the standard error if not given.
        clock: Seconds that go on.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.console = Console(stderr=True) if console is None else console
        self.clock = clock
        self.round = self.total = self.done = self._before = 0
        self._began = self._said = clock()

    def begin(self, specs: Sequence[RunSpec], done: Sequence[RunResult]) -> None:
        """Say how large a round is."""
        self.round += 1
        self.total, self.done, self._before = len(specs), len(done), len(done)
        self._began = self._said = self.clock()
        count = len({(spec.model, spec.train) for spec in specs})
        configs = f"{count} configuration{'s' * (count > 1)}"
        known = f", {len(done)} of them done before" if done else ""
        self._say(f"{configs}, {specs[0].train.epochs} epochs: {len(specs)} runs{known}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Say how much is done of what runs wait for."""
        self._now_and_then(f"{what}: {done} of {total}")

    def started(self, spec: RunSpec) -> None: ...  # noqa: D102

    def epoch(self, spec: RunSpec, epoch: Numbered) -> None:
        """Say how far a run is when no line has come for a while."""
        if self.clock() - self._said >= _QUIET:
            at = f"a run at epoch {epoch.number} of {spec.train.epochs}"
            self._say(f"{at}, {self.done} of {self.total} runs done")

    def finished(self, row: RunResult) -> None:
        """Count a run."""
        self.done += 1
        new, left = self.done - self._before, self.total - self.done
        seconds = (self.clock() - self._began) / new * left
        text = f"{self.done} of {self.total} runs"
        if row.status == "failed":
            self._say(f"{text}; one failed: {row.error}")
        elif left:
            self._now_and_then(f"{text}, about {spell_time(seconds)} left in this round")
        else:
            self._say(text)

    def _now_and_then(self, text: str) -> None:
        if self.clock() - self._said >= _PAUSE:
            self._say(text)

    def _say(self, text: str) -> None:
        self._said = self.clock()
        line = f"round {self.round}: {text}"
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)
