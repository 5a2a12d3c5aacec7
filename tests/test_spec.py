import inspect
import json
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gtpool.spec
from gtpool.data.schema import Recipe
from gtpool.pool.gtpool import GTPool
from gtpool.spec import OGB, TU, DataSpec, ModelSpec, RunSpec, ShapeSpec, SplitSpec, TrainSpec

RUN = RunSpec(
    data=DataSpec(source="tox.csv", target_columns=("a", "b"), task="binary"),
    split=SplitSpec(rule="scaffold", seed=3),
    model=ModelSpec(ratio=5, pool_options={"heads": 2, "gate": "tanh"}),
    train=TrainSpec(patience=None, class_weights=True),
    seed=7,
)


@pytest.mark.parametrize("spec", [RUN, RunSpec(data=DataSpec(source="MUTAG"))])
def test_a_spec_survives_json(spec):
    read = RunSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert read == spec
    assert read.key == spec.key
    assert hash(read) == hash(spec)


def test_what_is_left_out_of_json_keeps_its_default():
    read = RunSpec.from_json({"data": {"source": "MUTAG"}, "train": {"lr": 1}})
    assert read == RunSpec(data=DataSpec(source="MUTAG"), train=TrainSpec(lr=1.0))
    assert type(read.train.lr) is float


def test_the_key_is_the_same_on_every_machine_and_in_every_version():
    assert RunSpec(data=DataSpec(source="MUTAG")).key == "52333e7db415ce43"


def test_every_field_changes_the_key():
    keys = {
        RUN.key,
        replace(RUN, seed=8).key,
        replace(RUN, data=replace(RUN.data, standardize=False)).key,
        replace(RUN, split=replace(RUN.split, fold=1)).key,
        replace(RUN, model=replace(RUN.model, pool_options={"heads": 2})).key,
        replace(RUN, model=replace(RUN.model, ratio=5.0)).key,
        replace(RUN, train=replace(RUN.train, epochs=499)).key,
    }
    assert len(keys) == 7


def test_equal_specs_have_equal_keys_where_a_whole_number_stands_for_a_float():
    whole = replace(RUN, train=replace(RUN.train, clip=1))
    assert whole == RUN
    assert whole.key == RUN.key


def test_the_ratios_1_and_1_0_are_different_runs():
    # The first keeps one node, the second all of them.
    one, whole = (replace(RUN, model=replace(RUN.model, ratio=ratio)) for ratio in (1, 1.0))
    assert one.key != whole.key


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"data": {"source": "x", "sorce": "y"}}, r"unknown option data\.'sorce'.*'source'"),
        ({"data": {"source": "x"}, "modle": {}}, r"unknown option 'modle'; did you mean 'model'"),
        ({"data": {}}, r"data\.source"),
        ({}, "option data "),
        ({"data": "MUTAG"}, "data must be a table of options, got 'MUTAG'"),
        ({"data": {"source": 3}}, r"data\.source must be str, got 3"),
        ({"data": {"source": "x", "task": "yes"}}, "one of classes, binary, regression"),
        ({"data": {"source": "x", "target_columns": [1]}}, r"target_columns\[0\] must be str"),
        ({"data": {"source": "x", "target_columns": "a"}}, r"target_columns must be tuple"),
        ({"data": {"source": "x"}, "model": {"conv": "gnn"}}, "one of gcn, gin, gat, ogb-gcn"),
        ({"data": {"source": "x"}, "train": {"epochs": 2.5}}, r"epochs must be int, got 2\.5"),
        ({"data": {"source": "x"}, "train": {"epochs": True}}, "epochs must be int, got True"),
        ({"data": {"source": "x"}, "train": {"lr": "fast"}}, "lr must be float, got 'fast'"),
        ({"data": {"source": "x"}, "train": {"lr": float("nan")}}, "lr must be float, got nan"),
        ({"data": {"source": "x"}, "train": {"patience": 1.5}}, "int or nothing, got 1.5"),
    ],
)
def test_what_does_not_fit_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        RunSpec.from_json(value)


@pytest.mark.parametrize("task", ["classes", None])
def test_a_choice_may_be_left_open(task):
    assert DataSpec.from_json({"source": "x", "task": task}).task == task


def test_a_spec_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        RUN.seed = 1


def test_the_two_protocols_are_those_of_the_paper():
    shared = {"epochs": 500, "batch_size": 128, "weight_decay": 1e-4, "clip": 1.0, "warmup": 50}
    for spec in (TU, OGB):
        assert shared.items() <= spec.to_json().items()
    assert (TU.lr, TU.patience, TU.select) == (5e-4, 50, "loss")
    assert (OGB.lr, OGB.patience, OGB.select) == (1e-3, None, "metric")


HELD = gtpool.spec._LEGACY_VALUES
LATER = {"atom_order", "encode", "molecule_features", "feature_columns"}
OLD_DATA = {name: value for name, value in RUN.to_json()["data"].items() if name not in LATER}


def test_keys_of_stored_runs_hold_atoms_as_given():
    canonical = replace(RUN, data=replace(RUN.data, atom_order="canonical"))
    assert replace(canonical, data=replace(RUN.data, atom_order="given")).key == RUN.key
    assert canonical.key != RUN.key
    assert DataSpec.from_stored(OLD_DATA).atom_order == "given"


def grow(kind: Any, held: Any, default: Any, base: type = DataSpec) -> type:
    """Make a spec that has one option more than today's, which holds ``held`` in stored runs."""
    fields = {"__annotations__": {"later": kind}, "later": default}
    grown = dataclass(frozen=True, kw_only=True)(type("Grown", (base,), fields))
    HELD[grown] = {**HELD.get(base, {}), "later": held}
    return grown


PAIRS = st.lists(st.lists(st.integers(), max_size=2).map(tuple), max_size=3).map(tuple)
KINDS: list[tuple[Any, Any]] = [
    (tuple[str, ...], st.lists(st.text(max_size=3), max_size=3).map(tuple)),
    (tuple[float, ...], st.lists(st.integers(0, 2) | st.floats(0, 2), max_size=3).map(tuple)),
    (
        tuple[tuple[int, ...], ...],
        st.lists(st.lists(st.integers(), max_size=2).map(tuple)).map(tuple),
    ),
    (float | int, st.integers(0, 2) | st.sampled_from([0.0, 1.0, 2.0])),
    (str | None, st.none() | st.text(max_size=3)),
    (bool, st.booleans()),
]


@given(st.data())
def test_an_option_that_is_added_leaves_keys_and_stored_rows_as_they_are(data):
    kind, values = data.draw(st.sampled_from(KINDS))
    held, default, value = (data.draw(values) for _ in range(3))
    grown = grow(kind, held, default)
    try:
        given = {name: getattr(RUN.data, name) for name in RUN.data.to_json()}
        assert replace(RUN, data=grown(**given, later=held)).key == RUN.key
        same = _plain(kind, value) == _plain(kind, held)
        assert (replace(RUN, data=grown(**given, later=value)).key == RUN.key) == same
        assert grown.from_stored(OLD_DATA) == grown(**given, later=held)
        assert grown.from_stored({**OLD_DATA, "later": value}).later == value
        assert grown.from_json(OLD_DATA).later == default  # what a user leaves out
    finally:
        del HELD[grown]


def _plain(kind: Any, value: Any) -> str:
    return json.dumps([float(one) for one in value] if kind == tuple[float, ...] else value)


def test_a_part_and_an_option_of_a_run_can_be_added():
    @dataclass(frozen=True, kw_only=True)
    class Encoding(gtpool.spec._Spec):
        kinds: tuple[str, ...] = ("walk",)

    @dataclass(frozen=True, kw_only=True)
    class Wider(RunSpec):
        encoding: Encoding = Encoding()
        repeats: int = 3

    HELD[Wider] = {"encoding": Encoding(kinds=()), "repeats": 1}
    try:
        old = Wider.from_stored(RUN.to_json())
        assert (old.encoding.kinds, old.repeats, old.key) == ((), 1, RUN.key)
        keys = {old.key, replace(old, repeats=3).key, replace(old, encoding=Encoding()).key}
        assert len(keys) == 3
    finally:
        del HELD[Wider]


def test_every_option_that_was_added_is_known_and_its_value_fits():
    for spec, options in HELD.items():
        given = {DataSpec: {"source": "x"}, ShapeSpec: {"outputs": 2}}.get(spec, {})
        read = spec.from_stored(given)
        assert {name: getattr(read, name) for name in options} == options


def test_the_defaults_are_the_letter_of_the_paper_for_ever():
    # Stored rows and bundles mean these. A better recipe writes its options out instead.
    assert RunSpec(data=DataSpec(source="x")).to_json() == {
        "data": {
            "source": "x",
            "features": "gmt",
            "standardize": True,
            "smiles_column": None,
            "target_columns": [],
            "split_column": None,
            "task": None,
            "atom_order": "given",
            "encode": [],
            "group_column": None,
            "time_column": None,
            "contradictions": "keep",
            "molecule_features": [],
            "feature_columns": [],
        },
        "split": {
            "rule": "auto",
            "folds": 10,
            "fold": 0,
            "seed": 0,
            "bag": 0,
            "copies": "auto",
            "valid": "fold",
            "share": 1.0,
            "hold_out": "none",
        },
        "model": {
            "pool": "gtpool-v",
            "conv": "gcn",
            "readout": "mean-max",
            "combine": "sum",
            "width": 128,
            "levels": 3,
            "convs_per_level": 1,
            "jump": False,
            "ratio": 0.5,
            "dropout": 0.5,
            "norm": "none",
            "residual": False,
            "read_input": False,
            "pool_options": {},
            "readout_options": {},
            "connect": "induced",
            "ffn": False,
            "block_dropout": 0.0,
            "virtual_node": False,
        },
        "train": {
            "epochs": 500,
            "batch_size": 128,
            "lr": 5e-4,
            "weight_decay": 1e-4,
            "clip": 1.0,
            "warmup": 50,
            "patience": 50,
            "select": "loss",
            "class_weights": False,
            "precision": "float32",
            "ema": 0.0,
            "label_smoothing": 0.0,
            "metric": None,
            "start": None,
            "start_digest": None,
            "freeze_encoder": False,
        },
        "seed": 42,
    }
    assert _defaults(GTPool) == {
        "ratio": 0.5,
        "heads": 1,
        "lam": 0.4,
        "sampler": "rwsv",
        "order": "index",
        "attention": "exact",
        "gate": None,
        "act": "tanh",
        "out_proj": False,
        "ffn_channels": None,
        "dropout": 0.0,
        "temperature": 1.0,
        "points": "even",
        "connect": "induced",
        "learn_score": True,
    }


def test_the_defaults_that_saved_models_mean_stay():
    assert ShapeSpec(outputs=2).to_json() == {
        "outputs": 2,
        "node_width": 0,
        "node_categories": [],
        "edge_width": 0,
        "edge_categories": [],
        "edge_weighted": False,
        "mean_nodes": 0,
        "common_nodes": 0,
        "graph_width": 0,
    }
    assert _defaults(Recipe) == {
        "labels": (),
        "attributes": 0,
        "degree": False,
        "max_degree": None,
        "edge_labels": (),
        "edge_attributes": 0,
        "edge_weighted": False,
        "mean": None,
        "std": None,
        "atom_order": "given",
        "label_columns": (),
        "edge_label_columns": (),
        "encode": (),
        "coded": False,
        "molecule_features": (),
        "descriptors": (),
        "feature_columns": (),
    }


def _defaults(made: type) -> dict[str, Any]:
    parameters = inspect.signature(made).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}
