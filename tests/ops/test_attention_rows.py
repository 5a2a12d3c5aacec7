"""Attention that is scored everywhere and kept in part: held or streamed, it is the reference's."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gtpool.graph import GraphLayout
from gtpool.ops import attention_streamed
from gtpool.ops.attention import attend, edge_attention
from gtpool.ops.attention_streamed import (
    MaterializedAttention,
    StreamedAttention,
    attend_no_grad,
    linear_known,
    weights_fit,
)
from gtpool.ops.sample import kept_counts, topk
from gtpool.ops.segment import layout_from_batch, layout_from_sizes, offsets

KINDS = {"held": MaterializedAttention, "streamed": StreamedAttention}
SIZES = st.lists(st.one_of(st.integers(1, 30), st.sampled_from((95, 97, 130))), max_size=5)
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def batch_of(sizes, heads, channels=5, *, same=False):
    """Give q, k and v of a batch, and its level; with ``same`` keys are values."""
    q, k, v = normal(3, sum(sizes), heads, channels)
    return q, k, k if same else v, layout_from_sizes(torch.tensor(sizes), q.device)


def kept_of(level, ratio):
    score = normal(level.batch.numel(), seed=1)
    return topk(score, level.batch, ratio, sizes=level.sizes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("same", [False, True])
@given(
    sizes=SIZES.filter(len), heads=st.sampled_from((1, 3)), ratio=st.sampled_from((0.5, 0.1, 1, 3))
)
@example(sizes=[9, 7], heads=1, ratio=1)  # all keep as many, and the larger graph comes first
@example(sizes=[5, 5], heads=3, ratio=1.0)
@settings(max_examples=25, deadline=None)
def test_kept_rows_have_the_reference_s_output_and_gradients(kind, same, sizes, heads, ratio):
    q, k, v, level = batch_of(sizes, heads, same=same)
    kept, sent = kept_of(level, ratio), None
    results = []
    for is_ours in (True, False):
        leaves = [part.clone().requires_grad_() for part in (q, k) + (() if same else (v,))]
        asked, keys, values = (*leaves, leaves[1])[:3]
        if is_ours:
            with torch.no_grad():
                attention = KINDS[kind].of(asked, keys, values, level)
            out = attention.rows(asked.index_select(0, kept), keys, values, kept, ratio)
        else:
            out = attend(asked, keys, values, level.ptr, backend="reference")[0][kept]
        sent = normal(*out.shape, seed=2)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, sent)))
    torch.testing.assert_close(*results, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 3])
def test_scores_read_the_reference_s_weights(kind, heads):
    sizes = [3, 40, 1, 100, 7]
    q, k, v, level = batch_of(sizes, heads)
    attention = KINDS[kind].of(q, k, v, level)
    out, lse = attend(q, k, v, level.ptr, backend="reference")
    theta = normal(heads, 5, seed=3)
    projected = attention.project((v * theta).sum(-1), theta)
    torch.testing.assert_close(projected, (out * theta).sum(-1), **EXACT)
    ends = [torch.randint(b - a, (2, 20)) + a for a, b in pairwise(level.ptr.tolist())]
    source, target = torch.cat(ends, 1)
    weight = edge_attention(q, k, lse, torch.stack([source, target]))
    torch.testing.assert_close(attention.edge_weights(source, target), weight, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_without_nodes_are_passed_over(kind):
    q, k, v, level = batch_of([0, 5, 0, 30, 0], 2)
    kept = kept_of(level, 0.5)
    attention = KINDS[kind].of(q, k, v, level)
    rows = attention.rows(q[kept], k, v, kept, 0.5)
    torch.testing.assert_close(rows, attend(q, k, v, level.ptr)[0][kept], **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_gone_wrong_leaves_the_others_alone(kind):
    q, k, v, level = batch_of([5, 7, 6], 1)
    kept = kept_of(level, 0.5)

    def results():
        leaves = [part.clone().requires_grad_() for part in (q, k, v)]
        with torch.no_grad():
            attention = KINDS[kind].of(*leaves, level)
        out = attention.rows(leaves[0].index_select(0, kept), *leaves[1:], kept, 0.5)
        whole = torch.zeros_like(q).index_copy(0, kept, out)
        return whole.detach(), *torch.autograd.grad(out.square().sum(), leaves)

    before = results()
    for part in (q, k, v):
        part[:5] = torch.nan
    for one, other in zip(before, results(), strict=True):
        torch.testing.assert_close(one[5:], other[5:])


def test_weights_are_held_where_they_are_few(monkeypatch):
    parts = batch_of([40, 20], 2)
    assert isinstance(attend_no_grad(*parts), MaterializedAttention)
    monkeypatch.setattr(attention_streamed, "MAX_BATCH_WEIGHTS", 0)
    assert isinstance(
        attend_no_grad(*parts), MaterializedAttention
    )  # no more than a wide layer takes
    monkeypatch.setattr(attention_streamed, "MAX_ROW_WEIGHTS", 30)
    assert isinstance(attend_no_grad(*parts), StreamedAttention)
    large = layout_from_sizes(torch.tensor([100_000]), torch.device("cpu"))
    monkeypatch.undo()
    assert not weights_fit(torch.empty(100_000, 1, 1), large)


def test_half_precision_attends_in_float32():
    q, k, v, level = batch_of([20, 9], 1, 8)
    short = [part.bfloat16() for part in (q, k, v)]
    kept = kept_of(level, 0.5)
    with torch.autocast("cpu", torch.bfloat16):
        held = attend_no_grad(*short, level)
        rows = held.rows(short[0][kept], *short[1:], kept, 0.5)
    exact = attend(*(part.float() for part in short), level.ptr)[0][kept]
    assert rows.dtype == torch.bfloat16
    torch.testing.assert_close(rows, exact.bfloat16())


def test_a_level_plans_once_and_tells_a_number_from_a_share():
    q, k, v, level = batch_of([4, 6], 1)
    held = attend_no_grad(q, k, v, level)
    assert attend_no_grad(q, k, v, level).buckets is held.buckets
    one, everything = kept_of(level, 1), kept_of(level, 1.0)
    assert held.rows(q[one], k, v, one, 1).shape == (2, 1, 5)
    assert held.rows(q[everything], k, v, everything, 1.0).shape == (10, 1, 5)
    bare = GraphLayout(level.sizes, level.ptr, level.batch)
    assert attend_no_grad(q, k, v, bare).buckets is not attend_no_grad(q, k, v, bare).buckets
    assert layout_from_batch(level.batch).cached("name", lambda: 3) == 3
    assert kept_counts(level.sizes, 1).tolist() == offsets(torch.tensor([1, 1])).diff().tolist()


def test_known_rows_have_the_gradients_of_the_map_they_come_from():
    x, weight = normal(6, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    kept = torch.tensor([1, 4, 5])
    mapped = x @ weight.T
    known = linear_known(x.index_select(0, kept), weight, mapped.detach(), kept)
    assert torch.equal(known, mapped[kept])
    sent = normal(3, 3, seed=2)
    torch.testing.assert_close(
        torch.autograd.grad(known, (x, weight), sent),
        torch.autograd.grad(mapped[kept], (x, weight), sent),
    )
