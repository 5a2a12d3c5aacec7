"""The Triton norms against the layers in plain PyTorch; interpreted where no GPU is."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from gtpool import nn as layers
from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.sources import load
from gtpool.model.classifier import Classifier
from gtpool.model.conv import NORMS
from gtpool.model.ensemble import ModelEnsemble
from gtpool.spec import ModelSpec
from gtpool.study.inputs import shape_of

pytest.importorskip("triton", reason="Triton is not installed: there are no kernels to test")

from gtpool.ops.kernels import batch_norm, batch_norm_backward, layer_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = {"rtol": 1e-10, "atol": 1e-10}
FLOAT = {"rtol": 1e-4, "atol": 1e-5}
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")

normed = partial(batch_norm.batch_norm, eps=1e-5, momentum=0.1)


def batch_of(counts, width, *, padding=3, dtype=torch.float64, seed=0):
    """Draw rows of runs with so many real rows in random places, their mask, and a BatchNorm."""
    draw = torch.Generator().manual_seed(seed)
    run_rows = max(counts) + padding
    real = torch.zeros(len(counts), run_rows, dtype=torch.bool)
    for run, count in enumerate(counts):
        real[run, torch.randperm(run_rows, generator=draw)[:count]] = True
    x, residual, d_out = torch.randn(3, real.numel(), width, generator=draw).to(DEVICE, dtype)
    norm = layers.BatchNorm(width, dtype=dtype, device=DEVICE)
    state = torch.randn(4, len(counts), width, generator=draw).to(DEVICE, dtype)
    norm.weight, norm.bias = (torch.nn.Parameter(part) for part in state[:2])
    norm.running_mean, norm.running_var = state[2], state[3].square()
    return x, real.flatten().to(DEVICE), residual, d_out, norm


def by_kernel(norm, x, real, *, relu, residual):
    running = norm.running_mean, norm.running_var
    parts = (x, real, running, norm.weight, norm.bias)
    return normed(*parts, training=norm.training, relu=relu, residual=residual)


def by_layer(norm, x, real, *, relu, residual):
    rows = SimpleNamespace(real=real)
    return layers.BatchNorm.forward(norm, x, rows, relu=relu, residual=residual)


def results(form, batch, *, training=True, relu=False, added=False, junk=0.0):
    """Return result, gradients and running statistics; padding of the rows holds ``junk``."""
    x, real, residual, d_out, norm = batch
    norm.train(training)
    before = [part.clone() for part in (norm.running_mean, norm.running_var)]
    leaves = [torch.where(real[:, None], x, junk).requires_grad_(), norm.weight, norm.bias]
    if added:
        leaves.append(residual.clone().requires_grad_())
    out = form(norm, leaves[0], real, relu=relu, residual=leaves[3] if added else None)
    found = [out, *torch.autograd.grad(out, leaves, d_out)]
    found += [norm.running_mean, norm.running_var]
    norm.running_mean, norm.running_var = before
    return found


def in_float64(batch):
    x, real, residual, d_out, norm = batch
    return x.double(), real, residual.double(), d_out.double(), deepcopy(norm).double()


@pytest.mark.parametrize("width", [5, 32, 128, 200])
@pytest.mark.parametrize("counts", [(70,), (100, 0, 1)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_batch_norm_equals_the_layer(counts, width, relu, added):
    batch = batch_of(counts, width)
    found, wanted = (results(form, batch, relu=relu, added=added) for form in (by_kernel, by_layer))
    torch.testing.assert_close(found, wanted, **EXACT)


@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_in_evaluation_mode_equals_the_layer(relu):
    batch, ways = batch_of((70, 0, 1), 24), {"training": False, "relu": relu, "added": relu}
    found, wanted = (results(form, batch, **ways) for form in (by_kernel, by_layer))
    torch.testing.assert_close(found, wanted, **EXACT)


def test_batch_norm_of_float32_equals_the_layer_in_float64():
    batch = batch_of((150, 0, 7), 40, dtype=torch.float32)
    wide = in_float64(batch)
    found = results(by_kernel, batch, relu=True, added=True)
    assert {part.dtype for part in found} == {torch.float32}
    wanted = results(by_layer, wide, relu=True, added=True)
    torch.testing.assert_close([part.double() for part in found], wanted, **FLOAT)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_does_not_read_padding(training):
    batch = batch_of((40, 0, 9), 24)
    ways = {"training": training, "relu": True, "added": True}
    found, wanted = (results(by_kernel, batch, **ways, junk=junk) for junk in (torch.nan, 0.0))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    huge = results(by_layer, batch, **ways, junk=1e30)
    torch.testing.assert_close(found, huge, **EXACT)


def test_a_run_without_real_rows_keeps_its_statistics():
    batch = batch_of((30, 0), 8)
    held = [part[1].clone() for part in (batch[-1].running_mean, batch[-1].running_var)]
    *_, mean, var = results(by_kernel, batch)
    torch.testing.assert_close([mean[1], var[1]], held, rtol=0, atol=0)


def test_blocks_of_several_tiles_are_merged(monkeypatch):
    batch = batch_of((300, 140, 0, 1), 20)
    wanted = results(by_layer, batch, relu=True)
    for module in (batch_norm, batch_norm_backward):
        monkeypatch.setattr(module, "BLOCKS", 2)
    torch.testing.assert_close(results(by_kernel, batch, relu=True), wanted, **EXACT)


def test_a_large_mean_does_not_hide_a_small_deviation():
    x, real, _, d_out, norm = batch_of((1000,), 16, dtype=torch.float32)
    batch = (x * 1e-2 + 1e4, real, x, d_out, norm)
    found, wanted = results(by_kernel, batch), results(by_layer, in_float64(batch))
    for mine, theirs in zip(found, wanted, strict=True):
        spread = theirs.std().item()
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5 * spread)


def test_equal_inputs_give_equal_bits():
    batch = batch_of((150, 0, 7), 40, dtype=torch.float32)
    first, second = (results(by_kernel, batch, relu=True, added=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_nan_in_a_real_row_is_not_hidden_by_relu():
    x, real, *rest = batch_of((6,), 8)
    x[real.nonzero()[0]] = torch.nan
    out, *_ = results(by_kernel, (x, real, *rest), relu=True)
    assert out[real].isnan().all()


def layer_results(form, x, d_out, weight, bias):
    leaves = [part.clone().requires_grad_() for part in (x, weight, bias)]
    out = form(*leaves)
    return [out, *torch.autograd.grad(out, leaves, d_out)]


def plain_layer_norm(x, weight, bias):
    norm = layers.LayerNorm(x.size(-1))
    norm.weight, norm.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,))


by_layer_kernel = partial(layer_norm.layer_norm, eps=1e-5)


def draw_layer(shape, runs, dtype=torch.float64):
    torch.manual_seed(0)
    x, d_out = torch.randn(2, *shape, dtype=dtype)
    weight, bias = torch.randn(2, runs, shape[-1], dtype=dtype)
    return [part.to(DEVICE) for part in (x, d_out, weight, bias)]


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("shape", [(3, 5), (150, 32), (6, 7, 128), (45, 200)])
def test_layer_norm_equals_the_layer(shape, runs):
    parts = draw_layer(shape, runs)
    found, wanted = (layer_results(form, *parts) for form in (by_layer_kernel, plain_layer_norm))
    torch.testing.assert_close(found, wanted, **EXACT)


def test_layer_norm_of_float32_equals_the_layer_in_float64(monkeypatch):
    monkeypatch.setattr(layer_norm, "BLOCKS", 2)
    parts = draw_layer((600, 70), 2, torch.float32)
    parts[0] += 100
    found, again = (layer_results(by_layer_kernel, *parts) for _ in range(2))
    assert all(map(torch.equal, found, again))
    wanted = layer_results(plain_layer_norm, *(part.double() for part in parts))
    torch.testing.assert_close([part.double() for part in found], wanted, **FLOAT)


def test_weights_may_be_views_of_a_matrix():
    x, d_out, weight, bias = draw_layer((30, 12), 3)
    views = torch.cat([weight, bias], 1).split(12, 1)
    parts = (x, d_out, *views)
    assert not parts[2].is_contiguous()
    wanted = [part.detach() for part in by_layer_kernel(x, weight, bias)]
    torch.testing.assert_close(list(by_layer_kernel(x, *views)), wanted, **EXACT)
    real = torch.rand(30, device=DEVICE) < 0.7
    states = torch.zeros(3, 12, dtype=x.dtype, device=DEVICE), torch.ones_like(weight)
    run = partial(normed, x, real, states, training=False, relu=True)
    out, same = run(*views), run(weight, bias)
    torch.testing.assert_close(out, same, **EXACT)


@pytest.fixture(scope="module")
def mutag():
    data = load("MUTAG")
    return replace(data, x=data.x.double()).to(DEVICE)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("norm", [name for name in NORMS if name != "none"])
@pytest.mark.parametrize("runs", [1, 2])
def test_networks_equal_those_without_kernels(monkeypatch, mutag, norm, dropout, runs):
    options = {"conv": "gin", "residual": True, "convs_per_level": 2, "ffn": True}
    spec = ModelSpec(width=8, norm=norm, block_dropout=dropout, virtual_node=True, **options)
    torch.manual_seed(0)
    models = [Classifier(spec, shape_of(mutag)).to(mutag.x) for _ in range(runs)]
    stock, index = DeviceDataset.of(mutag), torch.arange(runs * 5).view(runs, 5)
    found = []
    for kernel in (False, True):
        monkeypatch.setattr(layers, "_has_kernel", lambda *_, kernel=kernel: kernel)
        ensemble = ModelEnsemble(models, int(mutag.sizes.max()))
        capacity = stock.capacity(index, ensemble.ratios)
        batch = stock.gather(index.to(DEVICE), capacity, ensemble.ratios)
        out = ensemble(batch, torch.arange(runs, device=DEVICE))
        (grad,) = torch.autograd.grad(out.square().sum(), ensemble.theta)
        ensemble.eval()
        found.append([out, grad, *ensemble.fixed.values(), ensemble(batch)])
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
def test_large_batches_on_a_gpu():
    batch = batch_of((100_000, 3, 0), 128, dtype=torch.float32)
    found = results(by_kernel, batch, relu=True, added=True)
    wanted = results(by_layer, in_float64(batch), relu=True, added=True)
    torch.testing.assert_close([part.double() for part in found], wanted, rtol=1e-3, atol=1e-4)
