"""Temperature, threshold and conformal sets from training to the service."""

import asyncio
import csv
import io
import json
from time import monotonic

import numpy as np
import pytest
import torch
from markupsafe import escape

from gtpool.data.molecule import b3db_smiles
from gtpool.estimator import GraphClassifier
from gtpool.hub import HubModel
from gtpool.model.bundle import load_bundle, save_bundle
from gtpool.ops.average import probabilities
from gtpool.predict import evaluate_source, predict_source
from gtpool.serve.limits import Limits, RequestError
from gtpool.serve.service import Service
from gtpool.study.cross_validate import cross_validate

TINY = (
    "--pool",
    "gin",
    "--folds",
    "3",
    "--width",
    "8",
    "--epochs",
    "3",
    "--molecule-features",
    "none",
)
SMILES = [text for text in b3db_smiles() if len(text) < 20][:120]
OXYGEN = ["yes" if "O" in text else "no" for text in SMILES]
SIZES = [len(text) + 0.5 for text in SMILES]


def write(path, columns):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*columns.values(), strict=True))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    write(folder / "mine.csv", {"smiles": SMILES, "oxygen": OXYGEN})
    write(folder / "new.csv", {"smiles": ["CCO", "C1CC(", "c1ccccc1"]})
    return folder


@pytest.fixture
def trained(gtpool, home):
    """Train once, and return the folder and what was printed."""
    printed = home / "printed.txt"
    if not printed.exists():
        options = (*TINY, "--calibrate", "--threshold", "balanced-accuracy")
        code, out, err = gtpool("train", home / "mine.csv", *options, "--output-dir", home / "out")
        assert code == 0, err
        printed.write_text(out)
    return home / "out", printed.read_text()


def test_training_says_what_the_calibration_does(trained):
    home, out = trained
    page, card = (home / "report.html").read_text(), (home / "model" / "README.md").read_text()
    for start in ("calibrated by temperature", "threshold ", "coverage of conformal sets"):
        (line,) = (line for line in out.splitlines() if line.startswith(start))
        assert escape(line[1:]) in page
    assert "log loss" in out
    assert "how often predictions are right" in page
    assert (home / "reliability.svg").read_text().startswith("<svg")
    assert "chosen by balanced_accuracy" in card
    settings = json.loads((home / "config.json").read_text())
    assert (settings["calibrate"], settings["threshold"]) == (True, "balanced_accuracy")


def test_the_reported_accuracy_is_that_of_the_thresholds(trained):
    home, out = trained
    with (home / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    right = [
        np.mean([row["true"] == row["prediction"] for row in rows if row["fold"] == fold])
        for fold in ("1", "2", "3")
    ]
    assert f"test accuracy, %: {100 * np.mean(right):.2f}" in out
    probable = ["yes" if float(row["p_yes"]) > 0.5 else "no" for row in rows]
    assert [row["prediction"] for row in rows] != probable
    metrics = json.loads((home / "model" / "config.json").read_text())["about"]["metrics"]
    assert metrics["cross_validated"] == pytest.approx(np.mean(right))


def raw(bundle):
    """Return the model without its temperature and threshold."""
    return bundle._replace(calibration=bundle.calibration.__class__())


def test_predictions_have_temperature_and_threshold(trained, home):
    bundle = load_bundle(trained[0] / "model")
    calibration = bundle.calibration
    rows, plain = (
        [row for row in predict_source(one, home / "mine.csv").rows if row.reason is None]
        for one in (bundle, raw(bundle))
    )
    p = torch.tensor([row.probabilities for row in plain])
    expected = probabilities(p.double().log() / calibration.temperature[0], "classes")
    found = torch.tensor([row.probabilities for row in rows], dtype=torch.double)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    second = [
        "yes" if share >= calibration.threshold[0] else "no" for share in found[:, 1].tolist()
    ]
    assert [row.value for row in rows] == second
    assert [row.spread for row in rows] == [row.spread for row in plain]
    told = evaluate_source(bundle, home / "mine.csv")
    assert told["value"] == np.mean([a == b for a, b in zip(second, OXYGEN, strict=True)])
    assert np.trace(told["confusion"]) == told["value"] * len(SMILES)
    before = evaluate_source(raw(bundle), home / "mine.csv")["scores"]
    assert told["scores"]["roc_auc"] == pytest.approx(before["roc_auc"])
    assert told["scores"]["log_loss"] != before["log_loss"]


def test_a_coverage_adds_a_column(trained, gtpool, home):
    model = trained[0] / "model"
    code, out, err = gtpool("predict", model, home / "new.csv", "-o", "-", "--coverage", "0.9")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[1]["set"] == ""
    for row in (rows[0], rows[2]):
        assert set(row["set"].split("|")) <= {"yes", "no"}
    code, _, err = gtpool("predict", model, home / "new.csv", "-o", "-", "--coverage", "0.999")
    assert code != 0
    assert "120 held-out graphs" in err


def test_evaluate_measures_the_coverage(trained, gtpool, home):
    bundle = load_bundle(trained[0] / "model")
    regions = [
        row.regions[0] for row in predict_source(bundle, home / "mine.csv", coverage=0.8).rows
    ]
    share = np.mean([truth in region for truth, region in zip(OXYGEN, regions, strict=True)])
    options = ("evaluate", trained[0] / "model", home / "mine.csv", "--coverage", "0.8")
    code, out, err = gtpool(*options)
    assert code == 0, err
    assert f"stated coverage 80 %, measured {100 * share:.2f} %" in out
    found = evaluate_source(bundle, home / "mine.csv", coverage=0.8)
    assert found["covered"] == pytest.approx(share)


def test_the_service_answers_as_predict_does(trained, home):
    bundle = load_bundle(trained[0] / "model")
    service = Service(bundle, Limits(), batch=True, device=torch.device("cpu"))
    asked = {"smiles": ["CCO", "C1CC(", "c1ccccc1"], "coverage": 0.9}

    def ask(body):
        sent = json.dumps(body).encode()
        return json.loads(asyncio.run(service.predict(sent, monotonic() + 60)))["predictions"]

    try:
        found, plain = ask(asked), ask({"smiles": asked["smiles"]})
        for wrong in (0.999, 1, "0.9"):
            with pytest.raises(RequestError):
                ask({**asked, "coverage": wrong})
    finally:
        service.close()
    rows = predict_source(bundle, home / "new.csv", coverage=0.9).rows
    assert [row["set"] for row in found] == [
        [*row.regions[0]] if row.regions else None for row in rows
    ]
    assert [row["prediction"] for row in found] == [row.value for row in rows]
    assert not any("set" in row for row in plain)
    about = service.about()
    assert (about["temperature"], about["held_out"]) == (bundle.calibration.temperature, 120)


def test_hub_and_estimator_keep_the_calibration(trained, home, tmp_path):
    model = trained[0] / "model"
    HubModel.from_bundle(model).save_pretrained(tmp_path / "hub")
    estimator = GraphClassifier.load(tmp_path / "hub")
    estimator.save(tmp_path / "again")
    rows = predict_source(load_bundle(tmp_path / "again"), home / "mine.csv").rows
    assert estimator.predict(SMILES).tolist() == [row.value for row in rows]
    shares = [row.probabilities for row in rows]
    np.testing.assert_allclose(estimator.predict_proba(SMILES), shares, atol=1e-6)


def test_a_model_without_scores_says_so(trained, gtpool, home, tmp_path):
    bundle = load_bundle(trained[0] / "model")
    save_bundle(tmp_path / "model", bundle.model, bundle.about)
    options = ("-o", tmp_path / "out.csv", "--coverage", "0.9")
    code, _, err = gtpool("predict", tmp_path / "model", home / "new.csv", *options)
    assert code != 0
    assert "no conformal scores" in err
    assert not (tmp_path / "out.csv").exists()


def test_values_have_intervals(tmp_path):
    split = ["test" if at % 4 == 0 else "valid" if at % 4 == 1 else "train" for at in range(120)]
    columns = {"smiles": SMILES, "size": SIZES, "split": split}
    path = write(tmp_path / "sizes.csv", columns)
    options = {
        "model": {"pool": "gin", "width": 8},
        "train": {"epochs": 2},
        "data": {"target_columns": ["size"], "split_column": "split"},
    }
    found = cross_validate(path, options)
    calibration, (part,) = found.calibrated.calibration, found.predictions
    assert calibration.counts == (30,)
    limit = calibration.limits(0.9).item()
    residual = np.abs(part.output - part.y).ravel()
    measured = next(one for one in found.calibrated.coverage if one.stated == 0.9)
    assert measured.measured == pytest.approx(np.mean(residual <= limit))
    assert measured.size == pytest.approx(2 * limit)


@pytest.mark.parametrize(
    ("options", "told"),
    [(("--threshold", "roc_auc"), "--threshold"), (("--task", "regression", "--calibrate"), "")],
)
def test_what_cannot_be_calibrated(gtpool, home, tmp_path, options, told):
    path = write(tmp_path / "sizes.csv", {"smiles": SMILES, "size": SIZES})
    where = path if "regression" in options else home / "mine.csv"
    code, _, err = gtpool("train", where, *TINY, *options, "--output-dir", tmp_path / "out")
    assert code != 0
    assert (told or "--calibrate") in err
