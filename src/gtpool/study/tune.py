"""Choose a network on validation parts alone, by successive halving. Imported without torch.

Many configurations train for a few epochs; the better third goes on to longer trainings, the last
of which is the protocol itself. Each fold chooses by its own validation part. The choice by the
mean over folds is made beside it and is another thing: in the fixed folds the validation part of
one fold is the test part of the one before, so that a mean over folds has seen every test label.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, inf
from statistics import fmean
from typing import Any, NamedTuple

from gtpool.spec import RunSpec
from gtpool.study.candidates import Options, configured, draw, possible, space_of
from gtpool.study.store import Row

Run = Callable[[Sequence[RunSpec]], Sequence[Row]]
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


def _loss(row: Row) -> float | None:
    """Give what a run is judged by: the measure on its validation part that picks its epoch."""
    if row["status"] != "done":
        return None
    if row["spec"]["train"]["select"] == "loss":
        return row["valid_loss"]
    value = row["valid_metric"]
    return value if value is None or not row["higher_is_better"] else -value
