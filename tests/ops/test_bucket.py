"""The padded layout of a batch: rows go to places of their own and come back."""

from itertools import pairwise

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gtpool.ops.bucket import _EDGES, _SPARE, Buckets
from gtpool.ops.sample import kept_counts
from gtpool.ops.segment import offsets

SIZES = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 3000)), min_size=1, max_size=8)


def lay_out(sizes, heads):
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return Buckets.of(ptr, torch.empty(sum(sizes), heads)), ptr


@given(sizes=SIZES, heads=st.sampled_from((1, 3)))
@example(sizes=[5, 5, 5], heads=1)
@example(sizes=[8, 9, 8, 9], heads=3)
def test_each_sequence_is_one_head_of_one_graph_then_zeros(sizes, heads):
    buckets, ptr = lay_out(sizes, heads)
    number = torch.arange(1, sum(sizes) * heads + 1)
    seen = []
    for mask, rows in buckets.each(buckets.pad(number)):
        assert torch.equal(mask.squeeze(1) == 0, rows > 0)
        seen += [row[row > 0].tolist() for row in rows]
    by_head = number.unflatten(0, (-1, heads))
    wanted = [
        by_head[start:end, head].tolist() for start, end in pairwise(ptr) for head in range(heads)
    ]
    assert sorted(seen) == sorted(wanted)
    assert torch.equal(buckets.unpad(buckets.fill(number)), number)


@given(sizes=SIZES, heads=st.sampled_from((1, 3)))
@example(sizes=[2100, 9000], heads=1)
def test_padding_adds_seven_rows_or_a_quarter_to_a_graph_or_few_weights(sizes, heads):
    buckets, _ = lay_out(sizes, heads)
    weights = sum(count * length**2 for count, length in buckets.shapes)
    alone = sum(max(size + 7, 1.25 * size) ** 2 for size in sizes)
    assert weights <= heads * (alone + _SPARE * len(_EDGES))


def test_graphs_of_one_size_and_one_head_stay_where_they_are():
    buckets, _ = lay_out([20] * 7, 1)
    rows = torch.randn(140, 4)
    assert buckets.fill(rows).data_ptr() == rows.data_ptr()
    assert buckets.unpad(rows).data_ptr() == rows.data_ptr()
    assert not any(mask.any() for mask in buckets.masks)


def test_similar_graphs_share_a_bucket():
    buckets, _ = lay_out([17, 24, 20, 100, 22, 110], 1)
    assert buckets.shapes == ((4, 24), (2, 110))


@given(sizes=SIZES, heads=st.sampled_from((1, 3)), ratio=st.sampled_from((0.5, 0.1, 2)))
@example(sizes=[9, 7], heads=1, ratio=2)
def test_kept_nodes_stand_in_the_bucket_of_their_graph(sizes, heads, ratio):
    buckets, ptr = lay_out(sizes, heads)
    counts = kept_counts(ptr.diff(), ratio)
    kept = buckets.of_kept(offsets(counts), torch.empty(int(counts.sum()), heads))
    assert [count for count, _ in kept.shapes] == [count for count, _ in buckets.shapes]
    graph = torch.arange(len(sizes))
    of_node = graph.repeat_interleave(ptr.diff() * heads)
    of_kept = graph.repeat_interleave(counts * heads)
    (all_,), (kept_,) = buckets.split(buckets.fill(of_node)), kept.split(kept.fill(of_kept))
    for nodes, some in zip(all_, kept_, strict=True):
        assert torch.equal(nodes[:, 0], some[:, 0])
        assert torch.equal(some, some[:, :1].expand_as(some))
    number = torch.arange(of_kept.numel())
    assert torch.equal(kept.unpad(kept.fill(number)), number)
    assert torch.equal(kept.unpad(kept.pad(number)), number)


def test_padding_repeats_the_last_row_of_its_own_graph():
    buckets, _ = lay_out([2, 3, 1], 1)
    assert buckets.fill(torch.arange(6)).tolist() == [5, 5, 5, 0, 1, 1, 2, 3, 4]
    assert buckets.pad(torch.arange(6)).tolist() == [5, 0, 0, 0, 1, 0, 2, 3, 4]
