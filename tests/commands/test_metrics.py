"""`train --metric`, and the metrics that train, evaluate and the page show."""

import csv
import json

import numpy as np
import pytest
import torch

from gtpool.model.bundle import load_bundle
from gtpool.study.store import Store
from gtpool.train.metric import metric_of

TINY = ("--pool", "none", "--width", "8", "--epochs", "2", "--folds", "3", "--encode", "none")
SMILES = ["CCO", "c1ccccc1O", "CC(=O)O", "CCN", "C1CCCCC1", "CC(C)Cl", "OCCO", "c1ccncc1"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Sixty molecules with two classes, two binary tasks with gaps and a number."""
    path, draw = tmp_path_factory.mktemp("data") / "mine.csv", np.random.default_rng(0)
    lines = ["smiles,class,a,b,number"]
    for at in range(60):
        smiles = "C" * (at % 7) + SMILES[at % len(SMILES)]
        a, b = (draw.choice(["0", "1", ""]) for _ in range(2))
        lines.append(f"{smiles},{draw.choice(['no', 'no', 'yes'])},{a},{b},{draw.random():.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GTPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def predictions(folder):
    with (folder / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_metric_that_is_asked_for_chooses_and_is_the_figure(gtpool, table, tmp_path):
    folder = tmp_path / "out"
    words = ("--target-columns", "class", "--metric", "balanced-accuracy", "--class-weights")
    code, out, err = gtpool("train", table, *TINY, *words, "--output-dir", folder)
    assert code == 0, err
    rows = Store(folder).rows()
    for row in rows:
        train = row.spec.train
        assert (train.metric, train.select) == ("balanced_accuracy", "metric")
        assert train.class_weights
        assert row.metric == "balanced_accuracy"
        own = [line for line in predictions(folder) if int(line["fold"]) - 1 == row.spec.split.fold]
        p = torch.tensor([[float(line["p_no"]), float(line["p_yes"])] for line in own])
        y = torch.tensor([int(line["true"] == "yes") for line in own])
        assert row.test == pytest.approx(metric_of("classes", "balanced_accuracy").of_outputs(p, y))
    assert "test balanced accuracy, %: " in out
    assert "F1, PR-AUC and Brier score are those of class 'yes'" in out
    assert "epoch chosen by validation balanced accuracy" in (folder / "report.html").read_text()
    about = load_bundle(folder / "model").about
    assert about["scores"]["balanced_accuracy"] == about["metrics"]["cross_validated"]
    code, out, _ = gtpool("evaluate", folder / "model", table, "--target-columns", "class")
    assert code == 0
    assert out.startswith("balanced accuracy, %: ")


def test_a_metric_that_does_not_fit_is_one_error_before_training(gtpool, table, tmp_path):
    words = ("--target-columns", "number", "--metric", "mcc", "--output-dir", tmp_path / "out")
    code, _, err = gtpool("train", table, *TINY, *words)
    assert code == 2
    assert "metric 'mcc' does not fit regression (those that do: rmse, mae, r2, spearman)" in err
    assert not (tmp_path / "out/runs").exists()


def test_several_tasks_have_every_metric_each(gtpool, table, tmp_path):
    folder = tmp_path / "out"
    words = ("--target-columns", "a,b", "--output-dir", folder)
    code, out, err = gtpool("train", table, *TINY, *words)
    assert code == 0, err
    said = predictions(folder)
    brier = []
    for fold in "123":
        own = [line for line in said if line["fold"] == fold]
        pairs = [[(line[f"p_{t}"], line[f"true_{t}"]) for line in own] for t in "ab"]
        each = [[(float(p) - float(y)) ** 2 for p, y in task if y] for task in pairs]
        brier.append(sum(sum(task) / len(task) for task in each) / 2)
    (line,) = [line for line in out.splitlines() if line.startswith("Brier score")]
    assert float(line.split()[2]) == pytest.approx(sum(brier) / 3, abs=1e-3)
    page = (folder / "report.html").read_text()
    assert '<th scope="col">Brier score</th>' in page
    code, out, _ = gtpool("evaluate", folder / "model", table)
    assert code == 0
    (head,) = [line for line in out.splitlines() if line.startswith("task")]
    assert "MCC" in head
    assert "PR-AUC, %" in head
    settings = json.loads((folder / "config.json").read_text())
    assert (settings["train"]["metric"], settings["train"]["select"]) == (None, "loss")
