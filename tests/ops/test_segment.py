"""Per-graph arithmetic against a loop over the graphs."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.ops.segment import (
    gather_by_graph,
    induced_edges,
    offsets,
    segment_max,
    segment_softmax,
    segment_sum,
    sizes_of,
)

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**32)


def batch_of(sizes):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@given(SIZES)
@settings(deadline=None)
def test_sizes_offsets_and_batch_tell_the_same(sizes):
    batch = batch_of(sizes)
    assert sizes_of(batch).tolist() == sizes
    ptr = offsets(sizes_of(batch)).tolist()
    assert ptr[0] == 0
    for graph, (start, end) in enumerate(pairwise(ptr)):
        assert batch[start:end].tolist() == [graph] * sizes[graph]
    assert ptr[-1] == batch.numel()


@given(SIZES, SEEDS)
@settings(deadline=None)
def test_sum_max_and_spread_equal_a_loop(sizes, seed):
    batch, value = batch_of(sizes), normal(sum(sizes), seed=seed)
    parts = value.split(sizes)
    highest = torch.stack([part.max() for part in parts])
    assert torch.equal(segment_max(value, batch, len(sizes)), highest)
    torch.testing.assert_close(
        segment_sum(value, batch, len(sizes)), torch.stack([part.sum() for part in parts])
    )
    each = [graph.repeat(n) for graph, n in zip(highest, sizes, strict=True)]
    assert torch.equal(gather_by_graph(highest, batch), torch.cat(each))


def test_sum_adds_rows_of_any_shape():
    value = normal(5, 2, 3)
    total = segment_sum(value, batch_of([4, 1]), 2)
    torch.testing.assert_close(total, torch.stack([value[:4].sum(0), value[4]]))


def test_the_largest_of_negative_integers():
    value = torch.tensor([-7, -3, -9])
    assert segment_max(value, batch_of([2, 1]), 2).tolist() == [-3, -9]
    assert segment_max(value, batch_of([3]), 1).tolist() == [-3]


@given(SIZES, SEEDS)
@settings(deadline=None)
def test_softmax_and_its_gradient_equal_a_loop(sizes, seed):
    value, pull = normal(2, sum(sizes), seed=seed)
    packed, looped = value.clone().requires_grad_(), value.clone().requires_grad_()
    share = segment_softmax(packed, batch_of(sizes), len(sizes))
    expected = torch.cat([part.softmax(0) for part in looped.split(sizes)])
    torch.testing.assert_close(share, expected)
    (share * pull).sum().backward()
    (expected * pull).sum().backward()
    torch.testing.assert_close(packed.grad, looped.grad)


def test_a_column_of_one_graph_is_normalised_as_a_vector_is():
    value = normal(3)
    share = segment_softmax(value.view(3, 1), batch_of([3]), 1)
    assert torch.equal(share.view(3), segment_softmax(value, batch_of([3]), 1))


def test_softmax_holds_at_extreme_scores():
    value = torch.tensor([1e4, 1e4, -1e4, -1e4, -2e4])
    share = segment_softmax(value, batch_of([3, 2]), 2)
    assert share.tolist() == [0.5, 0.5, 0.0, 1.0, 0.0]


@given(st.integers(1, 9), st.integers(0, 30), SEEDS)
@settings(deadline=None)
def test_the_induced_subgraph_equals_a_loop(num_nodes, num_edges, seed):
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    stays = torch.rand(num_nodes, generator=generator) < 0.6
    kept = stays.nonzero().view(-1)
    edge_attr = normal(num_edges, 2, seed=seed)

    number = {node: place for place, node in enumerate(kept.tolist())}
    edges, features = [], []
    for (source, target), feature in zip(edge_index.t().tolist(), edge_attr.tolist(), strict=True):
        if source in number and target in number:
            edges.append([number[source], number[target]])
            features.append(feature)

    found, travelled = induced_edges(edge_index, edge_attr, kept, num_nodes)
    assert found.t().tolist() == edges
    assert travelled.tolist() == features
    bare, none = induced_edges(edge_index, None, kept, num_nodes)
    assert torch.equal(bare, found)
    assert none is None


def test_no_edge_survives_between_other_nodes():
    edges, features = induced_edges(
        torch.tensor([[0], [1]]), torch.ones(1, 3), torch.tensor([2]), 3
    )
    assert edges.shape == (2, 0)
    assert features.shape == (0, 3)


@pytest.mark.slow
def test_one_graph_compiles_by_inductor(inductor):
    value = normal(6).float().requires_grad_()
    batch, weight = torch.zeros(6, dtype=torch.long), torch.arange(6.0)

    def weighed(value):
        return segment_sum(segment_softmax(value, batch, 1) * weight, batch, 1)

    (wanted,) = torch.autograd.grad(weighed(value), value)
    compiled = torch.compile(weighed, backend=inductor)(value)
    torch.testing.assert_close(compiled, weighed(value))
    torch.testing.assert_close(*torch.autograd.grad(compiled, value), wanted)
