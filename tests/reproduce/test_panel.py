from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

from gtpool.reproduce.ensembles import ensemble_scores, mean_and_deviation
from gtpool.reproduce.panel import CANDIDATES, PANEL, choices, choose, chosen_runs, panel_runs
from gtpool.reproduce.paper import STUDIES
from gtpool.reproduce.status import read_rows
from gtpool.study.plan import make_plan
from gtpool.study.predictions import read_predictions
from gtpool.study.summarize import summarize
from gtpool.train.metric import METRICS

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def rows():
    return read_rows([RESULTS / "runs"])


@pytest.mark.parametrize("method", ["gtpool-v", "gcn"])
def test_the_committed_choices_are_those_of_the_rows(rows, method):
    found = {name or "": choose(method, rows.values(), name).label for name in (None, *PANEL)}
    assert choices()[method] == found


def test_a_panel_that_lacks_a_run_names_it(rows):
    with pytest.raises(ValueError, match=r"mincutpool, .*, on"):
        choose("mincutpool", rows.values())


def test_every_method_has_as_many_candidates():
    assert {len(labels) for labels in CANDIDATES.values()} == {4}


@pytest.mark.parametrize("dataset", ["PROTEINS", "ogbg-molbbbp"])
def test_the_recipe_runs_the_choice_of_the_panel(dataset):
    plan = make_plan({}, {"data": {"source": dataset}}, "best")
    (chosen, *_) = chosen_runs("gtpool-v", dataset, descriptors=dataset.startswith("ogbg"))
    assert plan.run.model == chosen.model
    assert plan.run.train == chosen.train
    assert plan.run.data == chosen.data


def test_validation_prefers_descriptors_wherever_both_were_run(rows):
    def valid(dataset, *, descriptors):
        first = chosen_runs("gtpool-v", dataset, descriptors=descriptors)
        keys = [replace(spec, seed=spec.seed + at).key for spec in first for at in range(5)]
        return fmean(rows[key].valid_metric for key in keys)

    for name in ("ogbg-molbbbp", "ogbg-moltox21", "ogbg-moltoxcast"):
        assert valid(name, descriptors=True) > valid(name, descriptors=False)


def test_a_choice_uses_no_run_of_the_dataset_it_is_for(rows):
    own = {
        spec.key
        for labels in CANDIDATES.values()
        for label in labels
        for method, those in CANDIDATES.items()
        if label in those
        for spec in panel_runs(method, label, "MUTAG")
    }
    rest = [row for row in rows.values() if row.key not in own]
    assert choose("gtpool-v", rest, "MUTAG").label == choices()["gtpool-v"]["MUTAG"]


def test_one_seed_of_the_predictions_scores_as_its_rows(rows):
    predictions = read_predictions(RESULTS / "predictions")
    for name in ("PTC_MR", "ogbg-molbbbp"):
        (cell,) = STUDIES["best"].only(dataset=name, line="best")
        scores = ensemble_scores(cell, predictions, seeds=10, size=1)
        assert len(scores) == 10
        mean, _ = mean_and_deviation(scores)
        stored = summarize([rows[spec.key] for spec in cell.runs(10)])
        assert mean == pytest.approx(100 * stored.mean, abs=0.2)  # stored as float16


def test_scores_are_the_test_metrics_of_training():
    rng = np.random.default_rng(0)
    y = rng.choice([0.0, 1.0, np.nan], (40, 5))
    y[:, 4] = np.where(np.isnan(y[:, 4]), np.nan, 1.0)  # one class: not defined
    p = rng.integers(0, 9, (40, 5)) / 8  # ties
    known = ~np.isnan(y)
    expected = METRICS["binary"].measure(torch.from_numpy(p), torch.from_numpy(y))
    (cell,) = STUDIES["best"].only(dataset="ogbg-moltox21", line="best")
    names = f"{cell.dataset}/{cell.specs[0].key}", f"{cell.dataset}/y/0"
    found = ensemble_scores(cell, dict(zip(names, (p[known], y), strict=True)), 1, 1)
    assert found == [[pytest.approx(expected)]]
    (cell,) = STUDIES["best"].only(dataset="ENZYMES", line="best")
    one = cell._replace(specs=cell.specs[:1])
    names = f"{cell.dataset}/{one.specs[0].key}", f"{cell.dataset}/y/0"
    classes, p = rng.integers(0, 6, 40), rng.random((40, 6))
    expected = METRICS["classes"].measure(torch.from_numpy(p), torch.from_numpy(classes))
    found = ensemble_scores(one, dict(zip(names, (p, classes), strict=True)), 1, 1)
    assert found == [[pytest.approx(expected)]]


def test_an_ensemble_averages_probabilities():
    (cell,) = STUDIES["best"].only(dataset="ogbg-molbbbp", line="best")
    first, second = cell.runs(2)
    y = np.array([[0.0], [1.0], [np.nan], [1.0]], dtype=np.float16)
    predictions = {
        "ogbg-molbbbp/y/0": y,
        f"ogbg-molbbbp/{first.key}": np.array([0.9, 0.2, 0.8], dtype=np.float16),
        f"ogbg-molbbbp/{second.key}": np.array([0.0, 0.8, 0.7], dtype=np.float16),
    }
    assert ensemble_scores(cell, predictions, seeds=2, size=2) == [[1.0]]
    assert ensemble_scores(cell, predictions, seeds=2, size=1) == [[0.0], [1.0]]
    assert ensemble_scores(cell, predictions, seeds=10, size=5) == []
