"""The read-out against its equations, written out with one matrix a graph, and what it promises."""

import math

import pytest
import torch
from contract import CHANNELS, Graphs, drawn, nodes_of, pack, ragged, ring, sample_batch
from hypothesis import given
from readout_laws import compare_with_naive, read
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gtpool.model.gmt import GMT

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


def made(*, channels=CHANNELS, width=WIDTH, seeds=3, dtype=torch.float64, seed=0, **options):
    torch.manual_seed(seed)
    return GMT(channels, width, seeds, **options).to(dtype)


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
        compare_with_naive(made(**options), graphs, naive)

    check()


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
