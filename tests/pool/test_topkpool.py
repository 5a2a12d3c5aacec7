"""TopKPool against its equations, node by node, and against PyG's TopKPooling."""

import math

import pytest
import torch
from contract import (
    CHANNELS,
    Graphs,
    close,
    compare,
    compare_with_pyg,
    drawn,
    pack,
    pooler,
    ragged,
    ring,
    sample_batch,
)
from hypothesis import given
from reference_sample import sample
from torch import Tensor
from torch_geometric.nn import TopKPooling

from gtpool.ops.packed import PackedGraph
from gtpool.ops.sample import round_scores
from gtpool.pool.topkpool import TopKPool


def naive_layer(pool: TopKPool, graphs: Graphs, attn: Tensor | None):
    """Compute the layer one node at a time: features, scores, kept nodes and kept edges."""
    seen = graphs.x if attn is None else attn
    length = sum(entry * entry for entry in pool.direction) ** 0.5
    y = [sum(row[c] * pool.direction[c] for c in range(CHANNELS)) / length for row in seen]
    gate = [value.tanh() for value in y]
    by = round_scores(torch.stack(y if pool.sampler == "topk" else gate))
    kept = sample(pool.sampler, by, graphs.batch.bincount().tolist(), pool.ratio, order=pool.order)
    x = torch.stack([graphs.x[node] * gate[node] for node in kept])
    edges = [
        [kept.index(source), kept.index(target)]
        for source, target in graphs.edge_index.T.tolist()
        if source in kept and target in kept
    ]
    return x, torch.stack([gate[node] for node in kept]), kept, edges


@pytest.mark.parametrize(
    ("sampler", "order", "with_attn"),
    [("topk", "index", True), ("rws", "score", False), ("rwsv", "index", True)],
)
def test_layer_equals_naive_layer(sampler, order, with_attn):
    pool = made(sampler=sampler, order=order)

    @drawn
    @given(ragged())
    def check(graphs):
        attn = graphs.x.roll(1, 1).requires_grad_() if with_attn else None
        asking = [graphs.x.requires_grad_(), pool.direction]
        asking += [] if attn is None else [attn]
        out = pool(*graphs, attn)
        x, score, kept, edges = naive_layer(pool, graphs, attn)
        assert out.perm.tolist() == kept
        assert out.edge_index.T.tolist() == edges
        compare((out.x, out.score), (x, score), asking)

    check()


@pytest.mark.parametrize("act", ["tanh", "sigmoid"])
def test_layer_equals_that_of_pyg_with_the_same_weight(act):
    ours, theirs = made(act=act), TopKPooling(CHANNELS, nonlinearity=act).double()
    theirs.select.load_state_dict({"weight": ours.direction.detach()[None]})

    @drawn
    @given(ragged())  # random features: no two scores are equal
    def check(graphs):
        compare_with_pyg(ours, theirs, graphs, [ours.direction], [theirs.select.weight])

    check()


@pytest.mark.parametrize("sampler", ["topk", "rws", "rwsv"])
def test_the_direction_learns_and_only_its_direction_matters(sampler):
    pool, graphs = made(sampler=sampler), sample_batch()
    before = pool(*graphs)
    before.x.sin().sum().backward()
    assert [name for name, _ in pool.named_parameters()] == ["direction"]
    gradient = pool.direction.grad
    assert gradient.abs().min() > 1e-6
    close(gradient @ pool.direction, torch.zeros((), dtype=torch.double))
    with torch.no_grad():
        pool.direction.mul_(7)
    assert torch.equal(before.perm, pool(*graphs).perm)
    close(before.x, pool(*graphs).x)


def test_top_k_tells_nodes_apart_where_tanh_no_longer_does():
    graphs = pack([(40, ring(40))], seed=0, dtype=torch.float32)
    pool = made(ratio=0.25).float()
    small, large = pool(*graphs), pool(graphs.x * 1000, *graphs[1:])
    assert small.score.unique().numel() == 10
    assert large.score.unique().tolist() == [1]
    assert large.perm.tolist() == small.perm.tolist() != list(range(10))


@pytest.mark.parametrize("sampler", ["rws", "rwsv"])
def test_a_wheel_shares_itself_by_the_gate_and_not_by_the_projection(sampler):
    x = torch.tensor([[1.0], [9.0], [1.0], [1.0], [1.0], [1.0]], dtype=torch.double)
    pool = TopKPool(1, ratio=0.5, sampler=sampler).double()
    torch.nn.init.ones_(pool.direction)
    kept = pool(x, torch.empty(2, 0, dtype=torch.long)).perm.tolist()
    by_gate, by_projection = (sample(sampler, by, [6], 0.5) for by in (x[:, 0].tanh(), x[:, 0]))
    assert kept == by_gate != by_projection


def test_score_is_the_gate_by_hand():
    x = torch.tensor([[3.0, 4.0], [0.0, 5.0], [-5.0, 0.0]])
    pool = TopKPool(2, ratio=2)
    pool.load_state_dict({"direction": torch.tensor([30.0, 40.0])})
    out = pool(x, torch.tensor([[0, 1, 2], [1, 0, 0]]))
    y = [5.0, 4.0]  # (3, 4) and (0, 5) along (0.6, 0.8)
    assert out.perm.tolist() == [0, 1]
    assert out.edge_index.tolist() == [[0, 1], [1, 0]]
    assert out.score.tolist() == pytest.approx([math.tanh(value) for value in y])
    close(out.x, x[:2] * torch.tensor(y).tanh()[:, None])


def made(*, ratio: float = 0.5, **options) -> TopKPool:
    """Make a layer whose direction is always the same."""
    return pooler(lambda width, share: TopKPool(width, share, **options), ratio)


def test_one_node_and_all_nodes_are_two_ratios_on_one_layout():
    graph = PackedGraph.of(torch.tensor([[0], [1]]), torch.tensor([0, 0, 0, 1, 1]))
    x = torch.randn(5, 4)
    for ratio, kept in ((1, 2), (1.0, 5)):
        out = TopKPool(4, ratio).pool(x, graph)
        assert out.x.size(0) == out.graph.rows.num_rows == kept
