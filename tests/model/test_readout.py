from functools import partial

import pytest
import torch
from contract import CHANNELS
from readout_laws import READOUT_LAWS

from gtpool.model.gmt import GMT
from gtpool.model.graphtrans import GraphTrans
from gtpool.model.readout import READOUTS
from gtpool.model.set2set import Set2Set
from gtpool.model.sortpool import SortPool
from gtpool.ops.packed import PackedGraph
from gtpool.spec import ModelSpec, ShapeSpec

NO_EDGES = torch.empty(2, 0, dtype=torch.long)

LOOPS = {
    "mean": lambda rows: [sum(column) / len(column) for column in zip(*rows, strict=True)],
    "max": lambda rows: [max(column) for column in zip(*rows, strict=True)],
    "sum": lambda rows: [sum(column) for column in zip(*rows, strict=True)],
    "mean-max": lambda rows: LOOPS["mean"](rows) + LOOPS["max"](rows),
}


OWN_TESTS = {"set2set", "sortpool", "gmt", "graphtrans"}
WITH_WEIGHTS = {
    "set2set": partial(Set2Set, CHANNELS),
    "sortpool": partial(SortPool, CHANNELS, nodes=10),
    "gmt": partial(GMT, CHANNELS, 4, 3),
    "gmt, layer norm": partial(GMT, CHANNELS, 4, 2, heads=4, layer_norm=True),
    "gmt, one seed": partial(GMT, CHANNELS, 4, 1),
    "graphtrans": partial(GraphTrans, CHANNELS, 8),
}
LAWS = [
    (name, law)
    for name in WITH_WEIGHTS
    for law in READOUT_LAWS
    if law != "compile" or name in OWN_TESTS
    if law != "gradients" or not name.startswith("gmt")  # test_gmt.py asks more
]


def made(name, channels):
    return READOUTS[name](channels, ModelSpec(), ShapeSpec(outputs=2))


@pytest.mark.parametrize(("name", "law"), LAWS)
def test_law(name, law):
    def make(seed=0, dtype=torch.float64):
        torch.manual_seed(seed)
        return WITH_WEIGHTS[name]().to(dtype).eval()

    READOUT_LAWS[law](make)


def test_all_readouts_have_a_loop_or_a_file_of_tests():
    assert LOOPS.keys() | OWN_TESTS == READOUTS.keys()


@pytest.mark.parametrize("name", LOOPS)
def test_readout_against_a_loop_over_graphs(name):
    readout = made(name, 4)
    sizes = [3, 1, 6]
    x = torch.randn(10, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    batch = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    read = readout(x, PackedGraph.of(NO_EDGES, batch))
    assert read.shape == (3, readout.out_channels)
    expected = [LOOPS[name](part.tolist()) for part in x.split(sizes)]
    torch.testing.assert_close(read, torch.tensor(expected, dtype=torch.double))


@pytest.mark.parametrize("name", LOOPS)
def test_readout_of_negative_nodes_is_not_cut_at_zero(name):
    graph = PackedGraph.of(NO_EDGES, torch.zeros(2, dtype=torch.long))
    assert (made(name, 3)(-torch.ones(2, 3), graph) < 0).all()


@pytest.mark.parametrize("name", LOOPS)
def test_gradient_reaches_the_nodes(name):
    x = torch.randn(5, 2, dtype=torch.double, requires_grad=True)
    graph = PackedGraph.of(NO_EDGES, torch.tensor([0, 0, 1, 1, 1]))
    assert torch.autograd.gradcheck(lambda x: made(name, 2)(x, graph), (x,))


def test_nodes_that_share_the_maximum_share_its_gradient():
    x = torch.tensor([[2.0, 1.0], [2.0, 0.0], [1.0, 1.0], [5.0, 5.0]], requires_grad=True)
    graph = PackedGraph.of(NO_EDGES, torch.tensor([0, 0, 0, 1]))
    read = made("max", 2)(x, graph)
    (grad,) = torch.autograd.grad(read, x, torch.tensor([[6.0, 8.0], [1.0, 3.0]]))
    assert grad.tolist() == [[3.0, 4.0], [3.0, 0.0], [0.0, 4.0], [1.0, 3.0]]
