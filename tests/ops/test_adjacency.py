"""Merging nodes in fixed shapes against the same on a packed batch."""

import pytest
import torch
from drawn import batches, wider
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gtpool.data.dataset import GraphDataset
from gtpool.data.device_dataset import DeviceDataset
from gtpool.ops.adjacency import DenseAdjacency, PackedAdjacency, SparseAdjacency, merge

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def laid_out(data, index, extra=0):
    stock = DeviceDataset.of(data)
    batch = stock.gather(index, wider(stock.capacity(index, ()), extra), ())
    return batch, SparseAdjacency.of(batch.csr, batch.levels[0], torch.float64)


def numbers(rows, columns):
    random = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, dtype=torch.float64, generator=random)


def assert_like_packed(data, index, extra=0):
    batch, graphs = laid_out(data, index, extra)
    there = index.flatten() >= 0
    wanted = data.take(index.flatten()[there])
    real = batch.levels[0].batch < index.numel()
    assign = numbers(real.numel(), 3).masked_fill(~real.unsqueeze(1), torch.nan)
    level, ones = wanted.levels[0], torch.ones(wanted.edge_index.size(1), dtype=torch.float64)
    found = merge(graphs, assign, batch.x)
    expected = merge(PackedAdjacency(wanted.edge_index, ones, level), assign[real], wanted.x)
    for part, other in zip(found, expected, strict=True):
        torch.testing.assert_close(part[there], other, **CLOSE)
        assert not part[~there].any()
    packed = PackedAdjacency(wanted.edge_index, ones, level)
    torch.testing.assert_close(graphs.squared_norm()[there], packed.squared_norm(), **CLOSE)
    heard = packed.adj_t_matmul(assign[real])
    torch.testing.assert_close(graphs.adj_t_matmul(assign)[real], heard, **CLOSE)


@given(drawn=batches(), extra=st.sampled_from((0, 70)))
@settings(max_examples=50, deadline=None)
def test_graphs_of_any_form_are_merged_as_in_a_packed_batch(drawn, extra):
    assert_like_packed(*drawn, extra)


@pytest.mark.parametrize("extra", [0, 1, 100])
def test_graphs_may_be_as_large_as_blocks_or_larger(extra):
    sizes = [1, 31, 32, 33, 64, 65, 200]
    graphs = [
        Data(numbers(n, 2), torch.randint(n, (2, 3 * n)), y=torch.tensor([n % 2])) for n in sizes
    ]
    data = GraphDataset.from_pyg(graphs)
    assert_like_packed(data, torch.tensor([[6, 0, 3, -1], [2, 2, 2, 2], [5, -1, 1, 4]]), extra)


@given(drawn=batches())
@settings(max_examples=50, deadline=None)
def test_a_matrix_does_what_its_edges_do(drawn):
    data, index = drawn
    n, graphs = 7, index.numel()
    _, sparse = laid_out(data, index)
    matrix = torch.zeros(graphs, n, n, dtype=torch.float64)
    rows, (source, target) = sparse.rows, sparse.edges
    graph = rows.batch[source].clamp(max=graphs - 1)
    ends = graph, source - rows.start[graph], target - rows.start[graph]
    real = sparse.weight > 0
    matrix.index_put_([end[real] for end in ends], sparse.weight[real], accumulate=True)
    dense = DenseAdjacency(matrix)
    there = rows.batch < graphs
    place = (torch.arange(there.numel()) - rows.start[rows.batch.clamp(max=graphs - 1)])[there]
    place = place + rows.batch[there] * n
    value = numbers(there.numel(), 3)
    padded = torch.zeros(graphs * n, 3, dtype=torch.float64).index_copy(0, place, value[there])
    for one, other in ((sparse, dense), (sparse.normalized(), dense.normalized())):
        for way in ("adj_t_matmul", "adj_matmul"):
            found, wanted = getattr(one, way)(value)[there], getattr(other, way)(padded)[place]
            torch.testing.assert_close(found, wanted, **CLOSE)
        for way in ("degrees", "in_weight"):
            torch.testing.assert_close(getattr(one, way)()[there], getattr(other, way)()[place])
        products = one.products(value, value)
        torch.testing.assert_close(products, other.products(padded, padded), **CLOSE)
        drawn, wanted = (
            one.gram_matmul(one.group_rows(value), value),
            other.gram_matmul(other.group_rows(padded), padded),
        )
        torch.testing.assert_close(drawn[there], wanted[place], **CLOSE)
        total = one.total(value)
        torch.testing.assert_close(total, other.total(padded), **CLOSE)
        torch.testing.assert_close(
            one.broadcast(total)[there], other.broadcast(total)[place], **CLOSE
        )
    torch.testing.assert_close(sparse.squared_norm(), dense.squared_norm(), **CLOSE)
