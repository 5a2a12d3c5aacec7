"""The samplers against the sequential reference, and what a caller relies on."""

from fractions import Fraction
from math import ceil

import pytest
import reference_sample
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpool.ops.sample import ORDERS, SAMPLERS, kept_counts, round_scores, rws, rwsv, topk

WHEELS = {"rws": rws, "rwsv": rwsv}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
FIGURE = (0.20, 0.20, 0.25, 0.35)  # shares that fit the sets of the paper's figure

SCORES = {
    "any": st.floats(-5, 5, width=32),
    "few": st.sampled_from((-1.5, -0.0, 0.0, 2.0)),  # points fall on borders
    "extreme": st.sampled_from((-1e4, -1e4 + 1, -3.0, 0.0, 1e4)),
}
RATIOS = st.one_of(
    st.sampled_from((0.01, 0.07, 0.25, 1 / 3, 0.5, 0.75, 0.9, 1.0)),
    st.floats(0.01, 1),
    st.integers(1, 45),
)


@st.composite
def batches(draw, *, max_graphs=5, max_size=24):
    """Scores and sizes of a ragged batch; some graphs have one node, some equal scores."""
    sizes = draw(st.lists(st.integers(1, max_size), min_size=1, max_size=max_graphs))
    values = []
    for n in sizes:
        score = SCORES[draw(st.sampled_from(sorted(SCORES)))]
        equal = draw(st.booleans()) and draw(st.booleans())
        values += [draw(score)] * n if equal else draw(st.lists(score, min_size=n, max_size=n))
    return torch.tensor(values, dtype=draw(st.sampled_from(DTYPES))), sizes


def batch_of(sizes):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(count, seed=0):
    return torch.randn(count, generator=seeded(seed))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
@given(packed=batches(), ratio=RATIOS)
@settings(max_examples=100, deadline=None)
def test_keeps_what_the_reference_keeps(name, order, packed, ratio):
    score, sizes = packed
    kept = SAMPLERS[name](score, batch_of(sizes), ratio, order=order)
    assert kept.tolist() == reference_sample.sample(name, score, sizes, ratio, order=order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", WHEELS)
@given(packed=batches(), ratio=RATIOS, seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_random_points_keep_what_the_reference_keeps(name, order, packed, ratio, seed):
    score, sizes = packed
    count = sum(reference_sample.number_kept(n, ratio) for n in sizes)
    drawn = (1 - torch.rand(count, dtype=torch.double, generator=seeded(seed))).tolist()
    kept = WHEELS[name](
        score, batch_of(sizes), ratio, order=order, points="random", generator=seeded(seed)
    )
    assert kept.tolist() == reference_sample.sample(
        name, score, sizes, ratio, order=order, drawn=drawn
    )


LARGE = {
    "random": normal(100_000),
    "equal": torch.zeros(100_000),
    "skewed": 40 * normal(100_000),
    "one heavy node": torch.zeros(100_000).index_fill(0, torch.tensor([70_000]), 60.0),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("shape", LARGE)
def test_a_large_graph_keeps_what_the_reference_keeps(shape, name):
    score = LARGE[shape]
    kept = SAMPLERS[name](score, batch_of([100_000]), 0.3)
    assert kept.tolist() == reference_sample.sample(name, score, [100_000], 0.3)


@pytest.mark.parametrize("name", WHEELS)
def test_a_large_graph_in_score_order_keeps_what_the_reference_keeps(name):
    score = LARGE["random"].double()
    kept = WHEELS[name](score, batch_of([100_000]), 0.3, order="score")
    assert kept.tolist() == reference_sample.sample(name, score, [100_000], 0.3, order="score")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
@given(packed=batches(max_graphs=6), ratio=RATIOS)
@settings(max_examples=60, deadline=None)
def test_a_batch_keeps_what_its_graphs_keep_alone(name, order, packed, ratio):
    score, sizes = packed
    together = SAMPLERS[name](score, batch_of(sizes), ratio, order=order)
    alone, first = [], 0
    for part in score.split(sizes):
        kept = SAMPLERS[name](part, batch_of([part.numel()]), ratio, order=order)
        alone += (kept + first).tolist()
        first += part.numel()
    assert together.tolist() == alone


@pytest.mark.parametrize(("name", "kept"), [("rws", [1, 3]), ("rwsv", [1, 2]), ("topk", [2, 3])])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_figure_of_the_paper(name, kept, dtype):
    score = torch.tensor(FIGURE, dtype=torch.double).log().to(dtype)
    assert SAMPLERS[name](score, batch_of([4]), 0.5).tolist() == kept


def test_a_point_on_a_border_belongs_to_the_left_node():
    # Three equal nodes and the points 1/3, 2/3: both lie on right borders.
    assert rws(torch.zeros(3), batch_of([3]), 2).tolist() == [0, 1]
    # The midway borders are 1/2 and 5/6: the points lie inside nodes 0 and 1.
    assert rwsv(torch.zeros(3), batch_of([3]), 2).tolist() == [0, 1]
    # Two equal nodes and the point 1/2, on a border of RWS; the border of RWSV is 3/4.
    assert rws(torch.zeros(2), batch_of([2]), 1).tolist() == [0]
    assert rwsv(torch.zeros(2), batch_of([2]), 1).tolist() == [0]


def test_a_taken_node_sends_the_point_left_around_the_circle():
    # All points fall on node 1; the second goes to node 0, the third around to node 4.
    score = torch.tensor([0.0, 50.0, 0.0, 0.0, 0.0])
    assert rws(score, batch_of([5]), 2).tolist() == [0, 1]
    assert rws(score, batch_of([5]), 3).tolist() == [0, 1, 4]


def test_topk_keeps_the_lowest_index_of_equal_scores():
    score = torch.tensor([0.0, 1.0, -0.0, 0.0, 1.0, 0.0])
    assert topk(score, batch_of([6]), 4).tolist() == [0, 1, 2, 4]
    assert topk(score.double(), batch_of([6]), 4).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("name", SAMPLERS)
@given(packed=batches(max_graphs=8), ratio=RATIOS)
@settings(max_examples=60, deadline=None)
def test_the_kept_are_sorted_and_each_graph_keeps_its_number(name, packed, ratio):
    score, sizes = packed
    kept = SAMPLERS[name](score, batch_of(sizes), ratio)
    assert kept.dtype == torch.long
    assert (kept.diff() > 0).all()
    counts = batch_of(sizes)[kept].bincount(minlength=len(sizes)).tolist()
    assert counts == [reference_sample.number_kept(n, ratio) for n in sizes]


@pytest.mark.parametrize("name", SAMPLERS)
def test_ratio_one_keeps_all(name):
    assert SAMPLERS[name](normal(12), batch_of([4, 1, 7]), 1.0).tolist() == list(range(12))


@pytest.mark.parametrize("name", SAMPLERS)
def test_half_of_257_nodes_is_129_in_bfloat16(name):
    assert SAMPLERS[name](normal(257).bfloat16(), batch_of([257]), 0.5).numel() == 129


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    ratio=st.one_of(
        st.floats(0, 1, exclude_min=True),
        st.sampled_from((0.07, 0.1 + 0.2, 1 / 3, 2 / 3, 1e-9, 5e-324, 1.0)),
    ),
)
@settings(max_examples=100, deadline=None)
def test_counts_are_exact_on_the_decimal_value_of_the_ratio(sizes, ratio):
    exact = [ceil(Fraction(str(ratio)) * n) for n in sizes]
    assert kept_counts(torch.tensor(sizes), ratio).tolist() == exact


def test_counts_by_hand():
    assert kept_counts(torch.tensor([100]), 0.07).tolist() == [7]
    assert kept_counts(torch.tensor([10]), 0.1 + 0.2).tolist() == [4]  # 0.30000000000000004
    assert kept_counts(torch.tensor([3, 30]), 1 / 3).tolist() == [1, 10]  # 0.3333333333333333
    assert kept_counts(torch.tensor([1, 3, 9]), 3).tolist() == [1, 3, 3]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", WHEELS)
def test_random_points_follow_the_generator(name, order):
    def draw(seed):
        return WHEELS[name](
            score, batch, 0.4, order=order, points="random", generator=seeded(seed)
        ).tolist()

    sizes = [50, 1, 9]
    score, batch = normal(60), batch_of(sizes)
    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert batch[draw(1)].bincount().tolist() == [20, 1, 4]


@pytest.mark.parametrize("name", WHEELS)
def test_a_random_point_at_the_edge_stays_in_its_graph(name, monkeypatch):
    def at_the_edge(count, **_):
        return torch.full((count,), 1 - 2**-53, dtype=torch.double)

    sizes, score = [3, 4, 5], normal(12)
    monkeypatch.setattr(torch, "rand", at_the_edge)
    kept = WHEELS[name](score, batch_of(sizes), 2, points="random", generator=seeded())
    expected = reference_sample.sample(name, score, sizes, 2, drawn=[2**-53] * 6)
    assert kept.tolist() == expected


def test_one_random_point_hits_each_node_as_often_as_its_share():
    wheels = 40_000
    score = torch.tensor(FIGURE).log().repeat(wheels)
    expected = {
        "rws": FIGURE,
        "rwsv": (0.20 + 0.10, 0.10 + 0.125, 0.125 + 0.175, 0.175),  # between midpoints
    }
    for name, shares in expected.items():
        kept = WHEELS[name](score, batch_of([4] * wheels), 1, points="random", generator=seeded(5))
        seen = (kept % 4).bincount(minlength=4) / wheels
        # 0.01 is four standard deviations of a frequency over 40,000 draws.
        torch.testing.assert_close(seen, torch.tensor(shares), atol=0.01, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WHEELS)
def test_in_score_order_relabelling_permutes_the_kept(name, dtype):
    for seed in range(30):
        score = torch.randperm(40, generator=seeded(seed)).to(dtype) / 7
        new = torch.randperm(40, generator=seeded(1000 + seed))  # node i is called new[i]
        renamed = torch.empty_like(score).index_copy_(0, new, score)
        kept = WHEELS[name](score, batch_of([40]), 0.3, order="score")
        again = WHEELS[name](renamed, batch_of([40]), 0.3, order="score")
        assert again.tolist() == sorted(new[kept].tolist())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("sizes", [[9], [1, 30, 2, 2]])
def test_given_sizes_change_nothing(name, order, sizes):
    score, batch = normal(sum(sizes)), batch_of(sizes)
    counted = SAMPLERS[name](score, batch, 0.5, order=order)
    given_sizes = SAMPLERS[name](score, batch, 0.5, order=order, sizes=torch.tensor(sizes))
    assert counted.tolist() == given_sizes.tolist()


@pytest.mark.parametrize("name", SAMPLERS)
def test_short_integers_number_graphs_as_well(name):
    score, batch, sizes = normal(12), batch_of([3, 9]), torch.tensor([3, 9])
    kept = SAMPLERS[name](score, batch, 1 / 3)
    short = SAMPLERS[name](score, batch.int(), 1 / 3, sizes=sizes.int())
    assert short.tolist() == kept.tolist()


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_graphs_keep_nothing(name, dtype):
    score = normal(9).to(dtype)
    kept = SAMPLERS[name](score, batch_of([3, 5, 1]), 0.5).tolist()
    gaps = [0, 3, 0, 0, 5, 1, 0]
    assert SAMPLERS[name](score, batch_of(gaps), 0.5).tolist() == kept
    assert SAMPLERS[name](score, batch_of(gaps), 0.5, sizes=torch.tensor(gaps)).tolist() == kept
    assert SAMPLERS[name](score[:0], batch_of([0]), 0.5).tolist() == []


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_input_is_left_alone(name, order, dtype):
    score, batch, sizes = normal(20).to(dtype), batch_of([13, 7]), torch.tensor([13, 7])
    before = score.clone(), batch.clone(), sizes.clone()
    SAMPLERS[name](score, batch, 0.5, order=order, sizes=sizes)
    SAMPLERS[name](score[:13], batch[:13], 0.5, order=order, sizes=sizes[:1])
    for now, then in zip((score, batch, sizes), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_scores_may_require_a_gradient(name, order):
    score, batch = normal(20), batch_of([13, 7])
    kept = SAMPLERS[name](score.clone().requires_grad_(), batch, 0.5, order=order)
    assert not kept.requires_grad
    assert kept.tolist() == SAMPLERS[name](score, batch, 0.5, order=order).tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", [slice(3, 4), slice(0, 9)])
def test_broken_scores_still_give_the_right_number_of_nodes(name, order, dtype, broken, where):
    score, batch = normal(16).to(dtype), batch_of([9, 7])
    score[where] = broken
    kept = SAMPLERS[name](score, batch, 0.5, order=order)
    assert kept.unique().tolist() == kept.tolist()
    assert batch[kept].tolist() == [0] * 5 + [1] * 4
    if name != "topk":
        options = {"points": "random", "generator": seeded()}
        kept = SAMPLERS[name](score, batch, 0.5, order=order, **options)
        assert kept.unique().tolist() == kept.tolist()
        assert batch[kept].tolist() == [0] * 5 + [1] * 4


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 12), (torch.float64, 26)])
def test_settled_scores_have_half_their_digits(dtype, digits):
    score = 100 * torch.randn(1000, dtype=dtype, generator=seeded())
    settled = round_scores(score)
    assert settled.dtype == dtype
    scaled = settled.frexp().mantissa * 2**digits
    assert torch.equal(scaled, scaled.round())
    assert ((settled - score).abs() <= score.abs() * 2.0**-digits).all()
    assert torch.equal(round_scores(settled), settled)
    assert torch.equal(round_scores(-score), -settled)


def test_settled_scores_tie_where_only_rounding_differs():
    third = torch.tensor([1 / 3, 1 / 3 + 1e-7, 0.1 + 0.2 + 1 / 30])
    assert third.unique().numel() > 1
    assert round_scores(third).unique().numel() == 1
    twins = torch.tensor([0.1 + 0.2, 0.3], dtype=torch.double)
    assert twins[0] != twins[1]
    assert round_scores(twins).unique().numel() == 1
    apart = torch.tensor([1.0, 1.001])
    assert round_scores(apart).unique().numel() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_settling_keeps_exact_values_at_any_magnitude(dtype):
    exact = torch.tensor([0.0, -0.5, 3.0, 1e4, 2.0**100, -(2.0**-100), torch.inf], dtype=dtype)
    assert torch.equal(round_scores(exact), exact)


def test_settling_leaves_short_types_and_passes_no_gradient():
    coarse = normal(100).bfloat16()
    assert torch.equal(round_scores(coarse), coarse)
    assert not round_scores(normal(3).requires_grad_()).requires_grad


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("ratio", "message"),
    [
        (0.0, r"share of nodes to keep, in \(0, 1\], got 0\.0"),
        (1.5, r"got 1\.5; to keep a fixed number of nodes, give an int"),
        (-0.5, r"got -0\.5"),
        (float("nan"), "got nan"),
        (0, "at least 1, got 0"),
        (-3, "at least 1, got -3"),
        (True, "got True"),
        ("half", "got 'half'"),
        (None, "got None"),
    ],
)
def test_a_wrong_ratio_is_named(name, ratio, message):
    with pytest.raises(ValueError, match=message):
        SAMPLERS[name](normal(3), batch_of([3]), ratio)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "random"}, "unknown order 'random'; choose one of 'index', 'score'"),
        ({"sizes": torch.tensor([2, 2])}, "sizes add up to 4 nodes, but batch has 3"),
    ],
)
def test_a_wrong_option_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        SAMPLERS[name](normal(3), batch_of([3]), 0.5, **options)


@pytest.mark.parametrize("name", WHEELS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": "odd"}, "unknown points 'odd'; choose one of 'fixed', 'random'"),
        ({"points": "random"}, "needs generator"),
        ({"generator": seeded()}, "points='random'"),
    ],
)
def test_points_and_generator_go_together(name, options, message):
    with pytest.raises(ValueError, match=message):
        WHEELS[name](normal(3), batch_of([3]), 0.5, **options)


@pytest.mark.parametrize("options", [{"points": "random"}, {"generator": seeded()}])
def test_topk_draws_no_points(options):
    with pytest.raises(ValueError, match="random points"):
        topk(normal(3), batch_of([3]), 0.5, **options)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("score", [normal(4), normal(3).unsqueeze(1)])
def test_score_and_batch_must_match(name, score):
    with pytest.raises(ValueError, match=r"vectors of the same length, got \[.*\] and \[3\]"):
        SAMPLERS[name](score, batch_of([3]), 0.5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("sizes", [[5000], [40, 1, 300, 7, 7]])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", SAMPLERS)
def test_cuda_keeps_the_same_nodes_without_synchronising(name, order, sizes):
    def keep_on_cuda(score):
        return SAMPLERS[name](score, batch, 0.5, order=order, sizes=torch.tensor(sizes))

    count = sum(sizes)
    scores = [normal(count), normal(count).double(), normal(count).round(), torch.zeros(count)]
    batch = batch_of(sizes).cuda()
    on_cuda = [score.cuda() for score in scores]
    expected = [SAMPLERS[name](score, batch_of(sizes), 0.5, order=order) for score in scores]
    kept = without_synchronising(lambda: [keep_on_cuda(score) for score in on_cuda])
    assert [nodes.tolist() for nodes in kept] == [nodes.tolist() for nodes in expected]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", WHEELS)
def test_random_points_on_cuda_do_not_synchronise(name, order):
    def draw():
        return WHEELS[name](
            score, batch, 0.5, order=order, points="random", generator=generator, sizes=sizes
        )

    sizes = torch.tensor([40, 1, 300])
    score, batch = normal(341).cuda(), batch_of([40, 1, 300]).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    kept = without_synchronising(draw)
    assert (kept.diff() > 0).all()
    assert batch[kept].bincount().tolist() == [20, 1, 150]


def without_synchronising(call):
    """Call twice: first to load kernels, then with every wait for the device an error."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode(before)
