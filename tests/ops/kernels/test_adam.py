"""The kernels of Adam against the plain class; in Triton's interpreter without a GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.spec import TrainSpec
from gtpool.train.adam import Adam
from gtpool.train.epoch import WeightAverage

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")
CLOSE = {"rtol": 3e-5, "atol": 1e-6}  # the plain class rounds 1 - 0.999^n to float32


def trained(runs, columns, *, clip, ema, kernels, rates=(1e-2, 1e-3, 0.0), steps=4):
    """Take steps with random gradients; return all state by name."""
    draw = torch.Generator().manual_seed(runs + columns)
    theta = torch.nn.Parameter(torch.randn(runs, columns, generator=draw).to(DEVICE))
    fixed = torch.randn(runs, 2, 3, generator=draw).to(DEVICE)
    state = {"theta": theta.detach(), "fixed": fixed}
    decays = (0.0, 0.1, 1.0)
    specs = [TrainSpec(lr=rates[run], weight_decay=decays[run], clip=clip) for run in range(runs)]
    adam, average = Adam(theta, specs), WeightAverage(state, ema, runs) if ema else None
    for number in range(steps):
        grad = torch.randn(runs, columns, generator=draw).to(DEVICE) * 10.0**-number
        grad = grad * (number != 2)
        active = torch.arange(runs, device=DEVICE) != (number if runs > 1 else steps - 1)
        (adam.update_by_kernels if kernels else adam.step)(grad, active, state, average)
        fixed += 0.1
    found = state | {"mean": adam.mean, "square": adam.square, "count": adam.count}
    if average is not None:
        found |= {f"average of {name}": part for name, part in average.state.items()}
        found["steps"] = average.count
    return found


@pytest.mark.parametrize(("runs", "columns"), [(1, 5), (3, 1), (3, 2600)])
@pytest.mark.parametrize("clip", [0.5, float("inf")])
@pytest.mark.parametrize("ema", [0.0, 0.999])
def test_equals_the_plain_class(runs, columns, clip, ema):
    found, again, wanted = (
        trained(runs, columns, clip=clip, ema=ema, kernels=kernels)
        for kernels in (True, True, False)
    )
    for name, part in wanted.items():
        torch.testing.assert_close(found[name], part, **CLOSE, msg=lambda text, n=name: n + text)
        assert found[name].equal(again[name]), name


def test_many_partial_sums(monkeypatch):
    monkeypatch.setattr("gtpool.ops.kernels.adam._PARTS", 3)
    found, wanted = (
        trained(2, 20_001, clip=1.0, ema=0.9, kernels=kernels) for kernels in (True, False)
    )
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_gradient_that_is_not_finite_makes_only_its_run_nan(kernels):
    theta = torch.nn.Parameter(torch.ones(2, 7, device=DEVICE))
    adam = Adam(theta, [TrainSpec()] * 2)
    grad = torch.ones(2, 7, device=DEVICE)
    grad[0, 3] = torch.nan
    active = torch.ones(2, dtype=torch.bool, device=DEVICE)
    step = adam.update_by_kernels if kernels else adam.step
    step(grad, active, {"theta": theta.detach()}, None)
    assert theta[0].isnan().all()
    assert theta[1].isfinite().all()
