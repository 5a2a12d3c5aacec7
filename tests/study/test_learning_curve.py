"""Learning curves: what they conclude, and what the command shows."""

import json
import re

import pytest

from gtpool.spec import DataSpec, RunSpec, SplitSpec
from gtpool.study.learning_curve import SHARES, CurvePoint, LearningCurve, curve_specs
from gtpool.study.plan import make_plan
from gtpool.study.store import Store
from gtpool.study.summarize import ScoreGrid, summarize_grid

SMALL = {
    "data": {"source": "MUTAG"},
    "model": {"pool": "gin", "width": 8},
    "train": {"epochs": 2},
    "split": {"folds": 3},
}


def curve(metric, better, before, last):
    points = []
    for share, values in ((0.5, before), (1.0, last)):
        grid = ScoreGrid(metric, (42,), tuple(range(len(values))), (tuple(values),))
        points.append(CurvePoint(share, 400 * share, grid, summarize_grid(grid)))
    return LearningCurve(tuple(points), better)


def test_a_step_beyond_its_spread_says_that_more_data_would_help():
    said = curve("accuracy", True, [0.70, 0.72, 0.74], [0.75, 0.78, 0.78]).verdict
    step = "from 200 to 400 training graphs accuracy changes by +5.00 ± 1.00 points (3 pairs)"
    assert said.startswith(step)
    assert said.endswith("more data of this kind would probably help")


def test_a_lower_error_is_an_improvement_and_a_higher_one_is_not():
    assert "would probably help" in curve("rmse", False, [1.0, 1.1], [0.8, 0.91]).verdict
    worse = curve("rmse", False, [0.8, 0.91], [1.0, 1.1]).verdict
    assert "changes by +0.195" in worse
    assert "made it worse" in worse


def test_a_step_within_its_spread_or_without_one_says_nothing():
    said = curve("accuracy", True, [0.70, 0.72, 0.74], [0.75, 0.70, 0.74]).verdict
    assert "no more than the spread" in said
    assert "has no spread" in curve("accuracy", True, [0.7], [0.9]).verdict
    assert "has no spread" in curve("accuracy", True, [0.7, None], [0.9, 0.8]).verdict


def test_the_runs_of_the_whole_training_part_keep_their_keys():
    spec = RunSpec(data=DataSpec(source="MUTAG"), split=SplitSpec(rule="stratified"))
    assert "share" not in spec.split.key_parts
    fewer = curve_specs([spec])
    assert [one.split.share for one in fewer] == list(SHARES)
    assert len({spec.key, *(one.key for one in fewer)}) == 3


def test_settings_mention_a_learning_curve_only_where_there_is_one():
    plan = make_plan(SMALL, {})
    assert "learning_curve" not in plan.to_json()
    wanted = plan._replace(learning_curve=True)
    assert make_plan(wanted.to_json(), {}) == wanted


@pytest.mark.filterwarnings("ignore:.*holds results of other settings")
@pytest.mark.parametrize("ensemble", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_command_shows_the_curve_and_continues(gtpool, tmp_path, ensemble):
    settings, out = tmp_path / "small.json", tmp_path / "out"
    settings.write_text(json.dumps({**SMALL, "ensemble": ensemble}))
    words = ("train", "--config", settings, "--output-dir", out)
    code, shown, err = gtpool(*words, "--learning-curve")
    assert code == 0, err
    rows = Store(out).rows()
    shares = sorted(row.spec.split.share for row in rows)
    assert shares == sorted([0.25, 0.5, 1.0] * 3 * ensemble)
    sizes = {row.spec.split.share: row.split.train for row in rows if row.spec.split.fold == 0}
    assert re.search(
        rf"^training graphs +test accuracy, % +runs\n{sizes[0.25]} ", shown, re.MULTILINE
    )
    (verdict,) = re.findall(r"^learning curve: (from .*)$", shown, re.MULTILINE)
    assert "(3 pairs)" in verdict
    assert (out / "learning_curve.svg").read_text().startswith("<svg")
    page = (out / "report.html").read_text()
    assert f"Learning curve: {verdict}." in page
    assert "by number of training graphs" in page
    figure = re.search(r"test accuracy, %: (.*) \(", shown)[1]
    assert f" {figure} " in shown.split("training graphs")[1]
    code, shown, err = gtpool(*words)
    assert code == 0, err
    assert "learning curve" not in shown
    assert not (out / "learning_curve.svg").exists()
    assert f"{3 * ensemble} of {3 * ensemble} runs are done already" in err
