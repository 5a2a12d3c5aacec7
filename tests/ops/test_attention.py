"""Every back-end against the reference, outputs and gradients, and what a caller relies on."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from peak_memory import peak_of_large

from gtpool.ops import attention, attention_fused, attention_padded, edge_products
from gtpool.ops.attention import BACKENDS, attend, edge_attention

FAST = tuple(name for name in BACKENDS if name != "reference")
LOSSES = {
    "out": lambda out, _: out.sin().sum(),
    "lse": lambda _, lse: lse.sin().sum(),
    "both": lambda out, lse: (out + lse.unsqueeze(-1)).sin().sum(),
}
STRADDLING = (7, 8, 9, 16, 17, 32, 33, attention.FUSED_FROM - 1, attention.FUSED_FROM, 97)


@pytest.fixture(scope="module", autouse=True)
def unwritten_is_nan():
    """Fill what torch.empty and its kin return with NaN: an entry left unwritten shows."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, poisoned(getattr(owner, name)))
        yield


def poisoned(make):
    def made(*args, **kwargs):
        new = make(*args, **kwargs)
        return new.fill_(torch.nan if new.is_floating_point() else torch.iinfo(new.dtype).max)

    return made


@pytest.fixture
def in_pieces(monkeypatch):
    """Have even small graphs cut into blocks of rows, and their edges into slices."""
    monkeypatch.setattr(attention_padded, "HELD", 1)
    monkeypatch.setattr(attention_padded, "HELD_ON_DEVICE", 1)
    monkeypatch.setattr(attention_padded, "ROWS", 5)
    monkeypatch.setattr(edge_products, "HELD", 7)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def heads_of(sizes, heads=1, channels=5, *, dtype=torch.float64, seed=0):
    """Give q, k and v of a batch, and its ptr."""
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return *normal(3, sum(sizes), heads, channels, seed=seed, dtype=dtype), ptr


def grads(backend, q, k, v, ptr, through="both", *, scale=None):
    """Give the gradients of q, k and v of a loss that sees out, lse or both."""
    leaves = [part.detach().requires_grad_() for part in (q, k, v)]
    loss = LOSSES[through](*attend(*leaves, ptr, scale=scale, backend=backend))
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def assert_like_reference(backend, *batch, scale=None, through=tuple(LOSSES), **close):
    found = attend(*batch, scale=scale, backend=backend)
    wanted = attend(*batch, scale=scale, backend="reference")
    torch.testing.assert_close(found, wanted, **close)
    for which in through:
        found = grads(backend, *batch, which, scale=scale)
        wanted = grads("reference", *batch, which, scale=scale)
        torch.testing.assert_close(found, wanted, **close)


@st.composite
def ragged(draw):
    """Sizes of a batch: small, equal, on both sides of where the computation changes."""
    size = st.one_of(st.integers(1, 40), st.sampled_from(STRADDLING))
    if draw(st.booleans()):
        return draw(st.lists(size, min_size=1, max_size=6))
    return [draw(size)] * draw(st.integers(1, 4))


@pytest.mark.parametrize("backend", FAST)
@given(
    sizes=ragged(),
    heads=st.sampled_from((1, 3)),
    channels=st.sampled_from((1, 3, 8, 13)),
    scale=st.sampled_from((None, 0.2, 1.5)),
    held=st.sampled_from((1, 300, attention_padded.HELD)),
    seed=st.integers(0, 99),
)
@example(sizes=[1], heads=3, channels=5, scale=None, held=1, seed=0)
@example(sizes=[1] * 9, heads=1, channels=5, scale=None, held=1, seed=0)
@example(sizes=list(STRADDLING), heads=3, channels=5, scale=None, held=300, seed=0)
@settings(max_examples=50, deadline=None)
def test_equals_the_reference(backend, sizes, heads, channels, scale, held, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_padded, "HELD", held)
        patch.setattr(attention_padded, "ROWS", 7)
        batch = heads_of(sizes, heads, channels, seed=seed)
        assert_like_reference(backend, *batch, scale=scale, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", FAST)
def test_equals_the_reference_on_graphs_too_large_for_a_shared_bucket(backend, monkeypatch):
    monkeypatch.setattr(attention_padded, "HELD", 1)
    batch = heads_of([2049, 3, 2100], channels=3)
    assert_like_reference(backend, *batch, through=("both",), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("heads", [1, 3])
def test_equals_the_reference_in_float32(backend, heads):
    batch = heads_of([1, 20, 20, 130, 9, 50], heads, 16, dtype=torch.float32)
    assert_like_reference(backend, *batch, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_only_at_the_ends(backend, dtype):
    q, k, v, ptr = heads_of([1, 20, 130], 2, 8, dtype=torch.float32)
    q, k, v = (part.to(dtype) for part in (q, k, v))
    out, lse = attend(q, k, v, ptr, backend=backend)
    exact_out, exact_lse = attend(q.float(), k.float(), v.float(), ptr, backend="reference")
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out, exact_out.to(dtype))
    torch.testing.assert_close(lse, exact_lse, rtol=1e-5, atol=1e-5)
    wanted = grads("reference", q.float(), k.float(), v.float(), ptr)
    for grad, exact in zip(grads(backend, q, k, v, ptr), wanted, strict=True):
        assert grad.dtype == dtype
        torch.testing.assert_close(grad.float(), exact, rtol=0.05, atol=0.05 * exact.std().item())


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("asking", [(0,), (1,), (2,), (0, 2)])
def test_gradients_reach_those_who_ask(backend, asking):
    *parts, ptr = heads_of([3, 20, 100], 2)
    wanted = grads("reference", *parts, ptr)
    leaves = [part.clone().requires_grad_(place in asking) for place, part in enumerate(parts)]
    LOSSES["both"](*attend(*leaves, ptr, backend=backend)).backward()
    for place, leaf in enumerate(leaves):
        if place in asking:
            torch.testing.assert_close(leaf.grad, wanted[place], rtol=1e-10, atol=1e-10)
        else:
            assert leaf.grad is None


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("sizes", [[6, 30, 100], [36]])
def test_strides_do_not_matter(backend, sizes):
    q, k, v, ptr = heads_of(sizes, 3, 4)
    strided = (
        q.transpose(0, 2).contiguous().transpose(0, 2),
        k.repeat_interleave(2, 2)[..., ::2],
        v[:, :1, :1].expand_as(v),
    )
    assert not any(part.is_contiguous() for part in strided)
    plain = [part.contiguous() for part in strided]
    torch.testing.assert_close(grads(backend, *strided, ptr), grads("reference", *plain, ptr))


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("sizes", [[6, 30, 100], [36]])
def test_an_expanded_gradient_is_accepted(backend, sizes):
    q, k, v, ptr = heads_of(sizes)
    v.requires_grad_()
    (found,) = torch.autograd.grad(attend(q, k, v, ptr, backend=backend)[0].sum(), v)
    (wanted,) = torch.autograd.grad(attend(q, k, v, ptr, backend="reference")[0].sum(), v)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("backend", FAST)
def test_a_second_derivative_is_refused_not_wrong(backend):
    *parts, ptr = heads_of([3, 5])
    leaves = [part.requires_grad_() for part in parts]
    out, _ = attend(*leaves, ptr, backend=backend)
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("heads", [1, 3])
def test_a_graph_sees_the_same_alone_and_in_a_batch(backend, heads):
    q, k, v, ptr = heads_of([1, 7, 30, 100, 30], heads)
    batched = (*attend(q, k, v, ptr, backend=backend), *grads(backend, q, k, v, ptr))
    for start, end in pairwise(ptr):
        own = (q[start:end], k[start:end], v[start:end], torch.tensor([0, end - start]))
        alone = (*attend(*own, backend=backend), *grads(backend, *own))
        for whole, part in zip(batched, alone, strict=True):
            torch.testing.assert_close(whole[start:end], part, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("sizes", [[5, 7], [97, 110], [4, 50, 4]])
def test_a_graph_gone_wrong_leaves_the_others_alone(backend, sizes):
    q, k, v, ptr = heads_of(sizes)
    wanted = (*attend(q, k, v, ptr, backend=backend), *grads(backend, q, k, v, ptr))
    for part in (q, k, v):
        part[: sizes[0]] = torch.nan
    found = (*attend(q, k, v, ptr, backend=backend), *grads(backend, q, k, v, ptr))
    for before, after in zip(wanted, found, strict=True):
        torch.testing.assert_close(after[sizes[0] :], before[sizes[0] :])


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("sizes", [[0, 5, 0, 0, 100, 0], [0, 50, 100, 0], [0, 50]])
def test_graphs_without_nodes_have_no_rows(backend, sizes):
    batch = heads_of(sizes, 2)
    assert_like_reference(backend, *batch)
    *parts, ptr = batch
    found = attend(*parts, ptr, backend=backend)
    torch.testing.assert_close(found, attend(*parts, ptr.unique(), backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e3, -1e3])
def test_extreme_logits_stay_finite(backend, dtype, far):
    q, k, v, ptr = heads_of([2, 20, 100], dtype=dtype)
    q, k = q * 0 + abs(far), k.sign() * far / k.size(-1)  # logits from -1e6 to 1e6
    results = (*attend(q, k, v, ptr, backend=backend), *grads(backend, q, k, v, ptr, "out"))
    assert all(result.isfinite().all() for result in results)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [[1], [1, 20, 100, 3], [50, 50]])
def test_the_weights_of_a_row_sum_to_one(backend, sizes):
    q, k, _, ptr = heads_of(sizes, 3)
    out, _ = attend(3 * q, k, torch.ones_like(q), ptr, backend=backend)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
def test_autocast_costs_no_precision(backend):
    batch = heads_of([5, 20, 120], 2, 8, dtype=torch.float32)
    plain = (*attend(*batch, backend=backend), *grads(backend, *batch))
    with torch.autocast("cpu", torch.bfloat16):
        found = (*attend(*batch, backend=backend), *grads(backend, *batch))
    assert all(torch.equal(one, other) for one, other in zip(plain, found, strict=True))


def test_auto_does_without_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(attention_fused, "available", lambda _: False)
    assert_like_reference("auto", *heads_of([5, 20, 120], 2))


def test_ptr_may_be_int32():
    *parts, ptr = heads_of([5, 20])
    torch.testing.assert_close(attend(*parts, ptr.int()), attend(*parts, ptr))


@pytest.mark.usefixtures("in_pieces")
def test_blocks_of_rows_change_nothing():
    batch = heads_of([3, 20, 12], 2)
    assert_like_reference("padded", *batch, rtol=1e-12, atol=1e-12)


def edges_within(sizes, count=40):
    """Draw edges inside each graph, some of them loops and some repeated."""
    start, parts = 0, []
    for seed, size in enumerate(sizes):
        drawn = torch.randint(size, (2, count), generator=torch.Generator().manual_seed(seed))
        parts.append(drawn + start)
        start += size
    return torch.cat(parts, 1)


def dense_attention(q, k, ptr, edge_index, scale):
    """Read the n x n softmax of each graph at its edges."""
    same = torch.zeros(q.size(0), q.size(0), dtype=torch.bool)
    for start, end in pairwise(ptr):
        same[start:end, start:end] = True
    logits = torch.einsum("ihc,jhc->hij", q, k) * scale
    weight = logits.masked_fill(~same, -torch.inf).softmax(-1)
    source, target = edge_index
    return weight[:, target, source].T


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_edge_attention_reads_the_softmax_at_edges(heads, scale):
    sizes = [1, 6, 25]
    q, k, v, ptr = heads_of(sizes, heads)
    edges = edges_within(sizes)
    leaves = [q.requires_grad_(), k.requires_grad_()]
    _, lse = attend(q, k, v, ptr, scale=scale)
    found = edge_attention(q, k, lse, edges, scale=scale)
    wanted = dense_attention(q, k, ptr, edges, q.size(-1) ** -0.5 if scale is None else scale)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    sent = normal(*found.shape, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, sent),
        torch.autograd.grad(wanted, leaves, sent),
        rtol=1e-10,
        atol=1e-10,
    )


def test_edge_attention_in_slices_gives_the_same(monkeypatch):
    sizes = [6, 25]
    q, k, v, ptr = heads_of(sizes, 2)
    _, lse = attend(q, k, v, ptr)
    leaves = [part.requires_grad_() for part in (q, k, lse)]

    def results():
        weight = edge_attention(*leaves, edges_within(sizes))
        return weight, *torch.autograd.grad(weight.square().sum(), leaves)

    whole = results()
    for held in (1, 33, 400):
        monkeypatch.setattr(edge_products, "HELD", held)
        torch.testing.assert_close(results(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("in_pieces")
def test_edge_attention_has_the_gradients_of_all_its_inputs():
    q, k, v, ptr = heads_of([3, 4], 2, 3)
    _, lse = attend(q, k, v, ptr)
    leaves = [part.requires_grad_() for part in (q, k, lse)]
    edges = edges_within([3, 4], count=5)
    assert torch.autograd.gradcheck(lambda *parts: edge_attention(*parts, edges, scale=0.6), leaves)


def test_edge_attention_without_edges():
    q, k, v, ptr = heads_of([3, 4], 2)
    leaves = [part.requires_grad_() for part in (q, k)]
    _, lse = attend(q, k, v, ptr)
    weight = edge_attention(q, k, lse, torch.empty(2, 0, dtype=torch.long))
    assert weight.shape == (0, 2)
    assert not any(grad.any() for grad in torch.autograd.grad(weight.sum(), leaves))


def test_edge_attention_in_half_precision_is_the_float32_one():
    *parts, ptr = heads_of([3, 40], dtype=torch.float32)
    q, k, v = (part.bfloat16() for part in parts)
    _, lse = attend(q, k, v, ptr)
    edges = edges_within([3, 40])
    with torch.autocast("cpu", torch.bfloat16):
        found = edge_attention(q, k, lse, edges)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, edge_attention(q.float(), k.float(), lse, edges))


def test_shapes_that_differ_are_named():
    q, k, v, ptr = heads_of([3, 4], 2)
    with pytest.raises(ValueError, match=r"\[7, 2, 5\], \[7, 1, 5\], \[7, 2, 5\]"):
        attend(q, k[:, :1], v, ptr)
    with pytest.raises(ValueError, match=r"\[nodes, heads, channels\]"):
        attend(q[:, 0], k[:, 0], v[:, 0], ptr)
    with pytest.raises(ValueError, match=r"got \[0, 2, 5\]"):
        attend(q[:0], k[:0], v[:0], torch.tensor([0]))


@pytest.mark.parametrize("ptr", [[0, 3], [0, 3, 8], [1, 3, 7], [0, 5, 3, 7]])
def test_a_ptr_that_is_not_the_batch_s_is_refused(ptr):
    q, k, v, _ = heads_of([3, 4])
    with pytest.raises(ValueError, match="ptr must ascend from 0 to the number of nodes, 7"):
        attend(q, k, v, torch.tensor(ptr))


def test_an_unknown_backend_lists_the_choices():
    with pytest.raises(ValueError, match="'flash'; choose one of auto, reference, padded, fused"):
        attend(*heads_of([3]), backend="flash")


def test_the_fused_kernel_is_refused_where_there_is_none():
    q, k, v, ptr = heads_of([3])
    with pytest.raises(ValueError, match="no fused kernel for meta"):
        attend(q.to("meta"), k.to("meta"), v.to("meta"), ptr, backend="fused")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["auto", "padded"])
def test_a_large_graph_is_attended_without_its_square(backend):
    program = f"""
from gtpool.ops.attention import attend
def step(nodes):
    parts = [torch.randn(nodes, 1, 128, requires_grad=True) for _ in range(3)]
    out, lse = attend(*parts, torch.tensor([0, nodes]), backend={backend!r})
    (out.square().sum() + lse.square().sum()).backward()
def small():
    step(300)
def large():
    step(12_000)
"""
    assert peak_of_large(program) < 200  # the 12,000 x 12,000 weights alone would be 576


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["padded", "auto"])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("held", [1, attention_padded.HELD_ON_DEVICE])
def test_equals_the_reference_on_a_gpu(backend, dtype, close, heads, held, monkeypatch):
    monkeypatch.setattr(attention_padded, "HELD_ON_DEVICE", held)
    *parts, ptr = heads_of([1, 9, 20, 20, 150, 300], heads, 16, dtype=dtype)
    parts = [part.cuda() for part in parts]
    assert_like_reference(backend, *parts, ptr, rtol=close, atol=close)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_ptr_on_the_host_keeps_a_gpu_busy():
    *parts, ptr = heads_of([1, 9, 20, 20, 150, 300], 2, 16, dtype=torch.float32)
    leaves = [part.cuda().requires_grad_() for part in parts]
    attend(*leaves, ptr)
    torch.cuda.set_sync_debug_mode("error")
    try:
        out, lse = attend(*leaves, ptr)
        (out.sum() + lse.sum()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(leaf.grad.isfinite().all() for leaf in leaves)
