"""The kernels around linear maps against plain PyTorch; in Triton's interpreter without a GPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool import nn
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.sources import load
from gtpool.model.classifier import Classifier
from gtpool.model.ensemble import ModelEnsemble
from gtpool.ops import runs
from gtpool.ops.dropout import drop_by_key
from gtpool.ops.kernels import linear as kernels
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
ACTS = {"none": lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu}
KEYS = torch.tensor([7, -(2**60), 2**62], device=DEVICE)
SIZES = [(1, 1, 3, 1), (3, 37, 5, 70), (1, 150, 7, 20), (3, 129, 64, 64), (3, 512, 4, 9)]
"""Runs, rows of a run, columns in and out."""


@pytest.fixture(autouse=True)
def _plain_reference(monkeypatch):
    monkeypatch.setattr(runs, "uses_kernels", lambda *_: False)


def drawn(count, rows, inner, outer):
    """Draw rows, and weights and biases as views of one matrix, as an ensemble has them."""
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(count * rows, inner, generator=draw).to(DEVICE)
    theta = torch.randn(count, outer * inner + outer, generator=draw).to(DEVICE)
    return x.requires_grad_(), theta.requires_grad_()


def parts_of(theta, inner, outer):
    weight, bias = theta.split([inner * outer, outer], 1)
    return weight.unflatten(1, (outer, inner)), bias


def values_and_grads(function, *inputs):
    out = function(*inputs)
    d_out = torch.linspace(-1, 1, out.numel(), device=DEVICE).view_as(out).sin()
    return out, *torch.autograd.grad(out, inputs, d_out)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_linear_maps_and_biases_equal_plain_ones(size):
    x, theta = drawn(*size)
    _, bias = parts_of(theta.detach(), *size[2:])
    bias.requires_grad_()

    def mapped(linear, x, theta):
        return linear(x, *parts_of(theta, *size[2:]))

    for found, again, wanted in (
        [
            values_and_grads(lambda x, t, f=f: mapped(f, x, t), x, theta)
            for f in (kernels.linear, kernels.linear, runs.linear)
        ],
        [
            values_and_grads(f, torch.zeros(len(x), size[3], device=DEVICE).requires_grad_(), bias)
            for f in (kernels.add_bias, kernels.add_bias, runs.add_bias)
        ],
    ):
        torch.testing.assert_close(found, wanted, **CLOSE)
        assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_activations_equal_plain_ones(size, act, share):
    count, rows, _, width = size
    x, theta = drawn(count, rows, width, 2)
    bias = theta.detach()[:, :width].requires_grad_()
    key = KEYS[:count] if share else None

    def plain(x, bias):
        out = ACTS[act](runs.per_run(torch.add, x, bias))
        return out if key is None else drop_by_key(out, share, key)

    def fused(x, bias):
        return kernels.activate(x, bias, act, share, key)

    found, again, wanted = (values_and_grads(way, x, bias) for way in (fused, fused, plain))
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert all(map(torch.equal, found, again))
    assert (found[0] == 0).equal(wanted[0] == 0)  # the same mask


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("act", ["none", "gelu"])
def test_a_residual_is_added(act, share):
    x, _ = drawn(3, 37, 20, 2)
    bias, residual = (torch.randn(rows, 20, device=DEVICE) for rows in (3, len(x)))
    inputs = x, bias.requires_grad_(), residual.requires_grad_()
    key = KEYS if share else None

    def plain(x, bias, residual):
        return kernels.activate(x, bias, act, share, key) + residual

    def fused(x, bias, residual):
        return kernels.activate(x, bias, act, share, key, residual)

    found, wanted = (values_and_grads(way, *inputs) for way in (fused, plain))
    torch.testing.assert_close(found, wanted)
    with pytest.raises(ValueError, match="ReLU"):
        kernels.activate(x, bias, "relu", residual=residual)


def test_many_partial_sums_and_strided_gradients(monkeypatch):
    monkeypatch.setattr(kernels, "_PARTS", 40)
    rows = torch.randn(2 * 3000, 5, device=DEVICE)
    torch.testing.assert_close(
        kernels.sum_rows(rows, 2), rows.unflatten(0, (2, -1)).sum(1), rtol=1e-5, atol=1e-4
    )
    assert kernels.sum_rows(rows[:, :1].expand(-1, 3), 2).shape == (2, 3)


def test_gradients_of_weights_are_contiguous():
    x, theta = drawn(2, 9, 3, 4)
    weight = parts_of(theta.detach(), 3, 4)[0].requires_grad_()
    found, wanted = (
        values_and_grads(linear, x, weight)
        for linear in (lambda x, w: kernels.linear(x, w, None), runs.linear)
    )
    torch.testing.assert_close(found, wanted, **CLOSE)
    assert found[2].is_contiguous()


def test_only_needed_gradients_are_computed():
    x, theta = drawn(2, 9, 3, 4)
    weight, bias = parts_of(theta, 3, 4)
    out = kernels.linear(x.detach(), weight.detach(), bias)
    (d_theta,) = torch.autograd.grad(out.sum(), theta)
    assert (d_theta[:, 12:] == 9).all()
    assert not d_theta[:, :12].any()


NETWORKS = {
    "gtpool": ({"pool_options": {"dropout": 0.2, "gate": "tanh"}}, 3 * 2 + 2, 3),
    "gin": ({"conv": "gin", "norm": "layer", "ffn": True, "block_dropout": 0.1}, 3 * 5 + 2, 3),
    "clusters": ({"pool": "diffpool", "norm": "none", "residual": True}, 3 + 2, 0),
}
"""Options of a model; kernels that add a bias and activate, and that add a residual."""


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_a_network_are_joined(name, count, monkeypatch, data_dir):
    del data_dir
    options, joins, added = NETWORKS[name]
    data = load("MUTAG").to(DEVICE)
    torch.manual_seed(0)
    models = [
        Classifier(ModelSpec(width=8, **options), shape_of(data)).to(DEVICE) for _ in range(count)
    ]
    ensemble = ModelEnsemble(models, 28).train()
    index = torch.arange(4 * count).view(count, 4)
    dataset = DeviceDataset.of(data)
    batch = dataset.gather(
        index.to(DEVICE), dataset.capacity(index, ensemble.ratios), ensemble.ratios
    )
    calls, activate = [], kernels.activate
    monkeypatch.setattr(kernels, "activate", lambda *a, **k: calls.append(1) or activate(*a, **k))
    results = []
    for joined in (False, True):
        for module in (runs, nn):
            monkeypatch.setattr(
                module,
                "uses_kernels",
                lambda _, value, dim=1, joined=joined: joined and value.dim() == dim + 1,
            )
        logits = ensemble(batch, KEYS[:count])
        results.append((logits, *torch.autograd.grad(logits.sin().sum(), ensemble.theta)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert len(calls) == joins + added * (count > 1)
