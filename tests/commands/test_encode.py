"""Structural encodings from training to prediction, explanation and service."""

import csv
import gzip
import json

import pytest
from serving import serving

from gtpool.data.locate import EMBEDDED
from gtpool.model.bundle import load_bundle

B3DB = gzip.decompress((EMBEDDED / "B3DB/B3DB.tsv.gz").read_bytes()).decode().splitlines()[1:]
MOLECULES = [line.split("\t") for line in B3DB[::100]]
TINY = ("--folds", "3", "--width", "16", "--epochs", "2", "--encode", "rwse:8, cycles")
pytestmark = pytest.mark.usefixtures("no_data_folder")


def check(gtpool, *words) -> str:
    code, out, err = gtpool(*words)
    assert code == 0, err
    return out


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_dataset_known_by_name(gtpool, tmp_path):
    out = check(gtpool, "train", "MUTAG", *TINY, "--output-dir", tmp_path / "out")
    assert "encodings: rwse:8, cycles (10 per node)" in out
    model = tmp_path / "out" / "model"
    bundle = load_bundle(model)
    assert bundle.about["schema"]["recipe"]["encode"] == ["rwse:8", "cycles"]
    assert bundle.model.shape.node_width == 10 + 7
    check(gtpool, "predict", model, "MUTAG", "-o", tmp_path / "said.csv")
    assert len(table(tmp_path / "said.csv")) == 188
    check(gtpool, "evaluate", model, "MUTAG")
    check(gtpool, "explain", model, "MUTAG", "--graph", 3, "--epochs", 2, "-o", tmp_path / "e.html")
    out = check(gtpool, "data", "info", "MUTAG", "--encode", "degree,lappe:3")
    assert "4 encodings (degree, lappe:3)" in out


def test_a_table_of_smiles_and_its_service(gtpool, tmp_path):
    rows = "".join(f"{smiles},{label}\n" for smiles, label in MOLECULES)
    (tmp_path / "mine.csv").write_text(f"smiles,bbb\n{rows}")
    out = check(gtpool, "train", tmp_path / "mine.csv", *TINY, "--output-dir", tmp_path / "out")
    assert "encodings: rwse:8, cycles (10 per node)" in out
    model = tmp_path / "out" / "model"
    assert load_bundle(model).model.shape.node_width == 10
    check(gtpool, "predict", model, tmp_path / "mine.csv", "-o", tmp_path / "said.csv")
    check(gtpool, "explain", model, tmp_path / "mine.csv", "--epochs", 2, "-o", tmp_path / "e.html")
    said = {row["smiles"]: row for row in table(tmp_path / "said.csv")}
    with serving(model) as served:
        asked = [smiles for smiles, _ in MOLECULES]
        for row in served.ask({"smiles": asked}).json()["predictions"]:
            expected = said[row["id"]]
            assert row["prediction"] == expected["prediction"]
            share = row["probabilities"]["BBB+"]
            assert share == pytest.approx(float(expected["p_BBB+"]), abs=2e-6)
        told = served.ask({"smiles": asked[0]}, "/explain")
        assert json.loads(told.content)["explanation"]["importance"]


def test_none_removes_the_encodings_of_the_recipe(gtpool, tmp_path):
    out = check(gtpool, "train", "MUTAG", *TINY[:-1], "none", "--output-dir", tmp_path / "out")
    assert "encodings" not in out
    assert load_bundle(tmp_path / "out" / "model").model.shape.node_width == 7


def test_wrong_options(gtpool, tmp_path):
    out = tmp_path / "out"
    code, _, err = gtpool("train", "MUTAG", "--encode", "rwse:1", "--output-dir", out)
    assert code != 0
    assert "'rwse:1'" in err
    code, _, err = gtpool("train", "MUTAG", "--encode", "circles", "--output-dir", out)
    assert "did you mean 'cycles'" in err
