"""The Triton samplers against ``ops.sample``; in Triton's interpreter where no GPU is."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from gtpool.ops import padded_torch
from gtpool.ops.kernels.sample import LONGEST, sample
from gtpool.ops.sample import ORDERS, SAMPLERS, kept_counts, round_scores
from gtpool.padded_batch import PaddedLayout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("unwritten_is_nan")
SCORES = {
    "any": st.floats(-5, 5, width=32),
    "few": st.sampled_from((-1.5, -0.0, 0.0, 2.0)),  # points fall on borders
    "near": st.sampled_from((1.0, 1 + 1e-5, 1 - 1e-5, 1 + 2e-4)),  # some settle to one value
    "extreme": st.sampled_from((-1e30, -1e4, -1e4 + 1, -3.0, 0.0, 1e4, 1e30)),
}


@st.composite
def batches(draw, *, longest):
    """Sizes [R, G], some 0, and scores of all nodes; equal ones in some graphs."""
    runs, graphs = draw(st.sampled_from(((1, 1), (1, 4), (3, 2))))
    sizes = draw(st.lists(st.integers(0, longest), min_size=runs * graphs, max_size=runs * graphs))
    values = []
    for n in sizes:
        score = SCORES[draw(st.sampled_from(sorted(SCORES)))]
        equal = draw(st.booleans()) and draw(st.booleans())
        values += [draw(score)] * n if equal else draw(st.lists(score, min_size=n, max_size=n))
    dtype = draw(st.sampled_from((torch.float32, torch.float32, torch.float64)))
    return torch.tensor(sizes).view(runs, graphs), torch.tensor(values, dtype=dtype)


RATIOS = st.one_of(st.sampled_from((0.07, 1 / 3, 0.5, 0.9, 1.0)), st.integers(1, 12))


def rows_of(sizes, capacity):
    """Lay out graphs of these sizes, [R, G], each run in so many rows."""
    start = sizes.cumsum(1) - sizes + capacity * torch.arange(len(sizes))[:, None]
    batch = torch.full((len(sizes) * capacity,), sizes.numel())
    spans = zip(start.flatten().tolist(), sizes.flatten().tolist(), strict=True)
    for graph, (at, nodes) in enumerate(spans):
        batch[at : at + nodes] = graph
    return PaddedLayout(*(part.flatten().to(DEVICE) for part in (start, sizes, batch)))


def spun(sizes, values, ratio, sampler, order, longest, spare=2):
    """Sample real rows of NaN padding, and give the layouts of both levels with what came."""
    kept = kept_counts(sizes.flatten(), ratio).view_as(sizes)
    rows, after = (rows_of(part, int(part.sum(1).max()) + spare) for part in (sizes, kept))
    score = torch.full(rows.batch.shape, torch.nan, dtype=values.dtype, device=DEVICE)
    score[rows.batch < sizes.numel()] = values.to(DEVICE)
    return rows, after, *sample(score, rows, after, sampler=sampler, order=order, longest=longest)


def assert_keeps_the_same(sizes, values, ratio, sampler, order, longest):
    rows, after, kept, number = spun(sizes, values, ratio, sampler, order, longest)
    real, stays = (part.batch < sizes.numel() for part in (rows, after))
    batch, flat = rows.batch[real], sizes.flatten()
    chosen = SAMPLERS[sampler](
        round_scores(values.to(DEVICE)), batch, ratio, order=order, sizes=flat
    )
    expected = real.nonzero().view(-1)[chosen]
    assert kept.dtype == number.dtype == torch.long
    assert kept[stays].tolist() == expected.tolist()
    assert (kept[~stays] == -1).all()
    assert number[expected].tolist() == stays.nonzero().view(-1).tolist()
    assert (number == -1).sum() == number.numel() - expected.numel()


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(packed=batches(longest=30), ratio=RATIOS)
@settings(max_examples=10, deadline=None)
def test_keeps_what_the_sampler_keeps(sampler, packed, ratio):
    assert_keeps_the_same(*packed, ratio, sampler, "index", 30)


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(packed=batches(longest=15), ratio=RATIOS)
@settings(max_examples=6, deadline=None)
def test_by_score_keeps_what_the_sampler_keeps(sampler, packed, ratio):
    assert_keeps_the_same(*packed, ratio, sampler, "score", 15)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("heavy", [0, 6, 12])
def test_points_on_one_heavy_node_go_on_to_the_left(sampler, heavy):
    values = torch.zeros(13).index_fill(0, torch.tensor([heavy]), 60.0)
    assert_keeps_the_same(torch.tensor([[13]]), values, 5, sampler, "index", 13)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_larger_block_changes_nothing(sampler, order):
    sizes = torch.tensor([[33, 1]])
    values = torch.randn(34, generator=torch.Generator().manual_seed(0))
    assert_keeps_the_same(sizes, values, 0.5, sampler, order, 40)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_half_precision_keeps_what_the_sampler_keeps(sampler):
    values = torch.randn(60, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert_keeps_the_same(torch.tensor([[20, 31, 9]]), values, 0.4, sampler, "index", 31)


def assert_colours_break_ties(sizes, values, colour, ratio, sampler, longest):
    kept = kept_counts(sizes.flatten(), ratio).view_as(sizes)
    rows, after = (rows_of(part, int(part.sum(1).max()) + 2) for part in (sizes, kept))
    real = rows.batch < sizes.numel()
    score = torch.zeros(real.shape, dtype=values.dtype, device=DEVICE)
    score[real] = values.to(DEVICE)
    code = torch.zeros(real.shape, dtype=torch.long, device=DEVICE)
    code[real] = colour.to(DEVICE)
    options = {"sampler": sampler, "order": "score", "longest": longest, "colour": code}
    expected = padded_torch.sample(score, rows, after, **options)
    score[~real] = torch.nan
    kept, number = sample(score, rows, after, **options)
    assert kept.tolist() == expected.kept.tolist()
    assert number.tolist() == expected.number.tolist()


@pytest.mark.parametrize("sampler", SAMPLERS)
@given(packed=batches(longest=20), ratio=RATIOS, seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_colours_break_ties_before_indices(sampler, packed, ratio, seed):
    sizes, values = packed
    draw = torch.Generator().manual_seed(seed)
    colour = torch.randint(-3, 3, values.shape, generator=draw) * 2**40
    assert_colours_break_ties(sizes, values, colour, ratio, sampler, 20)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("order", "bad"), [("index", torch.nan), ("score", torch.inf), ("index", -torch.inf)]
)
def test_a_score_that_is_not_finite_keeps_the_number(sampler, order, bad):
    sizes = torch.tensor([[7, 0, 4]])
    values = torch.tensor([0.0, 1.0, bad, 2.0, bad, 0.0, 0.0, *(bad,) * 4])
    rows, after, kept, number = spun(sizes, values, 0.5, sampler, order, 7)
    real = after.batch < 3
    assert torch.equal(rows.batch[kept[real]], after.batch[real])
    assert (kept[real].diff() > 0).all()
    assert torch.equal(number[kept[real]], real.nonzero().view(-1))
    assert (kept[~real] == -1).all()


def test_unknown_choices_are_listed():
    rows = rows_of(torch.tensor([[3]]), 3)
    with pytest.raises(ValueError, match="unknown sampler 'best'; choose one of 'topk', 'rws'"):
        sample(torch.zeros(3), rows, rows, sampler="best", order="index", longest=3)
    with pytest.raises(ValueError, match="unknown order 'size'; choose one of 'index', 'score'"):
        sample(torch.zeros(3), rows, rows, sampler="rws", order="size", longest=3)
    with pytest.raises(ValueError, match="4096, got 4097"):
        sample(torch.zeros(3), rows, rows, sampler="rws", order="index", longest=LONGEST + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("longest", [64, 620, 4096])
def test_keeps_what_the_sampler_keeps_on_a_gpu(sampler, order, longest):
    generator = torch.Generator().manual_seed(longest)
    sizes = torch.randint(0, longest + 1, (3, 128), generator=generator)
    sizes[0, :2] = torch.tensor([longest, 1])
    count = int(sizes.sum())
    values = torch.randn(count, generator=generator)
    for ratio, shape in ((0.5, values), (0.3, values.round()), (0.9, 40 * values), (7, 0 * values)):
        assert_keeps_the_same(sizes, shape, ratio, sampler, order, longest)
        colour = torch.randint(2**62, (count,), generator=generator) >> 58
        assert_colours_break_ties(sizes, shape, colour, ratio, sampler, longest)
