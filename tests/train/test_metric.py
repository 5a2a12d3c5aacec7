"""Every metric against scikit-learn and SciPy, on random data with ties and missing labels."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn import metrics as sk

from gtpool.train.metric import (
    METRICS,
    TASK_METRICS,
    Metric,
    accuracy,
    metric_of,
    rmse,
    roc_auc,
)

EVERY = [metric for metrics in TASK_METRICS.values() for metric in metrics.values()]
named = pytest.mark.parametrize("metric", EVERY, ids=lambda one: f"{one.task}-{one.name}")


def ece(told, hit, bins=15):
    """Guo et al., 2017: bins are open on the left."""
    place = np.clip(np.ceil(told * bins), 1, bins)
    gaps = [abs(told[place == b].sum() - hit[place == b].sum()) for b in range(1, bins + 1)]
    return sum(gaps) / len(told)


BINARY = {
    "roc_auc": sk.roc_auc_score,
    "pr_auc": sk.average_precision_score,
    "accuracy": lambda y, p: sk.accuracy_score(y, p >= 0.5),
    "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p >= 0.5),
    "mcc": lambda y, p: sk.matthews_corrcoef(y, p >= 0.5),
    "f1": lambda y, p: sk.f1_score(y, p >= 0.5),
    "log_loss": lambda y, p: sk.log_loss(y, p, labels=[0, 1]),
    "brier": sk.brier_score_loss,
    "ece": lambda y, p: ece(p, y),
}
CLASSES = {
    "accuracy": lambda y, p: sk.accuracy_score(y, p.argmax(1)),
    "roc_auc": lambda y, p: (
        sk.roc_auc_score(y, p, multi_class="ovr")
        if p.shape[1] > 2
        else sk.roc_auc_score(y, p[:, 1])
    ),
    "pr_auc": lambda y, p: sk.average_precision_score(np.eye(p.shape[1])[y], p, average="macro"),
    "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p.argmax(1)),
    "mcc": lambda y, p: sk.matthews_corrcoef(y, p.argmax(1)),
    "f1": lambda y, p: sk.f1_score(y, p.argmax(1), average="macro"),
    "log_loss": lambda y, p: sk.log_loss(y, p, labels=range(p.shape[1])),
    "brier": lambda y, p: np.square(p - np.eye(p.shape[1])[y]).sum(1).mean(),
    "ece": lambda y, p: ece(p.max(1), p.argmax(1) == y),
}
REGRESSION = {
    "mae": sk.mean_absolute_error,
    "rmse": sk.root_mean_squared_error,
    "r2": sk.r2_score,
    "spearman": lambda y, p: spearmanr(y, p).statistic,
}


def shares(random, *shape):
    """Probabilities in sixteenths: many ties, none on the edge of a bin."""
    return random.integers(1, 16, shape) / 16


@pytest.mark.parametrize("name", BINARY)
def test_a_metric_of_binary_tasks_is_the_mean_of_scikit_learns(name):
    for seed in range(4):
        random = np.random.default_rng(seed)
        p, y = shares(random, 50, 4), random.integers(0, 2, (50, 4)).astype(float)
        y[random.random(y.shape) < 0.3] = math.nan
        y[:, 3] = math.nan
        known = ~np.isnan(y)
        each = [BINARY[name](y[known[:, t], t], p[known[:, t], t]) for t in range(3)]
        metric = metric_of("binary", name)
        found = metric.of_outputs(torch.tensor(p), torch.tensor(y))
        assert found == pytest.approx(np.mean(each), abs=1e-12)
        assert metric.by_task(torch.tensor(p), torch.tensor(y)) == [
            *map(pytest.approx, each),
            None,
        ]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_metric_of_classes_is_scikit_learns(name, classes):
    for seed in range(4):
        random = np.random.default_rng(seed)
        y = random.integers(0, classes, 60)
        p = shares(random, 60, classes)
        if classes == 2:
            p[:, 0] = 1 - p[:, 1]
        p /= p.sum(1, keepdims=True)
        expected = CLASSES[name](y, p)
        if classes == 2 and name in {"pr_auc", "brier"}:  # those of the second class
            expected = BINARY[name](y, p[:, 1])
        if classes == 2 and name == "f1":
            expected = sk.f1_score(y, p.argmax(1))
        found = metric_of("classes", name).of_outputs(torch.tensor(p), torch.tensor(y))
        assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", REGRESSION)
def test_a_metric_of_regression_is_scikit_learns(name):
    for seed in range(4):
        random = np.random.default_rng(seed)
        y = random.integers(0, 9, (40, 1)).astype(float)
        p = random.integers(0, 9, (40, 1)) / 2
        y[random.random(40) < 0.3] = math.nan
        known = ~np.isnan(y[:, 0])
        expected = REGRESSION[name](y[known, 0], p[known, 0])
        found = metric_of("regression", name).of_outputs(torch.tensor(p), torch.tensor(y))
        assert found == pytest.approx(expected, abs=1e-12)


def drawn(metric: Metric, *sets: int):
    """Logits and targets with missing ones; two sets differ."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(*sets, 30, 3, generator=random)
    y = torch.randint(2, (*sets, 30, 3), generator=random).float()
    y[torch.rand(y.shape, generator=random) < 0.3] = math.nan
    if metric.task == "classes":
        return logits, y[..., 0].nan_to_num(-1).long()
    return logits, y


@named
def test_runs_side_by_side_are_measured_each_by_itself(metric):
    logits, y = drawn(metric, 4)
    alone = [metric.measure(*one) for one in zip(logits, y, strict=True)]
    assert metric.batched(logits, y).tolist() == pytest.approx(alone, abs=1e-12)
    assert len(set(alone)) > 1


@named
def test_graphs_without_a_label_might_as_well_not_be_there(metric):
    logits, y = drawn(metric)
    none = torch.full_like(y[:7], -1 if metric.task == "classes" else math.nan)
    more = torch.cat([logits, 50 * torch.randn(7, 3)]), torch.cat([y, none])
    assert metric.measure(*more) == pytest.approx(metric.measure(logits, y), abs=1e-12)


@named
def test_the_labels_alone_say_whether_a_metric_is_defined(metric):
    """Otherwise an epoch of equal predictions would have none, and would never be left."""
    logits, y = drawn(metric)
    assert math.isfinite(metric.measure(torch.zeros_like(logits), y))


@pytest.mark.parametrize("task", ["classes", "binary"])
@pytest.mark.parametrize("name", ["balanced_accuracy", "mcc", "roc_auc", "pr_auc"])
def test_one_class_defines_no_metric_of_two(task, name):
    y = torch.ones(5, dtype=torch.long) if task == "classes" else torch.ones(5, 1)
    logits = torch.randn(5, 2 if task == "classes" else 1)
    assert math.isnan(metric_of(task, name).measure(logits, y))


def test_a_constant_target_has_no_correlation_and_no_r2_and_is_no_error():
    outputs, y = torch.randn(6, 2), torch.tensor([[0.1, 1.0]] * 5 + [[0.1, 2.0]])
    for name in ("r2", "spearman"):
        metric = metric_of("regression", name)
        found = metric.by_task(outputs, y)
        assert found[0] is None
        assert found[1] == pytest.approx(metric.measure(outputs, y))
        assert math.isnan(metric.measure(outputs[:, :1], y[:, :1]))


def test_a_threshold_makes_other_decisions():
    p, y = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.9, 0.1]]), torch.tensor([1, 1, 0])
    accuracy = metric_of("classes", "accuracy")
    assert accuracy.of_outputs(p, y) == pytest.approx(1 / 3)
    assert accuracy.of_outputs(p, y, torch.tensor([0.15])) == 1.0
    tasks, labels = p[:, 1:].repeat(1, 2), y.double().unsqueeze(1).repeat(1, 2)
    found = metric_of("binary", "accuracy").by_task(tasks, labels, torch.tensor([0.15, 0.5]))
    assert found == [1.0, pytest.approx(1 / 3)]


def test_a_wrong_name_lists_those_that_fit():
    with pytest.raises(ValueError, match=r"'rsme' does not fit regression; did you mean 'rmse'\?"):
        metric_of("regression", "rsme")
    with pytest.raises(ValueError, match=r"'rmse' does not fit classes.*accuracy, roc_auc, "):
        metric_of("classes", "rmse")
    assert metric_of("binary") is METRICS["binary"]


def test_roc_auc_of_a_perfect_a_reversed_and_a_constant_order():
    y = torch.tensor([[0.0], [0.0], [1.0]])
    assert roc_auc(torch.tensor([[1.0], [2.0], [3.0]]), y) == 1.0
    assert roc_auc(torch.tensor([[3.0], [2.0], [1.0]]), y) == 0.0
    assert roc_auc(torch.zeros(3, 1), y) == 0.5


def test_roc_auc_without_both_classes_in_any_task_is_undefined():
    assert math.isnan(roc_auc(torch.zeros(2, 2), torch.tensor([[1.0, math.nan], [1.0, math.nan]])))


def test_roc_auc_does_not_lose_close_scores_to_rounding():
    score = torch.tensor([[1.0], [1.0 + 2**-23]])
    assert roc_auc(score, torch.tensor([[0.0], [1.0]])) == 1.0


def test_accuracy_of_a_tie_takes_the_first_class():
    assert accuracy(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])) == 0.75


def test_accuracy_is_exact_where_float32_would_round():
    assert accuracy(torch.eye(3).repeat(6, 1), torch.tensor([0, 1, 0] * 6)) == 2 / 3


def test_rmse_counts_known_targets_alone():
    outputs = torch.tensor([[1.0, 5.0], [3.0, 9.0]])
    y = torch.tensor([[4.0, math.nan], [math.nan, 5.0]])
    assert rmse(outputs, y) == pytest.approx(math.sqrt((9 + 16) / 2))


def test_every_task_has_a_metric_and_its_direction():
    directions = {task: (metric.name, metric.higher_is_better) for task, metric in METRICS.items()}
    assert directions == {
        "classes": ("accuracy", True),
        "binary": ("roc_auc", True),
        "regression": ("rmse", False),
    }
