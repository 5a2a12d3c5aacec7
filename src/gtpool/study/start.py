"""Fine-tuning: the network of a run and its features, new or from a trained model.

A run whose spec has ``train.start`` copies all weights of the trained model but those of the head,
and standardises the features of nodes by the statistics of that model. The head is new, and so are
the features of whole graphs that it reads. Of an ensemble, the run with seed s and fold f takes
member (s + f) mod M.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from gtpool.data.dataset import GraphDataset
from gtpool.data.features import FEATURES
from gtpool.data.inference import apply_recipe, check_fit, check_recipe, read_schema
from gtpool.data.schema import Recipe
from gtpool.data.split import Split
from gtpool.model.bundle import FILES, load_bundle
from gtpool.model.classifier import Classifier
from gtpool.model.predictor import EnsemblePredictor, Predictor, members_of
from gtpool.spec import RunSpec, ShapeSpec
from gtpool.study.inputs import shape_of
from gtpool.train.fit import seeded

_OF_HEAD = ("molecule_features", "descriptors", "feature_columns")
"""Parts of a recipe that the head alone reads; those of the new graphs hold."""
_HEAD = ("head.", "graph_features.", "shift", "scale")
"""Weights that belong to the targets."""


class BaseModel(NamedTuple):
    """A trained model that runs start from."""

    folder: str
    digest: str
    """Digest of its config and weights."""
    model: Predictor
    recipe: Recipe
    """Recipe of its features."""

    def member(self, spec: RunSpec) -> int:
        """Return the member that a run starts from."""
        return (spec.seed + spec.split.fold) % len(members_of(self.model))

    def recipe_of(self, member: int) -> Recipe:
        """Return the recipe with the statistics of a member."""
        model = self.model
        if not isinstance(model, EnsemblePredictor) or not model.mean.size(1):
            return self.recipe
        mean, std = (tuple(part[member].tolist()) for part in (model.mean, model.std))
        return replace(self.recipe, mean=mean, std=std)

    def data_options(self) -> dict[str, Any]:
        """Return the options of ``DataSpec`` that make the features of this model."""
        options: dict[str, Any] = {"encode": list(self.recipe.encode)}
        if self.recipe.kind in FEATURES:
            options["features"] = self.recipe.kind
        return options


def load_base(folder: str, digest: str | None = None) -> BaseModel:
    """Return a trained model; raise a ValueError if it is not the one with the given digest.

    Args:
        folder: Folder of the bundle.
        digest: Digest that it must have; None for any.
    """
    files = [Path(folder, name) for name in FILES[:2]]
    if not all(file.is_file() for file in files):
        load_bundle(folder)  # raises an error that says what is missing
    content = sha256()
    for file in files:
        content.update(sha256(file.read_bytes()).digest())
    found = content.hexdigest()[:16]
    if digest is not None and digest != found:
        raise ValueError(
            f"{folder} is not the model that train.start_digest names: it has digest {found}, not "
            f"{digest}; restore that model, or give --from again"
        )
    return _load_base(folder, found)


def with_start(spec: RunSpec) -> RunSpec:
    """Return a spec with the digest of the model it starts from; raise if the two do not fit.

    Args:
        spec: A run; one without ``train.start`` is returned unchanged.
    """
    train = spec.train
    if train.start is None:
        if train.freeze_encoder or train.start_digest is not None:
            raise ValueError("train.freeze_encoder requires train.start, the model to start from")
        return spec
    base = load_base(train.start, train.start_digest)
    refuse_conflicts(base, spec.model.to_json(), spec.data.to_json())
    if base.recipe_of(0).mean is not None and not spec.data.standardize:
        raise ValueError(
            f"{train.start} standardises its features: data.standardize must be true, or train "
            "without --from"
        )
    return replace(spec, train=replace(train, start_digest=base.digest))


def refuse_conflicts(base: BaseModel, model: dict[str, Any], data: dict[str, Any]) -> None:
    """Raise a ValueError for an option that differs from that of a trained model.

    Args:
        base: The trained model.
        model: Given options of ``ModelSpec``.
        data: Given options of ``DataSpec``; only those that make features are compared.
    """
    own = {"model": base.model.spec.to_json(), "data": base.data_options()}
    for part, given in {"model": model, "data": data}.items():
        for name, value in given.items():
            if name in own[part] and _differs(value, own[part][name]):
                raise ValueError(
                    f"{part}.{name} is {value!r}, but the model to start from, {base.folder}, has "
                    f"{own[part][name]!r}; leave the option out"
                )


def run_data(spec: RunSpec, data: GraphDataset, split: Split) -> GraphDataset:
    """Return the graphs of a run with standardised features.

    Args:
        spec: The run.
        data: Its graphs, not standardised.
        split: Its split; the training part gives the statistics of a run without ``train.start``.
    """
    base = _base_of(spec)
    if base is not None:
        return apply_recipe(data, start_recipe(base, base.member(spec), data))
    return data.standardized(split.train) if spec.data.standardize else data


def start_recipe(base: BaseModel, member: int, data: GraphDataset) -> Recipe:
    """Return the recipe of a member for new graphs; raise if their features are others."""
    recipe, found = base.recipe_of(member), data.schema.recipe
    if found.encode != recipe.encode:
        wanted = ",".join(recipe.encode) or "none"
        raise ValueError(
            f"{data.schema.name} has the encodings {', '.join(found.encode) or 'none'}, but "
            f"{base.folder} was trained with others: give --encode {wanted}"
        )
    recipe = replace(recipe, **{name: getattr(found, name) for name in _OF_HEAD})
    check_recipe(data, recipe)
    return replace(recipe, atom_order=found.atom_order)


def start_recipes(specs: Sequence[RunSpec], data: GraphDataset) -> list[Recipe] | None:
    """Return the recipe that standardises the features of each run; None for new networks.

    Args:
        specs: Runs with the same ``train.start``.
        data: Their graphs.
    """
    base = _base_of(specs[0])
    if base is None:
        return None
    return [start_recipe(base, base.member(spec), data) for spec in specs]


def network_shape(spec: RunSpec, data: GraphDataset) -> ShapeSpec:
    """Return the input and output sizes of the network of a run; raise if data and start differ."""
    base = _base_of(spec)
    return shape_of(data) if base is None else start_shape(base, data)


def start_shape(base: BaseModel, data: GraphDataset) -> ShapeSpec:
    """Return the shape of a trained model with the outputs of new graphs."""
    start_recipe(base, 0, data)
    width, outputs = shape_of(data).graph_width, data.schema.num_outputs
    shape = replace(base.model.shape, outputs=outputs, graph_width=width)
    check_fit(data, shape, edges=base.model.uses_edge_features)
    return shape


def new_network(spec: RunSpec, data: GraphDataset) -> Classifier:
    """Return the network of a run before training, with the weights it starts from.

    Args:
        spec: The run.
        data: Its graphs.
    """
    with seeded(spec.seed, torch.device("cpu")):
        model = Classifier(spec.model, network_shape(spec, data))
    base = _base_of(spec)
    if base is not None:
        start_weights(model, base, base.member(spec), freeze=spec.train.freeze_encoder)
    return model


def start_weights(model: Classifier, base: BaseModel, member: int, *, freeze: bool) -> None:
    """Copy the weights of a member into a new network, and freeze them on request."""
    copy_encoder(model, members_of(base.model)[member])
    if freeze:
        freeze_encoder(model)


def copy_encoder(model: Classifier, trained: Classifier) -> None:
    """Copy all weights and statistics but those of the head.

    Args:
        model: Receives the weights; its spec and shape are those of ``trained``, except for the
            outputs.
        trained: The trained network.

    Example:
        >>> from gtpool.spec import ModelSpec, ShapeSpec
        >>> spec = ModelSpec(width=8)
        >>> new = Classifier(spec, ShapeSpec(outputs=3, node_width=7))
        >>> copy_encoder(new, Classifier(spec, ShapeSpec(outputs=2, node_width=7)))
    """
    learned = {
        name: part for name, part in trained.state_dict().items() if not name.startswith(_HEAD)
    }
    model.load_state_dict(model.state_dict() | learned)


def freeze_encoder(model: Classifier) -> None:
    """Let training change the head alone; all else stays in evaluation mode."""
    model.requires_grad_(requires_grad=False)
    model.head.requires_grad_(requires_grad=True)
    model.frozen = True
    model.train(model.training)


def count_trained(model: Classifier) -> int:
    """Return the number of weights that training changes."""
    return sum(part.numel() for part in model.parameters() if part.requires_grad)


def describe_start(spec: RunSpec, data: GraphDataset) -> str | None:
    """Say what a run starts from and how many weights it trains; None for a new network."""
    base = _base_of(spec)
    if base is None:
        return None
    model = new_network(spec, data)
    members = len(members_of(base.model))
    what = f", an ensemble of {members}" if members > 1 else ""
    every = sum(part.numel() for part in model.parameters())
    return f"{base.folder}{what}; trains {count_trained(model):,} of {every:,} weights, new head"


def _base_of(spec: RunSpec) -> BaseModel | None:
    """Return the trained model that a run starts from; None for a new network."""
    if spec.train.start is None:
        return None
    if spec.train.start_digest is None:
        raise ValueError(
            "train.start requires train.start_digest, which is part of the key of the run: pass "
            "the spec through gtpool.study.start.with_start"
        )
    return load_base(spec.train.start, spec.train.start_digest)


@lru_cache(maxsize=4)
def _load_base(folder: str, digest: str) -> BaseModel:
    bundle = load_bundle(folder)
    schema = read_schema(bundle.about.get("schema"), folder, bundle.model.shape)
    return BaseModel(folder, digest, bundle.model, schema.recipe)


def _differs(given: Any, own: Any) -> bool:  # noqa: ANN401
    """Whether a given option differs; of a table of options only the given ones count."""
    if isinstance(given, dict):
        table = cast("dict[str, Any]", given)
        return any(own.get(name) != value for name, value in table.items())
    return list(given) != own if isinstance(given, tuple) else given != own
