"""A blend from training to the service, and gradient boosting beside a training."""

import asyncio
import csv
import gzip
import json
import re
import sys
from time import monotonic

import numpy as np
import pytest
import torch

from gtpool.data.graph_features import describe_molecules
from gtpool.data.locate import EMBEDDED
from gtpool.data.sources import read_for_inference
from gtpool.estimator import GraphClassifier
from gtpool.hub import HubModel
from gtpool.model.bundle import load_bundle
from gtpool.ops.average import probabilities
from gtpool.predict import predict_source, schema_of
from gtpool.serve.limits import Limits
from gtpool.serve.service import Service
from gtpool.study.cross_validate import cross_validate
from gtpool.train import boosting
from gtpool.train.fit import predict_members

TINY = ("--pool", "gin", "--folds", "3", "--width", "8", "--epochs", "2", "--blend")
SPEC = {"model": {"pool": "gin", "width": 8}, "train": {"epochs": 2}, "split": {"folds": 3}}
B3DB = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().split()[2::2]
SMILES = [text for text in B3DB if len(text) < 20][:120]
OXYGEN = ["yes" if "O" in text else "no" for text in SMILES]


def write(path, columns):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blend")
    write(folder / "mine.csv", {"smiles": SMILES, "oxygen": OXYGEN})
    write(folder / "new.csv", {"smiles": ["CCO", "C1CC(", "c1ccccc1", "CC(=O)[O-].[Na+]"]})
    return folder


@pytest.fixture
def trained(gtpool, home):
    """Train once, and return the folder and what was printed."""
    printed = home / "printed.txt"
    if not printed.exists():
        code, out, err = gtpool("train", home / "mine.csv", *TINY, "--output-dir", home / "out")
        assert code == 0, err
        printed.write_text(out)
    return home / "out", printed.read_text()


@pytest.fixture
def hide_sklearn(monkeypatch):
    """Let the rest of a test find no scikit-learn."""

    def hide():
        monkeypatch.setattr(boosting, "find_spec", lambda _: None)
        for name in ("sklearn", "sklearn.ensemble"):
            monkeypatch.setitem(sys.modules, name, None)

    return hide


def test_training_says_how_blend_networks_and_trees_do(trained):
    home, out = trained
    assert re.search(r"fold +seed 42 +blend\n", out)
    lines = {line.split(":")[0]: line for line in out.splitlines()}
    assert "each fold tested with that of the others" in lines["blend"]
    page = (home / "report.html").read_text()
    for start in ("networks alone", "gradient boosting on descriptors (rdkit2d and morgan)"):
        assert "(3 runs, ± standard deviation over folds)" in lines[start]
        assert lines[start][1:] in page
    assert json.loads((home / "config.json").read_text())["blend"] is True
    card = (home / "model" / "README.md").read_text()
    assert "boosted trees on rdkit2d and morgan" in card
    assert "trees.json" in card


def test_a_prediction_is_the_weighted_mean(trained, home, hide_sklearn):
    hide_sklearn()
    bundle = load_bundle(trained[0] / "model")
    blend, schema = bundle.blend, schema_of(bundle)
    read = read_for_inference(home / "new.csv", schema)
    outputs = predict_members(bundle.model, read.data, torch.arange(3))
    networks = probabilities(outputs, "classes").numpy()
    assert (outputs.size(1), len(blend.trees), blend.members) == (3, 3, (0, 1, 2))
    x = describe_molecules(["CCO", "c1ccccc1", "CC(=O)[O-].[Na+]"], ["rdkit2d", "morgan"])
    trees = [
        probabilities(torch.from_numpy(part.predict(x)), "classes").numpy() for part in blend.trees
    ]
    members = blend.weight * networks + (1 - blend.weight) * np.stack(trees, 1)
    rows = [row for row in predict_source(bundle, home / "new.csv").rows if row.reason is None]
    assert len(rows) == 3
    found = np.array([row.probabilities for row in rows])
    np.testing.assert_allclose(found, members.mean(1), atol=1e-9)
    spreads = np.array([row.spread for row in rows])
    np.testing.assert_allclose(spreads, members.std(1, ddof=1), atol=1e-9)


def test_a_repeated_command_fits_no_trees(trained, gtpool, home, monkeypatch):
    monkeypatch.setattr("gtpool.study.blend.fit_trees", lambda *_: pytest.fail("fitted again"))
    code, out, err = gtpool("train", home / "mine.csv", *TINY, "--output-dir", home / "out")
    assert (code, out.splitlines()[-12:]) == (0, trained[1].splitlines()[-12:]), err


def test_the_service_answers_as_predict_does(trained, home):
    bundle = load_bundle(trained[0] / "model")
    service = Service(bundle, Limits(), batch=True, device=torch.device("cpu"))
    smiles = ["CCO", "C1CC(", "c1ccccc1", "CC(=O)[O-].[Na+]"]
    body = json.dumps({"smiles": smiles}).encode()
    try:
        told = json.loads(asyncio.run(service.predict(body, monotonic() + 60)))
        body = json.dumps({"smiles": "CCO"}).encode()
        explained = json.loads(asyncio.run(service.explain(body, monotonic() + 60)))
        with pytest.raises(TimeoutError):
            asyncio.run(service.predict(body, monotonic() - 1))
    finally:
        service.close()
    rows = predict_source(bundle, home / "new.csv").rows
    for said, row in zip(told["predictions"], rows, strict=True):
        if row.reason is None:
            assert [*said["probabilities"].values()] == pytest.approx(row.probabilities)
            assert [*said["spread"].values()] == pytest.approx(row.spread)
    shares = explained["prediction"]["probabilities"]
    assert shares == pytest.approx(told["predictions"][0]["probabilities"])
    assert service.about()["network_weight"] == bundle.blend.weight


def test_a_blend_goes_to_the_hub_and_back(trained, tmp_path):
    model = trained[0] / "model"
    HubModel.from_bundle(model).save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "trees.json").read_bytes() == (model / "trees.json").read_bytes()
    assert (
        "boosted trees" in HubModel.from_pretrained(tmp_path / "again").generate_model_card().text
    )


def test_explanations_say_that_they_are_of_the_network(trained, gtpool, home, tmp_path):
    page = tmp_path / "page.html"
    options = ("--graph", "2", "--epochs", "2", "-o", page)
    code, out, err = gtpool("explain", trained[0] / "model", home / "new.csv", *options)
    assert code == 0, err
    assert "network alone" in out
    assert "network alone" in page.read_text()


def test_an_estimator_refuses_a_blend(trained):
    with pytest.raises(ValueError, match="blend"):
        GraphClassifier.load(trained[0] / "model")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weight": 2}, "weight"),
        ({"members": [0, 1]}, "members"),
        ({"members": [0, 1, 3]}, "members"),
        ({"trees": []}, "members"),
        ({"columns": ["a"]}, "columns"),
        ({"more": 1}, "keys"),
    ],
)
def test_damaged_trees_are_refused(trained, tmp_path, change, told):
    bundle = HubModel.from_bundle(trained[0] / "model")
    bundle.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "trees.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=f"trees.json.*{told}"):
        load_bundle(tmp_path / "model")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="trees"):
        load_bundle(tmp_path / "model")


def test_other_descriptors_are_refused(trained, home, monkeypatch):
    bundle = load_bundle(trained[0] / "model")
    monkeypatch.setattr("gtpool.predict.descriptor_names", lambda _: ("a",))
    with pytest.raises(ValueError, match="rdkit"):
        predict_source(bundle, home / "new.csv")


def test_boosting_beside_a_training_without_blend(gtpool, home, tmp_path, hide_sklearn):
    hide_sklearn()
    options = [option for option in TINY if option != "--blend"]
    code, out, err = gtpool("train", home / "mine.csv", *options, "--output-dir", tmp_path)
    assert code == 0, err
    (line,) = (line for line in out.splitlines() if "gradient boosting" in line)
    assert "[molecules]" in line
    assert load_bundle(tmp_path / "model").blend is None


@pytest.mark.parametrize(("source", "told"), [("MUTAG", "SMILES"), ("mine.csv", r"\[molecules\]")])
def test_a_blend_that_is_not_possible(gtpool, home, tmp_path, hide_sklearn, source, told):
    hide_sklearn()
    where = source if source == "MUTAG" else home / source
    code, _, err = gtpool("train", where, *TINY, "--output-dir", tmp_path / "out")
    assert code != 0
    assert "--blend" in err
    assert told.replace("\\", "") in err


@pytest.mark.filterwarnings("ignore:1 of 3 targets have no two different values")
def test_tasks_with_missing_labels_on_one_split(tmp_path):
    yes = [str(int("O" in text)) for text in SMILES]
    other = [str(int("N" in text)) if at % 3 else "" for at, text in enumerate(SMILES)]
    split = ["test" if at % 5 == 0 else "valid" if at % 5 == 1 else "train" for at in range(120)]
    columns = {"smiles": SMILES, "o": yes, "n": other, "one": ["1"] * 120, "split": split}
    path = write(tmp_path / "tasks.csv", columns)
    data = {"target_columns": ["o", "n", "one"], "split_column": "split", "task": "binary"}
    found = cross_validate(path, {**SPEC, "split": {}, "data": data}, blend=True, ensemble=2)
    assert (found.metric, len(found.predictions), len(found.runs)) == ("roc_auc", 1, 2)
    blend = found.trees.blend
    assert (len(blend.trees), blend.members, blend.outputs) == (1, (0, 0), 3)
    assert found.trees.alone.n == 1
    assert found.trees.networks.members == 2
    assert found.mean == pytest.approx(found.ensembles.values[0][0])


def test_values_of_a_regression(tmp_path):
    sizes = [str(len(text) + 0.5) for text in SMILES]
    path = write(tmp_path / "sizes.csv", {"smiles": SMILES, "size": sizes})
    found = cross_validate(path, SPEC, blend=True, handover="best")
    assert found.trees.alone.metric == "rmse"
    assert found.mean < found.trees.networks.mean  # networks of two epochs know little
    assert found.trees.blend.members == (0,)
    errors = np.concatenate([part.output - part.y for part in found.predictions])
    assert np.sqrt((errors**2).mean()) == pytest.approx(found.mean, rel=0.1)
