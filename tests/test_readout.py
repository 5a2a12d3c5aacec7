import pytest
import torch

from gtpool.model.readout import READOUTS

LOOPS = {
    "mean": lambda rows: [sum(column) / len(column) for column in zip(*rows, strict=True)],
    "max": lambda rows: [max(column) for column in zip(*rows, strict=True)],
    "sum": lambda rows: [sum(column) for column in zip(*rows, strict=True)],
    "mean-max": lambda rows: LOOPS["mean"](rows) + LOOPS["max"](rows),
}


def test_all_readouts_have_a_loop():
    assert LOOPS.keys() == READOUTS.keys()


@pytest.mark.parametrize("name", READOUTS)
def test_readout_against_a_loop_over_graphs(name):
    readout, times = READOUTS[name]
    sizes = [3, 1, 6]
    x = torch.randn(10, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    batch = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    read = readout(x, batch, 3)
    assert read.shape == (3, 4 * times)
    expected = [LOOPS[name](part.tolist()) for part in x.split(sizes)]
    torch.testing.assert_close(read, torch.tensor(expected, dtype=torch.double))


@pytest.mark.parametrize("name", READOUTS)
def test_readout_of_negative_nodes_is_not_cut_at_zero(name):
    readout, _ = READOUTS[name]
    assert (readout(-torch.ones(2, 3), torch.zeros(2, dtype=torch.long), 1) < 0).all()


@pytest.mark.parametrize("name", READOUTS)
def test_gradient_reaches_the_nodes(name):
    readout, _ = READOUTS[name]
    x = torch.randn(5, 2, dtype=torch.double, requires_grad=True)
    batch = torch.tensor([0, 0, 1, 1, 1])
    assert torch.autograd.gradcheck(lambda x: readout(x, batch, 2), (x,))
