"""Linear maps by oneDNN equal torch's own, in outputs and in gradients of any kind."""

import pytest
import torch
from torch.nn import functional

from gtpool.ops import dense
from gtpool.ops.dense import linear, map_rows, sum_products

pytestmark = pytest.mark.skipif(
    not dense._HAS_ONEDNN, reason="oneDNN is used on a CPU with AVX-512 alone"
)
ROWS = (1024, 1100)
"""A multiple of ``STEP``, and a number of rows that leaves a rest to MKL."""


def given(rows):
    random = torch.Generator().manual_seed(rows)
    shapes = (rows, 96), (128, 96), (128,)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in shapes]


def close(ours, wanted):
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", ROWS)
def test_a_linear_map_and_its_gradients_are_torch_s(rows):
    parts = given(rows)
    assert linear(*parts).grad_fn.name() == "_LinearBackward"
    for bias in (parts[2], None):
        some = parts[:2] if bias is None else parts
        results = []
        for function in (linear, functional.linear):
            out = function(*parts[:2], bias)
            results.append([out, *torch.autograd.grad(out.square().sum() / rows, some)])
        for ours, wanted in zip(*results, strict=True):
            close(ours, wanted)


@pytest.mark.parametrize("rows", ROWS)
def test_products_are_torch_s(rows):
    x, weight, bias = (part.detach() for part in given(rows))
    d_out = functional.linear(x, weight)
    close(map_rows(x, weight, bias), functional.linear(x, weight, bias))
    close(map_rows(d_out, weight.T), d_out @ weight)
    close(sum_products(d_out, x), d_out.T @ x)


def test_second_gradients_forward_ones_and_transforms_work():
    x, weight, bias = given(1100)

    def loss(function, x):
        return function(x, weight, bias).relu().square().sum() / 1100

    results = []
    for function in (linear, functional.linear):
        (first,) = torch.autograd.grad(loss(function, x), x, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), weight)
        tangent = torch.autograd.forward_ad
        with tangent.dual_level():
            pair = tangent.make_dual(x.detach(), torch.ones_like(x))
            forward = tangent.unpack_dual(function(pair, weight.detach(), bias.detach())).tangent
        inner = torch.func.grad(lambda x, function=function: loss(function, x))(x.detach())
        results.append([first, *second, forward, inner])
    for ours, wanted in zip(*results, strict=True):
        close(ours, wanted)


def test_few_rows_other_dtypes_and_autocast_are_left_to_torch():
    x, weight, bias = given(1024)
    assert linear(x[:100], weight, bias).grad_fn.name() == "AddmmBackward0"
    double = linear(x.double(), weight.double(), bias.double())
    assert double.grad_fn.name() == "AddmmBackward0"
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
