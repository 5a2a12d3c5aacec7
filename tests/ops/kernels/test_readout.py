"""The Triton readout and gather against loops over graphs; interpreted where no GPU is."""

import os

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops.kernels.readout import gather, mean_max, take
from gtpool.ops.padded_ops import FeatureScaler
from gtpool.ops.padded_segment import gather_features
from gtpool.padded_batch import PaddedLayout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
SIZES = st.sampled_from((1, 3)).flatmap(
    lambda runs: st.lists(
        st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=runs, max_size=runs
    )
)


@pytest.fixture(scope="module", autouse=True)
def unwritten_is_nan():
    """Fill what torch.empty and its kin return with NaN: an entry left unwritten shows."""
    owners = ((torch, "empty_like"), (torch.Tensor, "new_empty"))
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in owners:
            patch.setattr(owner, name, poisoned(getattr(owner, name)))
        yield


def poisoned(make):
    def made(*args, **kwargs):
        new = make(*args, **kwargs)
        return new.fill_(torch.nan if new.is_floating_point() else torch.iinfo(new.dtype).max)

    return made


def laid_out(sizes, padding=3):
    """Lay out runs of graphs of these sizes; the longest run has so many rows of padding."""
    size = torch.tensor(sizes)
    capacity = int(size.sum(1).max()) + padding
    start = size.cumsum(1) - size + capacity * torch.arange(len(sizes))[:, None]
    batch = torch.full((len(sizes) * capacity,), size.numel())
    spans = zip(start.flatten().tolist(), size.flatten().tolist(), strict=True)
    for graph, (at, nodes) in enumerate(spans):
        batch[at : at + nodes] = graph
    return PaddedLayout(*(part.flatten().to(DEVICE) for part in (start, size, batch)))


def features(rows, width, *, dtype=torch.float64, ties=False, seed=0):
    """Draw rows, NaN on padding."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows.batch.numel(), width, generator=draw, dtype=torch.double)
    x = (x.round() if ties else x).to(DEVICE, dtype)
    x[rows.batch == rows.size.numel()] = torch.nan
    return x


def naive(x, rows):
    """Loop over graphs; ``amax`` shares its gradient evenly among ties."""
    read = []
    for at, nodes in zip(rows.start.tolist(), rows.size.tolist(), strict=True):
        part = x[at : at + nodes]
        read.append(torch.cat([part.mean(0), part.amax(0)] if nodes else [part.sum(0)] * 2))
    return torch.stack(read)


def assert_reads_like_the_loop(sizes, width, *, dtype=torch.float64, ties=False):
    rows = laid_out(sizes)
    x = features(rows, width, dtype=dtype, ties=ties).requires_grad_()
    twin = x.detach().double().requires_grad_()
    out, expected = mean_max(x, rows), naive(twin, rows)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, **CLOSE[dtype])
    d_out = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(out)
    (d_x,) = torch.autograd.grad(out, x, d_out)
    assert d_x.dtype == dtype
    (d_twin,) = torch.autograd.grad(expected, twin, d_out.double())
    torch.testing.assert_close(d_x.double(), d_twin, **CLOSE[dtype])


@given(sizes=SIZES, width=st.sampled_from((1, 8, 33, 130)), ties=st.booleans())
@example(sizes=[[0, 0, 0]], width=8, ties=False)
@example(sizes=[[40, 1, 0], [0, 0, 0], [1, 1, 1]], width=24, ties=True)
@settings(max_examples=10, deadline=None)
def test_mean_and_maximum_equal_a_loop_over_graphs(sizes, width, ties):
    assert_reads_like_the_loop(sizes, width, ties=ties)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", CLOSE)
def test_each_dtype_is_read(dtype, ties):
    assert_reads_like_the_loop([[5, 0, 20], [13, 1, 1]], 24, dtype=dtype, ties=ties)


def test_equal_rows_share_the_gradient_of_the_maximum():
    rows = laid_out([[4, 70]])  # more rows than a program holds at a time
    x = torch.zeros(rows.batch.numel(), 2, device=DEVICE, requires_grad=True)
    (d_x,) = torch.autograd.grad(mean_max(x, rows)[:, 2:].sum(), x)
    expected = torch.tensor([1 / 4] * 4 + [1 / 70] * 70 + [0.0] * 3, device=DEVICE)
    torch.testing.assert_close(d_x, expected[:, None].expand(-1, 2))


def chosen(sizes, kept_sizes, seed=0):
    """Keep random rows of each graph: the row that each was, and the row that each becomes."""
    rows, after = laid_out(sizes), laid_out(kept_sizes)
    draw = torch.Generator().manual_seed(seed)
    kept = torch.full(after.batch.shape, -1, device=DEVICE)
    number = torch.full(rows.batch.shape, -1, device=DEVICE)
    layout = (rows.start, rows.size, after.start, after.size)
    for at, nodes, first, count in zip(*(part.tolist() for part in layout), strict=True):
        picked = at + torch.randperm(nodes, generator=draw)[:count].sort().values.to(DEVICE)
        kept[first : first + count] = picked
        number[picked] = torch.arange(first, first + count, device=DEVICE)
    return rows, after, kept, number


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("width", [1, 24, 130])
@pytest.mark.parametrize(
    ("sizes", "kept_sizes"),
    [([[9, 0, 30]], [[5, 0, 15]]), ([[4, 1], [0, 0], [7, 2]], [[2, 1], [0, 0], [7, 1]])],
)
def test_rows_are_taken_and_their_gradients_go_back(sizes, kept_sizes, width, dtype):
    rows, after, kept, number = chosen(sizes, kept_sizes)
    x = features(rows, width, dtype=dtype).requires_grad_()
    out = take(x, kept, number)
    real = (kept >= 0)[:, None]
    assert torch.equal(out, torch.where(real, x[kept.clamp(min=0)], 0.0))
    d_out = features(after, width, dtype=dtype, seed=1)
    (d_x,) = torch.autograd.grad(out, x, d_out)
    expected = torch.zeros_like(x)
    expected[kept[kept >= 0]] = d_out[kept >= 0]
    assert torch.equal(d_x, expected)


def test_gradients_need_not_be_contiguous():
    rows, _, kept, number = chosen([[6, 3]], [[3, 2]])
    x = features(rows, 8).requires_grad_()
    (d_x,) = torch.autograd.grad(take(x, kept, number).sum(), x)
    assert torch.equal(d_x, (number >= 0).to(x)[:, None].expand(-1, 8))
    (d_x,) = torch.autograd.grad(mean_max(x, rows)[:, :8].sum(), x)
    size = torch.tensor([6.0] * 6 + [3.0] * 3 + [torch.inf] * 3, device=DEVICE).to(x)
    torch.testing.assert_close(d_x, (1 / size)[:, None].expand(-1, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", CLOSE)
def test_large_batches_on_a_gpu(dtype):
    sizes = torch.randint(0, 200, (3, 128), generator=torch.Generator().manual_seed(0)).tolist()
    assert_reads_like_the_loop(sizes, 128, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("columns", [1, 7])
@pytest.mark.parametrize("runs", [1, 3])
def test_gathered_features_are_scaled(runs, columns, dtype):
    x = torch.randint(-9, 9, (20, 7), device=DEVICE).to(dtype)
    number = torch.randint(-1, 20, (runs * 11,), device=DEVICE)
    scaler = FeatureScaler(*torch.rand(2, runs, columns, device=DEVICE).add(0.1))
    wanted = gather_features(x, number, torch.float32, scaler)
    torch.testing.assert_close(gather(x, number, torch.float32, scaler), wanted)
