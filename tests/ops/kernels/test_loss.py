"""The loss kernel against plain PyTorch; in Triton's interpreter without a GPU."""

import os
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.train import loss as losses

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def drawn(task, outputs, count=40):
    """Draw targets of graphs, some missing, and give what ``Loss`` reads of a dataset."""
    draw = torch.Generator().manual_seed(outputs)
    if task == "classes":
        y = torch.randint(outputs, (count,), generator=draw)
    else:
        y = torch.randn(count, outputs, generator=draw)
        y = 5 * y if task == "regression" else (y > 0).float()
        y[torch.rand(y.shape, generator=draw) < 0.2] = torch.nan
    schema = SimpleNamespace(task=task, num_outputs=outputs)
    return SimpleNamespace(y=y.to(DEVICE), schema=schema), draw


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("weigh", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("task", "outputs"),
    [("classes", 2), ("classes", 7), ("binary", 1), ("binary", 5), ("regression", 3)],
)
def test_equals_the_plain_loss(task, outputs, smoothing, weigh, runs, monkeypatch):
    monkeypatch.setattr(losses, "has_triton", lambda: False)
    data, draw = drawn(task, outputs)
    trains = [torch.randperm(40, generator=draw)[:30] for _ in range(runs)]
    smoothing = 0.0 if task == "regression" else smoothing
    loss_of = losses.Loss(data, trains, weigh=weigh, smoothing=smoothing)
    index = torch.randint(40, (runs, 33), generator=draw)
    logits = 5 * torch.randn(runs * 33, outputs, generator=draw)
    present = torch.rand(runs, 33, generator=draw) < 0.8
    present[-1] = runs == 1  # a run without graphs
    logits[~present.flatten(), 0] = torch.nan
    logits, y = logits.to(DEVICE).requires_grad_(), data.y[index.flatten().to(DEVICE)]
    present = present.flatten().to(DEVICE)
    found, wanted = (
        (loss, *torch.autograd.grad(loss, logits, torch.arange(2.0, 2 + runs, device=DEVICE)))
        for loss in (
            loss_of.mean_by_kernel(logits, y, present),
            loss_of(logits, y, present, training=True),
        )
    )
    wanted = wanted[0], wanted[1].nan_to_num(0.0)  # softmax of padding
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_more_graphs_than_a_tile():
    data, draw = drawn("classes", 3)
    loss_of = losses.Loss(data, [torch.arange(40)], weigh=False)
    logits = torch.randn(2000, 3, generator=draw).to(DEVICE).requires_grad_()
    y = torch.randint(3, (2000,), generator=draw).to(DEVICE)
    loss = loss_of.mean_by_kernel(logits, y, None)
    wanted = torch.nn.functional.cross_entropy(logits, y)
    torch.testing.assert_close(loss[0], wanted)
    found, wanted = (torch.autograd.grad(part.sum(), logits)[0] for part in (loss, wanted))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8)
