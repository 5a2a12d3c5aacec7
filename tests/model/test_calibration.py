"""Conformal sets and intervals hold what they promise, and a damaged file is refused."""

import json
import math

import numpy as np
import pytest
import torch

from gtpool.model.bundle import load_bundle, save_bundle
from gtpool.model.calibration import Calibration, thinned
from gtpool.model.classifier import Classifier
from gtpool.ops.average import probabilities
from gtpool.ops.calibrate import nonconformity
from gtpool.spec import ModelSpec, ShapeSpec

TASKS = ("classes", "binary", "regression")


def conformal(p, y, task):
    pairs = [thinned(part) for part in nonconformity(p, y, task).T]
    return Calibration(scores=tuple(pair[0] for pair in pairs), counts=tuple(n for _, n in pairs))


def drawn(task, count, random):
    """Predictions that are not calibrated, and their truth; the draws are exchangeable."""
    z = torch.from_numpy(random.normal(size=(count, 2)))
    truth = probabilities(z, task).numpy()
    if task == "regression":
        y = torch.from_numpy(truth + random.normal(size=truth.shape))
    elif task == "binary":
        y = torch.from_numpy((random.random(truth.shape) < truth) * 1.0)
    else:
        y = torch.from_numpy((random.random(count) < truth[:, 1]) * 1)
    return probabilities(3 * z, task), y


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_coverage_of_exchangeable_graphs(task, coverage):
    """Over many draws of 40 scores and 10 graphs the coverage is the stated one, or above."""
    random, inside = np.random.default_rng(0), []
    for _ in range(300):
        p, y = drawn(task, 50, random)
        found = conformal(p[:40], y[:40], task)
        inside.append(found.covers(p[40:], y[40:], task, coverage).mean().item())
    # Graphs that share scores are not independent: the error is that of the means.
    error = np.std(inside) / math.sqrt(len(inside))
    assert np.mean(inside) > coverage - 3 * error
    if task == "regression":  # no ties and no label that is always in its set
        assert np.mean(inside) < coverage + 1 / 41 + 3 * error


@pytest.mark.parametrize("task", TASKS)
def test_what_is_covered_is_in_its_region(task):
    p, y = drawn(task, 60, np.random.default_rng(1))
    found = conformal(p[:40], y[:40], task)
    names = ("no", "yes") if task == "classes" else (0, 1)
    regions = found.regions(p[40:], task, 0.8, names)
    covered, sizes = (
        found.covers(p[40:], y[40:], task, 0.8),
        found.sizes(p[40:], task, 0.8),
    )
    for at, graph in enumerate(regions):
        for target, region in enumerate(graph):
            if task == "regression":
                low, high = region
                inside, size = low <= y[40 + at, target] <= high, high - low
            else:
                truth = y[40 + at] if task == "classes" else y[40 + at, target]
                inside, size = names[int(truth)] in region, len(region)
            assert inside == covered[at, target]
            assert size == pytest.approx(sizes[at, target].item())


def test_many_scores_are_thinned_to_a_limit_that_is_not_smaller():
    scores = torch.from_numpy(np.random.default_rng(0).random(2503))
    kept, count = thinned(torch.cat([scores, torch.tensor([torch.nan])]))
    assert (len(kept), count) == (1000, 2503)
    found, exact = Calibration(scores=(kept,), counts=(count,)), scores.sort().values
    for coverage in np.linspace(0.01, 0.999, 100):
        rank = math.ceil(2504 * coverage)
        limit = found.limits(coverage).item()
        assert exact[rank - 1] <= limit <= exact[min(rank + 3, 2502)]


def test_a_coverage_that_the_scores_do_not_reach():
    scores = tuple(step / 9 for step in range(9))
    found = Calibration(scores=(scores, ()), counts=(9, 0))
    assert found.limits(0.9).tolist() == [8 / 9, math.inf]
    with pytest.raises(ValueError, match=r"at most 0\.9"):
        found.limits(0.91)
    with pytest.raises(ValueError, match="no conformal scores"):
        Calibration().limits(0.9)
    for wrong in (0, 1, 90, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            found.limits(wrong)


FOUND = Calibration(
    temperature=(2.0,), threshold=(0.25,), metric="mcc", scores=((0.1, 0.1, 0.5),), counts=(3,)
)


@pytest.fixture
def folder(tmp_path):
    model = Classifier(ModelSpec(width=8), ShapeSpec(outputs=2, node_width=3))
    about = {"schema": {"task": "classes"}}
    save_bundle(tmp_path / "model", model, about, calibration=FOUND)
    return tmp_path / "model"


def test_a_bundle_holds_its_calibration(folder):
    assert load_bundle(folder).calibration == FOUND
    assert json.loads((folder / "config.json").read_text())["format"] == 5
    (folder / "calibration.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"calibration\.json"):
        load_bundle(folder)


def test_scores_alone_leave_the_format_as_it_was(folder):
    bundle = load_bundle(folder)
    scores = Calibration(scores=FOUND.scores, counts=FOUND.counts)
    save_bundle(folder, bundle.model, bundle.about, calibration=scores)
    assert json.loads((folder / "config.json").read_text())["format"] == 2
    assert load_bundle(folder).calibration == scores
    save_bundle(folder, bundle.model, bundle.about)
    assert not (folder / "calibration.json").exists()
    assert load_bundle(folder).calibration == Calibration()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"temperature": [0]}, "temperature"),
        ({"temperature": [1, 1]}, "temperature"),
        ({"temperature": "2"}, "temperature"),
        ({"threshold": [1.5]}, "threshold"),
        ({"scores": [[0.5, 0.1, 0.6]]}, "ascend"),
        ({"scores": [[-0.5, 0.1, 0.6]]}, "ascend"),
        ({"scores": []}, "scores"),
        ({"counts": [4]}, "counts"),
        ({"counts": [2**40]}, "counts"),
        ({"more": 1}, "keys"),
    ],
)
def test_a_damaged_calibration_is_refused(folder, change, told):
    path = folder / "calibration.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=rf"calibration\.json.*{told}"):
        load_bundle(folder)


@pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("classes", 3)])
def test_a_threshold_that_a_task_cannot_have(task, outputs):
    content = {**FOUND.to_json(), "temperature": []}
    with pytest.raises(ValueError, match="threshold"):
        Calibration.from_json(content, task, outputs)
