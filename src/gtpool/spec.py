"""Specs: frozen, hashable descriptions of a run that are stored as JSON. Stdlib only."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, is_dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from hashlib import sha256
from math import isfinite
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

Conv = Literal["gcn", "gin", "gat", "ogb-gcn", "gine", "dmpnn", "linear"]
Connect = Literal["induced", "khop:2", "closest"]
Readout = Literal["mean", "max", "sum", "mean-max", "set2set", "sortpool", "gmt", "graphtrans"]
Norm = Literal["none", "batch", "layer"]
Combine = Literal["sum", "cat"]
Select = Literal["loss", "metric"]
Precision = Literal["float32", "tf32", "bf16"]
AtomOrder = Literal["given", "canonical"]
SplitRule = Literal[
    "auto",
    "fixed",
    "stratified",
    "folds",
    "groups",
    "scaffold-folds",
    "scaffold",
    "random",
    "time",
    "column",
]
FOLD_RULES: tuple[SplitRule, ...] = ("fixed", "stratified", "folds", "groups", "scaffold-folds")
"""Split rules with folds."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the closest known name; empty if none is close.

    Example:
        >>> did_you_mean("proteins", ["PROTEINS", "MUTAG"])
        "; did you mean 'PROTEINS'?"
    """
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the closest known name, ignoring case; None if none is close.

    Example:
        >>> nearest("mutagg", ["PROTEINS", "MUTAG"])
        'MUTAG'
    """
    cased = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), cased, 1)
    return cased[near[0]] if near else None


class _Spec:
    """Base class of specs: conversion from and to JSON with strict checks."""

    def to_json(self) -> dict[str, Any]:
        """Return values that ``from_json`` reads back."""
        value = dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]
        return json.loads(json.dumps(value))  # tuples become lists, as when read from a file

    @classmethod
    def from_json(cls, value: dict[str, Any], where: str = "") -> Self:
        """Return a spec; an unknown option or invalid value raises a ValueError that names it.

        Args:
            value: Options as in JSON or TOML; missing options have their defaults.
            where: Name of the enclosing option, for error messages.
        """
        types = _types(cls)
        for key in value:
            if key not in types:
                hint, known = did_you_mean(key, types), ", ".join(types)
                raise ValueError(f"unknown option {where}{key!r}{hint} (known: {known})")
        for part in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
            needed = part.default is MISSING and part.default_factory is MISSING
            if needed and part.name not in value:
                raise ValueError(f"option {where}{part.name} is required")
        given = {key: _read(types[key], part, f"{where}{key}") for key, part in value.items()}
        return cls(**given)

    @classmethod
    def from_stored(cls, value: dict[str, Any], where: str = "") -> Self:
        """Return a spec that any earlier version wrote; newer options get their legacy values.

        Args:
            value: Result of ``to_json`` of any version.
            where: Name of the enclosing option, for error messages.
        """
        return cls.from_json(cls.complete(value), where)

    @classmethod
    def complete(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        """Add options that stored JSON lacks, with their legacy values."""
        types = _types(cls)
        held = {
            name: _to_json_value(name, types[name], old)
            for name, old in _LEGACY_VALUES.get(cls, {}).items()
        }
        whole = {**held, **value}
        for name, part in whole.items():
            kind = types.get(name)
            if isinstance(kind, type) and issubclass(kind, _Spec) and isinstance(part, dict):
                whole[name] = kind.complete(part)
        return whole

    @cached_property  # runs of a study share parts
    def key_parts(self) -> dict[str, Any]:
        """Values that the key of a run hashes: newer options are omitted at legacy values."""
        cls, parts = type(self), dict[str, Any]()
        held = _LEGACY_VALUES.get(cls, {})
        for name, kind in _types(cls).items():
            part = _to_json_value(name, kind, getattr(self, name))
            # By repr, since 1 and 1.0 may be different values.
            if name not in held or repr(part) != repr(_to_json_value(name, kind, held[name])):
                parts[name] = part
        return parts


@dataclass(frozen=True, kw_only=True)
class DataSpec(_Spec):
    """The dataset and its node features."""

    source: str
    """Name in ``DATASETS``, or a path."""
    features: str = "gmt"
    """A key of ``FEATURES``."""
    standardize: bool = True
    """Standardize continuous attributes by mean and standard deviation of the training part."""
    smiles_column: str | None = None
    """Column of SMILES in a table; None selects the column named smiles."""
    target_columns: tuple[str, ...] = ()
    """Columns of a table to predict; by default the only other column."""
    split_column: str | None = None
    """Column of a table with train, valid or test, for the split rule "column"."""
    task: Literal["classes", "binary", "regression"] | None = None
    """Type of target in a table or JSON lines; None infers it from the values."""
    atom_order: AtomOrder = "given"
    """Order of the atoms of a SMILES, as in ``Recipe``; "given" in runs stored without it."""
    encode: tuple[str, ...] = ()
    """Structural encodings of nodes: "rwse:K", "lappe:K", "degree", "cycles" or "cycles:K".

    In order, they are the leading continuous columns of ``x``; see ``gtpool.ops.encodings``.
    """
    group_column: str | None = None
    """Column of a table whose equal cells stay in one part of a split, for the rule "groups"."""
    time_column: str | None = None
    """Column of a table with numbers or ISO dates, for the split rule "time"."""
    contradictions: Literal["keep", "drop"] = "keep"
    """Whether to leave out the rows of a molecule whose copies have contradicting targets."""
    molecule_features: tuple[str, ...] = ()
    """Descriptors of whole molecules, keys of ``MOLECULE_FEATURES``; the head reads them."""
    feature_columns: tuple[str, ...] = ()
    """Columns of a table with numbers that the head reads, too."""


@dataclass(frozen=True, kw_only=True)
class SplitSpec(_Spec):
    """Split into training, validation and test part."""

    rule: SplitRule = "auto"
    """Split rule; "auto" is the rule of the dataset: fixed folds, OGB's split, stratified."""
    folds: int = 10
    """Number of folds."""
    fold: int = 0
    """Test fold, from 0; ignored by rules without folds."""
    seed: int = 0
    """Seed of random rules."""
    bag: int = 0
    """From 1 on, draw training and validation part anew from both, with this number as seed."""
    copies: Literal["auto", "together", "apart"] = "auto"
    """Whether rows with the same molecule stay in one part; "auto": if a table has such rows."""
    valid: Literal["fold", "half"] = "fold"
    """Of rules with folds: validate on the fold before the test fold, or on half of it."""
    share: float = 1.0
    """Fraction of the training part that trains, drawn by the seed; a smaller one is a subset."""
    hold_out: Literal["none", "exclude", "test"] = "none"
    """Whether a fifth of the graphs, drawn by the seed, is in no part, or is the test part."""


@dataclass(frozen=True, kw_only=True)
class ShapeSpec(_Spec):
    """Input and output sizes of a model, which depend on the data."""

    outputs: int
    """Number of logits: one per class or per task."""
    node_width: int = 0
    """Number of float node features, which come before categorical ones; 0 if there are none."""
    node_categories: tuple[int, ...] = ()
    """Number of categories of each categorical node feature."""
    edge_width: int = 0
    """Number of float edge features."""
    edge_categories: tuple[int, ...] = ()
    """Number of categories of each categorical edge feature."""
    edge_weighted: bool = False
    """Whether the first edge feature is an edge weight."""
    mean_nodes: int = 0
    """Mean number of nodes, rounded up; sets the number of clusters and seeds."""
    common_nodes: int = 0
    """Number of nodes that 60 % of the graphs reach; SortPool keeps as many."""
    graph_width: int = 0
    """Number of features of the whole graph, which the head reads."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(_Spec):
    """The network: encoder, then (conv, pool, readout) x levels, then head."""

    pool: str = "gtpool-v"
    """A key of ``POOLS``, or "none" for a flat model."""
    conv: Conv = "gcn"
    readout: Readout = "mean-max"
    combine: Combine = "sum"
    """How the readouts of the levels are combined."""
    width: int = 128
    levels: int = 3
    convs_per_level: int = 1
    jump: bool = False
    """Concatenate the outputs of a level's convolutions (jumping knowledge)."""
    ratio: float | int = 0.5  # 1.0 keeps all nodes, 1 keeps one
    """Fraction of nodes that each level keeps; an int is a number of nodes.

    For poolers with a fixed number of clusters, the fraction is relative to ``mean_nodes``.
    """
    dropout: float = 0.5
    """Dropout probability in the head."""
    norm: Norm = "none"
    residual: bool = False
    """Add the input of a convolution to its output where the widths agree."""
    read_input: bool = False
    """Also read out level 0 before pooling."""
    pool_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the pooler, such as ``heads`` or ``gate``."""
    readout_options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the readout, such as ``heads`` of "gmt"."""
    connect: Connect = "induced"
    """Edges of the pooled graph of a dropping pooler; see ``gtpool.pool.layer.DropPool``."""
    ffn: bool = False
    """Add a feed-forward network with norm and residual after each convolution."""
    block_dropout: float = 0.0
    """Dropout probability after each convolution."""
    virtual_node: bool = False
    """Add a virtual node that exchanges messages with all nodes of its graph at each level."""

    def __hash__(self) -> int:
        """Hash the JSON, since options are dicts."""
        return hash(json.dumps(self.to_json(), sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class TrainSpec(_Spec):
    """Training options and the selection of the epoch."""

    epochs: int = 500
    batch_size: int = 128
    lr: float = 5e-4
    weight_decay: float = 1e-4
    clip: float = 1.0
    """Maximum norm of the gradient."""
    warmup: int = 50
    """Epochs of linear warm-up before cosine decay of the learning rate."""
    patience: int | None = 50
    """Stop if the validation loss has not improved for more epochs than this; None: never."""
    select: Select = "loss"
    """Select the epoch with the lowest validation loss or the best validation metric."""
    metric: str | None = None
    """Metric that is reported, and selects the epoch if ``select`` is "metric".

    None is that of the task: accuracy, ROC-AUC or RMSE. See ``gtpool.train.metric.TASK_METRICS``.
    """
    class_weights: bool = False
    """Weight classes inversely to their frequency in the training part."""
    precision: Precision = "float32"
    """Precision of matrix products on a GPU: "tf32" keeps 10 of 23 binary digits of the mantissa;
    "bf16" is autocast with float32 weights, also on a CPU."""
    ema: float = 0.0
    """Decay per step of the moving average of weights that is validated and saved; 0: none."""
    label_smoothing: float = 0.0
    """Probability mass that is moved from the true class to all classes during training."""
    start: str | None = None
    """Folder of a trained model: training starts from its weights, with a new head."""
    start_digest: str | None = None
    """Digest of that model; ``gtpool.study.start`` sets and checks it."""
    freeze_encoder: bool = False
    """Train the head alone; the weights of ``start`` stay as they are."""


TU = TrainSpec()
"""Protocol of TU datasets: validation loss stops the run and selects the epoch."""
OGB = TrainSpec(lr=1e-3, patience=None, select="metric")
"""Protocol of OGB datasets: no early stopping, validation ROC-AUC selects the epoch."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(_Spec):
    """One run: a network is trained and tested once."""

    data: DataSpec
    split: SplitSpec = SplitSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec = TU
    seed: int = 42

    @cached_property
    def key(self) -> str:
        """Short digest, equal for equal specs on any machine."""
        text = json.dumps(self.key_parts, sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()[:16]


_LEGACY_VALUES: dict[type[_Spec], dict[str, Any]] = {
    DataSpec: {
        "atom_order": "given",
        "encode": (),
        "group_column": None,
        "time_column": None,
        "contradictions": "keep",
        "molecule_features": (),
        "feature_columns": (),
    },
    SplitSpec: {
        "bag": 0,
        "copies": "auto",
        "valid": "fold",
        "share": 1.0,
        "hold_out": "none",
    },
    ShapeSpec: {"graph_width": 0},
    ModelSpec: {
        "jump": False,
        "readout_options": {},
        "connect": "induced",
        "ffn": False,
        "block_dropout": 0.0,
        "virtual_node": False,
    },
    TrainSpec: {
        "precision": "float32",
        "ema": 0.0,
        "label_smoothing": 0.0,
        "metric": None,
        "start": None,
        "start_digest": None,
        "freeze_encoder": False,
    },
}
"""Options that were added after runs were stored, with the value that applied before.

The key of a run omits an option at its legacy value, and stored JSON without the option is read
with it, whatever the default is. Never change or remove an entry.
"""


def _to_json_value(name: str, kind: Any, value: Any) -> Any:  # noqa: ANN401
    """Return the value of a field as in JSON: lists for tuples, 1.0 for 1 in a float field."""
    if isinstance(value, _Spec):
        return value.key_parts
    read = _read(kind, value, name)
    return json.loads(json.dumps(read, sort_keys=True)) if isinstance(read, tuple | dict) else read


@cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types of the fields of a spec, cached."""
    return get_type_hints(cls)


def _read(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    """Return a value converted to the type of its field; raise if it does not fit."""
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be a table of options, got {value!r}")
        return kind.from_json(value, f"{where}.")  # pyright: ignore[reportAttributeAccessIssue]
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)[0]
        return tuple(_read(inner, part, f"{where}[{at}]") for at, part in enumerate(value))
    choices = [part for part in _members(kind) if not isinstance(part, type)]
    types = tuple(part for part in _members(kind) if isinstance(part, type))
    if float in types and int not in types and type(value) is int:
        value = float(value)
    fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    if value in choices or (fits and not (isinstance(value, float) and not isfinite(value))):
        return value
    if choices:
        listed = ", ".join(str(choice) for choice in choices)
        raise ValueError(f"{where} must be one of {listed}, got {value!r}")
    names = " or ".join("nothing" if part is type(None) else part.__name__ for part in types)
    raise ValueError(f"{where} must be {names}, got {value!r}")


def _members(kind: Any) -> list[Any]:  # noqa: ANN401
    """Return the types of a field and the values of a Literal."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return [member for part in get_args(kind) for member in _members(part)]
    return [get_origin(kind) or kind]


def check_value(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    """Return a value converted to a type hint; raise a ValueError that names it."""
    return _read(kind, value, where)
