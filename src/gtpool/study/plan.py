"""Merge command-line options, a settings file and the recipe into a Plan. No torch."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from gtpool.data.registry import DATASETS
from gtpool.model import METHODS, method_name
from gtpool.spec import ModelSpec, RunSpec, check_value
from gtpool.study.recipe import (
    protocol,
    reads_smiles,
    recipe_options,
    resolve_conv,
    set_score_order,
)

_Options = dict[str, Any]
_PARTS = ("data", "split", "model", "train")
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
    recipe: str = "paper"
    """Name of the recipe that completed the options."""
    blend: bool = False
    """Whether boosted trees on descriptors of molecules predict together with the networks."""
    learning_curve: bool = False
    """Whether the runs are repeated on smaller shares of each training part."""
    searched: bool = False
    """Whether ``gtpool search`` chose the options on this data."""
    threshold: str | None = None
    """Metric for which held-out predictions choose the threshold of decisions; None for 0.5."""
    calibrate: bool = False
    """Whether held-out predictions choose a temperature of the probabilities."""

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
        for name in ("blend", "threshold", "calibrate", "learning_curve", "searched"):
            if not own[name]:  # unknown to version 0.2
                del own[name]
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


def make_plan(
    settings: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    recipe: str = "paper",
) -> Plan:
    """Return the checked plan: options override settings, which override the recipe.

    Args:
        settings: Content of a settings file: ``recipe``, ``seeds``, ``ensemble``, ``bag``,
            ``handover``, ``blend``, ``threshold``, ``calibrate``, ``learning_curve`` and the parts
            of a ``RunSpec``.
        options: Command-line options by part; None if not given.
        recipe: Name of the recipe if neither settings nor options name one.
    """
    given = {part: _given(values) for part, values in options.items()}
    top = {**settings, **given.pop("", {})}
    seeds = top.pop("seeds", 1)
    recipe = top.pop("recipe", "paper" if _is_complete(settings) else recipe)
    own = ("ensemble", "bag", "handover", "blend", "threshold", "calibrate")
    own += ("learning_curve", "searched")
    members = {name: top.pop(name) for name in own if name in top}
    members.setdefault("handover", "best" if recipe == "paper" else "folds")
    for part in _PARTS:
        held = top.get(part, {})
        if not isinstance(held, dict):
            raise ValueError(f"{part} must be a table of options, got {held!r}")
        top[part] = dict(cast("_Options", held))
    for part in ("data", "split", "train"):
        top[part] |= given.get(part, {})
    if "source" not in top["data"]:
        raise ValueError("no dataset given: name one (see `gtpool data list`) or give a path")
    source = str(top["data"]["source"])
    if "source" in given.get("data", {}) and source != settings.get("data", {}).get("source"):
        members.pop("searched", None)  # on other data
    pool = {"pool": ModelSpec.pool, **top["model"], **given.get("model", {})}["pool"]
    added = recipe_options(recipe, source, str(pool))
    _set_network(source, top, given, added)
    for part in ("data", "split"):
        top[part] = added[part] | top[part]
    if reads_smiles(source):  # the order of the atoms in the file must not matter
        top["data"].setdefault("atom_order", "canonical")
    top["train"] = _complete_train(protocol(source).to_json() | added["train"], top["train"])
    return check_plan(Plan(_check_start(top), seeds, **members, recipe=recipe))


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
    check_value(bool, plan.blend, "blend")
    check_value(bool, plan.learning_curve, "learning_curve")
    check_value(bool, plan.searched, "searched")
    check_value(str | None, plan.threshold, "threshold")
    check_value(bool, plan.calibrate, "calibrate")
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


def _is_complete(settings: Mapping[str, Any]) -> bool:
    """Return whether a file holds all parts of a run, as commands of any version write them."""
    return {*_PARTS, "seed"} <= settings.keys()


def _set_network(
    source: str, top: _Options, given: Mapping[str, _Options], added: _Options
) -> None:
    """Set the options of the network in ``top``: those of the model to start from, if there is one.

    Args:
        source: The data.
        top: All options by part.
        given: Options of the command line by part.
        added: Options of the recipe by part; those of ``data`` become those of that model.
    """
    train, own = top["train"], given.get("model", {})
    if train.get("start") is None:
        top["model"] = _complete_model(source, top["model"], own, added["model"])
        return
    from gtpool.study.start import load_base, refuse_conflicts  # noqa: PLC0415 - imports torch

    if "start" in given.get("train", {}):
        train.pop("start_digest", None)  # that of the settings file
    base = load_base(check_value(str, train["start"], "train.start"), train.get("start_digest"))
    model = _expand_method(top["model"], {}) | _expand_method(own, {})
    if "conv" in model and "conv" not in {**top["model"], **own}:
        model["conv"] = resolve_conv(source, model["conv"])
    refuse_conflicts(base, model, top["data"])
    top["model"] = base.model.spec.to_json()
    added["data"] = {**added["data"], **base.data_options()}


def _check_start(top: _Options) -> RunSpec:
    """Return the run, with the digest of the model that it starts from."""
    run = RunSpec.from_json(top)
    if run.train.start is None and not run.train.freeze_encoder:
        return run
    from gtpool.study.start import with_start  # noqa: PLC0415 - imports torch

    return with_start(run)


def _complete_model(
    source: str, held: Mapping[str, Any], given: Mapping[str, Any], network: Mapping[str, Any]
) -> _Options:
    """Return the options of the network.

    Args:
        source: The data.
        held: Options of the settings file.
        given: Options of the command line, which override them.
        network: Options of the recipe, for what neither gives.
    """
    conv_given = "conv" in {**held, **given}
    model, changes = _expand_method(held, network), _expand_method(given, network)
    for part in ("pool", "readout"):
        if part in changes:  # the settings were for another layer
            model.pop(f"{part}_options", None)
    model = {**network, **model, **changes}
    if not conv_given:
        model["conv"] = resolve_conv(source, model.get("conv", "gcn"))
    set_score_order(source, model)
    return model


def _expand_method(model: Mapping[str, Any], network: Mapping[str, Any]) -> _Options:
    """Replace the name of a method in ``pool`` by its options.

    Args:
        model: Options of a ``ModelSpec``.
        network: Those of the recipe; options of the pooler are merged into its own.
    """
    method = METHODS.get(str(model.get("pool")))
    if method is None:
        return dict(model)
    own = dict(method.model)
    if "pool_options" in own and "pool_options" in network:
        own["pool_options"] = {**network["pool_options"], **own["pool_options"]}
    return {**own, **{key: value for key, value in model.items() if key != "pool"}}


def _complete_train(defaults: _Options, train: _Options) -> _Options:
    """Add missing training options."""
    epochs = train.get("epochs")
    if isinstance(epochs, int):  # warm-up is a tenth of the epochs
        defaults["warmup"] = epochs // 10
    return defaults | train
