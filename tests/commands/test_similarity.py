"""Fingerprints of training molecules, from training to the service."""

import asyncio
import csv
import json
from time import monotonic

import pytest
import torch
from safetensors.torch import save_file

from gtpool.data.molecule import b3db_smiles
from gtpool.data.similarity import training_fingerprints
from gtpool.model.bundle import load_bundle
from gtpool.predict import predict_source
from gtpool.serve.limits import Limits
from gtpool.serve.service import Service

SMILES = [text for text in b3db_smiles() if len(text) < 20][:40]
OXYGEN = ["yes" if "O" in text else "no" for text in SMILES]
TINY = ("--pool", "gin", "--folds", "4", "--width", "8", "--epochs", "1")
NEW = ["OCC", "C1CC(", SMILES[3], "FC(F)(F)S.[Na+]"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("similar")
    lines = (f"{text},{label}" for text, label in zip(SMILES, OXYGEN, strict=True))
    (folder / "mine.csv").write_text("\n".join(["smiles,oxygen", *lines]) + "\n")
    (folder / "new.csv").write_text("\n".join(["smiles", *NEW]) + "\n")
    return folder


@pytest.fixture
def trained(gtpool, home):
    folder = home / "out"
    if not folder.exists():
        code, _, err = gtpool("train", home / "mine.csv", *TINY, "--output-dir", folder)
        assert code == 0, err
    return folder / "model"


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_predict_says_how_near_training_molecules_are(gtpool, trained, home, tmp_path):
    code, _, _ = gtpool("predict", trained, home / "new.csv", "-o", tmp_path / "said.csv")
    assert code == 0
    first, wrong, known, far = read(tmp_path / "said.csv")
    assert list(first)[-3:] == ["similarity", "note", "reason"]
    assert (wrong["similarity"], wrong["note"]) == ("", "")
    assert (known["similarity"], known["note"]) == ("1.000", "")
    said = f"unlike the training molecules (similarity {float(far['similarity']):.2f})"
    assert far["note"] == f"2 fragments (salt or mixture); {said}"


def test_the_members_together_were_trained_on_all_molecules(trained):
    bundle = load_bundle(trained)
    assert torch.equal(bundle.fingerprints, torch.from_numpy(training_fingerprints(SMILES)))
    assert bundle.about["data"]["trained"] == len(SMILES)


def test_one_fold_knows_its_own_training_part_alone(gtpool, home, tmp_path):
    words = ("train", home / "mine.csv", *TINY, "--handover", "best")
    assert gtpool(*words, "--output-dir", tmp_path / "out")[0] == 0
    bundle = load_bundle(tmp_path / "out" / "model")
    size = bundle.about["data"]["train"]
    assert bundle.about["data"]["trained"] == len(bundle.fingerprints) == size
    near = [row.neighbour for row in predict_source(bundle, home / "mine.csv").rows]
    assert size <= sum(one.similarity == 1 for one in near) < len(SMILES)


def test_without_the_file_a_model_predicts_as_before(gtpool, trained, home, tmp_path):
    with_it = predict_source(load_bundle(trained), home / "new.csv")
    path = trained / "training.safetensors"
    content = path.read_bytes()
    path.unlink()
    try:
        assert gtpool("predict", trained, home / "new.csv", "-o", tmp_path / "said.csv")[0] == 0
        without = predict_source(load_bundle(trained), home / "new.csv")
    finally:
        path.write_bytes(content)
    assert not {"similarity", "note"} & set(read(tmp_path / "said.csv")[0])
    assert not without.compared
    assert [row._replace(neighbour=None) for row in with_it.rows] == list(without.rows)


@pytest.mark.parametrize(
    "tensors",
    [
        {"other": torch.zeros(2, 256, dtype=torch.uint8)},
        {"fingerprints": torch.zeros(2, 256)},
        {"fingerprints": torch.zeros(2, 8, dtype=torch.uint8)},
    ],
)
def test_damaged_fingerprints_are_refused(trained, home, tensors):
    path = trained / "training.safetensors"
    content = path.read_bytes()
    save_file(tensors, path)
    try:
        with pytest.raises(ValueError, match="fingerprints"):
            predict_source(load_bundle(trained), home / "new.csv")
    finally:
        path.write_bytes(content)


def test_the_service_gives_them_too(trained, home):
    bundle = load_bundle(trained)
    service = Service(bundle, Limits(), batch=True, device=torch.device("cpu"))
    body = json.dumps({"smiles": NEW}).encode()
    try:
        answer = json.loads(asyncio.run(service.predict(body, monotonic() + 60)))
    finally:
        service.close()
    told = predict_source(bundle, home / "new.csv").rows
    for row, wanted in zip(answer["predictions"], told, strict=True):
        near = wanted.neighbour
        found = (row["similarity"], row["note"])
        shares = tuple((row["probabilities"] or {}).values())
        assert shares == pytest.approx(wanted.probabilities, abs=1e-6)
        assert found == ((None, None) if near is None else (near.similarity, near.note or None))
