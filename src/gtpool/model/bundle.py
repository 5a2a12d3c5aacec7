"""A trained model in a folder: ``config.json``, ``model.safetensors`` and ``README.md``.

Nothing in it is code: the weights are plain numbers, the rest is JSON that is checked key by key.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gtpool.atomic import new_folder, recover_folder
from gtpool.model.card import model_card
from gtpool.model.classifier import Classifier
from gtpool.spec import ModelSpec, ShapeSpec

FORMAT = 1
FILES = _CONFIG, _WEIGHTS, _CARD = "config.json", "model.safetensors", "README.md"
_KEYS = {"format", "model", "shape", "about"}
_Json = dict[str, Any]


class Bundle(NamedTuple):
    """A model and what is known about it."""

    model: Classifier
    """In evaluation mode, on the CPU."""
    about: dict[str, Any]
    """Plain values: ``schema`` (features and targets), ``metrics``, ``versions``, ``run``."""
    folder: Path | None = None
    """Where it was loaded from."""

    def part(self, *names: str) -> dict[str, Any]:
        """Give a table inside ``about``, empty where there is none."""
        found: Any = self.about
        for name in names:
            found = cast("_Json", found).get(name) if isinstance(found, dict) else None
        return cast("_Json", found) if isinstance(found, dict) else {}


def save_bundle(folder: Path | str, model: Classifier, about: dict[str, Any]) -> None:
    """Write a model, whole or not at all.

    A model that is there already is replaced; a folder with anything else in it is refused.

    Args:
        folder: Where to; made if it is not there.
        model: The trained network.
        about: Plain values that JSON can hold; a number that is not finite is kept as null.
    """
    folder = Path(folder)
    config = {
        "format": FORMAT,
        "model": model.spec.to_json(),
        "shape": model.shape.to_json(),
        "about": about,
    }
    try:
        text = json.dumps(_finite(config), indent=1, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"the model cannot be saved to {folder}: {error}") from error
    tensors = {name: part.cpu().contiguous() for name, part in model.state_dict().items()}
    with new_folder(folder, FILES, "a model") as made:
        save_file(tensors, made / _WEIGHTS)
        (made / _CONFIG).write_text(text, encoding="utf-8")
        (made / _CARD).write_text(model_card(model, about), encoding="utf-8")


def load_bundle(folder: Path | str) -> Bundle:
    """Read a model that ``save_bundle`` wrote; what does not fit together is refused.

    No file in the folder can execute anything.

    Args:
        folder: Where it lies.
    """
    folder = Path(folder)
    _check_files(folder)
    config = _read_config(folder)
    try:
        tensors = load_file(folder / _WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{folder / _WEIGHTS} is damaged: {error}") from error
    try:
        model = _build(config, tensors)
    # What a stranger wrote into the options can fail anywhere in the layers that are given them.
    except (ValueError, TypeError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder} does not hold a sound model: {error}") from error
    return Bundle(model, config["about"], folder)


def _finite(value: Any) -> Any:  # noqa: ANN401
    """Put None in the place of numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in cast("_Json", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        recover_folder(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a model: there is no such folder")
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            below = folder / "model"  # where `gtpool train` puts it
            hint = f"; did you mean {below}?" if (below / _WEIGHTS).is_file() else ""
            raise FileNotFoundError(f"{folder} is not a model: it holds no {name}{hint}")


def _read_config(folder: Path) -> _Json:
    path = folder / _CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} does not describe a model: it is no JSON object")
    config = cast("_Json", config)
    if "format" in config and config["format"] != FORMAT:
        raise ValueError(
            f"{folder} is of format {config['format']!r}, and this version of gtpool reads format "
            f"{FORMAT}: load it with the version that wrote it, or train it again"
        )
    if set(config) != _KEYS:
        wrong = min(set(config) ^ _KEYS)
        raise ValueError(f"{path}: key {wrong!r} is {'unknown' if wrong in config else 'missing'}")
    for key in sorted(_KEYS - {"format"}):
        if not isinstance(config[key], dict):
            raise ValueError(f"{path}: {key!r} must be an object")
    return config


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _build(config: _Json, tensors: dict[str, Tensor]) -> Classifier:
    """Make the network of a config and fill it, once names, shapes and kinds of tensors agree."""
    spec, shape = ModelSpec.from_json(config["model"]), ShapeSpec.from_json(config["shape"])
    if spec.levels * spec.convs_per_level > len(tensors):
        raise ValueError(f"{len(tensors)} tensors are too few for {spec.levels} levels")
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten
        with torch.device("meta"):  # takes no memory, whatever the config says
            expected = Classifier(spec, shape).state_dict()
        kind = _compare(expected, tensors)
        model = Classifier(spec, shape).to(kind)
    model.load_state_dict(tensors)
    return model.eval()


def _compare(expected: dict[str, Tensor], found: dict[str, Tensor]) -> torch.dtype:
    """Raise a ValueError unless the tensors are those of the network; give the type of floats."""
    for name in sorted(set(expected) ^ set(found)):
        raise ValueError(f"tensor {name!r} is {'missing' if name in expected else 'not known'}")
    kind = found["shift"].dtype
    for name, tensor in found.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            raise ValueError(
                f"{name} is of shape {list(tensor.shape)}, and {list(wanted.shape)} is needed"
            )
        if tensor.dtype != (kind if wanted.is_floating_point() else wanted.dtype):
            raise ValueError(f"{name} is of type {tensor.dtype}, unlike the others")
        if not tensor.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")
    return kind
