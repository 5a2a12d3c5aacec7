import json
from dataclasses import FrozenInstanceError, replace

import pytest

from gtpool.spec import OGB, TU, DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec

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
        ({"data": {}}, r"option data\.source is missing"),
        ({}, "option data is missing"),
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


def test_keys_of_stored_runs_hold_atoms_as_given():
    canonical = replace(RUN, data=replace(RUN.data, atom_order="canonical"))
    assert replace(canonical, data=replace(RUN.data, atom_order="given")).key == RUN.key
    assert canonical.key != RUN.key
    stored = {key: part for key, part in RUN.to_json()["data"].items() if key != "atom_order"}
    assert DataSpec.from_json(stored).atom_order == "given"
