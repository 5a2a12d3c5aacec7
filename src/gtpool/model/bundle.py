"""Bundles: a trained model in a folder of ``config.json``, ``model.safetensors`` and ``README.md``.

A blend also has ``trees.json``, its boosted trees. ``calibration.json`` holds conformal scores,
temperatures and threshold, if there are any. A model of molecules may have
``training.safetensors``, packed fingerprints of molecules that it was trained on; it works without.

A bundle contains no code. The weights are plain numbers; the JSON is checked key by key.

``config.json`` names its format. Format 1 is that of gtpool 0.1 and the default if none is named.
Format 2 adds ``atom_order`` to the feature recipe, and stores the file name of the data instead of
its path. Format 3 stores an ensemble: ``members`` is the number of networks, each tensor has a
leading axis of members, and feature statistics are tensors. A single network is stored in format 2.
Format 4 is that of a blend: as before, with the key ``blend``. Format 5 is that of a model with
temperatures or a threshold, which an older version must not ignore: as before, with the key
``calibration``.
Options that an older config lacks get the values of its time.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gtpool.atomic import new_folder, recover_folder
from gtpool.model.calibration import Calibration
from gtpool.model.card import model_card
from gtpool.model.classifier import Classifier
from gtpool.model.predictor import EnsemblePredictor, Predictor, members_of
from gtpool.model.readout import LEARNED_READOUTS
from gtpool.model.trees import Blend
from gtpool.pool import POOLS
from gtpool.spec import DataSpec, ModelSpec, ShapeSpec, SplitSpec, TrainSpec, check_value

FORMAT = 5
"""Newest format that ``load_bundle`` reads."""
_SINGLE, _ENSEMBLE, _BLEND, _CALIBRATED = 2, 3, 4, 5  # formats that ``save_bundle`` uses
FILES = _CONFIG, _WEIGHTS, _CARD, _TREES, _CALIBRATION, _TRAINING = (
    "config.json",
    "model.safetensors",
    "README.md",
    "trees.json",
    "calibration.json",
    "training.safetensors",
)
"""Files of a bundle; not all have the last three."""
_KEYS = {"format", "model", "shape", "about"}
_MORE = {_ENSEMBLE: {"members"}, _BLEND: {"blend"}, _CALIBRATED: {"calibration"}}
_ANY = {_BLEND: {"members"}, _CALIBRATED: {"members", "blend"}}  # keys that a format may have
_FINGERPRINTS = "fingerprints"
_MEAN, _STD = "scaling.mean", "scaling.std"  # feature statistics of the members, [M, C]
_Json = dict[str, Any]
_Task = Literal["classes", "binary", "regression"]
_RUN = {"data": DataSpec, "split": SplitSpec, "model": ModelSpec, "train": TrainSpec}
_PATHS = (("run", "data", "source"), ("run", "train", "start"), ("estimator", "params", "start"))
_STEPS = 1000  # largest ``steps`` of a read-out or pooler; no tensor limits it
_LARGEST = 2**31 - 1
_NAMED = 1000  # maximum characters of a name
_LONGEST = 300  # maximum characters of a message, which may quote an untrusted file


class Bundle(NamedTuple):
    """A model and its metadata."""

    model: Predictor
    """A network or an ensemble, in evaluation mode, on the CPU."""
    about: dict[str, Any]
    """Plain values: ``schema`` (features and targets), ``metrics``, ``versions``, ``run``; for an
    ensemble also ``members``, the seed, fold and validation loss of each."""
    folder: Path | None = None
    """Folder that it was loaded from; None for a new bundle."""
    blend: Blend | None = None
    """Boosted trees that predict together with the model, if it is a blend."""
    calibration: Calibration = Calibration()
    """Temperatures, threshold and conformal scores; by default none of them."""
    fingerprints: Tensor | None = None
    """Packed fingerprints of training molecules, uint8 [molecules, bytes], if they are stored."""

    def part(self, *names: str) -> dict[str, Any]:
        """Return the table at a path of keys in ``about``; empty if there is none."""
        found: Any = self.about
        for name in names:
            found = cast("_Json", found).get(name) if isinstance(found, dict) else None
        return cast("_Json", found) if isinstance(found, dict) else {}


def save_bundle(
    folder: Path | str,
    model: Predictor,
    about: dict[str, Any],
    blend: Blend | None = None,
    calibration: Calibration | None = None,
    fingerprints: Tensor | None = None,
) -> None:
    """Write a model to a folder, atomically.

    An existing model in the folder is replaced. A folder with any other file raises an error.

    Args:
        folder: Target folder; created if missing.
        model: The trained network or ensemble.
        about: Metadata of JSON types. NaN and infinities are stored as null. Of the paths of data
            and of the model that training started from, only the last name is stored.
        blend: Boosted trees that predict together with the model.
        calibration: Temperatures, threshold and conformal scores.
        fingerprints: As in ``Bundle``.
    """
    folder = Path(folder)
    config = {
        "format": _SINGLE,
        "model": model.spec.to_json(),
        "shape": model.shape.to_json(),
        "about": _without_path(about),
    }
    if isinstance(model, EnsemblePredictor):
        config |= {"format": _ENSEMBLE, "members": len(model.members)}
    if blend is not None:
        config |= {"format": _BLEND, "blend": True}
    if calibration is not None and calibration.changes:
        config |= {"format": _CALIBRATED, "calibration": True}
    try:
        text = json.dumps(_finite(config), indent=1, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"the model cannot be saved to {folder}: {error}") from error
    with new_folder(folder, FILES, "a model") as made:
        save_file(_tensors(model), made / _WEIGHTS)
        (made / _CONFIG).write_text(text, encoding="utf-8")
        (made / _CARD).write_text(model_card(model, about, blend, calibration), encoding="utf-8")
        for name, part in {_TREES: blend, _CALIBRATION: calibration}.items():
            if part is not None and part != Calibration():
                written = json.dumps(part.to_json(), allow_nan=False)
                (made / name).write_text(written, encoding="utf-8")
        if fingerprints is not None:
            save_file({_FINGERPRINTS: fingerprints.contiguous()}, made / _TRAINING)


def load_bundle(folder: Path | str) -> Bundle:
    """Return a model that ``save_bundle`` wrote; raise a ValueError if its files are inconsistent.

    Loading never executes code from the folder.

    Each value is checked for its type, and limited by the tensors or a fixed bound. A config
    therefore cannot exhaust memory or loop forever.

    Args:
        folder: The folder of the model.
    """
    folder = Path(folder)
    _check_files(folder)
    config = _read_config(folder)
    try:
        _check_about(config["about"])
    except ValueError as error:
        raise ValueError(f"{folder / _CONFIG}: about.{_brief(error)}") from error
    tensors = _read_tensors(folder / _WEIGHTS)
    try:
        model = _build(config, tensors)
    # Untrusted options can fail anywhere in the layers that take them.
    except (ValueError, TypeError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder} does not hold a valid model: {_brief(error)}") from error
    blend = _read_blend(folder, model) if config.get("blend") else None
    calibration = _read_calibration(folder, config, model)
    bits = _read_fingerprints(folder)
    return Bundle(model, config["about"], folder, blend, calibration, bits)


def _tensors(model: Predictor) -> dict[str, Tensor]:
    """Return the weights of a network, or those of all members, stacked."""
    states = [member.state_dict() for member in members_of(model)]
    if isinstance(model, Classifier):
        found = states[0]
    else:
        found = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        if model.mean.size(1):
            found |= {_MEAN: model.mean, _STD: model.std}
    return {name: part.cpu().contiguous() for name, part in found.items()}


def _without_path(about: _Json) -> _Json:
    """Return ``about`` with paths of data and start shortened to their last name."""
    for keys in _PATHS:
        about = _shortened(about, keys)
    return about


def _shortened(table: _Json, keys: Sequence[str]) -> _Json:
    """Return a table with the path at some keys, if it is there, shortened to its last name."""
    first, *rest = keys
    part: Any = table.get(first)
    if rest and isinstance(part, dict):
        return {**table, first: _shortened(cast("_Json", part), rest)}
    if rest or not isinstance(part, str):
        return table
    return {**table, first: Path(part).absolute().name}


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Return a value with NaN and infinities replaced by None."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in cast("_Json", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        recover_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a model: the folder does not exist")
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            below = folder / "model"  # where `gtpool train` writes it
            hint = f"; did you mean {below}?" if (below / _WEIGHTS).is_file() else ""
            raise FileNotFoundError(f"{folder} is not a model: it holds no {name}{hint}")


def _read_config(folder: Path) -> _Json:
    path = folder / _CONFIG
    config = _read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} does not describe a model: it must be a JSON object")
    config = cast("_Json", config)
    number: Any = config.setdefault("format", 1)
    if type(number) is int and number > FORMAT:
        raise ValueError(
            f"{folder} has format {_brief(number)}, but this version of gtpool reads at most "
            f"format {FORMAT}; upgrade gtpool"
        )
    if type(number) is not int or number < 1:
        raise ValueError(f"{path}: format must be from 1 to {FORMAT}, got {_brief(number)}")
    keys = _KEYS | _MORE.get(number, set()) | (_ANY.get(number, set()) & set(config))
    if set(config) != keys:
        wrong = min(set(config) ^ keys)
        is_there = "unknown" if wrong in config else "missing"
        raise ValueError(f"{path}: key {_brief(wrong)!r} is {is_there}")
    for key in sorted(_KEYS - {"format"}):
        if not isinstance(config[key], dict):
            raise ValueError(f"{path}: {key!r} must be an object")
    return config


def _read_json(path: Path) -> Any:  # noqa: ANN401
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_read_float)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def _read_blend(folder: Path, model: Predictor) -> Blend:
    """Return the trees of a blend, after a check."""
    path = folder / _TREES
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a whole model: it holds no {_TREES}")
    content = _read_json(path)
    try:
        return Blend.from_json(content, len(members_of(model)), model.shape.outputs)
    except ValueError as error:
        raise ValueError(f"{path} does not hold the trees of a blend: {_brief(error)}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _read_fingerprints(folder: Path) -> Tensor | None:
    """Return the fingerprints of a bundle, after a check; None if it has none."""
    path = folder / _TRAINING
    if not path.is_file():
        return None
    found = _read_tensors(path)
    bits = found.get(_FINGERPRINTS)
    if len(found) != 1 or bits is None or bits.dtype != torch.uint8 or bits.dim() != 2:
        raise ValueError(f"{path} must hold one tensor {_FINGERPRINTS!r}, uint8 [molecules, bytes]")
    return bits


def _read_calibration(folder: Path, config: _Json, model: Predictor) -> Calibration:
    """Return the calibration of a model, after a check; the default if it has none."""
    path = folder / _CALIBRATION
    if not path.is_file():
        if config.get("calibration"):
            raise FileNotFoundError(f"{folder} is not a whole model: it holds no {_CALIBRATION}")
        return Calibration()
    content = _read_json(path)
    try:
        return Calibration.from_json(content, _task_of(config), model.shape.outputs)
    except ValueError as error:
        raise ValueError(f"{path} does not hold a calibration: {_brief(error)}") from error


def _task_of(config: _Json) -> str:
    """Return the task of a model, after a check."""
    return check_value(_Task, config["about"].get("schema", {}).get("task"), "about.schema.task")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _read_float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{_brief(text)} is too large for a JSON number")
    return value


def _brief(error: object) -> str:
    """Return the first line of a message, shortened to ``_LONGEST`` characters."""
    line = next(iter(str(error).splitlines()), "")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def _check_about(about: _Json) -> None:
    """Raise a ValueError for a value in ``about`` of a wrong type.

    The contents of ``schema`` are checked later, by ``gtpool.data.inference.read_schema``.
    """
    for name in ("schema", "metrics", "scores", "versions", "run", "estimator", "data"):
        check_value(dict, about.get(name, {}), name)
    columns = about.get("data", {}).get("target_columns", [])
    check_value(tuple[str, ...], columns, "data.target_columns")
    for name in ("license", "source_digest"):
        check_value(str | None, about.get(name), name)
    for name, number in about.get("versions", {}).items():
        check_value(str, number, f"versions.{name}")
    _check_figures(about.get("metrics", {}), "metrics")
    _check_figures(about.get("scores", {}), "scores")
    for member in check_value(list, about.get("members", []), "members"):
        _check_figures(check_value(dict, member, "members"), "members")
    run = about.get("run", {})
    check_value(int, run.get("seed", 0), "run.seed")
    for name, kind in _RUN.items():
        part, hints = check_value(dict, run.get(name, {}), f"run.{name}"), get_type_hints(kind)
        for option in part.keys() & hints:  # options of other versions are ignored
            check_value(hints[option], part[option], f"run.{name}.{option}")
            if isinstance(part[option], str) and len(part[option]) > _NAMED:
                raise ValueError(f"run.{name}.{option} is longer than {_NAMED} characters")


def _check_figures(figures: _Json, where: str) -> None:
    for name, figure in figures.items():
        check_value(str | float | int | None, figure, f"{where}.{name}")


def _check_options(spec: ModelSpec, shape: ShapeSpec) -> None:
    """Raise a ValueError for an option of a wrong type, or a number that is too large."""
    parts = {
        "pool_options": (POOLS.get(spec.pool), spec.pool_options),
        "readout_options": (LEARNED_READOUTS.get(spec.readout), spec.readout_options),
    }
    for where, (make, options) in parts.items():
        hints = get_type_hints(getattr(make, "func", make).__init__) if make else {}
        for name in options.keys() & hints:
            check_value(hints[name], options[name], f"{where}.{name}")
            most = _STEPS if name == "steps" else _LARGEST
            if isinstance(options[name], int) and options[name] > most:
                raise ValueError(f"{where}.{name} must be at most {most}, got {options[name]}")
    for name, size in {"ratio": spec.ratio, "width": spec.width, **shape.to_json()}.items():
        for number in size if isinstance(size, list) else [size]:
            if not -1 < number <= _LARGEST:
                raise ValueError(f"{name} must be from 0 to {_LARGEST}, got {number}")


def _build(config: _Json, tensors: dict[str, Tensor]) -> Predictor:
    """Return the network or ensemble of a config, after a check of the tensors."""
    if "members" not in config:
        return _build_one(config, tensors)
    count = check_value(int, config["members"], "members")
    if count < 1 or any(part.shape[:1] != (count,) for part in tensors.values()):
        raise ValueError(f"not every tensor is of {count} members")
    if len(told := config["about"].get("members", [])) not in {0, count}:
        raise ValueError(f"about describes {len(told)} members, and there are {count}")
    mean, std = (tensors.pop(name, None) for name in (_MEAN, _STD))
    members = [
        _build_one(config, {name: part[member] for name, part in tensors.items()})
        for member in range(count)
    ]
    _check_scaling(mean, std)
    return EnsemblePredictor(members, _task_of(config), mean, std)


def _check_scaling(mean: Tensor | None, std: Tensor | None) -> None:
    """Raise a ValueError unless mean and deviation are of the same columns, or both missing."""
    if mean is None and std is None:
        return
    if mean is None or std is None or mean.dim() != 2 or mean.shape != std.shape:
        raise ValueError(f"{_MEAN} and {_STD} must be of one shape, [members, columns]")
    if {mean.dtype, std.dtype} != {torch.double}:
        raise ValueError(f"{_MEAN} and {_STD} must be of type float64")
    if not (mean.isfinite().all() and std.isfinite().all() and (std > 0).all()):
        raise ValueError(f"{_MEAN} and {_STD} must be finite, and deviations above 0")


def _build_one(config: _Json, tensors: dict[str, Tensor]) -> Classifier:
    """Return the network of a config with its weights, after a check of the tensors."""
    spec, shape = ModelSpec.from_stored(config["model"]), ShapeSpec.from_stored(config["shape"])
    _check_options(spec, shape)
    if spec.levels * spec.convs_per_level > len(tensors):
        raise ValueError(f"{len(tensors)} tensors are too few for {spec.levels} levels")
    with torch.random.fork_rng(devices=[]):  # keeps the generator; initial weights are overwritten
        with torch.device("meta"):  # allocates no memory for any config
            expected = Classifier(spec, shape).state_dict()
        kind = _compare(expected, tensors)
        model = Classifier(spec, shape).to(kind)
    model.load_state_dict(tensors)
    return model.eval()


def _compare(expected: dict[str, Tensor], found: dict[str, Tensor]) -> torch.dtype:
    """Return the float dtype; raise a ValueError unless names, shapes and dtypes match."""
    for name in sorted(set(expected) ^ set(found)):
        raise ValueError(f"tensor {name!r} is {'missing' if name in expected else 'unknown'}")
    kind = found["shift"].dtype
    for name, tensor in found.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            raise ValueError(
                f"{name} must be of shape {list(wanted.shape)}, got {list(tensor.shape)}"
            )
        if tensor.dtype != (kind if wanted.is_floating_point() else wanted.dtype):
            raise ValueError(f"{name} has dtype {tensor.dtype}, unlike the other tensors")
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite, but contains NaN or infinity")
    return kind
