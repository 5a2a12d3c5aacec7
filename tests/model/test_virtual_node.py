from dataclasses import replace

import pytest
import torch
from both_forms import train_both_forms
from torch import nn

from gtpool.data.sources import load
from gtpool.model.classifier import Classifier
from gtpool.model.virtual_node import VirtualNode
from gtpool.ops.packed import PackedGraph
from gtpool.spec import ModelSpec, ShapeSpec
from gtpool.study.inputs import shape_of

SPEC = ModelSpec(width=4, norm="layer", residual=True, virtual_node=True)
GRAPHS = PackedGraph.of(torch.empty(2, 0, dtype=torch.long), torch.tensor([0, 0, 1, 1, 1]))


@pytest.fixture(scope="module")
def mutag():
    data = load("MUTAG")
    return replace(data, x=data.x.double())


def make(widths=(4, 4, 4)):
    torch.manual_seed(0)
    module = VirtualNode(SPEC, widths).double()
    nn.init.normal_(module.start)
    return module


def naive(module, x, held, number):
    """OGB's formulas, graph by graph."""
    nodes = [x[:2] + held[0], x[2:] + held[1]]
    update, after = module.updates[number], []
    for v, rows in zip(held, nodes, strict=True):
        h = v + rows.sum(0)
        for linear, norm in zip(update.maps, update.norms, strict=True):
            h = norm(linear.weight @ h + linear.bias).relu()
        after.append(h + v if update.residual else h)
    return torch.cat(nodes), torch.stack(after)


def test_messages_and_gradients_are_those_of_ogb_s_formulas():
    module = make()
    x = torch.randn(2, 5, 4, dtype=torch.double, requires_grad=True)
    results = []
    for ours in (True, False):
        held, seen = None if ours else module.start.expand(2, -1), []
        for number in range(2):
            if ours:
                h, held = module(x[number], GRAPHS, held, number)
            else:
                h, held = naive(module, x[number], held, number)
            seen += [h, held]
        grads = torch.autograd.grad(sum(part.sin().sum() for part in seen), (x, *parts(module)))
        results.append([*seen, *grads])
    torch.testing.assert_close(*results)


def parts(module):
    return tuple(module.parameters())


def test_it_has_the_width_of_each_convolution_s_input_and_ends_before_the_last():
    module = make((3, 4, 8))
    h, held = module(torch.randn(5, 3).double(), GRAPHS, None, 0)
    assert (h.shape, held.shape) == ((5, 3), (2, 4))
    h, held = module(torch.randn(5, 4).double(), GRAPHS, held, 1)
    assert (h.shape, held.shape) == ((5, 4), (2, 8))
    h, last = module(torch.randn(5, 8).double(), GRAPHS, held, 2)
    assert h.shape == (5, 8)
    assert last is held


def test_it_joins_nodes_that_no_edge_joins_and_no_graphs(mutag):
    torch.manual_seed(0)
    options = {"pool": "none", "conv": "linear", "convs_per_level": 2, "virtual_node": True}
    model = Classifier(ModelSpec(width=8, levels=1, **options), shape_of(mutag)).double().eval()
    blocks, virtual, graphs = model.levels[0], model.virtual_node, mutag.take([0, 1])
    x = graphs.x.clone().requires_grad_()
    packed = PackedGraph.of(graphs.edge_index, graphs.batch)
    h, held = virtual(x, packed, None, 0)
    h, _ = virtual(blocks[0](h, packed), packed, held, 1)
    (grad,) = torch.autograd.grad(h[0].sin().sum(), x)  # of the first node of the first graph
    first = graphs.batch == 0
    assert (grad[first].abs().sum(1) > 0).all()
    assert not grad[~first].any()


def test_it_travels_on_to_pooled_graphs(mutag):
    model = Classifier(ModelSpec(width=8, virtual_node=True), shape_of(mutag)).double()
    model.learn(mutag.take([0, 5, 9], model.ratios))[0].sin().sum().backward()
    assert len(model.virtual_node.updates) == 2
    assert all(part.grad.abs().sum() > 0 for part in model.virtual_node.parameters())


def test_the_order_of_nodes_does_not_matter(mutag):
    torch.manual_seed(0)
    options = {"pool": "none", "conv": "gin", "norm": "batch", "virtual_node": True, "ffn": True}
    model = Classifier(ModelSpec(width=8, levels=2, **options), shape_of(mutag)).double().eval()
    graph = mutag.take([4])
    order = torch.randperm(graph.x.size(0))
    moved = order.argsort()[graph.edge_index]
    found, wanted = model(graph.x[order], moved), model(graph.x, graph.edge_index)
    torch.testing.assert_close(found, wanted)


def test_both_forms_train_alike():
    options = {"norm": "batch", "residual": True, "ffn": True, "block_dropout": 0.2}
    eager, captured = train_both_forms(virtual_node=True, conv="gin", **options)
    assert eager == pytest.approx(captured, rel=1e-3)
    assert eager[1] < eager[0]


def test_a_single_convolution_is_refused():
    spec = ModelSpec(width=8, levels=1, virtual_node=True)
    with pytest.raises(ValueError, match="virtual_node needs at least two convolutions"):
        Classifier(spec, ShapeSpec(outputs=2, node_width=3))
