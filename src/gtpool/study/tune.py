"""Choose a network on validation parts alone, by successive halving. Imported without torch.

Many configurations train for a few epochs; the better third goes on to longer trainings, the last
of which is the protocol itself. Each fold chooses by its own validation part. The choice by the
mean over folds is made beside it and is another thing: in the fixed folds the validation part of
one fold is the test part of the one before, so that a mean over folds has seen every test label.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import ceil, inf, prod
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from gtpool.spec import RunSpec
from gtpool.study.recipe import recipe
from gtpool.study.space import PAPER
from gtpool.study.store import Row

Options = dict[str, Any]
"""Options by dotted name, such as ``{"model.width": 64, "train.lr": 1e-3}``."""
Run = Callable[[Sequence[RunSpec]], Sequence[Row]]
"""Does runs and gives their rows, in order; such as ``run_many`` with a store."""

NETWORK: dict[str, tuple[Any, ...]] = {
    "model.conv": ("gcn", "gin", "gat"),
    "model.convs_per_level": (1, 2, 3),
    "model.norm": ("none", "batch", "layer"),
    "model.residual": (False, True),
    "model.readout": ("mean-max", "sum", "mean"),
}
"""What we add for any network."""
LEVELS: dict[str, tuple[Any, ...]] = {
    "model.ratio": (0.5, 0.25, 0.75),
    "model.levels": (3, 1, 2),
    "model.read_input": (False, True),
}
"""What we add where nodes are pooled; ratio and levels as the paper's figure has them."""
GTPOOL: dict[str, tuple[Any, ...]] = {
    "pool.order": ("index", "score"),
    "pool.gate": (None, "tanh"),
    "pool.heads": (1, 4),
    "pool.temperature": (1.0, 0.1),
}
"""What we add for GTPool."""


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


def space_of(dataset: str, model: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Give the search space of a network on a dataset; what it has without a search comes first.

    What makes a method what it is stays: a convolution that it names, its number of levels, a
    read-out of its own. So does the batch of the protocol where it is none of the paper's.

    Args:
        dataset: A name of the registry.
        model: The network before it is tuned, as what differs from the defaults of ``ModelSpec``.

    Example:
        >>> space_of("ogbg-molhiv", {"pool": "sagpool"})["train.lr"]
        (0.001, 0.0005, 0.0003)
        >>> "model.conv" in space_of("MUTAG", {"pool": "none", "conv": "gin"})
        False
    """
    run = recipe(dataset, model)[0]
    space: dict[str, tuple[Any, ...]] = {**PAPER, **NETWORK}
    if run.model.pool == "none":
        del space["model.ratio"]
    else:
        space |= LEVELS
    if run.model.pool.startswith("gtpool"):
        space |= GTPOOL
    for option in model.keys() & {"conv", "levels"}:
        space.pop(f"model.{option}", None)
    ordered: dict[str, tuple[Any, ...]] = {}
    for name, choices in space.items():
        part, _, option = name.partition(".")
        if part == "pool":
            own = run.model.pool_options.get(option, choices[0])
        else:
            own = choices[0] if option == "conv" else getattr(getattr(run, part), option)
        if own in choices:
            ordered[name] = (own, *(choice for choice in choices if choice != own))
    return ordered


def draw(
    space: Mapping[str, Sequence[Any]],
    count: int,
    seed: int = 0,
    fits: Callable[[Options], bool] = lambda _: True,
) -> tuple[Options, ...]:
    """Draw different configurations, the first choice of every option first.

    Each network is drawn with up to three pairs of learning rate and weight decay, which cost next
    to nothing: runs that differ in them alone train side by side.

    Args:
        space: The choices of each option.
        count: How many; all there are if they are fewer.
        seed: Same seed, same configurations.
        fits: Says whether choices go together; what does not is left out.

    Example:
        >>> draw({"train.lr": (1, 2), "model.width": (8,)}, 5)
        ({'train.lr': 1, 'model.width': 8}, {'train.lr': 2, 'model.width': 8})
    """
    names = list(space)
    if prod(map(len, space.values())) <= count:
        every = (dict(zip(names, values, strict=True)) for values in product(*space.values()))
        return tuple(filter(fits, every))
    random = Random(seed)  # noqa: S311 - no secret
    network = {name: choices[0] for name, choices in space.items()}
    pairs = list(product(*(space.get(name, (None,)) for name in _RATES)))
    several = pairs[:1] + random.sample(pairs[1:], min(2, len(pairs) - 1))
    found: dict[tuple[Any, ...], None] = {}
    for _ in range(100 * count):
        for pair in several if fits(network) else ():
            own = network | {
                name: rate for name, rate in zip(_RATES, pair, strict=True) if name in space
            }
            found[tuple(own.values())] = None
        if len(found) >= count:
            break
        network = {name: random.choice(choices) for name, choices in space.items()}
        several = random.sample(pairs, min(3, len(pairs)))
    return tuple(dict(zip(names, values, strict=True)) for values in list(found)[:count])


_RATES = ("train.lr", "train.weight_decay")


def configured(dataset: str, model: Mapping[str, Any], options: Options) -> tuple[RunSpec, ...]:
    """Give the runs of a configuration on a dataset, one a fold, by the paper's protocol.

    Args:
        dataset: A name of the registry.
        model: The network before it is tuned, as what differs from the defaults of ``ModelSpec``.
        options: What the search says.
    """
    parts: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "pool": {}}
    for name, value in options.items():
        part, _, option = name.partition(".")
        parts[part][option] = value
    network = {**model, **parts["model"]}
    plain = {option: value for option, value in parts["pool"].items() if value != _DEFAULT[option]}
    if plain:
        network["pool_options"] = {**network.get("pool_options", {}), **plain}
    return recipe(dataset, network, train=parts["train"])


_DEFAULT = {"order": "index", "gate": None, "heads": 1, "temperature": 1.0}


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
    fits = partial(_fits, dataset, model)
    configs = draw(space or space_of(dataset, model), budget.configs, seed, fits)
    if not configs:
        raise ValueError("no choices of this space go together in a network")
    specs = [configured(dataset, model, options) for options in configs]
    whole = specs[0][0].train.epochs
    if any(epochs >= whole for epochs in budget.epochs):
        raise ValueError(f"the short rounds have fewer epochs than the protocol ({whole})")
    folds = range(len(specs[0]))
    every = list(range(len(configs)))
    alive, pooled, log = dict.fromkeys(folds, every), every, list[Tried]()
    for epochs in (*budget.epochs, whole):
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
        if all(one.loss is None for one in log if (one.config, one.fold) == (alive[fold][0], fold)):
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


def _fits(dataset: str, model: Mapping[str, Any], options: Options) -> bool:
    """Say whether a network can be made so: GIN takes no weighted edges, which DiffPool gives."""
    from gtpool.model.check import check_spec  # noqa: PLC0415 - needs torch, as all runs do

    try:
        check_spec(configured(dataset, model, options)[0].model)
    except ValueError:
        return False
    return True


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
