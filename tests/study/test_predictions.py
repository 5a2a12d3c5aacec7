"""Test predictions of stored runs as one file."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from gtpool.cli import app
from gtpool.reproduce import paper
from gtpool.reproduce.ensembles import ensemble_scores
from gtpool.reproduce.paper import Study, StudyCell
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.predictions import export_predictions, read_predictions
from gtpool.study.run import run_many
from gtpool.study.store import Store
from gtpool.train.metric import roc_auc

RUN = RunSpec(
    data=DataSpec(source="MUTAG"),
    split=SplitSpec(rule="stratified", folds=3),
    model=ModelSpec(width=8, levels=1),
    train=TrainSpec(epochs=2, warmup=0),
)
FOLDS = tuple(replace(RUN, split=replace(RUN.split, fold=fold)) for fold in range(3))
CELL = StudyCell("gtpool-v", "MUTAG", FOLDS)


def test_a_study_exports_predictions_that_give_its_test_metrics(tmp_path, monkeypatch):
    monkeypatch.setitem(paper.STUDIES, "tiny", Study("", "", 1, (CELL,)))
    store, known = tmp_path / "store", tmp_path / "none"
    known.mkdir()
    command = ["study", "run", "tiny", "--known", known, "--output-dir", store, "--device", "cpu"]
    assert CliRunner().invoke(app, [str(word) for word in command]).exit_code == 0
    kept = load_file(Store(store).predictions(FOLDS[0].key))
    assert sorted(kept) == ["test_index", "test_logits", "test_y"]
    rows, file = tmp_path / "rows.jsonl", tmp_path / "predictions" / "tiny.npz"
    words = ["study", "collect", store, "-o", rows, "--predictions", file]
    told = CliRunner().invoke(app, [str(word) for word in words]).stdout
    assert "test predictions of 3 runs" in told
    arrays = read_predictions(file.parent)
    assert arrays["MUTAG/y/stratified-0-2-of-3"].dtype == np.uint8
    (scores,) = ensemble_scores(CELL, arrays, seeds=1, size=1)
    assert scores == [Store(store).get(spec.key).test for spec in FOLDS]
    before = file.read_bytes()
    assert export_predictions([store], file) == (3, 0)
    assert file.read_bytes() == before


def test_runs_side_by_side_keep_the_same_predictions(tmp_path):
    alone, beside = Store(tmp_path / "alone"), Store(tmp_path / "beside")
    run_many(FOLDS[:2], alone, device="cpu", keep="predictions")
    run_many(FOLDS[:2], beside, device="cpu", keep="predictions", together=2)
    for spec in FOLDS[:2]:
        one, other = (load_file(store.predictions(spec.key)) for store in (alone, beside))
        assert one.keys() == other.keys()
        np.testing.assert_allclose(one["test_logits"], other["test_logits"], rtol=1e-3, atol=1e-4)


def test_finished_runs_without_predictions_are_counted_not_repeated(tmp_path):
    store = Store(tmp_path / "store")
    (row,) = run_many(FOLDS[:1], store, device="cpu")
    assert run_many(FOLDS[:1], store, device="cpu", keep="predictions") == [row]
    assert export_predictions([store.folder], tmp_path / "a.npz") == (0, 1)
    assert not (tmp_path / "a.npz").exists()
    rows = tmp_path / "rows.jsonl"
    words = ["study", "collect", str(store.folder), "-o", str(rows)]
    told = CliRunner().invoke(app, [*words, "--predictions", str(tmp_path / "a.npz")]).stdout
    assert "none of the 1 runs has test predictions" in told
    assert export_predictions([rows], tmp_path / "a.npz") == (0, 1)  # a file of rows
    (again,) = run_many(FOLDS[:1], store, device="cpu", keep=True)
    assert again.artifact_digest is not None
    assert export_predictions([rows, store.folder], tmp_path / "a.npz") == (1, 0)


def test_a_file_that_cannot_hold_predictions_is_refused_before_rows_are_written(tmp_path):
    store, rows = Store(tmp_path / "store"), tmp_path / "rows.jsonl"
    run_many(FOLDS[:1], store, device="cpu", keep="predictions")
    other = tmp_path / "other.npz"
    other.write_text("no archive")
    for path, why in ((other, "is not a file of"), (tmp_path / "a.csv", "must end in .npz")):
        words = ["study", "collect", store.folder, "-o", rows, "--predictions", path]
        assert why in str(CliRunner().invoke(app, [str(word) for word in words]).exception)
        assert not rows.exists()


def test_missing_labels_of_binary_tasks_are_left_out(tmp_path):
    lines = [
        f"{'C' * (1 + at % 9)},{at % 2},{'' if at % 4 == 1 else at // 8 % 2}" for at in range(40)
    ]
    path = tmp_path / "tasks.csv"
    path.write_text("\n".join(["smiles,a,b", *lines]) + "\n")
    data = DataSpec(source=str(path), target_columns=("a", "b"), task="binary")
    spec = replace(RUN, data=data, split=SplitSpec(rule="random"))
    (row,) = run_many([spec], Store(tmp_path / "s"), device="cpu", keep="predictions")
    export_predictions([tmp_path / "s"], tmp_path / "a.npz")
    arrays = read_predictions(tmp_path)
    (y,) = (array for name, array in arrays.items() if "/y/" in name)
    filled = np.zeros(y.shape)
    filled[~np.isnan(y)] = arrays[f"{path}/{spec.key}"]
    shown = roc_auc(torch.from_numpy(filled), torch.from_numpy(y.astype(float)))
    assert np.isnan(y).any()
    assert float(shown) == pytest.approx(row.test, abs=1e-6)
