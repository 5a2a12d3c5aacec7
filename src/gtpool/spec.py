"""What a run is, as a value: frozen, hashable, written as JSON and read back. Stdlib only."""

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

Conv = Literal["gcn", "gin", "gat", "ogb-gcn", "gine", "linear"]
Readout = Literal["mean", "max", "sum", "mean-max", "set2set", "sortpool", "gmt"]
Norm = Literal["none", "batch", "layer"]
Combine = Literal["sum", "cat"]
Select = Literal["loss", "metric"]
Precision = Literal["float32", "bf16"]
AtomOrder = Literal["given", "canonical"]
SplitRule = Literal["auto", "fixed", "stratified", "folds", "scaffold", "random", "column"]
FOLD_RULES: tuple[SplitRule, ...] = ("fixed", "stratified", "folds")
"""Rules that divide graphs into folds."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest of the known names, as the end of a message; nothing if none is near.

    Example:
        >>> did_you_mean("proteins", ["PROTEINS", "MUTAG"])
        "; did you mean 'PROTEINS'?"
    """
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Give the known name that is nearest, whatever its case; None if none is near.

    Example:
        >>> nearest("mutagg", ["PROTEINS", "MUTAG"])
        'MUTAG'
    """
    cased = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), cased, 1)
    return cased[near[0]] if near else None


class _Spec:
    """What all specs share: a strict door from JSON, and the way back."""

    def to_json(self) -> dict[str, Any]:
        """Give plain values that ``from_json`` reads back."""
        value = dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]
        return json.loads(json.dumps(value))  # tuples become the lists that come back from a file

    @classmethod
    def from_json(cls, value: dict[str, Any], where: str = "") -> Self:
        """Read a spec; an unknown key or a value that does not fit is an error that names it.

        Args:
            value: Plain values, as JSON or TOML gives them; what is left out keeps its default.
            where: Name of the enclosing key, for the message.
        """
        types = _types(cls)
        for key in value:
            if key not in types:
                hint, known = did_you_mean(key, types), ", ".join(types)
                raise ValueError(f"unknown option {where}{key!r}{hint} (known: {known})")
        for part in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
            needed = part.default is MISSING and part.default_factory is MISSING
            if needed and part.name not in value:
                raise ValueError(f"option {where}{part.name} is missing")
        given = {key: _read(types[key], part, f"{where}{key}") for key, part in value.items()}
        return cls(**given)

    @classmethod
    def from_stored(cls, value: dict[str, Any], where: str = "") -> Self:
        """Read what any earlier version wrote: later options have the values that held then.

        Args:
            value: Plain values, as ``to_json`` of any version gave them.
            where: Name of the enclosing key, for the message of an error.
        """
        return cls.from_json(cls.complete(value), where)

    @classmethod
    def complete(cls, value: Mapping[str, Any]) -> dict[str, Any]:
        """Add the options that stored JSON does not have yet, with the values that held then."""
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

    @cached_property  # the runs of a study share their parts, and are many
    def key_parts(self) -> dict[str, Any]:
        """What this adds to the key of a run: no later option at the value that held before."""
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
    """Which graphs, and how their nodes become features."""

    source: str
    """A name of ``DATASETS`` or a path."""
    features: str = "gmt"
    """A key of ``FEATURES``."""
    standardize: bool = True
    """Scale continuous attributes by the training part's mean and deviation."""
    smiles_column: str | None = None
    """Of a table: the column of SMILES; None takes the one named so."""
    target_columns: tuple[str, ...] = ()
    """Of a table: what to predict; none takes the only other column."""
    split_column: str | None = None
    """Of a table: train, valid or test, for the split rule "column"."""
    task: Literal["classes", "binary", "regression"] | None = None
    """Of a table or JSON lines: the kind of target; None tells by the values."""
    atom_order: AtomOrder = "given"
    """Of SMILES: how atoms are numbered, as in ``Recipe``. Runs stored without it had "given"."""


@dataclass(frozen=True, kw_only=True)
class SplitSpec(_Spec):
    """Which graphs train, choose the epoch, and test."""

    rule: SplitRule = "auto"
    """How graphs are divided; "auto" takes the set's own rule: fixed folds, OGB's split, strata."""
    folds: int = 10
    """Parts of a cross-validation."""
    fold: int = 0
    """Which part tests, from 0; ignored by rules without folds."""
    seed: int = 0
    """Seed of the rules that draw."""


@dataclass(frozen=True, kw_only=True)
class ShapeSpec(_Spec):
    """What a model is fed and asked, as the data fixes it."""

    outputs: int
    """Logits: one a class, or one a task."""
    node_width: int = 0
    """Columns of float node features; 0 where nodes are codes of categories."""
    node_categories: tuple[int, ...] = ()
    """Number of categories of each column of codes."""
    edge_width: int = 0
    """Columns of float edge features."""
    edge_categories: tuple[int, ...] = ()
    """Number of categories of each column of edge codes."""
    edge_weighted: bool = False
    """Whether the first edge feature is a weight."""
    mean_nodes: int = 0
    """Nodes of a graph on average, rounded up: what clusters and seeds are counted from."""
    common_nodes: int = 0
    """Nodes that six graphs in ten have, or more: what SortPool keeps."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec(_Spec):
    """The network: encoder, then (conv, pool, read-out) x levels, then head."""

    pool: str = "gtpool-v"
    """A key of ``POOLS``, or "none" for a flat model."""
    conv: Conv = "gcn"
    readout: Readout = "mean-max"
    combine: Combine = "sum"
    """How the read-outs of the levels become one vector."""
    width: int = 128
    levels: int = 3
    convs_per_level: int = 1
    jump: bool = False
    """Set the outputs of a level's convolutions side by side, in place of the last one alone."""
    ratio: float | int = 0.5  # 1.0 keeps all nodes, 1 keeps one
    """Share of nodes that each level keeps; an int keeps that many.

    Of a pooler with a fixed number of clusters, the share is of ``mean_nodes``.
    """
    dropout: float = 0.5
    """Share of units dropped in the head."""
    norm: Norm = "none"
    residual: bool = False
    """Add a convolution's input to its output where the widths agree."""
    read_input: bool = False
    """Read out level 0 before it is pooled, too."""
    pool_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the pooler, such as ``heads`` or ``gate``."""
    readout_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of a read-out that has any, such as ``heads`` of "gmt"."""

    def __hash__(self) -> int:
        """Hash the JSON, since options are a dict."""
        return hash(json.dumps(self.to_json(), sort_keys=True))


@dataclass(frozen=True, kw_only=True)
class TrainSpec(_Spec):
    """How the network is trained, and which epoch is kept."""

    epochs: int = 500
    batch_size: int = 128
    lr: float = 5e-4
    weight_decay: float = 1e-4
    clip: float = 1.0
    """Largest norm of the gradient."""
    warmup: int = 50
    """Epochs over which the learning rate rises, before its cosine fall."""
    patience: int | None = 50
    """Stop when the validation loss has not improved for more epochs than this."""
    select: Select = "loss"
    """The kept epoch has the lowest validation loss, or the best validation metric."""
    class_weights: bool = False
    """Weigh classes inversely to their share of the training part."""
    precision: Precision = "float32"
    """What matrix products are computed in; "bf16" is torch's autocast, weights stay float32."""


TU = TrainSpec()
"""The protocol of the TU sets: validation loss stops the run and picks the epoch."""
OGB = TrainSpec(lr=1e-3, patience=None, select="metric")
"""The protocol of the OGB sets: all epochs, the best validation ROC-AUC picks the epoch."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(_Spec):
    """One run: train once, test once."""

    data: DataSpec
    split: SplitSpec = SplitSpec()
    model: ModelSpec = ModelSpec()
    train: TrainSpec = TU
    seed: int = 42

    @cached_property
    def key(self) -> str:
        """A short digest: equal specs have equal keys, on any machine."""
        text = json.dumps(self.key_parts, sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()[:16]


_LEGACY_VALUES: dict[type[_Spec], dict[str, Any]] = {
    DataSpec: {"atom_order": "given"},
    ModelSpec: {"jump": False, "readout_options": {}},
    TrainSpec: {"precision": "float32"},
}
"""Options that came after runs were stored, each with the value that held before it existed.

At that value an option is no part of the key, and stored JSON without it is read with it. So both
stay as they are, whatever the default is. Never change or remove an entry.
"""


def _to_json_value(name: str, kind: Any, value: Any) -> Any:  # noqa: ANN401
    """Give the value of a field as JSON: tuples are lists, 1 is 1.0 if a float is due."""
    if isinstance(value, _Spec):
        return value.key_parts
    read = _read(kind, value, name)
    return json.loads(json.dumps(read, sort_keys=True)) if isinstance(read, tuple | dict) else read


@cache
def _types(cls: type) -> dict[str, Any]:
    """Say what the fields of a spec may hold, once: keys are asked for by the thousand."""
    return get_type_hints(cls)


def _read(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    """Check one value against the type of its field."""
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
    """List what a field may hold: types, and the values of a Literal."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return [member for part in get_args(kind) for member in _members(part)]
    return [get_origin(kind) or kind]


def check_value(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    """Give a plain value as a type hint wants it; raise a ValueError that names it if none fits."""
    return _read(kind, value, where)
