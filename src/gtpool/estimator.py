"""GraphClassifier and GraphRegressor with the scikit-learn API; scikit-learn is optional."""

import inspect
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from gtpool import __version__
from gtpool.data.dataset import GraphDataset
from gtpool.data.formats.memory import (
    Array,
    GraphInputs,
    TargetEncoding,
    as_graph_list,
    check_columns,
    class_labels,
    concatenate,
    read_graphs,
    regression_targets,
)
from gtpool.data.inference import check_fit, read_schema
from gtpool.data.molecule import BOND_SIZES, atom_numbers
from gtpool.data.schema import Recipe, Schema, Task
from gtpool.data.split import Split
from gtpool.explain.explanation import Explanation, explain
from gtpool.graph import check_count
from gtpool.model import METHODS, WITH_BONDS
from gtpool.model.bundle import load_bundle, save_bundle
from gtpool.model.calibration import Calibration
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import pads_attention, why_not_captured
from gtpool.ops.average import average_outputs, member_spread, probabilities
from gtpool.ops.calibrate import decide
from gtpool.predict import schema_of
from gtpool.spec import (
    Combine,
    Connect,
    Conv,
    ModelSpec,
    Norm,
    Readout,
    Select,
    ShapeSpec,
    TrainSpec,
)
from gtpool.study.final_model import make_ensemble
from gtpool.study.inputs import shape_of
from gtpool.study.recipe import recipe_options
from gtpool.study.run_one import choose_device
from gtpool.train.epoch import Epoch, Outcome, TrainingError
from gtpool.train.fit import fit, predict_members, seeded
from gtpool.train.fit_many import fit_many

_TRAIN_OPTIONS = (
    "epochs",
    "batch_size",
    "lr",
    "weight_decay",
    "patience",
    "class_weights",
    "select",
    "ema",
    "label_smoothing",
)


_NEVER = "patience"
"""Option for which None is a value."""
_End = TypeVar("_End")


class NotFittedError(ValueError, AttributeError):
    """The estimator is not fitted."""


class _GraphEstimator:
    """Base class of classifier and regressor."""

    _estimator_type: ClassVar[str]
    _tasks: ClassVar[tuple[Task, ...]]
    _labels: ClassVar[Callable[..., Array]]
    _target: ClassVar[Callable[..., TargetEncoding]]
    _valid_loss: float  # mean over the members
    calibration_: Calibration
    classes_: Any

    def __init__(
        self,
        pool: str = "gtpool-v",
        *,
        recipe: str = "best",
        conv: Conv | None = None,
        readout: Readout = "mean-max",
        combine: Combine = "sum",
        width: int = 128,
        levels: int | None = None,
        convs_per_level: int | None = None,
        jump: bool = False,
        ratio: float | None = None,
        dropout: float | None = None,
        norm: Norm | None = None,
        residual: bool | None = None,
        read_input: bool | None = None,
        pool_options: Mapping[str, Any] | None = None,
        readout_options: Mapping[str, Any] | None = None,
        connect: Connect = "induced",
        ffn: bool = False,
        block_dropout: float = 0.0,
        virtual_node: bool = False,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        weight_decay: float = 1e-4,
        patience: int | Literal["recipe"] | None = "recipe",
        class_weights: bool = False,
        select: Select = "loss",
        ema: float | None = None,
        label_smoothing: float = 0.0,
        valid_fraction: float = 0.1,
        features: str = "gmt",
        encode: tuple[str, ...] | None = None,
        molecule_features: tuple[str, ...] | None = None,
        standardize: bool = True,
        node_features: tuple[str, ...] = (),
        node_label: str | None = None,
        edge_features: tuple[str, ...] = (),
        edge_weight: str | None = None,
        ensemble: int = 1,
        seed: int = 42,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        """Set the options of network and training.

        Options that are None have the value of the recipe.

        Args:
            recipe: "best", or "paper" for the letter of the paper.
            pool: A key of ``POOLS``, "none" for a flat model, or a key of ``METHODS``, such as
                "gin", which replaces the defaults of the network options.
            conv: The convolution, a key of ``CONVS``; by default one with bonds for molecules.
            readout: The readout, a key of ``READOUTS``.
            combine: How the readouts of the levels are combined, "sum" or "cat".
            width: Hidden channels.
            levels: Number of pooling layers.
            convs_per_level: Convolutions before each pooling layer.
            jump: Concatenate the outputs of these convolutions (jumping knowledge).
            ratio: Fraction of nodes that each pooling layer keeps; an int is a number of nodes.
            dropout: Dropout probability in the head.
            norm: Normalization after each convolution: "none", "batch" or "layer".
            residual: Add the input of a convolution to its output.
            read_input: Also read out level 0 before pooling.
            pool_options: Keyword arguments of the pooler.
            readout_options: Keyword arguments of the readout.
            connect: Edges of the graph after a dropping pooler: "induced", "khop:2" or "closest".
            ffn: Add a feed-forward network after each convolution.
            block_dropout: Dropout probability after each convolution.
            virtual_node: Add a virtual node to each graph.
            epochs: Maximum number of epochs; the first tenth is warm-up.
            batch_size: Graphs per batch.
            lr: Learning rate.
            weight_decay: Weight decay of Adam.
            patience: Stop if the validation loss has not improved for more epochs; None: never;
                "recipe": as in the recipe.
            class_weights: Weight classes inversely to their frequency.
            select: Select the epoch by validation "loss" or "metric".
            ema: Decay of the moving average of weights; 0 for none.
            label_smoothing: Probability mass that is moved to all classes during training.
            valid_fraction: Fraction of the graphs, per class, that is held out for validation if
                ``fit`` receives no ``validation_data``.
            features: Node features of networkx graphs, a key of ``FEATURES``.
            encode: Structural encodings of nodes, such as ``("rwse:16", "cycles")``; see
                ``gtpool.ops.encodings``.
            molecule_features: Descriptors of SMILES that the head reads, such as
                ``("rdkit2d", "morgan")``.
            standardize: Standardize continuous features by the training part.
            node_features: Numeric node attributes of networkx graphs.
            node_label: Categorical node attribute of networkx graphs.
            edge_features: Numeric edge attributes of networkx graphs.
            edge_weight: Edge attribute of networkx graphs that holds the weight.
            ensemble: Number of networks with consecutive seeds that predict as one: probabilities
                and values are their mean.
            seed: Seed of weights, batches, dropout and validation part; members of an ensemble
                share the validation part.
            device: "auto", "cpu" or "cuda".
            verbose: Print the progress of training to stderr.
        """
        self.pool, self.conv, self.readout, self.combine = pool, conv, readout, combine
        self.recipe = recipe
        self.width, self.levels, self.convs_per_level = width, levels, convs_per_level
        self.jump, self.ratio, self.dropout, self.norm = jump, ratio, dropout, norm
        self.residual, self.read_input = residual, read_input
        self.pool_options, self.readout_options = pool_options, readout_options
        self.connect, self.ffn, self.block_dropout = connect, ffn, block_dropout
        self.virtual_node = virtual_node
        self.epochs, self.batch_size, self.lr = epochs, batch_size, lr
        self.weight_decay, self.patience = weight_decay, patience
        self.class_weights, self.valid_fraction = class_weights, valid_fraction
        self.select, self.ema, self.label_smoothing = select, ema, label_smoothing
        self.features, self.standardize, self.encode = features, standardize, encode
        self.molecule_features = molecule_features
        self.node_features, self.node_label = node_features, node_label
        self.edge_features, self.edge_weight = edge_features, edge_weight
        self.ensemble, self.seed, self.device, self.verbose = ensemble, seed, device, verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; ``deep`` has no effect, as none is an estimator."""
        del deep
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401
        """Set parameters, which the next ``fit`` uses."""
        known = _parameters(type(self))
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"unknown parameter {name!r}; known: {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Show the parameters that differ from the defaults."""
        defaults = _parameters(type(self))
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if value is not defaults[name] and value != defaults[name]
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def fit(
        self,
        graphs: GraphInputs,
        y: Any = None,  # noqa: ANN401
        *,
        validation_data: tuple[GraphInputs, Any] | None = None,
    ) -> Self:
        """Train a network on graphs and return the estimator.

        Args:
            graphs: A ``GraphDataset``, or a list or dataset of PyG graphs (``x``, ``edge_index``
                and ``edge_attr`` are used), networkx graphs or SMILES.
            y: Targets; by default those of the graphs. Of a classifier, one label per graph, or 0
                and 1 as [graphs, tasks] for several binary tasks. Of a regressor, [graphs] or
                [graphs, tasks]. NaN in a task is missing.
            validation_data: Pair of graphs and ``y`` that selects the epoch. By default
                ``valid_fraction`` of the graphs is held out.
        """
        graphs = as_graph_list(graphs)
        labels = self._labels(graphs, y)
        target = self._target(labels)
        data = target.with_targets(self._read(graphs), labels)
        self._train(data, target, validation_data)
        if target.classes is not None:
            self.classes_ = target.classes
        return self

    def save(self, folder: Path | str) -> None:
        """Save the model as a bundle for ``load`` and ``gtpool predict``."""
        schema = self._check_fitted()
        classes = None if schema.task != "classes" else self.classes_.tolist()
        about = {
            "schema": schema.to_json(),
            "metrics": {"valid_loss": self._valid_loss} if self.history_ else {},
            "versions": _versions(),
            "estimator": {
                "name": type(self).__name__,
                "params": {name: _to_python(part) for name, part in self.get_params().items()},
                "classes": classes,
            },
        }
        save_bundle(folder, self.model_, about, calibration=self.calibration_)

    def explain(
        self,
        graphs: GraphInputs,
        index: int = 0,
        *,
        importance: bool = True,
        epochs: int = 100,
        seed: int = 0,
        target: int | None = None,
    ) -> Explanation:
        """Explain the prediction of one graph: kept nodes of each level and node importance.

        Args:
            graphs: As for ``predict``.
            index: Index of the graph.
            importance: Compute the importance of each node and its fidelity with GNNExplainer.
            epochs: Optimization steps of GNNExplainer.
            seed: Seed of GNNExplainer.
            target: Index of the class or task to explain; by default the predicted class.
        """
        graphs = as_graph_list(graphs)
        data = self._ready(graphs)
        known = graphs if isinstance(graphs, list) else []
        smiles = known[index] if 0 <= index < len(known) else None
        order = data.schema.recipe.atom_order
        return explain(
            self.model_,
            data,
            index,
            importance=importance,
            epochs=epochs,
            seed=seed,
            target=target,
            task=self.schema_.task,
            numbers=atom_numbers(smiles, order) if isinstance(smiles, str) else None,
        )

    @classmethod
    def _load(cls, folder: Path | str) -> tuple[Self, dict[str, Any]]:
        """Return the estimator of a bundle and its metadata."""
        bundle = load_bundle(folder)
        if bundle.blend is not None:
            raise ValueError(
                f"{folder} is a blend with boosted trees, which an estimator cannot predict with; "
                "use gtpool.predict.predict_source or `gtpool predict`"
            )
        schema = read_schema(bundle.about.get("schema"), str(folder), bundle.model.shape)
        if schema.task not in cls._tasks or schema.num_outputs != bundle.model.shape.outputs:
            raise ValueError(
                f"{folder} is not a {cls.__name__}: its model has {bundle.model.shape.outputs} "
                f"outputs for {schema.num_outputs} targets of task {schema.task}"
            )
        schema = schema_of(bundle)
        told = bundle.part("estimator")
        params = bundle.part("estimator", "params") or bundle.model.spec.to_json()
        params = {"recipe": "paper", **params}  # of models that were saved before recipes
        tuples = {name: tuple(part) for name, part in params.items() if isinstance(part, list)}
        found = cls().set_params(**{**params, **tuples})
        found.model_, found.schema_, found.history_ = bundle.model, schema, []
        found.calibration_ = bundle.calibration
        shape = bundle.model.shape
        found.n_features_in_ = shape.node_width + len(shape.node_categories)
        return found, told

    def _read_validation(
        self,
        pair: Any,  # noqa: ANN401
        recipe: Recipe,
        target: TargetEncoding,
    ) -> GraphDataset:
        """Return the validation graphs, read with the recipe of the training graphs."""
        if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) != 2:
            raise ValueError("validation_data must be a pair (graphs, y), where y may be None")
        graphs = as_graph_list(pair[0])
        return target.with_targets(self._read(graphs, recipe), self._labels(graphs, pair[1]))

    def _train(self, data: GraphDataset, target: TargetEncoding, validation_data: Any) -> None:  # noqa: ANN401
        """Train a network on labelled graphs."""
        smiles = bool(data.schema.recipe.molecule_features)
        model_spec, train_spec = self._specs(shape_of(data), smiles=smiles)
        members = _to_python(self.ensemble)
        check_count("ensemble", members)
        place = choose_device(self.device)
        train = valid = torch.arange(len(data))
        if validation_data is None:
            strata = data.y if target.task == "classes" else None
            train, valid = _hold_out(len(data), strata, self.valid_fraction, self.seed)
        raw = data.schema
        if self.standardize:
            data = data.standardized(train)
        seeds = range(self.seed, self.seed + members)
        models = [_new_network(model_spec, shape_of(data), seed).to(place) for seed in seeds]
        shape, bonds = models[0].shape, models[0].uses_edge_features
        check_fit(data, shape, edges=bonds)
        if validation_data is not None:
            held = self._read_validation(validation_data, data.schema.recipe, target)
            check_fit(held, shape, edges=bonds)
            parts = [part if bonds else replace(part, edge_attr=None) for part in (data, held)]
            valid, data = torch.arange(len(data), len(data) + len(held)), concatenate(parts)
        # No test part: callers of score() hold one out.
        parts = cast("Split", _Parts(train, valid, train[:0]))
        trained = _fit_members(models, data.to(place), parts, train_spec, seeds, self.verbose)
        self.model_, self.schema_ = models[0].eval(), data.schema
        if members > 1:
            self.model_ = make_ensemble(models, [data.schema.recipe] * len(models), raw).to(place)
            self.schema_ = replace(data.schema, recipe=raw.recipe)
        self.n_features_in_, self.calibration_ = data.num_features, Calibration()
        self.history_, self.best_epoch_ = trained[0].epochs, trained[0].best
        self._valid_loss = fmean(outcome.best.valid_loss for outcome in trained)

    def _specs(self, shape: ShapeSpec, *, smiles: bool) -> tuple[ModelSpec, TrainSpec]:
        """Return the options of network and training: given ones, then those of the recipe."""
        params = {name: _to_python(value) for name, value in self.get_params().items()}
        if self.patience == "recipe":
            del params["patience"]
        given = {name: part for name, part in params.items() if part is not None or name == _NEVER}
        added = self._recipe_options(smiles=smiles)
        usual, pool = ModelSpec().to_json(), str(self.pool)
        defaults = _parameters(type(self))
        model: dict[str, Any] = {
            name: part
            for name, part in given.items()
            if name in usual and (defaults[name] is None or part != usual[name])
        }
        method: dict[str, Any] = METHODS[pool].model if pool in METHODS else {"pool": pool}
        options: list[dict[str, Any]] = [
            part.get("pool_options", {}) for part in (added["model"], method, model)
        ]
        model = {**added["model"], **method, **model, "pool": method["pool"]}
        model["pool_options"] = {name: part for some in options for name, part in some.items()}
        if "conv" not in given and self.recipe != "paper" and shape.edge_categories == BOND_SIZES:
            conv = model.get("conv", usual["conv"])
            model["conv"] = WITH_BONDS.get(conv, conv)
        train = {name: given[name] for name in _TRAIN_OPTIONS if name in given}
        spec = TrainSpec.from_json({**added["train"], **train})
        return ModelSpec.from_json(model), replace(spec, warmup=spec.epochs // 10)

    def _recipe_options(self, *, smiles: bool) -> dict[str, dict[str, Any]]:
        return recipe_options(self.recipe, "", str(self.pool), smiles=smiles)

    def _check_fitted(self) -> Schema:
        if not hasattr(self, "model_"):
            name = type(self).__name__
            raise NotFittedError(f"this {name} is not fitted yet; call fit(graphs, y) first")
        return self.schema_

    def _read(self, graphs: GraphInputs, recipe: Recipe | None = None) -> GraphDataset:
        smiles = recipe is None and isinstance(graphs, list) and isinstance(graphs[0], str)
        usual = self._recipe_options(smiles=smiles)["data"]
        encode, described = self.encode, self.molecule_features
        return read_graphs(
            graphs,
            recipe,
            features=self.features,
            encode=usual.get("encode", ()) if encode is None else encode,
            molecule_features=()
            if recipe
            else usual.get("molecule_features", ())
            if described is None
            else described,
            node_features=self.node_features,
            node_label=self.node_label,
            edge_features=self.edge_features,
            edge_weight=self.edge_weight,
        )

    def _ready(self, graphs: GraphInputs) -> GraphDataset:
        """Return graphs, read with the recipe of the training, on the device of the network."""
        data = self._read(graphs, self._check_fitted().recipe)
        check_fit(data, self.model_.shape, edges=self.model_.uses_edge_features)
        return data.to(next(self.model_.parameters()).device)

    def _outputs(self, graphs: GraphInputs) -> Tensor:
        """Return the logits or values, those of the mean of an ensemble, [graphs, outputs]."""
        found = average_outputs(self._member_outputs(graphs), self.schema_.task)
        return self.calibration_.scale(found)

    def predict_spread(self, graphs: GraphInputs) -> Array:
        """Return the standard deviation (n - 1) over the members of an ensemble.

        Of the probability of each class or task, or of each value, [graphs, outputs]. A single
        network has none: it is a ValueError.
        """
        found = self._member_outputs(graphs)
        if found.size(1) == 1:
            raise ValueError(
                f"a single network has no spread; use {type(self).__name__}(ensemble=5)"
            )
        return member_spread(found, self.schema_.task).numpy()

    def _member_outputs(self, graphs: GraphInputs) -> Tensor:
        """Return the outputs of each network, [graphs, members, outputs], on the CPU."""
        data = self._ready(graphs)
        found = predict_members(self.model_, data, torch.arange(len(data))).cpu()
        wrong = (~found.isfinite().flatten(1).all(1)).nonzero()
        if wrong.numel():
            raise ValueError(
                f"the outputs of graph {int(wrong[0])} are not finite; its features are too large: "
                "scale them, or remove the graph"
            )
        return found


class GraphClassifier(_GraphEstimator):
    """Graph classifier for one class per graph, or for several binary tasks.

    Attributes after ``fit``: ``classes_`` (a list for several tasks, as in scikit-learn),
    ``n_features_in_``, ``model_`` (the network or ensemble), ``history_`` (all epochs) and
    ``best_epoch_`` (the selected epoch), of an ensemble those of the first member. A loaded model
    predicts by its temperatures and threshold, ``calibration_``.

    Example:
        >>> from gtpool.data.sources import load
        >>> molecules = load("MUTAG")
        >>> estimator = GraphClassifier(width=16, epochs=2).fit(molecules)
        >>> estimator.predict_proba(molecules).shape
        (188, 2)
    """

    _estimator_type = "classifier"
    _tasks = ("classes", "binary")
    _labels, _target = staticmethod(class_labels), staticmethod(TargetEncoding.for_classification)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Load a model that an estimator or ``gtpool train`` saved."""
        found, told = cls._load(folder)
        if found.schema_.task == "binary":
            found.classes_ = [np.array([0, 1])] * found.schema_.num_outputs
            return found
        classes = told.get("classes") or list(found.schema_.targets)
        if not isinstance(classes, list) or len(classes) != found.schema_.num_outputs:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"{folder} has no class name for each output of its network")
        found.classes_ = np.array(classes)
        return found

    def predict(self, graphs: GraphInputs) -> Array:
        """Return the class of each graph, [graphs], or 0 and 1, [graphs, tasks]."""
        task = self._check_fitted().task
        found = decide(torch.from_numpy(self.predict_proba(graphs)), task, self.calibration_.least)
        return found.numpy() if task == "binary" else self.classes_[found.numpy()]

    def predict_proba(self, graphs: GraphInputs) -> Array:
        """Return probabilities, [graphs, classes] in the order of ``classes_``, or [graphs, tasks].

        For binary tasks they are the probabilities of class 1.
        """
        return probabilities(self._outputs(graphs), self.schema_.task).numpy()

    def score(self, graphs: GraphInputs, y: Any = None) -> float:  # noqa: ANN401
        """Return the accuracy; for several tasks over all known targets."""
        graphs = as_graph_list(graphs)
        found, wanted = self.predict(graphs), class_labels(graphs, y)
        check_columns(found, wanted)
        if isinstance(found.flat[0], str) != isinstance(wanted.flat[0], str):
            raise ValueError(
                f"y has values such as {wanted.tolist()[0]!r}, which are not among the classes "
                f"{self.classes_.tolist()}"
            )
        right = found == wanted
        return float((right[~np.isnan(wanted)] if wanted.ndim == 2 else right).mean())

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        """Return the estimator tags of scikit-learn."""
        return _tags("classifier", classifier_tags=_sklearn("ClassifierTags"))


class GraphRegressor(_GraphEstimator):
    """Graph regressor for one or several targets.

    Attributes after ``fit``: ``n_features_in_``, ``model_`` (the network or ensemble), ``history_``
    (all epochs) and ``best_epoch_`` (the selected epoch), of an ensemble those of the first member.

    Example:
        >>> estimator = GraphRegressor("none", conv="gin", width=16, epochs=2)
        >>> estimator.fit(["C", "CC", "CCC", "CCO"], [1.0, 2.0, 3.0, 3.0]).predict(["CO"]).shape
        (1,)
    """

    _estimator_type = "regressor"
    _tasks = ("regression",)
    _labels, _target = staticmethod(regression_targets), staticmethod(TargetEncoding.for_regression)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Load a model that an estimator or ``gtpool train`` saved."""
        return cls._load(folder)[0]

    def predict(self, graphs: GraphInputs) -> Array:
        """Return the predicted values, [graphs] or [graphs, tasks]."""
        found = self._outputs(graphs).numpy()
        return found[:, 0] if found.shape[1] == 1 else found

    def score(self, graphs: GraphInputs, y: Any = None) -> float:  # noqa: ANN401
        """Return the coefficient of determination R², averaged over tasks."""
        graphs = as_graph_list(graphs)
        found, wanted = self._outputs(graphs).double().numpy(), regression_targets(graphs, y)
        check_columns(found, wanted)
        residual = np.nansum((wanted - found) ** 2, 0)
        spread = np.nansum((wanted - np.nanmean(wanted, 0)) ** 2, 0)
        return float(np.mean(1 - residual / np.where(spread > 0, spread, np.nan)))

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        """Return the estimator tags of scikit-learn."""
        return _tags("regressor", regressor_tags=_sklearn("RegressorTags"))


class _Parts(NamedTuple):
    train: Tensor
    valid: Tensor
    test: Tensor


def _parameters(kind: type) -> dict[str, Any]:
    """Return the parameters of a class with their defaults."""
    parameters = list(inspect.signature(kind).parameters.values())
    return {parameter.name: parameter.default for parameter in parameters}


def _versions() -> dict[str, str]:
    names = ("torch", "torch_geometric")
    return {"gtpool": __version__, **{name: version(name) for name in names}}


def _to_python(value: Any) -> Any:  # noqa: ANN401
    """Convert a NumPy scalar, as a parameter search may set, to Python."""
    return value.item() if isinstance(value, np.generic) else value


def _hold_out(
    count: int, strata: Tensor | None, fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return training and validation indices; the fraction is drawn from each stratum."""
    if not 0 < fraction < 1:
        raise ValueError(f"valid_fraction must be between 0 and 1, got {fraction}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    drawn = torch.zeros(count) if strata is None else strata[order]
    held: list[Tensor] = []
    for stratum in drawn.unique():
        members = order[drawn == stratum]
        held.append(members[: min(max(1, round(fraction * len(members))), len(members) - 1)])
    valid = torch.cat(held).sort().values
    if valid.numel() == 0:
        raise ValueError(
            f"{count} graphs are too few for validation; some class must have two graphs"
        )
    train = torch.ones(count, dtype=torch.bool).index_fill(0, valid, value=False)
    return train.nonzero().flatten(), valid


def _new_network(spec: ModelSpec, shape: ShapeSpec, seed: int) -> Classifier:
    with seeded(seed, torch.device("cpu")):
        return Classifier(spec, shape)


def _fit_members(
    models: Sequence[Classifier],
    data: GraphDataset,
    parts: Split,
    spec: TrainSpec,
    seeds: Sequence[int],
    verbose: bool,
) -> list[Outcome]:
    """Train networks that differ in the seed: side by side on a GPU, else one after the other."""
    first = models[0]
    if (
        len(models) > 1
        and data.x.is_cuda
        and not (why_not_captured(first) or pads_attention(first))
    ):
        return _run_to_end(_side_by_side(models, data, parts, spec, seeds), spec.epochs, verbose)
    return [
        _run_to_end(fit(model, data, parts, spec, seed=seed), spec.epochs, verbose)
        for model, seed in zip(models, seeds, strict=True)
    ]


def _side_by_side(
    models: Sequence[Classifier],
    data: GraphDataset,
    parts: Split,
    spec: TrainSpec,
    seeds: Sequence[int],
) -> Generator[Epoch, None, list[Outcome]]:
    """Train networks in one program: yield the epochs of the first that still trains."""
    count = len(models)
    runs = fit_many(models, data, [parts] * count, [spec] * count, seeds=seeds)
    while True:
        try:
            yield next(iter(next(runs).values()))
        except StopIteration as end:
            outcomes = cast("list[Outcome | TrainingError]", end.value)
            break
    for outcome in outcomes:
        if isinstance(outcome, TrainingError):
            raise outcome
    return cast("list[Outcome]", outcomes)


def _run_to_end(epochs: Generator[Epoch, None, _End], most: int, verbose: bool) -> _End:
    """Train to the end; if verbose, print about ten lines of progress."""
    start = time.monotonic()
    while True:
        try:
            epoch = next(epochs)
        except StopIteration as end:
            return end.value
        if verbose and epoch.number % max(1, most // 10) == 0:
            left = (time.monotonic() - start) / epoch.number * (most - epoch.number)
            sys.stderr.write(
                f"epoch {epoch.number} of {most}: loss {epoch.train_loss:.4f}, validation "
                f"{epoch.valid_loss:.4f}, at most {math.ceil(left)} s left\n"
            )


def _sklearn(name: str) -> Any:  # noqa: ANN401
    return getattr(import_module("sklearn.utils"), name)()


def _tags(kind: str, **tags: Any) -> Any:  # noqa: ANN401
    utils = import_module("sklearn.utils")
    target, inputs = utils.TargetTags(required=False), utils.InputTags(two_d_array=False)
    return utils.Tags(estimator_type=kind, target_tags=target, input_tags=inputs, **tags)
