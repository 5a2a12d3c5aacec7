"""The read-out against its equations, written out with one matrix a graph, and what it promises."""

import math

import pytest
import torch
from both_forms import train_both_forms
from contract import (
    CHANNELS,
    Graphs,
    close,
    drawn,
    nodes_of,
    pack,
    ragged,
    ring,
    sample_batch,
)
from hypothesis import given
from readout_laws import compare_with_naive, read
from torch import Tensor, nn

from gtpool.model.graphtrans import GraphTrans

WIDTH = 8
OPTIONS = [
    {},
    {"layers": 1},
    {"layers": 2, "heads": 1, "feed_channels": 3},
    {"layers": 3, "heads": 8},
]


def made(*, channels=CHANNELS, width=WIDTH, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    return GraphTrans(channels, width, **options).to(dtype).eval()


def naive(module: GraphTrans, graphs: Graphs) -> Tensor:
    """Read out graph by graph: the token is a row beside the nodes, and a head is a loop."""
    rows = []
    for nodes in nodes_of(graphs):
        h = normed(module.entry, linear(module.project, graphs.x[nodes]))
        h = torch.cat([h, module.token[None]])
        for layer in module.layers:
            heads = []
            for q, k, v in zip(
                *(part.chunk(module.heads, 1) for part in qkv(layer, h)), strict=True
            ):
                weight = (q @ k.T / math.sqrt(q.size(1))).exp()
                heads.append(weight / weight.sum(1, keepdim=True) @ v)
            h = normed(layer.inner, h + linear(layer.out, torch.cat(heads, 1)))
            wide = linear(layer.widen, h).clamp(min=0)
            h = normed(layer.outer, h + linear(layer.narrow, wide))
        rows.append(normed(module.last, h[-1:])[0])
    return torch.stack(rows)


def qkv(layer: nn.Module, h: Tensor) -> tuple[Tensor, ...]:
    return linear(layer.qkv, h).chunk(3, 1)


def linear(part: nn.Module, x: Tensor) -> Tensor:
    return x @ part.weight.T + part.bias


def normed(part: nn.Module, x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    scale = (centred.square().mean(1, keepdim=True) + part.eps).sqrt()
    return centred / scale * part.weight + part.bias


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_readout_and_gradients_equal_the_naive_twin(options):
    @drawn
    @given(ragged())
    def check(graphs):
        compare_with_naive(made(**options), graphs, naive)

    check()


def test_one_graph_equals_the_encoder_of_pytorch():
    module, graphs = made(layers=2, heads=2), pack([(7, ring(7))], seed=0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH)).double().eval()
    for own, its in zip(module.layers, theirs.layers, strict=True):
        its.self_attn.in_proj_weight.data, its.self_attn.in_proj_bias.data = (
            part.data for part in (own.qkv.weight, own.qkv.bias)
        )
        pairs = [(its.self_attn.out_proj, own.out), (its.linear1, own.widen)]
        pairs += [(its.linear2, own.narrow), (its.norm1, own.inner), (its.norm2, own.outer)]
        for one, other in pairs:
            one.load_state_dict(other.state_dict())
    h = torch.cat([module.entry(module.project(graphs.x)), module.token[None]])
    close(read(module, graphs), theirs(h[None])[0, -1:])


def test_every_node_counts_however_far_and_edges_do_not():
    module, graphs = made(), pack([(30, ring(30))], seed=0)
    graphs.x.requires_grad_()
    out = read(module, graphs)
    assert torch.autograd.grad(out.sin().sum(), graphs.x)[0].any(1).all()
    assert torch.equal(out, read(module, graphs._replace(edge_index=graphs.edge_index[:, :0])))


def test_large_logits_stay_finite():
    module, graphs = made(dtype=torch.float32), sample_batch(torch.float32)
    with torch.no_grad():
        for layer in module.layers:
            layer.qkv.weight.mul_(300)
    graphs.x.requires_grad_()
    out = read(module, graphs)
    out.sin().sum().backward()
    assert out.isfinite().all()
    assert graphs.x.grad.isfinite().all()


def test_dropout_acts_in_training_alone():
    module, graphs = made(dropout=0.5), sample_batch()
    assert torch.equal(read(module, graphs), read(module, graphs))
    module.train()
    assert not torch.equal(read(module, graphs), read(module, graphs))


@pytest.mark.parametrize("options", [{}, {"layers": 1, "heads": 2, "dropout": 0.0}])
def test_both_forms_train_alike(options):
    eager, captured = train_both_forms(readout="graphtrans", readout_options=options)
    assert eager == pytest.approx(captured, rel=1e-4)


def test_repr_names_the_choices():
    assert repr(made(heads=2)) == "GraphTrans(8, 8, layers=4, heads=2)"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"heads": 3}, "heads must divide width=8, got heads=3"),
        ({"layers": 0}, "layers must be an int of at least 1, got 0"),
        ({"feed_channels": 0}, "feed_channels must be an int of at least 1, got 0"),
        ({"width": 0}, "width must be an int of at least 1, got 0"),
        ({"dropout": 1.5}, "dropout must lie between 0 and 1, got 1.5"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(**options)
