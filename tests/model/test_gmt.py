"""The read-out against its equations, written out with one matrix a graph, and what it promises."""

import copy
import math
import pickle

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, nodes_of, pack, ragged, ring, sample_batch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gtpool.model.gmt import GMT
from gtpool.ops.packed import PackedGraph

WIDTH = 4
OPTIONS = [
    {},
    {"layer_norm": True},
    {"heads": 2},
    {"heads": 4, "layer_norm": True, "seeds": 2},
    {"seeds": 1},
    {"seeds": 12, "heads": 2},
    {"width": 16, "heads": 2, "layer_norm": True},
]
SIZES = [1, 300, 2, 37, 5]


def made(*, channels=CHANNELS, width=WIDTH, seeds=3, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    return GMT(channels, width, seeds, **options).to(dtype)


def read(module: nn.Module, graphs: Graphs) -> Tensor:
    return module(graphs.x, PackedGraph.of(graphs.edge_index, graphs.batch))


def naive(module: GMT, graphs: Graphs) -> Tensor:
    """Read out graph by graph, with the matrices of the paper."""
    rows = []
    for nodes in nodes_of(graphs):
        x, mixing = graphs.x[nodes], normalised(graphs, nodes)
        h = block(module.gather, module.heads, module.seeds, x, mixing)
        h = block(module.mix, module.heads, h, h)
        h = block(module.total, module.heads, module.seed, h)
        rows.append(module.project.weight @ h[0] + module.project.bias)
    return torch.stack(rows)


def normalised(graphs: Graphs, nodes: list[int]) -> Tensor:
    """Give D^-1/2 (A + I) D^-1/2, row i the nodes with an edge to i; loops count once."""
    adjacency = torch.eye(len(nodes), dtype=torch.float64)
    for source, target in graphs.edge_index.T.tolist():
        if target in nodes and source != target:
            adjacency[target - nodes[0], source - nodes[0]] += 1
    root = adjacency.sum(1).sqrt()
    return adjacency / root[:, None] / root[None, :]


def block(part: nn.Module, heads: int, queries: Tensor, x: Tensor, mixing=None) -> Tensor:
    """Attend from each query to all rows of x, head by head; then the row-wise network."""
    q, v = linear(part.query, queries), linear(part.value, x, mixing)
    k = torch.zeros_like(v) if part.key is None else linear(part.key, x, mixing)
    attended = []
    for head in torch.arange(q.size(1)).chunk(heads):
        weight = (q[:, head] @ k[:, head].T / math.sqrt(q.size(1))).exp()
        attended.append(weight / weight.sum(0) @ v[:, head])  # a row's weights sum to one
    z = normed(part.inner, q + torch.cat(attended, 1))
    return normed(part.outer, z + linear(part.feed, z).clamp(min=0))


def linear(part: nn.Module, x: Tensor, mixing: Tensor | None = None) -> Tensor:
    if isinstance(part, GCNConv):
        return mixing @ x @ part.lin.weight.T + part.bias
    return x @ part.weight.T + part.bias


def normed(part: nn.Module, x: Tensor) -> Tensor:
    if isinstance(part, nn.Identity):
        return x
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
            torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-10)

    check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_graph_alone_and_among_much_larger_ones_reads_the_same(options, dtype):
    module = made(dtype=dtype, **options)
    graphs = pack([(n, ring(n)) for n in SIZES], seed=0, dtype=dtype)
    together = read(module, graphs)
    for number, nodes in enumerate(nodes_of(graphs)):
        inside = graphs.batch[graphs.edge_index[0]] == number
        edges = graphs.edge_index[:, inside] - nodes[0]
        alone = Graphs(graphs.x[nodes], edges, None, torch.zeros(len(nodes), dtype=torch.long))
        close(together[number], read(module, alone)[0])


def test_other_numbers_for_nodes_and_edges_read_the_same():
    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs, random):
        old = torch.tensor([i for part in nodes_of(graphs) for i in random.sample(part, len(part))])
        edges = old.argsort()[graphs.edge_index]
        order = random.sample(range(edges.size(1)), edges.size(1))
        shuffled = graphs._replace(x=graphs.x[old], edge_index=edges[:, order])
        module = made(heads=2)
        close(read(module, graphs), read(module, shuffled))

    check()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_runs_on_graphs_of_very_different_sizes(dtype, options):
    module = made(dtype=dtype, **options)
    graphs = pack([(n, ring(n)) for n in SIZES], seed=0, dtype=dtype)
    graphs.x.requires_grad_()
    out = read(module, graphs)
    out.tanh().sum().backward()
    assert out.dtype == dtype
    for value in (out, graphs.x.grad, *(p.grad for p in module.parameters())):
        assert value.isfinite().all()
    exact = read(module.double(), graphs._replace(x=graphs.x.detach().double()))
    assert (out - exact).norm() <= 0.1 * exact.norm()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_gradient_reaches_every_parameter_and_every_node(options):
    # Wide, so that seeds differ in the units that ReLU cuts: else the shares of mix cancel.
    graphs = sample_batch()
    x = torch.randn(len(graphs.x), 48, generator=torch.Generator().manual_seed(0)).double()
    graphs = graphs._replace(x=x.requires_grad_())
    module = made(**({"width": 16} | options), channels=48)
    read(module, graphs).sin().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad.abs().max() > 1e-6, name
    assert x.grad.any(1).all()


def test_nodes_without_edges_and_graphs_of_one_node_read_finite():
    odd = [(1, []), (1, [(0, 0)]), (4, []), (5, [(0, 1)]), (2, [(0, 0), (1, 1)])]
    for graphs in [*([graph] for graph in odd), odd]:
        packed = pack(graphs, seed=0)
        packed.x.requires_grad_()
        out = read(made(), packed)
        out.sum().backward()
        assert out.shape == (len(graphs), WIDTH)
        assert out.isfinite().all()
        assert packed.x.grad.isfinite().all()


def test_edges_count():
    module, joined, apart = made(), pack([(5, ring(5))], seed=0), pack([(5, [])], seed=0)
    assert torch.equal(joined.x, apart.x)
    assert (read(module, joined) - read(module, apart)).abs().max() > 1e-3


def test_a_graph_and_two_copies_of_it_are_told_apart():
    once, nodes = pack([(5, ring(5))], seed=0), torch.arange(5)
    edges = torch.cat([once.edge_index, once.edge_index + 5], 1)
    twice = Graphs(once.x[nodes.repeat(2)], edges, None, once.batch.repeat(2))
    module = made()
    assert (read(module, once) - read(module, twice)).abs().max() > 1e-2


def test_same_seed_same_bits():
    runs = []
    for _ in range(2):
        module, graphs = made(dtype=torch.float32), sample_batch(torch.float32)
        out = read(module, graphs)
        out.sin().sum().backward()
        runs.append([out, *(p.grad for p in module.parameters())])
    assert all(map(torch.equal, *runs))


def test_copies_read_the_same_and_reset_draws_anew():
    module, other, graphs = made(layer_norm=True), made(layer_norm=True, seed=1), sample_batch()
    before = read(module, graphs)
    assert not torch.equal(before, read(other, graphs))
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # noqa: S301
        assert torch.equal(before, read(twin, graphs))
    old = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7)
    torch.manual_seed(0)
    module.reset_parameters()
    assert not any((parameter == 7).any() for parameter in module.parameters())
    torch.manual_seed(0)
    other.reset_parameters()
    assert torch.equal(read(module, graphs), read(other, graphs))
    assert not torch.equal(old["seeds"], module.seeds)


def test_compiled_equals_eager():
    eager, graphs = made(heads=2), sample_batch()
    torch.compiler.reset()
    runs = []
    for module in (eager, torch.compile(copy.deepcopy(eager), backend="aot_eager")):
        out = read(module, graphs)
        out.sin().sum().backward()
        runs.append([out, *(p.grad for p in module.parameters())])
    for plain, compiled in zip(*runs, strict=True):
        close(plain, compiled)


def test_repr_names_the_choices():
    assert repr(made(heads=2)) == "GMT(8, 4, seeds=3, heads=2, layer_norm=False)"


def test_one_seed_has_no_keys():
    def keys(module):
        return {name.split(".")[0] for name, _ in module.named_parameters() if ".key." in name}

    assert keys(made()) == {"gather", "mix"}
    assert keys(made(seeds=1)) == set()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"heads": 3}, "heads must divide in_channels=8 and width=4, got heads=3"),
        ({"heads": 8}, "heads must divide in_channels=8 and width=4, got heads=8"),
        ({"heads": 0}, "heads must be an int of at least 1, got 0"),
        ({"seeds": 0}, "seeds must be an int of at least 1, got 0"),
        ({"seeds": 2.5}, "seeds must be an int of at least 1, got 2.5"),
        ({"width": 0}, "width must be an int of at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        made(**options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_autocast_gives_what_float32_gives(options):
    module, graphs = made(dtype=torch.float32, **options), sample_batch(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = read(module, graphs)
    found.float().sum().backward()
    assert all(part.grad.isfinite().all() for part in module.parameters())
    torch.testing.assert_close(found.float(), read(module, graphs), rtol=0.1, atol=0.1)
