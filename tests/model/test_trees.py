"""Boosted trees: equal to scikit-learn's, and their JSON is checked."""

import json

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from gtpool.model.trees import MAX_DEPTH, BoostedTrees
from gtpool.train.boosting import OPTIONS, fit_trees

ROWS = 300


@pytest.fixture(scope="module")
def x():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 8)).astype(np.float32)
    x[:, 5] = x[:, 5] > 1.8  # too rare to be split on
    x[random.random((ROWS, 8)) < 0.15] = np.nan
    x[:, 6] = np.where(random.random(ROWS) < 0.5, np.nan, 1.0)  # split on NaN alone
    x[:, 7] = np.nan
    return x


def signal(x):
    return np.nan_to_num(x[:, 0], nan=2.0) + np.isnan(x[:, 6]) - np.nan_to_num(x[:, 1])


def parts():
    return np.arange(0, 200), np.arange(200, 260)


def sklearn_model(kind, x, y):
    train, valid = parts()
    model = kind(**OPTIONS, early_stopping=True)
    x = x[:, :7]  # scikit-learn refuses a column without any number
    return model.fit(x[train], y[train], X_val=x[valid], y_val=y[valid])


def softmax(logits):
    power = np.exp(logits - logits.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def read_again(trees):
    return BoostedTrees.from_json(json.loads(json.dumps(trees.to_json())), "trees.json")


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_those_of_sklearn(x, classes):
    y = np.digitize(signal(x), [0.5, 2.0][: classes - 1])
    model = sklearn_model(HistGradientBoostingClassifier, x, y)
    trees = read_again(fit_trees(x, y, *parts(), "classes", classes))
    assert len(trees.roots) > 10
    np.testing.assert_allclose(softmax(trees.predict(x)), model.predict_proba(x[:, :7]), atol=1e-9)


def test_values_are_those_of_sklearn(x):
    y = signal(x)
    model = sklearn_model(HistGradientBoostingRegressor, x, y)
    trees = read_again(fit_trees(x, y[:, None], *parts(), "regression", 1))
    np.testing.assert_allclose(trees.predict(x)[:, 0], model.predict(x[:, :7]), atol=1e-9)
    none = np.full((1, 8), np.nan, np.float32)
    np.testing.assert_allclose(trees.predict(none)[:, 0], model.predict(none[:, :7]), atol=1e-9)


def test_each_task_is_fitted_where_its_label_is_known(x):
    y = np.stack([signal(x) > 0.5, signal(x) > 1, np.ones(ROWS), np.full(ROWS, np.nan)], 1)
    y[::3, 1] = np.nan
    known = ~np.isnan(y[:, 1])
    train, valid = parts()
    model = HistGradientBoostingClassifier(**OPTIONS, early_stopping=True)
    here, there = train[known[train]], valid[known[valid]]
    model.fit(x[here, :7], y[here, 1], X_val=x[there, :7], y_val=y[there, 1])
    logits = fit_trees(x, y, train, valid, "binary", 4).predict(x)
    found = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found[:, 1], model.predict_proba(x[:, :7])[:, 1], atol=1e-9)
    np.testing.assert_allclose(found[:, 2], 201 / 202)  # one class: its smoothed share
    np.testing.assert_allclose(found[:, 3], 0.5)  # no label at all


def test_classes_that_the_training_part_lacks(x):
    y = np.where(signal(x) > 1, 3, 1)
    y[290:] = 0
    shares = softmax(fit_trees(x, y, *parts(), "classes", 4).predict(x))
    model = sklearn_model(HistGradientBoostingClassifier, x, y)
    assert shares[:, [0, 2]].max() < 0.02
    np.testing.assert_allclose(
        shares[:, 3] / shares[:, [1, 3]].sum(1), model.predict_proba(x[:, :7])[:, 1], atol=1e-9
    )
    alone = softmax(fit_trees(x, np.ones(ROWS, int), *parts(), "classes", 2).predict(x))
    np.testing.assert_allclose(alone[:, 1], 201 / 202)


def test_without_validation_labels(x):
    y = np.full((ROWS, 1), np.nan)
    y[:200, 0] = signal(x)[:200]
    trees = fit_trees(x, y, *parts(), "regression", 1)
    assert len(trees.roots) == 100
    assert np.isfinite(trees.predict(x)).all()


def stump(**changes):
    value = {
        "columns": 2,
        "baseline": [0.5],
        "roots": [0],
        "output": [0],
        "feature": [1, 0, 0],
        "value": [0.0, -1.0, 1.0],
        "missing_left": [1, 0, 0],
        "left": [1, 1, 2],
        "right": [2, 1, 2],
    }
    return {**value, **changes}


def test_a_stump():
    trees = BoostedTrees.from_json(stump(), "here")
    found = trees.predict(np.array([[9.0, 0.0], [9.0, 0.1], [9.0, np.nan]]))
    assert found.tolist() == [[-0.5], [1.5], [-0.5]]
    with pytest.raises(ValueError, match="2 features"):
        trees.predict(np.zeros((1, 3)))
    assert trees.predict(np.zeros((0, 2))).shape == (0, 1)


def chain(depth):
    """One path of splits, each with a leaf to the left."""
    splits = [2 * at for at in range(depth)]
    nodes = 2 * depth + 1
    left, right = list(range(nodes)), list(range(nodes))
    for at in splits:
        left[at], right[at] = at + 1, at + 2
    same = {name: [0] * nodes for name in ("feature", "missing_left")}
    return stump(value=[0.0] * nodes, left=left, right=right, **same)


def test_depth_is_limited():
    BoostedTrees.from_json(chain(MAX_DEPTH), "here")
    with pytest.raises(ValueError, match="deeper"):
        BoostedTrees.from_json(chain(MAX_DEPTH + 1), "here")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"columns": 0}, "columns"),
        ({"columns": True}, "columns"),
        ({"feature": [2, 0, 0]}, "feature"),
        ({"feature": [0, 0]}, "feature"),
        ({"feature": [0, 0, -1]}, "feature"),
        ({"feature": [0, 0, 10**30]}, "feature"),
        ({"feature": "abc"}, "feature"),
        ({"left": [0, 1, 2]}, "later nodes"),  # a split whose child is itself
        ({"right": [2, 0, 2]}, "later nodes"),  # a cycle
        ({"right": [3, 1, 2]}, "later nodes"),
        ({"left": [1, 1.0, 2]}, "left"),
        ({"value": [0.0, float("nan"), 1.0]}, "value"),
        ({"value": [0.0, float("inf"), 1.0]}, "value"),
        ({"value": [0.0, 10**400, 1.0]}, "value"),
        ({"value": [0.0, "1", 1.0]}, "value"),
        ({"value": [0.0, True, 1.0]}, "value"),
        ({"baseline": []}, "baseline"),
        ({"baseline": None}, "baseline"),
        ({"output": [1]}, "output"),
        ({"output": []}, "output"),
        ({"roots": [1]}, "roots"),
        ({"roots": [0, 0], "output": [0, 0]}, "roots"),
        ({"roots": [0, 3], "output": [0, 0]}, "roots"),
        ({"missing_left": [2, 0, 0]}, "missing_left"),
        ({"more": 1}, "keys"),
    ],
)
def test_wrong_json_is_refused(changes, told):
    with pytest.raises(ValueError, match=f"here.*{told}"):
        BoostedTrees.from_json(stump(**changes), "here")


@pytest.mark.parametrize("value", [None, [], {}, 3])
def test_other_json_is_refused(value):
    with pytest.raises(ValueError, match="here"):
        BoostedTrees.from_json(value, "here")
