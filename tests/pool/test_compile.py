"""torch.compile of a user's network: one break per pooler, and no storm of compilations."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch_geometric.nn import GraphConv, SAGPooling, TopKPooling, global_mean_pool

from gtpool import GTPool, SelectRWS, SelectRWSV
from gtpool.pool import POOLS

WIDTH = 8
GRAPHS = (7, 5, 9, 1, 12, 3, 2, 1, 4, 6, 1, 8, 10, 11, 13, 14, 15, 16, 17, 18)
"""Graphs of twenty batches; the three of one graph have 2, 1 and 9 nodes."""
ALONE = {3: 2, 7: 1, 10: 9}


class Network(nn.Module):
    """A network of somebody who uses PyG; in a loop, torch would compile no layer at all."""

    def __init__(self, pool):
        super().__init__()
        self.conv1, self.pool1 = GraphConv(WIDTH, WIDTH), pool
        self.conv2, self.pool2 = GraphConv(WIDTH, WIDTH), copy.deepcopy(pool)
        self.conv3, self.head = GraphConv(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x, edge_index, batch, graphs):
        x = self.conv1(x, edge_index).relu()
        x, edge_index, _, batch, *_ = self.pool1(x, edge_index, None, batch)
        x = self.conv2(x, edge_index).relu()
        x, edge_index, _, batch, *_ = self.pool2(x, edge_index, None, batch)
        x = self.conv3(x, edge_index).relu()
        return self.head(global_mean_pool(x, batch, graphs))


def in_pyg(pool, select):
    pool.select = select
    return pool


POOLERS = {
    "gtpool": lambda: GTPool(WIDTH),
    "gtpool gated, two heads": lambda: GTPool(WIDTH, gate="tanh", heads=2, order="score"),
    "TopKPooling, RWS": lambda: in_pyg(TopKPooling(WIDTH), SelectRWS(WIDTH)),
    "SAGPooling, RWSV": lambda: in_pyg(SAGPooling(WIDTH), SelectRWSV(1)),
    "sagpool": lambda: POOLS["sagpool"](WIDTH, 0.5),
    "mincutpool": lambda: POOLS["mincutpool"](WIDTH, 4),
    "kmis": lambda: POOLS["kmis"](WIDTH),
    "haarpool": lambda: POOLS["haarpool"](WIDTH, 1),
}
"""A pooler of each base class, and PyG's with our samplers."""
OURS = [
    pytest.param(name, marks=[] if name == "gtpool" else pytest.mark.slow)
    for name in POOLERS
    if "Pooling" not in name  # PyG filters the edges with a break of its own
]


def batches():
    random = torch.Generator().manual_seed(0)
    for number, graphs in enumerate(GRAPHS):
        sizes = torch.randint(2, 12, (graphs,), generator=random)
        sizes = torch.tensor([ALONE[number]]) if graphs == 1 else sizes
        batch = torch.arange(graphs).repeat_interleave(sizes)
        node = torch.arange(batch.numel())
        first = sizes.cumsum(0) - sizes
        following = first[batch] + (node - first[batch] + 1) % sizes[batch]
        some = following != node
        edges = torch.stack([node[some], following[some]])
        edges = torch.cat([edges, edges.flip(0)], 1)
        yield torch.randn(batch.numel(), WIDTH, generator=random), edges, batch, graphs


def assert_equal_on_all(network, compiled):
    for x, *graphs in batches():
        results = []
        for called in (network, compiled):
            called.zero_grad()
            inputs = x.clone().requires_grad_()
            out = called(inputs, *graphs)
            out.square().sum().backward()
            grads = [p.grad for p in called.parameters() if p.grad is not None]
            results.append([out.detach(), inputs.grad, *grads])
        for eager, ours in zip(*results, strict=True):
            torch.testing.assert_close(eager, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_a_pooler_is_one_break_and_batches_of_other_sizes_compile_nothing_more(name):
    torch.manual_seed(0)
    network = Network(POOLERS[name]())
    torch.compiler.reset()
    counters.clear()
    compiled = torch.compile(copy.deepcopy(network), dynamic=True, backend="eager")
    compiled(*next(batches()))
    assert counters["stats"]["unique_graphs"] == 3  # before, between and after two poolers
    assert sum(counters["graph_break"].values()) == 2
    assert_equal_on_all(network, compiled)
    special = counters["stats"]["unique_graphs"]  # one graph, one node, no edges
    assert special <= 12
    assert_equal_on_all(network, compiled)
    assert counters["stats"]["unique_graphs"] == special
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gtpool", "TopKPooling, RWS", "SAGPooling, RWSV", "mincutpool"])
def test_inductor_gives_what_eager_gives_on_twenty_sizes(name, inductor):
    torch.manual_seed(0)
    network = Network(POOLERS[name]())
    compiled = torch.compile(copy.deepcopy(network), dynamic=True, backend=inductor)
    assert_equal_on_all(network, compiled)
