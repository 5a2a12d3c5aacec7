"""The read-out against its equations, written out with one matrix a graph, and what it promises."""

import copy
import math
import pickle

import pytest
import torch
from both_forms import train_both_forms
from contract import (
    CHANNELS,
    Graphs,
    apart,
    close,
    drawn,
    nodes_of,
    pack,
    ragged,
    ring,
    sample_batch,
    shuffled,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gtpool.model.graphtrans import GraphTrans
from gtpool.ops.packed import PackedGraph

WIDTH = 8
OPTIONS = [
    {},
    {"layers": 1},
    {"layers": 2, "heads": 1, "feed_channels": 3},
    {"layers": 3, "heads": 8},
]
SIZES = [1, 300, 2, 37, 5]


def made(*, channels=CHANNELS, width=WIDTH, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    return GraphTrans(channels, width, **options).to(dtype).eval()


def read(module: nn.Module, graphs: Graphs) -> Tensor:
    return module(graphs.x, PackedGraph.of(graphs.edge_index, graphs.batch))


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
        module = made(**options)
        asking = [graphs.x.requires_grad_(), *module.parameters()]
        ours, theirs = (
            [out, *torch.autograd.grad(out.sin().sum(), asking)]
            for out in (read(module, graphs), naive(module, graphs))
        )
        assert ours[0].shape == (len(nodes_of(graphs)), module.out_channels)
        for mine, its in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-9)

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_graph_alone_and_among_much_larger_ones_reads_the_same(dtype):
    module = made(dtype=dtype)
    graphs = pack([(n, ring(n)) for n in SIZES], seed=0, dtype=dtype)
    together = read(module, graphs)
    for number, alone in enumerate(apart(graphs)):
        close(together[number], read(module, alone)[0])


def test_other_numbers_for_the_nodes_read_the_same():
    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs, random):
        module = made()
        close(read(module, graphs), read(module, shuffled(graphs, random)[1]))

    check()


def test_every_node_counts_however_far_and_edges_do_not():
    module, graphs = made(), pack([(30, ring(30))], seed=0)
    graphs.x.requires_grad_()
    out = read(module, graphs)
    assert torch.autograd.grad(out.sin().sum(), graphs.x)[0].any(1).all()
    assert torch.equal(out, read(module, graphs._replace(edge_index=graphs.edge_index[:, :0])))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_gradient_reaches_every_parameter_that_the_token_needs(options):
    module = made(**options)
    read(module, sample_batch()).sin().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 1e-7, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_runs_on_graphs_of_very_different_sizes(dtype):
    module = made(dtype=dtype)
    graphs = pack([(n, ring(n)) for n in SIZES], seed=0, dtype=dtype)
    graphs.x.requires_grad_()
    out = read(module, graphs)
    out.tanh().sum().backward()
    assert out.dtype == dtype
    for value in (out, graphs.x.grad, *(p.grad for p in module.parameters())):
        assert value.isfinite().all()
    exact = read(module.double(), graphs._replace(x=graphs.x.detach().double()))
    assert (out - exact).norm() <= 0.1 * exact.norm()


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


def test_copies_read_the_same_and_reset_draws_anew():
    module, other, graphs = made(), made(seed=1), sample_batch()
    before = read(module, graphs)
    assert not torch.equal(before, read(other, graphs))
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # noqa: S301
        assert torch.equal(before, read(twin, graphs))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7)
    for twin in (module, other):
        torch.manual_seed(0)
        twin.reset_parameters()
    assert not any((parameter == 7).any() for parameter in module.parameters())
    assert torch.equal(read(module, graphs), read(other, graphs))


def test_compiled_equals_eager():
    eager, graphs = made(), sample_batch()
    torch.compiler.reset()
    runs = []
    for module in (eager, torch.compile(copy.deepcopy(eager), backend="aot_eager")):
        out = read(module, graphs)
        out.sin().sum().backward()
        runs.append([out, *(p.grad for p in module.parameters())])
    for plain, compiled in zip(*runs, strict=True):
        close(plain, compiled)


def test_autocast_gives_what_float32_gives():
    module, graphs = made(dtype=torch.float32), sample_batch(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = read(module, graphs)
    found.float().sum().backward()
    assert all(part.grad.isfinite().all() for part in module.parameters())
    torch.testing.assert_close(found.float(), read(module, graphs), rtol=0.1, atol=0.1)


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
