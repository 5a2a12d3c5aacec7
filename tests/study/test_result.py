"""Results as rows: what was stored is read as it says, and written back as it was."""

import json
from pathlib import Path

import pytest

import gtpool.spec
from gtpool.spec import DataSpec, RunSpec
from gtpool.study import result as module
from gtpool.study.result import RunResult, SplitSummary
from gtpool.study.run_one import run_one

RESULTS = Path(__file__).parents[2] / "results"
SPEC = RunSpec.from_json(
    {
        "data": {"source": "MUTAG"},
        "split": {"rule": "stratified", "folds": 3},
        "model": {"width": 8, "levels": 1},
        "train": {"epochs": 1, "warmup": 0},
    }
)
WRITTEN = [
    *("key", "spec", "status", "error", "metric", "higher_is_better", "test", "valid_loss"),
    *("valid_metric", "epoch", "epochs_run", "other_rules", "curves", "split", "source_digest"),
    *("parameters", "artifact_digest", "seconds", "peak_rss_mb", "peak_gpu_mb", "device"),
    *("versions", "commit", "finished"),
]


def test_stored_rows_are_written_back_as_they_are():
    for path in sorted((RESULTS / "runs").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            back = RunResult.from_json(row).to_json()
            same = json.dumps(back, sort_keys=True) == json.dumps(row, sort_keys=True)
            assert same, f"{path.name}: {row['key']}"


def test_a_new_row_has_the_fields_and_the_order_of_stored_ones(tmp_path):
    result = run_one(SPEC, device="cpu", artifact=tmp_path / "weights.safetensors")
    row = result.to_json()
    assert list(row) == WRITTEN
    assert list(row["split"]) == ["rule", "digest", "train", "valid", "test"]
    assert RunResult.from_json(json.loads(json.dumps(row))) == result
    assert list(run_one(SPEC, device="cpu").to_json()) == [
        name for name in WRITTEN if name != "artifact_digest"
    ]


def test_what_a_row_does_not_say_is_not_added_and_what_is_unknown_is_kept():
    row = {"key": "a", "status": "done", "spec": {}, "test": 0.5, "split": {"rule": "x"}, "new": 1}
    result = RunResult.from_json(row)
    assert result.to_json() == row
    assert (result.metric, result.commit, result.more) == ("", None, {"new": 1})
    assert result.split == SplitSummary("x", "", 0, 0, 0)
    changed = result.updated(commit="abc", test=None)
    assert changed.to_json() == {**row, "commit": "abc", "test": None}


def test_a_result_without_curves_has_no_place_for_them():
    row = {"key": "a", "status": "done", "spec": {}, "curves": {"train_loss": [1.0]}}
    assert "curves" not in RunResult.from_json(row).updated(curves=None).to_json()


def test_the_spec_of_an_old_row_is_read_and_stays_as_it_is_written():
    said = SPEC.to_json()
    del said["data"]["atom_order"], said["model"]["jump"], said["train"]["precision"]
    old = RunResult.from_json({"key": SPEC.key, "status": "failed", "spec": said})
    assert old.spec == SPEC
    assert old.spec.key == old.key
    assert old.to_json()["spec"] == said


def test_the_spec_of_an_old_row_has_the_values_that_held_then(monkeypatch):
    monkeypatch.setitem(gtpool.spec._LEGACY_VALUES[DataSpec], "atom_order", "canonical")
    monkeypatch.setitem(gtpool.spec._LEGACY_VALUES, RunSpec, {"seed": 7})
    said = {"data": {"source": "held.csv"}, "model": {"width": 8}}
    for cached in (module._part, module._rest):
        monkeypatch.setattr(module, cached.__name__, cached.__wrapped__)
    read = RunResult.from_json({"key": "a", "status": "done", "spec": said}).spec
    assert (read.data.atom_order, read.seed, read.model.width) == ("canonical", 7, 8)
    assert (SPEC.data.atom_order, SPEC.seed) == ("given", 42)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"model": "gcn"}, "model must be a table of options, got 'gcn'"),
        ({"data": []}, "data must be a table of options"),
        ({"seed": "7"}, "seed must be int, got '7'"),
    ],
)
def test_a_spec_that_does_not_fit_is_an_error_that_says_where(wrong, complaint):
    said = {"data": {"source": "MUTAG"}, **wrong}
    with pytest.raises(ValueError, match=complaint):
        _ = RunResult.from_json({"key": "a", "status": "done", "spec": said}).spec


def test_a_spec_with_an_unknown_option_is_an_error_when_it_is_asked_for():
    later = {"data": {"source": "MUTAG"}, "model": {"later": 1}}
    result = RunResult.from_json({"key": "a", "status": "failed", "spec": later})
    with pytest.raises(ValueError, match=r"unknown option model\.'later'"):
        _ = result.spec
    further = RunResult.from_json({"key": "a", "status": "failed", "spec": {"later": {}}})
    with pytest.raises(ValueError, match="unknown option 'later'"):
        _ = further.spec


def test_a_result_is_a_value():
    result = RunResult(key="a", spec_json={}, status="done")
    with pytest.raises(AttributeError):
        result.test = 0.5
    with pytest.raises(ValueError, match="done or failed, got 'half'"):
        RunResult.from_json({"key": "a", "status": "half", "spec": {}})
