"""From options and a file of settings to the runs that are asked for; their shards. No torch."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from gtpool.data.registry import DATASETS
from gtpool.model import METHODS, method_name
from gtpool.spec import RunSpec
from gtpool.study.recipe import protocol, reads_smiles, resolve_conv, set_score_order

_Options = dict[str, Any]
_MAX_TARGET_CHARS = 60  # characters of the targets in the name of a folder


class Plan(NamedTuple):
    """Runs of one method on one dataset."""

    run: RunSpec
    """The first of them: fold and seed go on from here."""
    seeds: int
    """How many, from ``run.seed``."""

    @property
    def data(self) -> str:
        """The dataset's name, or that of its file without endings."""
        source = self.run.data.source
        return source if source in DATASETS else Path(source).resolve().name.partition(".")[0]

    @property
    def folder(self) -> str:
        """Name of the default output folder: the data, the chosen target and task, the method."""
        target = re.sub(r"[^\w.+-]", "_", "+".join(self.run.data.target_columns))[
            :_MAX_TARGET_CHARS
        ]
        parts = (self.data, target, self.run.data.task, self.method)
        return "-".join(part for part in parts if part)

    @property
    def method(self) -> str:
        """The network's name."""
        return method_name(self.run.model.to_json())

    def to_json(self) -> _Options:
        """Give plain values that ``make_plan`` reads back."""
        return {"seeds": self.seeds, **self.run.to_json()}


def read_settings(path: Path) -> _Options:
    """Read a file of settings, TOML or JSON by the ending of its name."""
    readers = {".toml": tomllib.loads, ".json": json.loads}
    ending = path.suffix.lower()
    if ending not in readers:
        raise ValueError(f"{path}: settings are read from a file named .toml or .json")
    try:
        value = readers[ending](path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # of both readers, text that is not UTF-8
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a table of options, not {type(value).__name__}")
    return cast("_Options", value)


def make_plan(settings: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Lay options over settings over the recipe of the dataset, and check the whole.

    Args:
        settings: What a file says; ``seeds`` beside the parts of a ``RunSpec``.
        options: What the command line says, by part; None is what it does not say.
    """
    given = {part: _given(values) for part, values in options.items()}
    top = {**settings, **given.pop("", {})}
    seeds = top.pop("seeds", 1)
    parts = ("data", "split", "model", "train")
    for part in parts:
        held = top.get(part, {})
        if not isinstance(held, dict):
            raise ValueError(f"{part} must be a table of options, got {held!r}")
        top[part] = dict(cast("_Options", held))
    top["data"] |= given.get("data", {})
    if "source" not in top["data"]:
        raise ValueError("say what to train on: a name (see `gtpool data list`) or a path")
    source = str(top["data"]["source"])
    top["split"] |= given.get("split", {})
    conv_said = "conv" in top["model"] or "conv" in given.get("model", {})
    top["model"], model = _expand_method(top["model"]), _expand_method(given.get("model", {}))
    for part in ("pool", "readout"):
        if part in model:  # the options were another's
            top["model"].pop(f"{part}_options", None)
    top["model"] |= model
    if not conv_said:
        top["model"]["conv"] = resolve_conv(source, top["model"].get("conv", "gcn"))
    if reads_smiles(source):  # unless the user says otherwise, one molecule has one result
        top["data"].setdefault("atom_order", "canonical")
    set_score_order(source, top["model"])
    top["train"] = _complete_train(source, top["train"] | given.get("train", {}))
    return check_plan(Plan(RunSpec.from_json(top), seeds))


def check_plan(plan: Plan) -> Plan:
    """Give a plan back; raise where it has numbers that no run could start with."""
    train = plan.run.train
    counts = {
        "seeds": plan.seeds,
        "split.folds": plan.run.split.folds,
        "train.epochs": train.epochs,
        "train.batch_size": train.batch_size,
    }
    for name, value in counts.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    for name, value in {"train.lr": train.lr, "train.clip": train.clip}.items():
        if not value > 0:
            raise ValueError(f"{name} must be more than 0, got {value}")
    return plan


def shard(specs: Sequence[RunSpec], part: str) -> list[RunSpec]:
    """Keep the runs of one part; the parts are disjoint, and together they are all runs.

    Where a run belongs is told by its key alone, so that it stays there whatever else is asked for.

    Args:
        specs: The runs.
        part: "i/n", the part from 1 to n and how many there are.

    Example:
        >>> from gtpool.spec import DataSpec, RunSpec
        >>> specs = [RunSpec(data=DataSpec(source="MUTAG"), seed=seed) for seed in range(6)]
        >>> [len(shard(specs, part)) for part in ("1/2", "2/2", "1/1")]
        [3, 3, 6]
    """
    index, parts = read_part(part)
    return [spec for spec in specs if int(spec.key, 16) % parts == index - 1]


def read_part(part: str) -> tuple[int, int]:
    """Read "i/n"."""
    index, _, parts = part.partition("/")
    if not (index.isdecimal() and parts.isdecimal() and 1 <= int(index) <= int(parts)):
        raise ValueError(f"a shard is i/n with i from 1 to n, such as 2/8, got {part!r}")
    return int(index), int(parts)


def _given(values: Mapping[str, Any]) -> _Options:
    return {name: value for name, value in values.items() if value is not None}


def _expand_method(model: Mapping[str, Any]) -> _Options:
    """Write a method, whose name may stand where a pooler's does, as the options that it is."""
    method = METHODS.get(str(model.get("pool")))
    if method is None:
        return dict(model)
    return {**method.model, **{key: value for key, value in model.items() if key != "pool"}}


def _complete_train(source: str, train: _Options) -> _Options:
    """Complete the options of the training by the protocol of the dataset."""
    usual = protocol(source).to_json()
    epochs = train.get("epochs")
    if isinstance(epochs, int):  # a short training warms up for a tenth of its epochs, too
        usual["warmup"] = epochs // 10
    return usual | train
