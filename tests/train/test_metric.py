import math
from itertools import product

import numpy as np
import pytest
import torch

from gtpool.train.metric import METRICS, accuracy, rmse, roc_auc

NAN = float("nan")


def area_by_pairs(score, label):
    """The definition: share of (positive, negative) pairs in the right order, ties as a half."""
    known = [(s, y) for s, y in zip(score, label, strict=True) if not math.isnan(y)]
    yes, no = [s for s, y in known if y == 1], [s for s, y in known if y == 0]
    if not yes or not no:
        return None
    return sum((a > b) + 0.5 * (a == b) for a, b in product(yes, no)) / (len(yes) * len(no))


def some_tasks(seed, graphs=40, tasks=5):
    """Scores with many ties, labels with gaps; the last task has one class, the one before none."""
    random = torch.Generator().manual_seed(seed)
    score = torch.randint(0, 8, (graphs, tasks), generator=random) / 4
    y = torch.randint(0, 2, (graphs, tasks), generator=random).float()
    y[torch.rand(graphs, tasks, generator=random) < 0.3] = NAN
    y[:, -1] = 1.0
    y[:, -2] = NAN
    return score, y


@pytest.mark.parametrize("seed", range(5))
def test_roc_auc_is_the_mean_over_the_tasks_with_both_classes(seed):
    score, y = some_tasks(seed)
    areas = [area_by_pairs(*task) for task in zip(score.T.tolist(), y.T.tolist(), strict=True)]
    assert areas[-2:] == [None, None]
    assert roc_auc(score, y) == pytest.approx(np.mean(areas[:-2]), abs=1e-12)


def test_roc_auc_of_a_perfect_a_reversed_and_a_constant_order():
    y = torch.tensor([[0.0], [0.0], [1.0]])
    assert roc_auc(torch.tensor([[1.0], [2.0], [3.0]]), y) == 1.0
    assert roc_auc(torch.tensor([[3.0], [2.0], [1.0]]), y) == 0.0
    assert roc_auc(torch.zeros(3, 1), y) == 0.5


def test_roc_auc_without_both_classes_in_any_task_is_undefined():
    assert math.isnan(roc_auc(torch.zeros(2, 2), torch.tensor([[1.0, NAN], [1.0, NAN]])))


def test_roc_auc_does_not_lose_close_scores_to_rounding():
    score = torch.tensor([[1.0], [1.0 + 2**-23]])
    assert roc_auc(score, torch.tensor([[0.0], [1.0]])) == 1.0


def test_roc_auc_agrees_with_scikit_learn():
    reference = pytest.importorskip("sklearn.metrics").roc_auc_score
    for seed in range(5):
        score, y = some_tasks(seed)
        known = ~y.isnan()
        expected = [reference(y[known[:, t], t], score[known[:, t], t]) for t in range(3)]
        assert roc_auc(score, y) == pytest.approx(np.mean(expected), abs=1e-12)


def test_all_metrics_agree_with_torchmetrics():
    functional = pytest.importorskip("torchmetrics.functional")
    score, y = some_tasks(0)
    known = ~y.isnan()
    areas = [
        functional.auroc(score[known[:, t], t].sigmoid(), y[known[:, t], t].long(), task="binary")
        for t in range(3)
    ]
    assert roc_auc(score, y) == pytest.approx(torch.stack(areas).mean().item(), abs=1e-6)
    logits, classes = torch.randn(50, 4), torch.randint(0, 4, (50,))
    expected = functional.accuracy(logits, classes, task="multiclass", num_classes=4).item()
    assert accuracy(logits, classes) == pytest.approx(expected, abs=1e-6)
    outputs, targets = torch.randn(50, 1), torch.randn(50, 1)
    expected = functional.mean_squared_error(outputs, targets, squared=False).item()
    assert rmse(outputs, targets) == pytest.approx(expected, abs=1e-6)


def test_roc_auc_agrees_with_ogb():
    evaluate = pytest.importorskip("ogb.graphproppred").Evaluator("ogbg-moltox21")
    score, y = some_tasks(1, graphs=60, tasks=12)
    expected = evaluate.eval({"y_true": y.numpy(), "y_pred": score.numpy()})["rocauc"]
    assert roc_auc(score, y) == pytest.approx(expected, abs=1e-12)


def test_accuracy_of_a_tie_takes_the_first_class():
    assert accuracy(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])) == 0.75


def test_accuracy_is_exact_where_float32_would_round():
    assert accuracy(torch.eye(3).repeat(6, 1), torch.tensor([0, 1, 0] * 6)) == 2 / 3


def test_rmse_counts_known_targets_alone():
    outputs = torch.tensor([[1.0, 5.0], [3.0, 9.0]])
    y = torch.tensor([[4.0, NAN], [NAN, 5.0]])
    assert rmse(outputs, y) == pytest.approx(math.sqrt((9 + 16) / 2))


def test_every_task_has_a_metric_and_its_direction():
    directions = {task: (metric.name, metric.higher_is_better) for task, metric in METRICS.items()}
    assert directions == {
        "classes": ("accuracy", True),
        "binary": ("roc_auc", True),
        "regression": ("rmse", False),
    }


@pytest.mark.parametrize("task", METRICS)
def test_several_sets_are_measured_each_by_itself(task):
    metric, random = METRICS[task], torch.Generator().manual_seed(3)
    logits = torch.randn(4, 30, 3, generator=random)
    y = torch.randint(2, (4, 30, 3), generator=random).float()
    y[torch.rand(y.shape, generator=random) < 0.3] = NAN
    if task == "classes":
        y = y[..., 0].nan_to_num(-1).long()
    sets = list(zip(logits, y, strict=True))
    assert metric.batched(logits, y).tolist() == [metric.measure(*one) for one in sets]


def test_a_graph_without_a_class_might_as_well_not_be_there():
    logits, y = torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 1, -1, 0])
    assert accuracy(logits, y) == accuracy(logits[y >= 0], y[y >= 0])


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_each_task_has_the_figure_that_it_has_alone(task):
    random = np.random.default_rng(0)
    logits = torch.tensor(random.normal(size=(40, 4)))
    y = torch.tensor(random.integers(0, 2, (40, 4)).astype(float))
    y[torch.tensor(random.random(y.shape) < 0.3)] = math.nan
    y[:, 2] = math.nan
    metric = METRICS[task]
    found = metric.by_task(logits, y)
    assert found[2] is None
    for at in (0, 1, 3):
        alone = metric.measure(logits[:, at : at + 1], y[:, at : at + 1])
        assert found[at] == pytest.approx(alone)
