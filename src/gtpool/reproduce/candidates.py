"""Candidates of a search: the search space of a method, and samples from it. No torch."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from random import Random
from typing import Any

from gtpool.spec import RunSpec
from gtpool.study.recipe import recipe
from gtpool.study.space import PAPER_SPACE

Options = dict[str, Any]
"""Options by dotted name, such as ``{"model.width": 64, "train.lr": 1e-3}``."""

NETWORK: dict[str, tuple[Any, ...]] = {
    "model.conv": ("gcn", "gin", "gat"),
    "model.convs_per_level": (1, 2, 3),
    "model.norm": ("none", "batch", "layer"),
    "model.residual": (False, True),
    "model.readout": ("mean-max", "sum", "mean"),
}
"""Additional choices for all networks."""
LEVELS: dict[str, tuple[Any, ...]] = {
    "model.ratio": (0.5, 0.25, 0.75),
    "model.levels": (3, 1, 2),
    "model.read_input": (False, True),
}
"""Additional choices for networks with pooling; ratio and levels as in the paper's figure."""
GTPOOL: dict[str, tuple[Any, ...]] = {
    "pool.order": ("index", "score"),
    "pool.gate": (None, "tanh"),
    "pool.heads": (1, 4),
    "pool.temperature": (1.0, 0.1),
}
"""Additional choices for GTPool."""


def search_space(dataset: str, model: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the search space of a network on a dataset; the untuned value of each option is first.

    Options that define a method are fixed: its convolution, number of levels and read-out. The
    batch size of the protocol is fixed too if the paper does not have it.

    Args:
        dataset: A name of the registry.
        model: Options of the untuned network that differ from the defaults of ``ModelSpec``.

    Example:
        >>> search_space("ogbg-molhiv", {"pool": "sagpool"})["train.lr"]
        (0.001, 0.0005, 0.0003)
        >>> "model.conv" in search_space("MUTAG", {"pool": "none", "conv": "gin"})
        False
    """
    run = recipe(dataset, model)[0]
    space: dict[str, tuple[Any, ...]] = {**PAPER_SPACE, **NETWORK}
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


def sample_configs(
    space: Mapping[str, Sequence[Any]],
    count: int,
    seed: int = 0,
    fits: Callable[[Options], bool] = lambda _: True,
) -> tuple[Options, ...]:
    """Return distinct random configurations; the first has the first choice of every option.

    Each network is drawn with up to three pairs of learning rate and weight decay. They cost little
    time, because runs that differ only in these train side by side.

    Args:
        space: The choices of each option.
        count: Number of configurations; at most all combinations.
        seed: Seed of the random choice.
        fits: Returns whether choices are compatible; incompatible ones are skipped.

    Example:
        >>> sample_configs({"train.lr": (1, 2), "model.width": (8,)}, 5)
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


def config_runs(dataset: str, model: Mapping[str, Any], options: Options) -> tuple[RunSpec, ...]:
    """Return the runs of a configuration on a dataset by the paper's protocol, one per fold.

    Args:
        dataset: A name of the registry.
        model: Options of the untuned network that differ from the defaults of ``ModelSpec``.
        options: Options chosen by the search.
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


def is_buildable(dataset: str, model: Mapping[str, Any], options: Options) -> bool:
    """Return whether a network is valid; for example GIN cannot use DiffPool's edge weights.

    Args:
        dataset: A name of the registry.
        model: Options of the untuned network that differ from the defaults of ``ModelSpec``.
        options: Options chosen by the search.
    """
    from gtpool.model.check import check_spec  # noqa: PLC0415 - needs torch, as all runs do

    try:
        check_spec(config_runs(dataset, model, options)[0].model)
    except ValueError:
        return False
    return True
