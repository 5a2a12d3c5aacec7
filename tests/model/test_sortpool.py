"""SortPool against a loop over graphs, and beside PyG's sort where that one is right."""

import pytest
import torch
from contract import CHANNELS, Graphs, drawn, nodes_of, pack, ragged
from hypothesis import given
from hypothesis import strategies as st
from readout_laws import compare_with_naive, read, same_alone
from torch import Tensor, nn
from torch_geometric.nn.aggr import SortAggregation

from gtpool.model.sortpool import SortPool
from gtpool.ops.packed import PackedRows
from gtpool.ops.segment import layout_from_batch


def readout(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> SortPool:
    torch.manual_seed(seed)
    return SortPool(CHANNELS, **{"nodes": 10, **options}).to(dtype)


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
        graphs = with_ties(graphs) if ties else graphs
        compare_with_naive(readout(**options), graphs, naive)

    check()


def test_numbering_of_nodes_that_tie_does_not_matter():
    @drawn
    @given(ragged(), st.randoms(use_true_random=False))
    def check(graphs, random):
        pool, graphs = readout(), with_ties(graphs)
        old = [n for part in nodes_of(graphs) for n in random.sample(part, len(part))]
        assert torch.equal(read(pool, graphs), read(pool, graphs._replace(x=graphs.x[old])))

    check()


def test_a_batch_of_nodes_that_tie_gives_what_its_graphs_give_alone():
    @drawn
    @given(ragged())
    def check(graphs):
        same_alone(readout(nodes=4, kernel=2), with_ties(graphs))

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


def test_repr_names_the_choices():
    assert repr(readout()) == "SortPool(8, nodes=10, filters=(16, 32), kernel=5)"


def test_a_wrong_count_is_an_error():
    for options in ({"nodes": 0}, {"kernel": 0}, {"filters": (16, 0)}):
        with pytest.raises(ValueError, match="must be an int of at least 1"):
            readout(**options)
