"""The kernelised attention against its definition, outputs and gradients."""

from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from peak_memory import peak_of_large

from gtpool.graph import GraphLayout
from gtpool.ops import attention_sums
from gtpool.ops.attention import attend
from gtpool.ops.attention_linear import LinearAttention, attend_linear, edge_attention_linear

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
WAYS = {"features": True, "pairs": False}


@pytest.fixture(scope="module", autouse=True)
def unwritten_is_nan():
    """Fill what torch.empty_like and new_empty return with NaN: an entry left unwritten shows."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, poisoned(getattr(owner, name)))
        yield


def poisoned(make):
    def made(*args, **kwargs):
        new = make(*args, **kwargs)
        return new.fill_(torch.nan) if new.is_floating_point() else new

    return made


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Have graphs of all sizes summed one way, in many small pieces."""
    monkeypatch.setattr(attention_sums, "is_long", lambda _: WAYS[request.param])
    monkeypatch.setattr(attention_sums, "HELD", 200)
    monkeypatch.setattr(attention_sums, "ROWS", 7)
    monkeypatch.setattr(attention_sums, "BLOCK", 3)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def heads_of(sizes, heads=2, channels=5, *, dtype=torch.float64, seed=0):
    """Give q, k and v of a batch, and its ptr."""
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return *normal(3, sum(sizes), heads, channels, seed=seed, dtype=dtype), ptr


def matrix(q, k, ptr, scale=None):
    """Give the attention matrix by its definition, zero between graphs, [H, N, N]."""
    scale = q.size(-1) ** -0.5 if scale is None else scale
    same = torch.zeros(q.size(0), q.size(0), dtype=q.dtype)
    for start, end in pairwise(ptr):
        same[start:end, start:end] = 1
    logits = torch.einsum("ihc,jhc->hij", q, k) * scale
    weight = (1 + logits + logits**2 / 2) * same
    return weight / weight.sum(-1, keepdim=True), weight.sum(-1).log().T


def naive(q, k, v, ptr, scale=None):
    weight, lse = matrix(q, k, ptr, scale)
    return torch.einsum("hij,jhc->ihc", weight, v), lse


def grads(function, *batch, scale=None):
    """Give the gradients of q, k and v of a loss that sees out and lse."""
    *parts, ptr = batch
    leaves = [part.detach().requires_grad_() for part in parts]
    out, lse = function(*leaves, ptr, scale=scale)
    return torch.autograd.grad((out + lse.unsqueeze(-1)).sin().sum(), leaves)


def assert_like_definition(*batch, scale=None, **close):
    found, wanted = attend_linear(*batch, scale=scale), naive(*batch, scale=scale)
    torch.testing.assert_close(found, wanted, **close)
    found = grads(attend_linear, *batch, scale=scale)
    torch.testing.assert_close(found, grads(naive, *batch, scale=scale), **close)


def edges_within(sizes, count=40):
    """Draw edges inside each graph, some of them loops and some repeated."""
    start, parts = 0, []
    for seed, size in enumerate(sizes):
        drawn = torch.randint(size, (2, count), generator=torch.Generator().manual_seed(seed))
        parts.append(drawn + start)
        start += size
    return torch.cat(parts, 1)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    heads=st.sampled_from((1, 3)),
    channels=st.sampled_from((1, 2, 7, 8, 20)),
    scale=st.sampled_from((None, 0.2, 1.5)),
    held=st.sampled_from((1, 300, attention_sums.HELD)),
    long=st.booleans(),
    seed=st.integers(0, 99),
)
@example(sizes=[1], heads=3, channels=5, scale=None, held=1, long=True, seed=0)
@example(sizes=[1] * 9, heads=1, channels=5, scale=None, held=1, long=False, seed=0)
@settings(max_examples=50, deadline=None)
def test_equals_the_definition(sizes, heads, channels, scale, held, long, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_sums, "HELD", held)
        patch.setattr(attention_sums, "ROWS", 7)
        patch.setattr(attention_sums, "BLOCK", 5)
        patch.setattr(attention_sums, "is_long", lambda _: long)
        batch = heads_of(sizes, heads, channels, seed=seed)
        assert_like_definition(*batch, scale=scale, **CLOSE)


@pytest.mark.parametrize("channels", [3, 16, 40])
def test_equals_the_definition_where_small_and_large_graphs_meet(channels):
    assert_like_definition(*heads_of([1, 5, 300, 100, 9, 850], 2, channels), **CLOSE)


def test_equals_the_definition_in_float32():
    assert_like_definition(
        *heads_of([1, 20, 300, 9], 2, 16, dtype=torch.float32), rtol=1e-4, atol=1e-5
    )


@pytest.mark.usefixtures("way")
def test_gradients_are_those_of_finite_differences():
    *parts, ptr = heads_of([3, 1, 4], 2, 4)
    leaves = [part.requires_grad_() for part in parts]
    assert torch.autograd.gradcheck(lambda *given: attend_linear(*given, ptr), leaves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("way")
def test_half_precision_is_rounded_only_at_the_ends(dtype):
    *parts, ptr = heads_of([1, 20, 130], 2, 8, dtype=torch.float32)
    q, k, v = (part.to(dtype) for part in parts)
    with torch.autocast("cpu", torch.bfloat16):
        out, lse = attend_linear(q, k, v, ptr)
        d_halves = grads(attend_linear, q, k, v, ptr)
    exact_out, exact_lse = naive(q.float(), k.float(), v.float(), ptr)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(out, exact_out.to(dtype))
    torch.testing.assert_close(lse, exact_lse, rtol=1e-5, atol=1e-5)
    for half, exact in zip(
        d_halves, grads(naive, *(p.float() for p in (q, k, v)), ptr), strict=True
    ):
        assert half.dtype == dtype
        torch.testing.assert_close(half.float(), exact, rtol=0.05, atol=0.05 * exact.std().item())


@pytest.mark.usefixtures("way")
def test_the_weights_of_a_row_sum_to_one():
    q, k, _, ptr = heads_of([1, 20, 100, 3], 3)
    out, _ = attend_linear(3 * q, k, torch.ones_like(q), ptr)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("way")
def test_a_lone_node_attends_to_itself():
    q, k, v, ptr = heads_of([1, 1], 3)
    out, lse = attend_linear(q, k, v, ptr)
    torch.testing.assert_close(out, v, **CLOSE)
    weight = edge_attention_linear(q, k, lse, torch.tensor([[0, 1], [0, 1]]))
    torch.testing.assert_close(weight, torch.ones_like(weight), **CLOSE)


def test_small_logits_give_softmax_attention():
    q, k, v, ptr = heads_of([30, 200], 2, 16)
    errors = []
    for size in (0.1, 0.05):
        out, _ = attend_linear(size * q, size * k, v, ptr)
        errors.append((out - attend(size * q, size * k, v, ptr)[0]).abs().max().item())
    assert errors[0] < 1e-5
    assert errors[1] < errors[0] / 50  # the first term left out is the third power of q·k


@pytest.mark.usefixtures("way")
def test_renumbering_the_nodes_renumbers_the_result():
    sizes = [20, 7]
    q, k, v, ptr = heads_of(sizes)
    new = torch.cat(
        [
            torch.randperm(20, generator=torch.Generator().manual_seed(0)),
            20 + torch.arange(7).flip(0),
        ]
    )
    edges = edges_within(sizes)
    number = new.argsort()  # where each node went
    out, lse = attend_linear(q, k, v, ptr)
    moved, moved_lse = attend_linear(q[new], k[new], v[new], ptr)
    torch.testing.assert_close(moved, out[new], **CLOSE)
    found = edge_attention_linear(q[new], k[new], moved_lse, number[edges])
    torch.testing.assert_close(found, edge_attention_linear(q, k, lse, edges), **CLOSE)


@pytest.mark.parametrize("channels", [4, 16])
def test_a_graph_sees_the_same_alone_and_in_a_batch(channels):
    q, k, v, ptr = heads_of([1, 7, 30, 150, 30], 3, channels)
    batched = (*attend_linear(q, k, v, ptr), *grads(attend_linear, q, k, v, ptr))
    for start, end in pairwise(ptr):
        own = (q[start:end], k[start:end], v[start:end], torch.tensor([0, end - start]))
        alone = (*attend_linear(*own), *grads(attend_linear, *own))
        for whole, part in zip(batched, alone, strict=True):
            torch.testing.assert_close(whole[start:end], part, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("way")
def test_a_graph_gone_wrong_leaves_the_others_alone():
    q, k, v, ptr = heads_of([5, 7, 6])
    wanted = (*attend_linear(q, k, v, ptr), *grads(attend_linear, q, k, v, ptr))
    for part in (q, k, v):
        part[:5] = torch.nan
    found = (*attend_linear(q, k, v, ptr), *grads(attend_linear, q, k, v, ptr))
    for before, after in zip(wanted, found, strict=True):
        torch.testing.assert_close(after[5:], before[5:])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("far", [1e3, -1e3])
def test_extreme_logits_stay_finite(far):
    q, k, v, ptr = heads_of([2, 20, 100], dtype=torch.float32)
    q, k = q * 0 + abs(far), k.sign() * far / k.size(-1)  # logits from -1e6 to 1e6
    results = (*attend_linear(q, k, v, ptr), *grads(attend_linear, q, k, v, ptr))
    assert all(result.isfinite().all() for result in results)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("scale", [None, 0.7])
def test_edges_and_loops_read_the_matrix(scale):
    sizes = [1, 6, 25]
    q, k, v, ptr = heads_of(sizes, 3)
    edges = torch.cat([edges_within(sizes, count=10), torch.arange(32).expand(2, -1)], 1)
    leaves = [q.requires_grad_(), k.requires_grad_()]
    _, lse = attend_linear(q, k, v, ptr, scale=scale)
    found = edge_attention_linear(q, k, lse, edges, scale=scale)
    wanted = matrix(q, k, ptr, scale)[0][:, edges[1], edges[0]].T
    torch.testing.assert_close(found, wanted, **CLOSE)
    sent = normal(*found.shape, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, sent), torch.autograd.grad(wanted, leaves, sent), **CLOSE
    )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("sizes", [[1, 6, 25], [30]])
def test_some_rows_have_the_output_and_the_gradients_of_those_rows(sizes):
    q, k, v, ptr = heads_of(sizes, 3)
    level = GraphLayout(ptr.diff(), ptr, torch.arange(len(sizes)).repeat_interleave(ptr.diff()))
    place = torch.arange(sum(sizes)) - ptr[level.batch]
    kept = (place % 2 == 0).nonzero().flatten()
    leaves = [part.requires_grad_() for part in (q, k, v)]
    with torch.no_grad():
        attention = LinearAttention.of(q, k, v, level)
    found = attention.rows(q[kept], k, v, kept, 0.5)
    wanted = naive(q, k, v, ptr)[0][kept]
    torch.testing.assert_close(found, wanted, **CLOSE)
    torch.testing.assert_close(attention.out[kept], wanted, **CLOSE)
    sent = normal(*found.shape, seed=1)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, sent), torch.autograd.grad(wanted, leaves, sent), **CLOSE
    )


@pytest.mark.usefixtures("way")
def test_edge_attention_has_the_gradients_of_all_its_inputs():
    q, k, v, ptr = heads_of([3, 4], 2, 3)
    _, lse = attend_linear(q, k, v, ptr)
    leaves = [part.requires_grad_() for part in (q, k, lse)]
    edges = edges_within([3, 4], count=5)
    assert torch.autograd.gradcheck(lambda *given: edge_attention_linear(*given, edges), leaves)


def test_edge_attention_without_edges():
    q, k, v, ptr = heads_of([3, 4])
    leaves = [part.requires_grad_() for part in (q, k)]
    _, lse = attend_linear(q, k, v, ptr)
    weight = edge_attention_linear(q, k, lse, torch.empty(2, 0, dtype=torch.long))
    assert weight.shape == (0, 2)
    assert not any(grad.any() for grad in torch.autograd.grad(weight.sum(), leaves))


def test_edge_attention_in_half_precision_is_the_float32_one():
    *parts, ptr = heads_of([3, 40], dtype=torch.float32)
    q, k, v = (part.bfloat16() for part in parts)
    _, lse = attend_linear(q, k, v, ptr)
    edges = edges_within([3, 40])
    with torch.autocast("cpu", torch.bfloat16):
        found = edge_attention_linear(q, k, lse, edges)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, edge_attention_linear(q.float(), k.float(), lse, edges))


def test_a_second_derivative_is_refused_not_wrong():
    *parts, ptr = heads_of([3, 5])
    leaves = [part.requires_grad_() for part in parts]
    out, _ = attend_linear(*leaves, ptr)
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_shapes_that_differ_are_named():
    q, k, v, ptr = heads_of([3, 4])
    with pytest.raises(ValueError, match=r"\[7, 2, 5\], \[7, 1, 5\], \[7, 2, 5\]"):
        attend_linear(q, k[:, :1], v, ptr)


@pytest.mark.slow
def test_memory_grows_with_nodes_not_with_their_square():
    program = """
from gtpool.ops.attention_linear import attend_linear, edge_attention_linear
def step(sizes):
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    parts = [torch.randn(sum(sizes), 2, 16, requires_grad=True) for _ in range(3)]
    out, lse = attend_linear(*parts, ptr)
    weight = edge_attention_linear(*parts[:2], lse, torch.randint(sum(sizes), (2, 100_000)))
    (out.sum() + weight.sum()).backward()
def small():
    step([1000])
def large():
    step([40] * 500)
    step([20_000])
"""
    assert peak_of_large(program) < 200  # the n x n weights of 20,000 nodes would be 1,600 a head
