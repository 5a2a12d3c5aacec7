"""The Triton attention against a loop over graphs; in Triton's interpreter where no GPU is."""

import os
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from padded_rows import padded_layout

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops.kernels import attention, attention_backward
from gtpool.ops.kernels.tile import TileConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = float("nan")
# Triton's interpreter multiplies bfloat16 matrices as if they were integers.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
rows_of = partial(padded_layout, device=DEVICE)
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def padding_of(rows):
    return rows.batch == rows.start.numel()


def projected(rows, heads, channels, *, dtype=torch.float32, seed=0):
    """Give q, k and v as views of one tensor, NaN on padding."""
    torch.manual_seed(seed)
    whole = torch.randn(rows.batch.numel(), 3, heads, channels).to(DEVICE, dtype)
    whole[padding_of(rows)] = NAN
    return whole.unbind(1)


def naive(q, k, v, rows, scale):
    """Attend graph by graph in float64; padding has zeros."""
    outs, lses = [], []
    for graph in range(rows.start.numel()):
        own = rows.batch == graph
        logits = torch.einsum("ihc,jhc->ijh", q[own].double(), k[own].double()) * scale
        outs.append(torch.einsum("ijh,jhc->ihc", logits.softmax(1), v[own].double()))
        lses.append(logits.logsumexp(1))
    real = ~padding_of(rows)
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.zeros(q.shape[:2], dtype=torch.float64, device=q.device)
    return out.masked_scatter(real[:, None, None], torch.cat(outs)), lse.masked_scatter(
        real[:, None], torch.cat(lses)
    )


def naive_backward(parts, rows, scale, d_out, d_lse):
    """Give the gradients of q, k and v, [N, 3, H, C], 0 on padding."""
    whole = torch.stack(parts, 1).double().requires_grad_()
    out, lse = naive(*whole.unbind(1), rows, scale)
    real = ~padding_of(rows)
    sent = (d_out.double()[real], d_lse.double()[real])
    (grad,) = torch.autograd.grad((out[real], lse[real]), whole, sent)
    return grad


def thinned(rows, runs, seed=0):
    """Keep some rows of each graph: ``kept`` and its layout."""
    halves = [[-(-nodes // 2) for nodes in sizes] for sizes in runs]
    kept_rows = rows_of(halves, padding=3)
    kept = torch.full(kept_rows.batch.shape, -1, device=DEVICE)
    order = torch.Generator().manual_seed(seed)
    for graph in range(rows.start.numel()):
        count = int(kept_rows.size[graph])
        drawn = torch.randperm(int(rows.size[graph]), generator=order)[:count].sort().values
        kept[kept_rows.batch == graph] = drawn.to(DEVICE) + rows.start[graph]
    return kept, kept_rows


def at_kept(part, kept):
    """Read rows; what stands on padding is NaN."""
    return part[kept.clamp(min=0)].masked_fill((kept < 0).view(-1, *[1] * (part.dim() - 1)), NAN)


def at_rows(part, kept, count):
    """Put the rows that are kept back among all, with 0 elsewhere."""
    real = kept >= 0
    return part.new_zeros(count, *part.shape[1:]).index_copy(0, kept[real], part[real])


RAGGED = [[1, 0, 12, 2, 35], [7, 7, 0, 1, 3], [0, 0, 2, 17, 0]]


@given(
    runs=st.lists(st.tuples(*[st.integers(0, 12)] * 3), min_size=1, max_size=3),
    heads=st.sampled_from((1, 2)),
    channels=st.sampled_from((8, 16, 20)),
    scale=st.sampled_from((0.2, 1.5)),
    seed=st.integers(0, 9),
)
@example(runs=RAGGED, heads=2, channels=20, scale=0.3, seed=0)
@example(runs=[[0, 0]], heads=1, channels=8, scale=1.0, seed=0)
@example(runs=[[64, 1]], heads=1, channels=24, scale=0.2, seed=0)
@settings(max_examples=6, deadline=None)
def test_outputs_equal_a_loop_over_graphs(runs, heads, channels, scale, seed):
    rows = rows_of([list(sizes) for sizes in runs])
    parts = projected(rows, heads, channels, seed=seed)
    out, lse = attention.attend(*parts, rows, scale)
    wanted = naive(*parts, rows, scale)
    torch.testing.assert_close((out.double(), lse.double()), wanted, **CLOSE)


@given(
    runs=st.lists(st.tuples(*[st.integers(0, 12)] * 3), min_size=1, max_size=3),
    heads=st.sampled_from((1, 2)),
    channels=st.sampled_from((8, 16, 20)),
    some=st.booleans(),
    through_lse=st.booleans(),
    seed=st.integers(0, 9),
)
@example(runs=RAGGED, heads=2, channels=20, some=True, through_lse=True, seed=0)
@example(runs=RAGGED, heads=1, channels=8, some=False, through_lse=True, seed=0)
@example(runs=[[0, 0]], heads=1, channels=8, some=True, through_lse=False, seed=0)
@example(runs=[[64, 1]], heads=1, channels=24, some=True, through_lse=False, seed=0)
@settings(max_examples=3, deadline=None)
def test_gradients_equal_a_loop_over_graphs(runs, heads, channels, some, through_lse, seed):
    runs = [list(sizes) for sizes in runs]
    rows = rows_of(runs)
    assert_gradients(runs, rows, projected(rows, heads, channels, seed=seed), some, through_lse)


def assert_gradients(runs, rows, parts, some, through_lse, scale=0.4, **close):
    """Compare the gradients for all rows or for half of each graph's."""
    kept, kept_rows = thinned(rows, runs) if some else (None, None)
    out, lse = attention.attend(*parts, rows, scale)
    if some:
        out = at_kept(out, kept)
    d_out = torch.randn(out.shape).to(out)
    d_lse = torch.randn(out.shape[:2]).to(DEVICE) * through_lse
    sent = (d_out, d_lse)
    if some:
        sent = (at_rows(part, kept, lse.size(0)) for part in sent)
    wanted = naive_backward(parts, rows, scale, *sent)
    poison = padding_of(kept_rows if some else rows)
    d_out[poison], d_lse[poison] = NAN, NAN
    found = attention.attend_backward(
        *(*parts, out, lse, d_out, rows, scale),
        d_lse=d_lse if through_lse else None,
        kept=kept,
        kept_rows=kept_rows,
    )
    assert (found.shape, found.dtype) == (wanted.shape, parts[0].dtype)
    torch.testing.assert_close(found.double(), wanted, **(close or CLOSE))


def test_the_output_may_be_in_the_gradient_of_lse():
    rows = rows_of(RAGGED)
    parts = projected(rows, 2, 8)
    out, lse = attention.attend(*parts, rows, 0.4)
    d_out, d_lse = torch.randn(out.shape).to(out), torch.randn(lse.shape).to(lse)
    wanted = attention.attend_backward(*parts, out, lse, d_out, rows, 0.4, d_lse=d_lse)
    d_lse = d_lse - (d_out * out).sum(-1)
    found = attention.attend_backward(*parts, None, lse, d_out, rows, 0.4, d_lse=d_lse)
    torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("some", [False, True])
def test_gradients_are_added_to_those_given(some):
    rows = rows_of(RAGGED)
    parts = projected(rows, 2, 8)
    kept, kept_rows = thinned(rows, RAGGED) if some else (None, None)
    out, lse = attention.attend(*parts, rows, 0.4)
    out = at_kept(out, kept) if some else out
    given = (*parts, out, lse, torch.randn(out.shape).to(out), rows, 0.4)
    before = torch.randn(rows.batch.numel(), 3, 2, 8).to(DEVICE)
    wanted = before + attention.attend_backward(*given, kept=kept, kept_rows=kept_rows)
    found = attention.attend_backward(*given, kept=kept, kept_rows=kept_rows, into=before)
    assert found is before
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("rows_and_keys", "some"), [((16, 32), False), ((32, 16), True), ((64, 64), True)]
)
def test_the_size_of_blocks_changes_nothing(monkeypatch, rows_and_keys, some):
    for part in (attention, attention_backward):
        monkeypatch.setattr(part, "_block", lambda *_: TileConfig(*rows_and_keys, 4, 2))
    rows = rows_of(RAGGED)
    parts = projected(rows, 1, 8)
    found = attention.attend(*parts, rows, 0.4)
    wanted = naive(*parts, rows, 0.4)
    torch.testing.assert_close([part.double() for part in found], list(wanted), **CLOSE)
    assert_gradients(RAGGED, rows, parts, some, through_lse=True)


@pytest.mark.parametrize("some", [False, True])
def test_half_precision_is_summed_in_float32(some):
    rows = rows_of(RAGGED)
    parts = projected(rows, 2, 16, dtype=HALF)
    out, lse = attention.attend(*parts, rows, 0.25)
    wanted_out, wanted_lse = naive(*parts, rows, 0.25)
    assert (out.dtype, lse.dtype) == (HALF, torch.float32)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), wanted_out, rtol=2e-2, atol=1e-2)
    assert_gradients(RAGGED, rows, parts, some, through_lse=True, rtol=5e-2, atol=5e-2)


def test_extreme_logits_stay_finite():
    rows = rows_of([[2, 20, 40]])
    q, k, v = projected(rows, 1, 8)
    parts = (q * 0 + 1e3, k.sign() * 1e3, v)  # logits to 8e6
    out, lse = attention.attend(*parts, rows, 1.0)
    grad = attention.attend_backward(*parts, out, lse, torch.ones_like(out), rows, 1.0)
    assert all(part.isfinite().all() for part in (out, lse, grad))


def test_padding_has_zeros():
    rows = rows_of([[1, 0, 7]], padding=20)
    parts = projected(rows, 2, 8)
    out, lse = attention.attend(*parts, rows, 1.0)
    grad = attention.attend_backward(*parts, out, lse, torch.ones_like(out), rows, 1.0)
    for part in (out, lse, grad):
        assert not part[padding_of(rows)].any()


def test_graphs_see_only_themselves():
    rows = rows_of([[6, 30, 4]])
    parts = projected(rows, 1, 8)
    before = attention.attend(*parts, rows, 1.0)
    for part in parts:
        part[6:36] *= 3
    after = attention.attend(*parts, rows, 1.0)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:6], other[:6])
        assert torch.equal(one[36:], other[36:])
        assert not torch.equal(one[6:36], other[6:36])


def test_strides_of_rows_and_heads_do_not_matter():
    rows = rows_of([[5, 12]])
    strided = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in projected(rows, 2, 8)]
    plain = [part.contiguous() for part in strided]
    assert not any(part.is_contiguous() for part in strided)
    out, lse = attention.attend(*strided, rows, 1.0)
    torch.testing.assert_close((out, lse), attention.attend(*plain, rows, 1.0))
    d_out = torch.randn(8).to(DEVICE).expand_as(out)
    torch.testing.assert_close(
        attention.attend_backward(*strided, out, lse, d_out, rows, 1.0),
        attention.attend_backward(*plain, out, lse, d_out.contiguous(), rows, 1.0),
    )


def test_the_rows_that_are_kept_need_their_layout():
    rows = rows_of([[3]])
    parts = projected(rows, 1, 8)
    out, lse = attention.attend(*parts, rows, 1.0)
    with pytest.raises(ValueError, match="kept and kept_rows must be given together"):
        attention.attend_backward(*parts, out, lse, out, rows, 1.0, kept=rows.start)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_edge_weights_read_the_softmax_at_edges(heads, dtype):
    rows = rows_of(RAGGED)
    q, k, v = projected(rows, heads, 12, dtype=dtype)
    _, lse = attention.attend(q, k, v, rows, 0.3)
    same = rows.batch[:, None] == rows.batch[None, :]
    edges = (same & ~padding_of(rows)).nonzero().T
    edges = edges[:, torch.randperm(edges.size(1))[:300].to(DEVICE)]
    source, target = edges = torch.cat([edges, torch.full_like(edges[:, :3], -1)], 1)
    found = attention.edge_weights(q, k, lse, edges, 0.3)
    logits = torch.einsum("ihc,jhc->ijh", q.double(), k.double()) * 0.3
    wanted = logits.masked_fill(~same[:, :, None], -torch.inf).softmax(1)[target, source]
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), wanted.masked_fill((source < 0)[:, None], 0), **CLOSE
    )


def test_edge_weights_without_edges():
    rows = rows_of([[3]])
    q, k, _ = projected(rows, 2, 8)
    none = torch.zeros(2, 0, dtype=torch.long, device=DEVICE)
    assert attention.edge_weights(q, k, q[:, :, 0].contiguous(), none, 1.0).shape == (0, 2)
