"""An ensemble from training to explanation, as a user works with it."""

import asyncio
import csv
import json
import shutil
from dataclasses import replace
from time import monotonic

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from gtpool.data.sources import load
from gtpool.estimator import GraphClassifier
from gtpool.explain import explain
from gtpool.explain.explanation import nearest_member
from gtpool.hub import HubModel
from gtpool.model.bundle import load_bundle
from gtpool.model.predictor import member_features
from gtpool.ops.average import probabilities
from gtpool.predict import predict_source
from gtpool.serve.limits import Limits
from gtpool.serve.service import Service
from gtpool.study.recipe import ENCODE
from gtpool.train.fit import predict_members

TINY = ("--folds", "3", "--width", "16", "--epochs", "2", "--ensemble", "2")
GRAPH = {"nodes": 3, "edges": [[0, 1], [1, 2]], "undirected": True, "node_labels": [0, 0, 1]}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home") / "out"


@pytest.fixture
def trained(gtpool, home):
    """Train once; the test that comes first sees the whole output."""
    code, out, err = gtpool("train", "MUTAG", *TINY, "--output-dir", home)
    assert code == 0, err
    return home, out


def test_training_says_how_ensemble_and_members_do(trained):
    home, out = trained
    assert "seed 42  seed 43  ensemble\n" in out
    assert "(3 ensembles of 2 members, ± standard deviation over folds)" in out
    assert "single members: " in out
    assert "(ensemble of 6 models: seeds 42 to 43, 3 folds)" in out
    page = (home / "report.html").read_text()
    assert "3 ensembles of 2 members" in page
    assert "single members: " in page
    with (home / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert sorted(int(line["graph"]) for line in lines) == list(range(188))
    assert all(float(line["spread"]) > 0 for line in lines)


def test_predict_and_evaluate_take_the_mean_of_the_members(trained, gtpool, tmp_path):
    model = trained[0] / "model"
    assert gtpool("predict", model, "MUTAG", "-o", tmp_path / "said.csv")[0] == 0
    with (tmp_path / "said.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    bundle = load_bundle(model)
    shares = (
        predict_members(bundle.model, load("MUTAG", encode=ENCODE), torch.arange(188))
        .double()
        .softmax(2)
    )
    assert shares.size(1) == 6
    for line, mean, spread in zip(lines, shares.mean(1), shares.std(1), strict=True):
        place = int(mean.argmax())
        assert line["prediction"] == ("-1", "1")[place]
        assert float(line["p_1"]) == pytest.approx(mean[1].item(), abs=1e-6)
        assert float(line["spread"]) == pytest.approx(spread[place].item(), rel=1e-4)
    code, out, err = gtpool("evaluate", model, "MUTAG")
    right = (shares.mean(1).argmax(1) == load("MUTAG", encode=ENCODE).y).double().mean().item()
    assert (code, f"accuracy, %: {100 * right:.2f} (188 graphs)" in out) == (0, True)
    assert "trained on all of these graphs" in err


def test_explain_shows_the_member_nearest_to_the_mean(trained, gtpool, tmp_path):
    model = trained[0] / "model"
    page = tmp_path / "why.html"
    code, _, err = gtpool("explain", model, "MUTAG", "--graph", 5, "--epochs", 3, "-o", page)
    assert code == 0, err
    assert "Ensemble of 6 networks" in page.read_text()
    bundle, data = load_bundle(model), load("MUTAG", encode=ENCODE)
    why = explain(bundle.model, data, 5, epochs=3)
    outputs = predict_members(bundle.model, data, torch.tensor([5]))
    shares = probabilities(outputs, "classes")[0]
    far = (shares - shares.mean(0)).norm(dim=1)
    assert why.member == nearest_member(outputs, "classes") == int(far.argmin())
    own = replace(data, x=member_features(bundle.model, data.x, why.member))
    alone = explain(bundle.model.members[why.member], own, 5, epochs=3, target=why.target)
    assert why.levels == alone.levels
    assert why.importance == alone.importance
    assert (alone.member, alone.spread) == (None, None)
    assert torch.tensor(why.logits).softmax(0).tolist() == pytest.approx(shares.mean(0).tolist())
    assert why.spread == pytest.approx(shares.std(0)[why.target].item())
    assert why.fidelity.p == pytest.approx(shares.mean(0)[why.target].item())


def ask(service, what, body):
    answer = getattr(service, what)(json.dumps(body).encode(), monotonic() + 60)
    return json.loads(asyncio.run(answer))


def test_the_service_answers_with_the_spread(trained):
    bundle = load_bundle(trained[0] / "model")
    service = Service(bundle, Limits(), batch=True, device=torch.device("cpu"))
    graph = {**GRAPH, "edge_labels": [0, 0]}
    try:
        said = ask(service, "predict", {"graphs": [graph, {**graph, "node_labels": [99, 0, 0]}]})
        why = ask(service, "explain", {"graph": graph})
        told = service.about()
    finally:
        service.close()
    first, second = said["predictions"]
    assert first["spread"].keys() == first["probabilities"].keys() == {"-1", "1"}
    assert first["spread"]["1"] > 0
    assert second["spread"] is second["prediction"] is None
    assert why["prediction"] == {**first, "id": ""}
    assert why["explanation"]["member"] in range(6)
    assert (told["members"], told["levels"]) == (6, 1)
    assert told["metrics"].keys() == {"metric", "valid_loss", "cross_validated"}


def test_the_hub_takes_an_ensemble_as_it_is(trained, tmp_path):
    model = HubModel.from_bundle(trained[0] / "model")
    model.save_pretrained(tmp_path / "saved")
    again = HubModel.from_pretrained(tmp_path / "saved").bundle
    assert predict_source(again, "MUTAG") == predict_source(model.bundle, "MUTAG")
    assert isinstance(model.generate_model_card(), ModelCard)


def test_an_estimator_loads_what_train_saved(trained):
    model = trained[0] / "model"
    estimator, data = GraphClassifier.load(model), load("MUTAG", encode=ENCODE)
    shares = [row.probabilities for row in predict_source(load_bundle(model), "MUTAG").rows]
    np.testing.assert_allclose(estimator.predict_proba(data), shares)
    assert estimator.predict_spread(data).shape == (188, 2)


def test_the_same_command_continues_and_options_share_the_runs(trained, gtpool, tmp_path):
    folder = tmp_path / "best"
    shutil.copytree(trained[0] / "runs", folder / "runs")
    next((folder / "runs").glob("*.json")).unlink()  # as if it was stopped before this one
    words = ("train", "MUTAG", *TINY, "--handover", "best", "--output-dir", folder)
    code, out, err = gtpool(*words)
    assert (code, "5 of 6 runs are done already" in err) == (0, True)
    assert "(ensemble of 2 models: seeds 42 to 43, fold " in out
    card = (folder / "model/README.md").read_text()
    assert "accuracy on the test part (ensemble, fold " in card


def test_bags_are_named_as_another_protocol(gtpool, tmp_path):
    folder = tmp_path / "bags"
    code, out, _ = gtpool("train", "MUTAG", *TINY, "--bag", "--output-dir", folder)
    assert code == 0
    assert "bagging" in out
    page = (folder / "report.html").read_text()
    assert "bagging" in page
    assert "stratified folds, seed 0, 3 folds" in page
    assert ", bags" in page
    code, _, err = gtpool("train", "MUTAG", "--bag", "--output-dir", tmp_path / "none")
    assert (code, "ensemble to at least 2" in err) == (2, True)
