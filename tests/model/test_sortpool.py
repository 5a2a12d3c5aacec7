"""SortPool against a loop over graphs, and beside PyG's sort where that one is right."""

import copy
import pickle

import pytest
import torch
from contract import CHANNELS, Graphs, close, drawn, nodes_of, pack, ragged
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn.aggr import SortAggregation

from gtpool.model.sortpool import SortPool
from gtpool.ops.packed import PackedGraph, PackedRows
from gtpool.ops.segment import layout_from_batch


def readout(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> SortPool:
    torch.manual_seed(seed)
    return SortPool(CHANNELS, **{"nodes": 10, **options}).to(dtype)


def read(pool: SortPool, graphs: Graphs) -> Tensor:
    return pool(graphs.x, PackedGraph.of(graphs.edge_index, graphs.batch))


def with_ties(graphs: Graphs) -> Graphs:
    """Leave few values, of which the last channel has one: all its nodes tie."""
    few = graphs.x.round().clamp(-1, 1)
    return graphs._replace(x=torch.cat([few[:, :-1], torch.zeros_like(few[:, -1:])], 1))


def naive(pool: SortPool, graphs: Graphs) -> Tensor:
    """Sort, pad and convolve each graph, with the first map as the convolution of the paper."""
    first = pool.each.weight.unsqueeze(1)  # one channel in, a kernel as wide as a node
    vectors = []
    for nodes in nodes_of(graphs):
        ordered = sorted(nodes, key=lambda node: graphs.x[node].tolist()[::-1], reverse=True)
        rows = [graphs.x[node] for node in ordered][: pool.nodes]
        rows += [graphs.x.new_zeros(CHANNELS)] * (pool.nodes - len(rows))
        sequence = torch.cat(rows)[None, None]
        h = nn.functional.conv1d(sequence, first, pool.each.bias, stride=CHANNELS).relu()
        h = nn.functional.max_pool1d(h, kernel_size=2, stride=2)
        h = nn.functional.conv1d(h, pool.along.weight, pool.along.bias).relu()
        vectors.append(h.flatten())
    return torch.stack(vectors)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"nodes": 13}, {"nodes": 4, "kernel": 2, "filters": (3, 2)}],
    ids=str,
)
def test_readout_equals_a_loop_over_graphs(options, ties):
    @drawn
    @given(ragged())
    def check(graphs):
        pool = readout(**options)
        graphs = with_ties(graphs) if ties else graphs
        asking = [graphs.x.requires_grad_(), *pool.parameters()]
        ours, theirs = (
            [out, *torch.autograd.grad(out.sin().sum(), asking)]
            for out in (read(pool, graphs), naive(pool, graphs))
        )
        assert ours[0].shape == (len(nodes_of(graphs)), pool.out_channels)
        for mine, its in zip(ours, theirs, strict=True):
            close(mine, its)

    check()


@pytest.mark.parametrize("ties", [False, True])
def test_numbering_of_nodes_does_not_matter(ties):
    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs, random):
        pool = readout()
        graphs = with_ties(graphs) if ties else graphs
        old = [n for part in nodes_of(graphs) for n in random.sample(part, len(part))]
        assert torch.equal(read(pool, graphs), read(pool, graphs._replace(x=graphs.x[old])))

    check()


@pytest.mark.parametrize("ties", [False, True])
def test_a_batch_gives_what_its_graphs_give_alone(ties):
    @drawn
    @given(ragged())
    def check(graphs):
        pool = readout(nodes=4, kernel=2)
        graphs = with_ties(graphs) if ties else graphs
        whole = read(pool, graphs)
        for number, nodes in enumerate(nodes_of(graphs)):
            alone = pack([(len(nodes), [])], seed=0)._replace(x=graphs.x[nodes])
            close(whole[number], read(pool, alone)[0])

    check()


def test_order_is_pygs_where_the_last_channel_tells_nodes_apart():
    graphs = pack([(n, []) for n in (3, 20, 1, 9)], seed=0)
    ours = PackedRows(layout_from_batch(graphs.batch)).topk_rows(graphs.x, 10)
    assert torch.equal(ours.flatten(1), SortAggregation(k=10)(graphs.x, graphs.batch))


def test_ties_are_broken_by_the_channel_before_which_pyg_leaves_to_the_numbering():
    x = torch.tensor([[1.0, 2.0, 0.0], [9.0, 1.0, 0.0], [5.0, 2.0, 0.0], [0.0, 0.0, 7.0]])
    batch = torch.zeros(4, dtype=torch.long)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        ours = PackedRows(layout_from_batch(batch)).topk_rows(x[order], 4)[0]
        assert torch.equal(ours, x[[3, 2, 0, 1]])
    theirs = [SortAggregation(k=4)(x[order], batch) for order in ([0, 1, 2, 3], [2, 1, 0, 3])]
    assert not torch.equal(*theirs)


def test_low_values_are_kept_in_bf16_where_pygs_padding_swallows_them():
    x = torch.tensor([[-256.0, 1.0], [3.0, 2.0]], dtype=torch.bfloat16)
    batch = torch.zeros(2, dtype=torch.long)
    assert torch.equal(PackedRows(layout_from_batch(batch)).topk_rows(x, 2)[0], x[[1, 0]])
    assert SortAggregation(k=2)(x, batch)[0].tolist() == [3.0, 2.0, 0.0, 1.0]


def test_graphs_with_few_nodes_end_in_zeros_and_long_ones_are_cut():
    x = torch.tensor([[1.0], [-2.0], [3.0], [-1.0], [-5.0], [4.0], [0.5]])
    level = layout_from_batch(torch.tensor([0, 0, 0, 0, 0, 1, 1]))
    rows = PackedRows(level).topk_rows(x, 4).squeeze(2)
    assert rows.tolist() == [[3.0, 1.0, -1.0, -2.0], [4.0, 0.5, 0.0, 0.0]]


def test_nodes_are_raised_until_the_convolutions_fit():
    assert readout(nodes=3).nodes == 10
    assert readout(nodes=3).out_channels == 32
    assert readout(nodes=31).out_channels == 32 * 11
    assert readout(nodes=1, kernel=1).out_channels == 32


def test_a_gradient_reaches_every_parameter():
    pool, graphs = readout(), pack([(n, []) for n in (12, 1, 30)], seed=0)
    read(pool, graphs).sin().sum().backward()
    assert all(parameter.grad.any() for parameter in pool.parameters())


def test_copies_keep_the_output_and_reset_draws_anew():
    pool, other, graphs = readout(), readout(1), pack([(12, []), (3, [])], seed=0)
    before = read(pool, graphs)
    assert not torch.equal(before, read(other, graphs))
    for twin in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):  # noqa: S301
        assert torch.equal(before, read(twin, graphs))
    other.load_state_dict(pool.state_dict())
    assert torch.equal(before, read(other, graphs))
    anew = []
    for _ in range(2):
        torch.manual_seed(2)
        pool.reset_parameters()
        anew.append(read(pool, graphs))
    assert torch.equal(*anew)
    assert not torch.equal(before, anew[0])
    assert repr(pool) == "SortPool(8, nodes=10, filters=(16, 32), kernel=5)"


def test_compiled_readout_gives_what_the_readout_gives():
    plain, graphs = readout(), pack([(12, []), (3, [])], seed=0)
    torch.compiler.reset()
    runs = []
    for pool in (plain, torch.compile(copy.deepcopy(plain), backend="aot_eager")):
        out = read(pool, graphs)
        out.sin().sum().backward()
        runs.append([out, *(parameter.grad for parameter in pool.parameters())])
    for eager, compiled in zip(*runs, strict=True):
        close(eager, compiled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_stays(dtype):
    out = read(readout(dtype=dtype), pack([(257, []), (1, [])], seed=0, dtype=dtype))
    assert out.dtype == dtype
    assert out.isfinite().all()


def test_a_wrong_count_is_an_error():
    for options in ({"nodes": 0}, {"kernel": 0}, {"filters": (16, 0)}):
        with pytest.raises(ValueError, match="must be an int of at least 1"):
            readout(**options)
