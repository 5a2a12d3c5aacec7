"""Calibration of held-out predictions: no graph chooses what it is measured with."""

import numpy as np
import pytest
import torch
from torch import from_numpy

from gtpool.data.schema import Recipe, Schema
from gtpool.ops.average import probabilities
from gtpool.study.calibrate import (
    calibrate_parts,
    check_calibration,
    choose_threshold,
    fit_calibration,
)
from gtpool.study.heldout import HeldOut, confusion
from gtpool.study.plan import make_plan
from gtpool.study.scores import all_scores
from gtpool.train.metric import metric_of

GRAPHS, FOLDS = 90, 3
OPTIONS = {"data": {"source": "mine.csv"}, "calibrate": True, "threshold": "mcc"}
PLAN = make_plan(OPTIONS, {})


def cross_validated(y_of=lambda y: y, seeds=(42,)):
    """Overconfident test predictions of two unequal classes."""
    random = np.random.default_rng(0)
    z = random.normal(size=GRAPHS) - 1
    y = (random.random(GRAPHS) < 1 / (1 + np.exp(-z))).astype(int)
    p = 1 / (1 + np.exp(-4 * z))
    output, y = np.stack([1 - p, p], 1), y_of(y)
    places = [np.arange(fold, GRAPHS, FOLDS) for fold in range(FOLDS)]
    return [
        HeldOut(seed, fold, at, output[at], y[at])
        for seed in seeds
        for fold, at in enumerate(places)
    ]


def unused():
    pytest.fail("folds are enough")


def test_a_fold_is_measured_with_the_calibration_of_the_others():
    parts = cross_validated()
    found = calibrate_parts(parts, PLAN, "classes", 42, unused)
    assert found.calibration == fit_calibration(parts, PLAN, "classes")
    assert found.calibration.temperature[0] > 1.5
    assert found.calibration.counts == (GRAPHS,)
    for fold, part in enumerate(found.parts):
        others = fit_calibration([one for one in parts if one.fold != fold], PLAN, "classes")
        z = from_numpy(parts[fold].output).log() / others.temperature[0]
        np.testing.assert_allclose(part.output, probabilities(z, "classes"))
        assert part.threshold == others.threshold
    assert found.before == parts


def test_the_labels_of_a_fold_do_not_change_its_predictions():
    def other(y):
        return np.where(np.arange(GRAPHS) % FOLDS == 1, 1 - y, y)

    one, two = (
        calibrate_parts(cross_validated(labels), PLAN, "classes", 42, unused).parts
        for labels in (lambda y: y, other)
    )
    np.testing.assert_array_equal(one[1].output, two[1].output)
    assert one[1].threshold == two[1].threshold
    assert not np.array_equal(one[0].output, two[0].output)


def test_temperature_lowers_the_log_loss_and_threshold_raises_its_metric():
    parts = cross_validated()
    found = calibrate_parts(parts, PLAN, "classes", 42, unused)
    before, after = (all_scores(each, "classes") for each in (parts, found.parts))
    assert after["log_loss"].mean < before["log_loss"].mean
    assert after["ece"].mean < before["ece"].mean
    assert after["roc_auc"].mean == pytest.approx(before["roc_auc"].mean)
    cool = [part._replace(threshold=found.calibration.threshold) for part in found.parts]
    fitted = fit_calibration(parts, PLAN, "classes")
    everything = parts[0]._replace(
        output=np.concatenate([part.output for part in parts]),
        y=np.concatenate([part.y for part in parts]),
    )
    scaled = probabilities(from_numpy(everything.output).log() / fitted.temperature[0], "classes")
    mcc, y = metric_of("classes", "mcc"), from_numpy(everything.y)
    chosen = torch.tensor(fitted.threshold)
    assert mcc.of_outputs(scaled, y, chosen) >= mcc.of_outputs(scaled, y, torch.tensor([0.5]))
    assert confusion(cool, 2).sum() == GRAPHS


def test_seeds_do_not_choose_for_each_other():
    found = calibrate_parts(
        cross_validated(seeds=(42, 43)), PLAN._replace(seeds=2), "classes", 43, unused
    )
    assert found.calibration.counts == (GRAPHS,)


def test_one_split_takes_the_validation_part():
    test, held, _ = (part._replace(fold=0) for part in cross_validated())
    found = calibrate_parts([test], PLAN, "classes", 42, lambda: [held])
    assert found.calibration == fit_calibration([held], PLAN, "classes")
    assert found.parts[0].threshold == found.calibration.threshold


def test_measured_coverage_is_near_the_stated_one():
    found = calibrate_parts(cross_validated(), PLAN, "classes", 42, unused)
    assert [part.stated for part in found.coverage] == [0.8, 0.9, 0.95]
    for part in found.coverage:
        error = np.sqrt(part.stated * (1 - part.stated) / GRAPHS)
        assert part.measured > part.stated - 3 * error
        assert 1 <= part.size <= 2


def test_no_predictions_have_no_calibration():
    nothing = calibrate_parts([], PLAN, "classes", 42, list)
    assert (nothing.parts, nothing.coverage) == ([], ())
    assert not nothing.calibration.changes
    endless = cross_validated()[0]._replace(output=np.full((30, 2), np.nan))
    assert not fit_calibration([endless], PLAN, "classes").changes


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "mcc", "f1"])
@pytest.mark.parametrize("task", ["classes", "binary"])
def test_no_threshold_is_better_than_the_chosen_one(task, name):
    random, metric = np.random.default_rng(2), metric_of(task, name)
    p, y = random.random((80, 2)).round(2), random.integers(0, 2, (80, 2)).astype(float)
    if task == "classes":
        p, y = np.stack([1 - p[:, 0], p[:, 0]], 1), y[:, 0].astype(int)
    else:
        y[::5, 1] = np.nan
    p, y = from_numpy(p), from_numpy(y)
    chosen = torch.tensor(choose_threshold(p, y, metric))
    best = metric.of_outputs(p, y, chosen)
    assert best > metric.of_outputs(p, y, torch.full_like(chosen, 0.5))
    for other in np.linspace(0.035, 0.965, 94):  # not below or above all graphs of a task
        assert metric.of_outputs(p, y, torch.full_like(chosen, other)) <= best + 1e-12


def test_many_graphs_try_few_thresholds():
    random = np.random.default_rng(3)
    p = from_numpy(random.random(20_000))
    y = (p > 0.99).long()  # rare
    (found,) = choose_threshold(torch.stack([1 - p, p], 1), y, metric_of("classes", "f1"))
    assert found == pytest.approx(0.99, abs=1e-3)


def test_one_label_has_no_threshold():
    p, y = torch.tensor([[0.1], [0.7]]), torch.tensor([[1.0], [torch.nan]])
    assert choose_threshold(p, y, metric_of("binary", "f1")) == (0.5,)


def schema(task, targets):
    return Schema("mine", task, targets, Recipe("gmt"))


@pytest.mark.parametrize(
    ("options", "task", "targets", "told"),
    [
        ({"threshold": "mcc"}, "classes", ("a", "b", "c"), "two classes.*3 classes"),
        ({"threshold": "mcc"}, "regression", ("a",), "two classes.*regression"),
        ({"threshold": "roc_auc"}, "binary", ("a",), "decisions.*balanced_accuracy"),
        ({"threshold": "mc"}, "binary", ("a",), "mcc"),
        ({"calibrate": True}, "regression", ("a",), "--calibrate.*regression"),
    ],
)
def test_what_cannot_be_calibrated(options, task, targets, told):
    plan = make_plan({"data": {"source": "mine.csv"}, **options}, {})
    with pytest.raises(ValueError, match=told):
        check_calibration(plan, schema(task, targets))


def test_settings_hold_the_calibration():
    assert make_plan(PLAN.to_json(), {}) == PLAN
    assert (
        not {"threshold", "calibrate"}
        & PLAN._replace(threshold=None, calibrate=False).to_json().keys()
    )
    for wrong in ({"calibrate": 1}, {"threshold": 0.5}):
        with pytest.raises(ValueError, match="|".join(wrong)):
            make_plan({"data": {"source": "mine.csv"}, **wrong}, {})
