"""Temperatures, decisions and conformal sets, on labels that are drawn from known probabilities."""

import numpy as np
import pytest
import torch

from gtpool.ops.average import probabilities
from gtpool.ops.calibrate import decide, fit_temperature, logits_of, nonconformity, prediction_sets
from gtpool.train.classification import log_loss

GRAPHS = 4000


def drawn(task, seed=0, graphs=GRAPHS):
    """Logits, and labels of the probabilities that they stand for."""
    random = torch.Generator().manual_seed(seed)
    z = torch.randn(graphs, 3, dtype=torch.double, generator=random) * 2
    p = probabilities(z, task)
    if task == "classes":
        return z, torch.multinomial(p, 1, generator=random).squeeze(1)
    return z, (torch.rand(p.shape, generator=random) < p).double()


@pytest.mark.parametrize("task", ["classes", "binary"])
@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_factor_of_overconfident_logits_is_found(task, factor):
    z, y = drawn(task)
    found = fit_temperature(probabilities(factor * z, task), y, task)
    assert found.shape == ((1,) if task == "classes" else (3,))
    torch.testing.assert_close(found, torch.full_like(found, factor), rtol=0.15, atol=0)


@pytest.mark.parametrize("task", ["classes", "binary"])
@pytest.mark.parametrize("seed", range(10))
def test_a_temperature_never_raises_the_log_loss_that_chose_it(task, seed):
    z, y = drawn(task, seed, graphs=12)
    p = probabilities(z, task)
    if task == "binary":
        y[::3, 1] = torch.nan
    scaled = probabilities(z / fit_temperature(p, y, task), task)
    assert log_loss(scaled, y) <= log_loss(p, y) + 1e-12


def test_labels_that_are_all_the_same_have_no_temperature():
    p = torch.tensor([[0.8, 0.2, 0.3], [0.9, 0.4, 0.4]])
    y = torch.tensor([[1.0, torch.nan, 0.0], [1.0, torch.nan, 1.0]])
    assert fit_temperature(p, y, "binary")[:2].tolist() == [1, 1]
    assert fit_temperature(p[:, :2], torch.tensor([0, 0]), "classes").tolist() == [1]


@pytest.mark.parametrize("task", ["classes", "binary"])
def test_logits_of_probabilities_are_those_of_the_probabilities(task):
    p = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], dtype=torch.double)
    torch.testing.assert_close(probabilities(logits_of(p, task) / 1, task), p)
    halved = probabilities(logits_of(p, task) / 2, task)
    assert halved[1].tolist() == [1, 0, 0]


def test_a_set_holds_the_labels_below_the_limit_and_the_most_probable():
    p = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.35, 0.25]])
    inside = prediction_sets(p, "classes", torch.tensor([0.66]))
    assert inside.tolist() == [[[True, False, False]], [[True, True, False]]]
    nothing = prediction_sets(p, "classes", torch.tensor([0.0]))
    assert nothing.squeeze(1).sum(1).tolist() == [1, 1]
    tasks = prediction_sets(torch.tensor([[0.9, 0.5]]), "binary", torch.tensor([0.95, 0.2]))
    assert tasks.tolist() == [[[True, True], [True, False]]]


def test_nonconformity_of_missing_labels_is_missing():
    p = torch.tensor([[0.75, 0.25]])
    binary = nonconformity(p, torch.tensor([[1.0, torch.nan]]), "binary")
    np.testing.assert_allclose(binary, [[0.25, np.nan]])
    assert nonconformity(p, torch.tensor([1]), "classes").item() == 0.75
    values = nonconformity(p, torch.tensor([[1.0, torch.nan]]), "regression")
    np.testing.assert_allclose(values, [[0.25, np.nan]])


def test_a_threshold_decides_instead_of_the_most_probable_label():
    p = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    assert decide(p, "classes").tolist() == [0, 1]
    assert decide(p, "classes", torch.tensor([0.3])).tolist() == [1, 1]
    assert decide(p, "binary", torch.tensor([0.5, 0.7])).tolist() == [[1, 0], [0, 0]]
