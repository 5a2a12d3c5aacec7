"""Runs that start from a trained model take its network, its features and its weights."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gtpool.model.bundle import load_bundle
from gtpool.model.predictor import members_of
from gtpool.predict import predict_source
from gtpool.report.results import write_results
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.cross_validate import cross_validate, plan_runs
from gtpool.study.inputs import load_data, shape_of
from gtpool.study.plan import make_plan, read_settings
from gtpool.study.run_one import run_ensemble, run_one
from gtpool.study.split_rules import choose_split
from gtpool.study.start import load_base, new_network, run_data, with_start

SMILES = Path(__file__).parents[1] / "fixtures" / "ogb_smiles.txt"
HEAD = ("head.", "graph_features.", "shift", "scale")
TINY = {"epochs": 2, "batch_size": 32}


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a base of three members, and a table of other molecules."""
    folder = tmp_path_factory.mktemp("start")
    smiles = sorted(SMILES.read_text().split(), key=len)  # new molecules are larger
    base = write(
        folder / "base.csv", ("smiles", "ring"), [(text, int("1" in text)) for text in smiles[:90]]
    )
    write(folder / "new.csv", ("smiles", "y"), [(text, len(text) + 0.5) for text in smiles[90:150]])
    options = {"model": {"width": 8}, "split": {"folds": 3}, "train": TINY}
    write_results(folder / "out", cross_validate(base, options))
    return folder


@pytest.fixture
def base(home):
    return home / "out" / "model"


@pytest.fixture
def spec(home, base):
    plan = make_plan(
        {"split": {"folds": 3}, "train": TINY},
        {"data": {"source": str(home / "new.csv")}, "train": {"start": str(base)}},
        "best",
    )
    return plan.run


def body(state):
    return {name: part for name, part in state.items() if not name.startswith(HEAD)}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_options_of_network_and_features_are_those_of_the_base(spec, base):
    trained = load_bundle(base)
    assert spec.model == trained.model.spec
    assert spec.data.encode == ("rwse:16",)
    assert (spec.train.start, spec.train.epochs) == (str(base), 2)
    assert spec.train.start_digest == load_base(str(base)).digest


def test_each_run_starts_from_a_member_of_its_own_with_a_new_head(spec, base):
    loaded = load_data(spec.data)
    members = members_of(load_bundle(base).model)
    for seed, fold in ((42, 0), (42, 1), (43, 1)):
        run = replace(spec, seed=seed, split=replace(spec.split, fold=fold))
        network = new_network(run, loaded.dataset)
        trained = members[(seed + fold) % 3]
        assert same(body(network.state_dict()), body(trained.state_dict()))
        assert network.head[0].weight.ne(trained.head[0].weight).all()
        assert network.shape.outputs == 1


def test_features_are_standardised_as_the_member_did(spec, base):
    model = load_bundle(base).model
    loaded = load_data(spec.data)
    split = choose_split(spec.split, loaded)
    recipe = run_data(spec, loaded.dataset, split).schema.recipe
    assert recipe.mean == tuple(model.mean[0].tolist())
    assert recipe.std == tuple(model.std[0].tolist())
    assert recipe.mean != loaded.dataset.standardized(split.train).schema.recipe.mean


@pytest.mark.parametrize("freeze", [False, True])
def test_runs_alone_and_side_by_side_agree_and_a_frozen_encoder_stays(spec, base, tmp_path, freeze):
    spec = replace(spec, train=replace(spec.train, freeze_encoder=freeze))
    specs, loaded = plan_runs(make_plan(spec.to_json(), {}))
    members = members_of(load_bundle(base).model)
    beside = run_ensemble(
        specs, device="cpu", loaded=loaded, artifact=lambda key: tmp_path / f"{key}-beside"
    )
    found = {row.key: row for row in beside}
    for run in specs:
        alone = run_one(run, device="cpu", loaded=loaded, artifact=tmp_path / run.key)
        assert found[run.key].valid_loss == pytest.approx(alone.valid_loss, abs=1e-4)
        trained = body(members[(run.seed + run.split.fold) % 3].state_dict())
        for name in (run.key, f"{run.key}-beside"):
            state = {
                key.removeprefix("weights."): part
                for key, part in load_file(tmp_path / name).items()
                if key.startswith("weights.")
            }
            assert same(body(state), trained) == freeze


def test_the_model_predicts_as_its_runs_did(home, base, tmp_path):
    options = {"split": {"folds": 3}, "train": TINY}
    result = cross_validate(
        home / "new.csv", options, start=base, freeze_encoder=True, folder=tmp_path / "out"
    )
    files = write_results(tmp_path / "out", result)
    bundle = load_bundle(files["model"])
    found = predict_source(bundle, home / "new.csv").rows
    held_out = {
        graph: value
        for part in result.predictions
        for graph, value in zip(part.graph.tolist(), part.output[:, 0].tolist(), strict=True)
    }
    assert len(held_out) == len(found) == 60
    assert all(abs(row.value[0] - held_out[at]) < 30 for at, row in enumerate(found))
    assert bundle.about["run"]["train"]["start"] == "model"  # not the path
    again = cross_validate(
        home / "new.csv",
        read_settings(write_json(tmp_path / "config.json", result.plan.to_json())),
        folder=tmp_path / "out",
    )
    assert [row.finished for row in again.runs] == [row.finished for row in result.runs]


def write_json(path, value):
    path.write_text(json.dumps(value))
    return path


def test_another_base_is_another_run(base, spec, tmp_path):
    other = tmp_path / "model"
    shutil.copytree(base, other)
    moved = with_start(replace(spec, train=replace(spec.train, start=str(other))))
    assert moved.train.start_digest == spec.train.start_digest
    text = (other / "config.json").read_text()
    (other / "config.json").write_text(text.replace('"valid_loss"', '"valid_loss" '))
    with pytest.raises(ValueError, match=r"not the model that train\.start_digest names"):
        run_one(moved)
    settings = moved.to_json()
    with pytest.raises(ValueError, match="give --from again"):
        make_plan(settings, {})
    renewed = make_plan(settings, {"train": {"start": str(other)}}).run
    keys = {renewed.key, moved.key, with_start(spec).key, replace(spec, train=TrainSpec()).key}
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": {"width": 16}}, "model.width is 16, but .* has 8"),
        ({"model": {"pool": "gin"}}, "model.* but the model to start from"),
        ({"data": {"encode": ["cycles"]}}, "data.encode is .'cycles'.*'rwse:16'"),
        ({"data": {"source": "MUTAG"}}, "MUTAG has other features .gmt.*molecule"),
        ({"data": {"standardize": False}}, "data.standardize must be true"),
        ({"train": {"start": "nowhere"}}, "nowhere is not a model"),
    ],
)
def test_what_does_not_fit_is_named(home, base, settings, message):
    options = {
        "data": {"source": str(home / "new.csv"), **settings.get("data", {})},
        "train": {"start": str(base), **settings.get("train", {})},
    }
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        plan_runs(make_plan({"model": settings.get("model", {})}, options, "best"))


def test_options_of_the_base_may_be_repeated(spec, home, base):
    repeated = {"pool": "gtpool-v", "width": 8, "pool_options": {"gate": "tanh"}}
    options = {"data": {"source": str(home / "new.csv")}, "train": {"start": str(base)}}
    assert make_plan({"model": repeated}, options, "best").run.model == spec.model


def test_freezing_needs_a_base():
    with pytest.raises(ValueError, match=r"freeze_encoder requires train\.start"):
        make_plan({}, {"data": {"source": "MUTAG"}, "train": {"freeze_encoder": True}})
    run = RunSpec(data=DataSpec(source="MUTAG"), train=TrainSpec(start="somewhere"))
    with pytest.raises(ValueError, match="with_start"):
        run_one(run)


def test_clusters_are_sized_by_the_base(home, tmp_path):
    small = RunSpec(
        data=DataSpec(source=str(home / "base.csv")),
        split=SplitSpec(folds=3),
        model=ModelSpec(pool="diffpool", width=8, levels=1),
        train=TrainSpec(epochs=1, warmup=0),
    )
    write_results(tmp_path, cross_validate(home / "base.csv", small, handover="best"))
    trained = load_bundle(tmp_path / "model").model
    start = str(tmp_path / "model")
    run = with_start(
        replace(
            small,
            data=DataSpec(source=str(home / "new.csv")),
            train=replace(small.train, start=start),
        )
    )
    dataset = load_data(run.data).dataset
    assert shape_of(dataset).mean_nodes > trained.shape.mean_nodes
    network = new_network(run, dataset)
    assert network.shape.mean_nodes == trained.shape.mean_nodes
    assert same(body(network.state_dict()), body(trained.state_dict()))


def test_the_command_says_what_is_trained(gtpool, home, base, tmp_path):
    words = ("--folds", 3, "--epochs", 1, "--output-dir", tmp_path / "out")
    code, out, err = gtpool("train", home / "new.csv", "--from", base, "--freeze-encoder", *words)
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("starts from:")]
    told = line.rpartition("; ")[2].split()
    trained, every = (int(word.replace(",", "")) for word in (told[1], told[3]))
    assert "an ensemble of 3" in line
    assert 0 < trained < every
    assert trained == sum(
        part.numel()
        for part in members_of(load_bundle(tmp_path / "out" / "model").model)[0].head.parameters()
    )
    code, out, err = gtpool("train", home / "new.csv", "--freeze-encoder", *words)
    assert (code, "requires train.start" in err) == (2, True)


def test_features_of_whole_molecules_are_new_as_the_head_is(spec, base):
    described = replace(spec, data=replace(spec.data, molecule_features=("rdkit2d",)))
    loaded = load_data(described.data)
    data = run_data(described, loaded.dataset, choose_split(described.split, loaded))
    network = new_network(described, data)
    columns = len(data.schema.recipe.descriptors)
    assert network.graph_features.mean.numel() == columns > 200
    first = members_of(load_bundle(base).model)[42 % 3]
    assert same(body(first.state_dict()), body(network.state_dict()))
    assert run_one(described, device="cpu").status == "done"
