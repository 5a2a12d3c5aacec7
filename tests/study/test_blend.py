"""The weight of a blend: where it comes from, and that no graph chooses its own."""

import numpy as np
import pytest

from gtpool.model.trees import BoostedTrees
from gtpool.study.blend import Boosting, FoldTrees, blend_runs, choose_weight
from gtpool.study.heldout import HeldOut
from gtpool.study.plan import make_plan

GRAPHS, FOLDS = 60, 3


def part(output, y, fold=0, graph=None, seed=42):
    graph = np.arange(len(y)) if graph is None else graph
    return HeldOut(seed, fold, graph, np.asarray(output, float), np.asarray(y))


def shares(p):
    return np.stack([1 - np.asarray(p), p], 1)


def test_the_better_predictor_gets_the_weight():
    y = np.array([0, 1, 1, 0])
    good, bad = part(shares([0.1, 0.9, 0.8, 0.2]), y), part(shares([0.9, 0.1, 0.2, 0.8]), y)
    assert choose_weight([(good, bad)], "classes") == 1
    assert choose_weight([(bad, good)], "classes") == 0
    assert choose_weight([], "classes") == 0.5


def test_values_get_the_weight_of_least_squares():
    y = np.array([[1.0], [2.0], [np.nan]])
    network, trees = part(y + 3, y), part(y - 1, y)  # 0.25 · 3 - 0.75 · 1 = 0
    assert choose_weight([(network, trees)], "regression") == 0.25


def test_missing_labels_of_tasks_do_not_count():
    y = np.array([[1.0, np.nan], [0.0, 1.0]])
    network = part([[0.9, 0.0], [0.1, 0.9]], y)
    trees = part([[0.6, 1.0], [0.4, 0.6]], y)
    assert choose_weight([(network, trees)], "binary") == 1


@pytest.fixture
def cross_validated():
    """Test predictions of one seed, trees as bad as the networks in other places."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, GRAPHS)
    told = np.where(y == 1, 1.0, -1.0)
    networks = 1 / (1 + np.exp(-(told + random.normal(size=GRAPHS))))
    logit = told + random.normal(size=GRAPHS) * 1.5
    outputs = np.stack([0 * logit, logit], 1)
    none = BoostedTrees(
        columns=1,
        baseline=np.zeros(2),
        **dict.fromkeys(("roots", "output", "feature", "left", "right"), np.empty(0, int)),
        value=np.empty(0),
        missing_left=np.empty(0, bool),
    )
    digests = {(42, fold): str(fold) for fold in range(FOLDS)}
    trees = Boosting({str(fold): FoldTrees(none, outputs) for fold in range(FOLDS)}, digests)

    def parts(y):
        places = [np.arange(fold, GRAPHS, FOLDS) for fold in range(FOLDS)]
        return [part(shares(networks[at]), y[at], fold, at) for fold, at in enumerate(places)]

    return parts, y, trees


PLAN = make_plan({"data": {"source": "mine.csv"}, "blend": True}, {})


def test_a_fold_is_tested_with_the_weight_of_the_others(cross_validated):
    parts, y, trees = cross_validated
    network = parts(y)
    found = blend_runs(network, trees, PLAN, "classes", lambda: pytest.fail("folds are enough"))
    beside = trees.predict(network, "classes")
    pairs = list(zip(network, beside, strict=True))
    assert found.weight == choose_weight(pairs, "classes")
    assert 0 < found.weight < 1
    for at, blended in enumerate(found.parts):
        weight = choose_weight([pair for pair in pairs if pair[0].fold != at], "classes")
        np.testing.assert_allclose(
            blended.output, weight * network[at].output + (1 - weight) * beside[at].output
        )


def test_the_labels_of_a_fold_do_not_change_its_predictions(cross_validated):
    parts, y, trees = cross_validated
    other = np.where(np.arange(GRAPHS) % FOLDS == 1, 1 - y, y)
    both = [blend_runs(parts(labels), trees, PLAN, "classes", list).parts for labels in (y, other)]
    np.testing.assert_array_equal(both[0][1].output, both[1][1].output)
    assert not np.array_equal(both[0][0].output, both[1][0].output)


def test_one_split_takes_the_weight_of_the_validation_part(cross_validated):
    parts, y, trees = cross_validated
    (_, held, test) = parts(y)
    network, held = [test._replace(fold=0)], [held._replace(fold=0)]
    found = blend_runs(network, trees, PLAN, "classes", lambda: held)
    beside = trees.predict(held, "classes")
    assert found.weight == choose_weight([(held[0], beside[0])], "classes")
    expected = found.weight * network[0].output
    expected += (1 - found.weight) * trees.predict(network, "classes")[0].output
    np.testing.assert_allclose(found.parts[0].output, expected)


def test_settings_hold_the_blend():
    assert PLAN.to_json()["blend"] is True
    assert make_plan(PLAN.to_json(), {}) == PLAN
    assert "blend" not in PLAN._replace(blend=False).to_json()
    with pytest.raises(ValueError, match="blend"):
        make_plan({"data": {"source": "mine.csv"}, "blend": 1}, {})
