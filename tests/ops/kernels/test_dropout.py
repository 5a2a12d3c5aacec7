"""The Triton kernels of dropout against the plain functions; interpreted where no GPU is."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops import dropout
from gtpool.ops.kernels.dropout import drop, mix, next_keys

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")
KEYS = torch.tensor([3, -(2**61), 5], device=DEVICE)


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_masks_and_gradients_are_those_of_the_plain_function(runs, share):
    x = torch.randn(runs * 37, 23, device=DEVICE, requires_grad=True)
    out, wanted = drop(x, share, KEYS[:runs]), dropout.drop_by_key(x, share, KEYS[:runs])
    assert out.equal(wanted)
    (found,) = torch.autograd.grad(out, x, x.detach())
    (wanted,) = torch.autograd.grad(wanted, x, x.detach())
    assert found.equal(wanted)


@pytest.mark.parametrize("count", [1, 700])
def test_keys_are_those_of_the_plain_function(count, monkeypatch):
    bits = torch.randint(-(2**62), 2**62, (count, 3), device=DEVICE)
    step = torch.tensor([5], device=DEVICE)
    monkeypatch.setattr(dropout, "_uses_kernel", lambda _: False)
    assert mix(bits).equal(dropout._mix(bits))
    for key in (KEYS[:1], KEYS):
        assert next_keys(key, 1, step).squeeze(0).equal(dropout.next_key(key, step))
        wanted = [dropout.next_key(key, number) for number in range(count)]
        assert next_keys(key, count).equal(torch.stack(wanted))
