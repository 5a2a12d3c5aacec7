"""Merge command-line options, a settings file and the recipe into a Plan. No torch."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from gtpool.data.registry import DATASETS
from gtpool.model import METHODS, method_name
from gtpool.spec import RunSpec, check_value
from gtpool.study.recipe import protocol, reads_smiles, resolve_conv, set_score_order

_Options = dict[str, Any]
_MAX_TARGET_CHARS = 60  # in the name of the output folder


Handover = Literal["folds", "best"]
"""The model that a cross-validation hands over: all folds' models as one ensemble, or the best."""


class Plan(NamedTuple):
    """Runs of one method on one dataset."""

    run: RunSpec
    """The first run."""
    seeds: int
    """Number of repetitions of the cross-validation, each with ``ensemble`` seeds of its own."""
    ensemble: int = 1
    """Number of members that predict as one; seeds count on from ``run.seed``."""
    bag: bool = False
    """Whether members also differ in the graphs that train and validate."""
    handover: Handover = "folds"
    """What becomes the saved model."""

    @property
    def data(self) -> str:
        """Name of the dataset, or of its file without suffixes."""
        source = self.run.data.source
        return source if source in DATASETS else Path(source).resolve().name.partition(".")[0]

    @property
    def folder(self) -> str:
        """Name of the default output folder: data, target, task and method."""
        target = re.sub(r"[^\w.+-]", "_", "+".join(self.run.data.target_columns))[
            :_MAX_TARGET_CHARS
        ]
        parts = (self.data, target, self.run.data.task, self.method)
        return "-".join(part for part in parts if part)

    @property
    def method(self) -> str:
        """Name of the method."""
        return method_name(self.run.model.to_json())

    def to_json(self) -> _Options:
        """Return settings that ``make_plan`` reads back."""
        own = {name: part for name, part in self._asdict().items() if name != "run"}
        return {**own, **self.run.to_json()}


def read_settings(path: Path) -> _Options:
    """Return the settings in a TOML or JSON file."""
    readers = {".toml": tomllib.loads, ".json": json.loads}
    ending = path.suffix.lower()
    if ending not in readers:
        raise ValueError(f"{path}: a settings file must end in .toml or .json")
    try:
        value = readers[ending](path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError also covers text that is not UTF-8
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a table of options, not {type(value).__name__}")
    return cast("_Options", value)


def make_plan(settings: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Return the checked plan: options override settings, which override the recipe.

    Args:
        settings: Content of a settings file: ``seeds``, ``ensemble``, ``bag``, ``handover`` and the
            parts of a ``RunSpec``.
        options: Command-line options by part; None if not given.
    """
    given = {part: _given(values) for part, values in options.items()}
    top = {**settings, **given.pop("", {})}
    seeds = top.pop("seeds", 1)
    members = {name: top.pop(name) for name in ("ensemble", "bag", "handover") if name in top}
    parts = ("data", "split", "model", "train")
    for part in parts:
        held = top.get(part, {})
        if not isinstance(held, dict):
            raise ValueError(f"{part} must be a table of options, got {held!r}")
        top[part] = dict(cast("_Options", held))
    top["data"] |= given.get("data", {})
    if "source" not in top["data"]:
        raise ValueError("no dataset given: name one (see `gtpool data list`) or give a path")
    source = str(top["data"]["source"])
    top["split"] |= given.get("split", {})
    conv_given = "conv" in top["model"] or "conv" in given.get("model", {})
    top["model"], model = _expand_method(top["model"]), _expand_method(given.get("model", {}))
    for part in ("pool", "readout"):
        if part in model:  # the settings were for another layer
            top["model"].pop(f"{part}_options", None)
    top["model"] |= model
    if not conv_given:
        top["model"]["conv"] = resolve_conv(source, top["model"].get("conv", "gcn"))
    if reads_smiles(source):  # the order of the atoms in the file must not matter
        top["data"].setdefault("atom_order", "canonical")
    set_score_order(source, top["model"])
    top["train"] = _complete_train(source, top["train"] | given.get("train", {}))
    return check_plan(Plan(RunSpec.from_json(top), seeds, **members))


def check_plan(plan: Plan) -> Plan:
    """Return a plan; raise if it has invalid numbers."""
    train = plan.run.train
    counts = {
        "seeds": plan.seeds,
        "ensemble": plan.ensemble,
        "split.folds": plan.run.split.folds,
        "train.epochs": train.epochs,
        "train.batch_size": train.batch_size,
    }
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    check_value(bool, plan.bag, "bag")
    check_value(Handover, plan.handover, "handover")
    if plan.bag and (plan.ensemble == 1 or plan.run.split.bag):
        raise ValueError(
            "bag draws a training and validation part for each member: set ensemble to at least 2, "
            f"got {plan.ensemble}, and split.bag to 0, got {plan.run.split.bag}"
        )
    for name, value in {"train.lr": train.lr, "train.clip": train.clip}.items():
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
    return plan


def shard(specs: Sequence[RunSpec], part: str) -> list[RunSpec]:
    """Return the runs of one shard. Shards are disjoint and cover all runs.

    The key of a run alone decides its shard.

    Args:
        specs: The runs.
        part: "i/n", with i from 1 to n.

    Example:
        >>> from gtpool.spec import DataSpec, RunSpec
        >>> specs = [RunSpec(data=DataSpec(source="MUTAG"), seed=seed) for seed in range(6)]
        >>> [len(shard(specs, part)) for part in ("1/2", "2/2", "1/1")]
        [3, 3, 6]
    """
    index, parts = read_part(part)
    return [spec for spec in specs if int(spec.key, 16) % parts == index - 1]


def read_part(part: str) -> tuple[int, int]:
    """Return i and n of "i/n"."""
    index, _, parts = part.partition("/")
    if not (index.isdecimal() and parts.isdecimal() and 1 <= int(index) <= int(parts)):
        raise ValueError(f"a shard must be i/n with i from 1 to n, such as 2/8, got {part!r}")
    return int(index), int(parts)


def _given(values: Mapping[str, Any]) -> _Options:
    return {name: value for name, value in values.items() if value is not None}


def _expand_method(model: Mapping[str, Any]) -> _Options:
    """Replace the name of a method in ``pool`` by its options."""
    method = METHODS.get(str(model.get("pool")))
    if method is None:
        return dict(model)
    return {**method.model, **{key: value for key, value in model.items() if key != "pool"}}


def _complete_train(source: str, train: _Options) -> _Options:
    """Add missing training options from the protocol of the dataset."""
    defaults = protocol(source).to_json()
    epochs = train.get("epochs")
    if isinstance(epochs, int):  # warm-up is a tenth of the epochs
        defaults["warmup"] = epochs // 10
    return defaults | train
