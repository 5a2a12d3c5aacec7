from dataclasses import replace

import pytest
import torch
from both_forms import train_both_forms
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from gtpool.data.device_dataset import DeviceDataset
from gtpool.data.sources import load
from gtpool.model.classifier import Classifier
from gtpool.model.dmpnn import DMPNN
from gtpool.ops.aggregate import Edges
from gtpool.ops.directed_edges import DirectedEdges
from gtpool.ops.packed import PackedGraph
from gtpool.spec import ModelSpec, ShapeSpec

RING = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
SHAPES = {
    "codes": {"edge_categories": (3, 2)},
    "numbers": {"edge_width": 3},
    "no features": {},
}


def make(kind, width=6):
    torch.manual_seed(0)
    return DMPNN(4, width, ShapeSpec(outputs=2, node_width=4, **SHAPES[kind])).double()


def features(kind, edges):
    if kind == "codes":
        return torch.stack([torch.randint(3, (edges,)), torch.randint(2, (edges,))], 1)
    return torch.randn(edges, 3).double() if kind == "numbers" else None


def on(edges, nodes, edge_attr=None):
    return PackedGraph.of(edges, torch.zeros(nodes, dtype=torch.long), edge_attr)


def encoded(conv, codes_or_numbers):
    """Give W_e e of one edge."""
    if conv.edges is None:
        return 0.0
    if codes_or_numbers.is_floating_point():
        return conv.edges.weight @ codes_or_numbers
    tables = conv.edges.table.weight.split(conv.edges.sizes)
    return sum(table[code] for table, code in zip(tables, codes_or_numbers.tolist(), strict=True))


def naive(conv, x, edge_index, edge_attr):
    """The formulas of the paper, edge by edge."""
    edges = list(zip(*edge_index.tolist(), strict=True))
    attr = [None] * len(edges) if edge_attr is None else edge_attr
    pairs = zip(edges, attr, strict=True)
    first = [torch.relu(conv.source.weight @ x[i] + encoded(conv, e)) for (i, _), e in pairs]
    h, zero = first, x.new_zeros(conv.node.out_features)
    for _ in range(conv.steps):
        messages = [
            sum((h[k] for k, (m, n) in enumerate(edges) if n == i and m != j), zero)
            for i, j in edges
        ]
        h = [
            torch.relu(one + conv.message_map.weight @ m)
            for one, m in zip(first, messages, strict=True)
        ]
    out = []
    for node, row in enumerate(x):
        entering = sum((h[k] for k, (_, n) in enumerate(edges) if n == node), zero)
        out.append(conv.node.weight @ torch.cat([row, entering]) + conv.node.bias)
    return torch.stack(out)


@pytest.mark.parametrize("kind", SHAPES)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=9),
    both=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_outputs_and_gradients_are_those_of_the_paper_s_formulas(kind, pairs, both):
    pairs = pairs + [(j, i) for i, j in pairs] if both else pairs
    edges = torch.tensor(pairs, dtype=torch.long).view(-1, 2).T
    conv, attr = make(kind), features(kind, edges.size(1))
    x = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    found, wanted = conv(x, on(edges, 5, attr)), naive(conv, x, edges, attr)
    torch.testing.assert_close(found, wanted)
    leaves, sent = (x, *conv.parameters()), torch.randn_like(found)
    grads = [
        torch.autograd.grad(out, leaves, sent, allow_unused=True, materialize_grads=True)
        for out in (found, wanted)
    ]
    torch.testing.assert_close(*grads)


def test_no_message_returns_along_its_own_edge():
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    h = torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    messages = DirectedEdges.of(Edges(path, 3)).total_before(h)
    assert messages.flatten().tolist() == [0.0, 1000.0, 1.0, 0.0]


def test_the_order_of_nodes_and_edges_does_not_matter():
    conv, x, attr = make("codes"), torch.randn(3, 4).double(), features("codes", 6)
    nodes, order = torch.tensor([2, 0, 1]), torch.randperm(6)
    moved = nodes.argsort()[RING[:, order]]
    found = conv(x[nodes], on(moved, 3, attr[order]))
    torch.testing.assert_close(found, conv(x, on(RING, 3, attr))[nodes])


def test_an_explainer_s_mask_scales_what_edges_carry():
    conv, x, attr = make("numbers"), torch.randn(3, 4).double(), features("numbers", 6)
    keep = torch.tensor([True, True, False, True, False, False])
    whole = conv(x, on(RING, 3, attr))
    mask = keep.double().requires_grad_()
    set_masks(conv, mask, RING, apply_sigmoid=False)
    masked = conv(x, on(RING, 3, attr))
    torch.testing.assert_close(masked, naive(conv, x, RING[:, keep], attr[keep]))
    assert torch.autograd.grad(masked.sin().sum(), mask)[0].abs().min() > 0
    clear_masks(conv)
    torch.testing.assert_close(conv(x, on(RING, 3, attr)), whole)


def test_both_forms_train_alike():
    eager, captured = train_both_forms(conv="dmpnn", norm="batch", residual=True)
    assert eager == pytest.approx(captured, rel=1e-4)
    assert eager[1] < eager[0]


@pytest.mark.parametrize(
    ("shape", "reads"),
    [({}, False), ({"edge_width": 4}, True), ({"edge_categories": (3,)}, True)],
)
def test_edge_features_are_read_where_the_data_has_them(shape, reads):
    shape = ShapeSpec(outputs=2, node_width=7, **shape)
    model = Classifier(ModelSpec(width=8, conv="dmpnn"), shape)
    assert model.uses_edge_features == reads
    assert model.edge_categories == shape.edge_categories
    assert model.reads_edge_numbers == bool(shape.edge_width)
    if reads:
        with pytest.raises(ValueError, match="edge_attr must be"):
            model(torch.randn(3, 7), RING)


def test_edges_of_clusters_are_refused():
    shape = ShapeSpec(outputs=2, node_width=7, mean_nodes=8)
    with pytest.raises(ValueError, match="edges have weights, which conv 'dmpnn' cannot use"):
        Classifier(ModelSpec(width=8, conv="dmpnn", pool="diffpool"), shape)


def test_a_padded_batch_has_the_reverse_edges_of_the_graphs():
    data = load("MUTAG")
    stock, index = DeviceDataset.of(replace(data, x=data.x.double())), torch.tensor([[0, 3, -1]])
    batch = stock.gather(index, stock.capacity(index, ()), ())
    edges = DirectedEdges.of(batch.csr)
    assert edges.counts.sum() == data.edge_counts[[0, 3]].sum()
    assert torch.equal(edges.reversed, edges.counts)  # molecules: each bond in both directions
    back = edges.group.argsort()[edges.reverse][edges.counts]
    here = edges.counts
    assert torch.equal(edges.source[back], edges.target[here])
    assert torch.equal(edges.target[back], edges.source[here])
