"""Search space: options of a run and the values of each. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from math import prod
from random import Random
from typing import Any, NamedTuple, cast

from gtpool.model import METHODS
from gtpool.spec import RunSpec
from gtpool.study.recipe import set_score_order

Value = bool | int | float | str
Choice = Mapping[str, Value]
"""One value per option, by dotted name."""


class Range(NamedTuple):
    """Closed interval of numbers; of integers if both ends are."""

    low: float
    high: float
    log: bool = False
    """Sample on a log scale."""


Space = dict[str, tuple[Value, ...] | Range]

PAPER_SPACE: Space = {
    "model.ratio": (0.5, 0.25),
    "model.width": (128, 96, 64),
    "train.batch_size": (128, 64),
    "train.lr": (5e-4, 1e-3, 3e-4),
    "train.weight_decay": (1e-4, 2e-4),
    "model.dropout": (0.5, 0.3),
}
"""Search space of the paper, 144 combinations; the default of each option is first."""

_SEARCHABLE = ("model", "train", "data.features", "data.standardize")
# Each changes what a validation loss or metric means.
_CHANGES_OBJECTIVE = ("train.select", "train.metric", "train.class_weights")


def read_space(table: Mapping[str, Any], base: RunSpec) -> Space:
    """Return the search space of a TOML or JSON table; every value is checked.

    Args:
        table: Maps options to a list of choices or a range ``{low, high, log}``. Names of options
            are dotted, or nested as tables.
        base: The run whose options are replaced.

    Example:
        >>> from gtpool.spec import DataSpec
        >>> base = RunSpec(data=DataSpec(source="MUTAG"))
        >>> table = {"model.ratio": [0.5, 0.25], "train": {"lr": {"low": 1e-4, "high": 1e-2}}}
        >>> read_space(table, base)
        {'model.ratio': (0.5, 0.25), 'train.lr': Range(low=0.0001, high=0.01, log=False)}
    """
    space = {name: _read(name, given) for name, given in _flatten(table)}
    if not space:
        raise ValueError(
            'the search space is empty; add options such as "model.ratio" = [0.5, 0.25]'
        )
    for name, domain in space.items():
        values = [
            _find(apply_choice(base, {name: value}), name) for value in values_to_check(domain)
        ]
        if not any(f"{name}.".startswith(f"{part}.") for part in _SEARCHABLE):
            raise ValueError(
                f"{name} cannot be searched over; options of {', '.join(_SEARCHABLE)} can"
            )
        if name in _CHANGES_OBJECTIVE:
            raise ValueError(
                f"{name} cannot be searched over, since it changes the validation score"
            )
        if isinstance(domain, Range) and any(isinstance(value, float) for value in values):
            space[name] = domain._replace(low=float(domain.low), high=float(domain.high))
    return space


def apply_choice(base: RunSpec, choice: Choice) -> RunSpec:
    """Return a run with some options replaced.

    Args:
        base: The run.
        choice: Values by dotted name; ``model.pool`` may also be the name of a method.
    """
    plain = base.to_json()
    if "model.pool" in choice:  # options of the previous pooler do not apply
        method = METHODS.get(str(choice["model.pool"]))
        model = {} if method is None else deepcopy(method.model)
        plain["model"] |= {"pool_options": {}, **model}
        if method is not None:
            choice = {name: value for name, value in choice.items() if name != "model.pool"}
    for name, value in choice.items():
        *path, last = name.split(".")
        place: Any = plain
        for key in path:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ValueError(
                    f"unknown option {name!r}: {key} has no options (write a range as "
                    "{low = 1e-4, high = 1e-2, log = true})"
                )
        place[last] = value
    set_score_order(base.data.source, plain["model"])
    return RunSpec.from_json(plain)


def values_to_check(domain: tuple[Value, ...] | Range) -> tuple[Value, ...]:
    """Return the choices of an option, or the ends of its range."""
    return (domain.low, domain.high) if isinstance(domain, Range) else domain


def count_combinations(space: Space) -> int | None:
    """Return the number of combinations; None if it is infinite.

    Example:
        >>> count_combinations(PAPER_SPACE)
        144
    """
    sizes = [len(listed) for listed in map(_enumerate, space.values()) if listed is not None]
    return prod(sizes) if len(sizes) == len(space) else None


def count_untried(space: Space, tried: Iterable[Choice]) -> int | None:
    """Return the number of untried combinations; None if it is infinite."""
    total = count_combinations(space)
    return None if total is None else total - len({_key(space, choice) for choice in tried})


def draw_untried(space: Space, tried: Sequence[Choice], random: Random) -> dict[str, Value] | None:
    """Draw an untried combination; None if there is none or the space is infinite."""
    if not count_untried(space, tried):
        return None
    known = {_key(space, choice) for choice in tried}
    lists = {name: cast("Sequence[Value]", _enumerate(domain)) for name, domain in space.items()}
    while True:
        choice = {name: random.choice(values) for name, values in lists.items()}
        if _key(space, choice) not in known:
            return choice


def untried_values(space: Space, tried: Sequence[Choice]) -> list[str]:
    """Return the untried values, one line per option that has any.

    Example:
        >>> untried_values({"model.width": (128, 96), "train.lr": Range(0.1, 0.9)},
        ...                [{"model.width": 96, "train.lr": 0.5}])
        ['model.width 128', 'train.lr below 0.5 and above 0.5']
    """
    lines: list[str] = []
    for name, domain in space.items():
        seen = [choice[name] for choice in tried]
        if isinstance(domain, Range):
            numbers = cast("list[float]", seen)
            parts = [f"below {min(numbers):g}"] if numbers and min(numbers) > domain.low else []
            parts += [f"above {max(numbers):g}"] if numbers and max(numbers) < domain.high else []
            left = " and ".join(parts)
        else:
            left = ", ".join(str(value) for value in domain if value not in seen)
        if left:
            lines.append(f"{name} {left}")
    return lines


def _flatten(table: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the options of nested tables by dotted name."""
    for key, value in table.items():
        if isinstance(value, dict) and value and not {"low", "high"} & value.keys():
            yield from _flatten(cast("dict[str, Any]", value), f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _read(name: str, given: object) -> tuple[Value, ...] | Range:
    if isinstance(given, list | tuple):
        return _read_choices(name, cast("Sequence[Any]", given))
    if isinstance(given, dict) and given:
        return _read_range(name, cast("dict[str, Any]", given))
    raise ValueError(
        f"{name} must be a list of choices, or a range such as "
        f"{{low = 1e-4, high = 1e-2, log = true}}, got {given!r}"
    )


def _read_choices(name: str, given: Sequence[Any]) -> tuple[Value, ...]:
    if not given:
        raise ValueError(f"{name}: the list of choices is empty")
    for place, value in enumerate(given):
        if not isinstance(value, bool | int | float | str):
            raise ValueError(f"{name}: a choice must be a number, string or boolean, got {value!r}")
        if value in given[:place]:
            raise ValueError(f"{name}: {value!r} is listed twice")
    return tuple(given)


def _read_range(name: str, given: Mapping[str, Any]) -> Range:
    for key in given:
        if key not in Range._fields:
            raise ValueError(f"{name}: a range has low, high and log, not {key!r}")
    for end in ("low", "high"):
        if type(given.get(end)) not in {int, float}:
            raise ValueError(f"{name}.{end} must be a number, got {given.get(end)!r}")
    low, high, log = given["low"], given["high"], given.get("log", False)
    if not low < high:
        raise ValueError(f"{name}: low must be below high, got {low} and {high}")
    if not isinstance(log, bool) or (log and low <= 0):
        raise ValueError(f"{name}.log must be true or false, and low above 0 for true, got {log!r}")
    return Range(low, high, log)


def _find(spec: RunSpec, name: str) -> object:
    """Return the value of an option of a run."""
    value: Any = spec.to_json()
    for key in name.split("."):
        value = value[key]
    return value


def _enumerate(domain: tuple[Value, ...] | Range) -> Sequence[Value] | None:
    """Return the values of an option; None for a range of floats."""
    if not isinstance(domain, Range):
        return domain
    if isinstance(domain.low, int) and isinstance(domain.high, int):
        return range(domain.low, domain.high + 1)
    return None


def _key(space: Space, choice: Choice) -> tuple[Value, ...]:
    return tuple(choice[name] for name in space)
