"""Comparison of several methods: against scipy's own tests and by hand."""

from math import isnan, sqrt

import numpy as np
import pytest
from scipy import stats

from gtpool.reproduce.comparison import (
    ALPHA,
    compare,
    compare_unpaired,
    holm,
)

NOISE = np.random.default_rng(7)


def table(methods, blocks, shift=(), scale=()):
    block = NOISE.normal(0, 3, blocks)
    return {
        f"m{at}": list(
            block + (shift[at] if shift else 0) + NOISE.normal(0, scale[at] if scale else 1, blocks)
        )
        for at in range(methods)
    }


def test_two_methods_give_the_paired_t_test():
    scores = table(2, 12, shift=(0, 0.7))
    found = compare(scores)
    paired = stats.ttest_rel(*scores.values())
    assert found.p == pytest.approx(paired.pvalue, abs=1e-9)
    assert found.pairs[0].p == pytest.approx(paired.pvalue, abs=1e-7)
    (pair,) = found.pairs
    interval = stats.ttest_rel(scores[pair.first], scores[pair.second]).confidence_interval()
    assert (pair.low, pair.high) == pytest.approx((interval.low, interval.high), abs=1e-6)


def test_overlapping_folds_give_the_corrected_t_test():
    scores = table(2, 10, shift=(0, 1))
    expected = corrected_t_test(np.subtract(*scores.values()), 1 / 9)
    assert compare(scores, overlap=1 / 9).pairs[0].p == pytest.approx(expected, abs=1e-7)


def test_friedman_agrees_with_scipy():
    scores = table(4, 15, shift=(0, 0, 2, 9), scale=(0.1, 1, 5, 20))
    found = compare(scores)
    assert found.test.startswith("Friedman")
    assert found.p == pytest.approx(stats.friedmanchisquare(*scores.values()).pvalue)
    assert all(isnan(pair.low) for pair in found.pairs)


def test_intervals_have_the_tabulated_width():
    scores = table(3, 6)
    values = np.array(list(scores.values())).T
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    pair = compare(scores).pairs[0]
    # 3.877: the 0.05 point of the studentized range for 3 means and 10 degrees of freedom.
    expected = 2 * 3.877 * sqrt((rest**2).sum() / 10 / 6)
    assert pair.high - pair.low == pytest.approx(expected, rel=1e-3)


def test_the_block_of_the_best_and_what_matters():
    found = compare(table(3, 40, shift=(0, 3, 3.1)))
    assert set(found.best) == {"m1", "m2"}
    top, low = found.pairs[0], found.pairs[1]
    assert (top.p > ALPHA, low.p < ALPHA) == (True, True)
    assert found.verdict(low, smallest=1) == "better"
    assert found.verdict(low, smallest=50) == "better, by less than matters"
    assert found.verdict(top, smallest=50) == "equal for practical purposes"
    assert found.verdict(top, smallest=1e-6) == "cannot tell"


def test_errors_are_ranked_from_the_lowest():
    found = compare({"a": [3.0, 3.5, 3.1], "b": [1.0, 1.4, 1.2]}, higher_is_better=False)
    assert list(found.means) == ["b", "a"]
    assert found.pairs[0].difference > 0


def test_scores_without_any_spread():
    assert compare({"a": [1.0, 1.0], "b": [1.0, 1.0]}).best == ("a", "b")
    assert compare({"a": [2.0, 3.0], "b": [1.0, 2.0]}).best == ("a",)


@pytest.mark.parametrize(
    "scores", [{"a": [1.0, 2.0]}, {"a": [1.0], "b": [2.0]}, {"a": [1.0, 2.0], "b": [1.0]}]
)
def test_too_few_scores_are_named(scores):
    with pytest.raises(ValueError, match=r"a: \d"):
        compare(scores)


def test_a_missing_score_is_an_error():
    with pytest.raises(ValueError, match="missing"):
        compare({"a": [1.0, float("nan")], "b": [1.0, 2.0]})


def naive_tukey(table, overlap):
    """Return p-values and half width of Tukey's HSD, from sums of squares written out in loops."""
    blocks, methods = len(table), len(table[0])
    column = [sum(line[m] for line in table) / blocks for m in range(methods)]
    row = [sum(line) / methods for line in table]
    grand = sum(row) / blocks
    error = sum(
        (table[b][m] - column[m] - row[b] + grand) ** 2
        for b in range(blocks)
        for m in range(methods)
    ) / ((blocks - 1) * (methods - 1))
    scale = sqrt(error * (1 / blocks + overlap))
    shape = methods, (blocks - 1) * (methods - 1)
    return (
        lambda i, j: stats.studentized_range.sf(abs(column[i] - column[j]) / scale, *shape),
        stats.studentized_range.ppf(1 - ALPHA, *shape) * scale,
    )


def naive_conover(table, overlap):
    """Return raw p-values by Conover (1999), 5.8, from the statistic of Friedman's test."""
    blocks, methods = len(table), len(table[0])
    rank = [[sum(o < v for o in r) + (sum(o == v for o in r) + 1) / 2 for v in r] for r in table]
    total = [sum(line[m] for line in rank) for m in range(methods)]
    squares = sum(value**2 for line in rank for value in line)
    centre = blocks * methods * (methods + 1) ** 2 / 4
    t = (methods - 1) * sum((one - blocks * (methods + 1) / 2) ** 2 for one in total)
    t /= squares - centre
    freedom = (blocks - 1) * (methods - 1)
    inner = 2 * blocks * (squares - centre) / freedom * (1 - t / (blocks * (methods - 1)))
    whole = stats.chi2.sf(t / (1 + blocks * overlap), methods - 1)
    scale = sqrt(inner * (1 + blocks * overlap))
    return lambda i, j: 2 * stats.t.sf(max(total[i] - total[j], 0) / scale, freedom), whole


@pytest.mark.parametrize("seed", range(8))
def test_random_tables_agree_with_naive_twins(seed):
    rng = np.random.default_rng(seed)
    methods, blocks = int(rng.integers(2, 7)), int(rng.integers(4, 26))
    scale = rng.choice([1, 8], methods) if seed % 2 else np.ones(methods)
    values = rng.normal(0, 3, (blocks, 1)) + rng.normal(0, 1, (blocks, methods)) * scale
    values = np.round(values + rng.normal(0, 0.5, methods), 0 if seed % 3 == 0 else 6)  # ties
    scores, overlap = {f"m{at}": list(values[:, at]) for at in range(methods)}, seed % 4 / 8
    made, place = compare(scores, overlap=overlap), {f"m{at}": at for at in range(methods)}
    at = [(place[pair.first], place[pair.second]) for pair in made.pairs]
    if made.test.startswith("Friedman"):
        p, whole = naive_conover(values.tolist(), overlap)
        assert made.p == pytest.approx(whole)
        expected = [max(one, whole) for one in holm([p(*both) for both in at])]
    else:
        p, half = naive_tukey(values.tolist(), overlap)
        expected = [p(*both) for both in at]
        assert all(pair.high - pair.low == pytest.approx(2 * half) for pair in made.pairs)
        # The pair's interval excludes 0 just where its p-value is below the level.
        assert [pair.low > 0 for pair in made.pairs] == [pair.p < ALPHA for pair in made.pairs]
    assert [pair.p for pair in made.pairs] == pytest.approx(expected, abs=1e-9)


def result(made):
    """Return what does not depend on names and order of methods and blocks."""
    pairs = {(pair.first, pair.second): pair[2:] for pair in made.pairs}
    return made.test, made.p, made.best, pairs


@pytest.mark.parametrize("scale", [None, (1, 1, 1, 9)])
def test_order_of_methods_and_blocks_and_shifts_of_blocks_do_not_count(scale):
    scores = table(4, 12, shift=(0, 1, 2, 3), scale=scale)
    test, p, best, pairs = result(compare(scores, overlap=0.25))
    order = NOISE.permutation(12)
    shift = NOISE.normal(0, 50, 12)
    changed = (
        dict(reversed(scores.items())),
        {name: [values[at] for at in order] for name, values in scores.items()},
        {name: list(np.add(values, shift)) for name, values in scores.items()},
    )
    for other in changed:
        found = result(compare(other, overlap=0.25))
        assert found[0] == test
        assert found[1] == pytest.approx(p)
        assert found[2] == best
        assert found[3].keys() == pairs.keys()
        for pair, numbers in pairs.items():
            assert found[3][pair] == pytest.approx(numbers, nan_ok=True)
    tripled = compare({name: list(np.multiply(values, 3)) for name, values in scores.items()})
    assert result(tripled)[2] == result(compare(scores))[2]


def test_what_all_methods_share_does_not_hide_that_variances_differ():
    noise = NOISE.normal(0, 1, (3, 25)) * np.array([[1], [1], [6]])
    scores = {f"m{at}": list(line) for at, line in enumerate(noise + NOISE.normal(0, 40, 25))}
    assert np.var(list(scores.values()), axis=1).std() < 500  # alike as they are
    assert compare(scores).test.startswith("Friedman")


def test_overlap_widens_intervals_and_never_adds_a_difference():
    for scale in (None, (1, 1, 8)):
        scores = table(3, 25, shift=(0, 0.5, 5), scale=scale)
        free, tied = compare(scores), compare(scores, overlap=0.25)
        assert set(free.best) <= set(tied.best)
        assert free.p <= tied.p
        assert all(one.p <= two.p for one, two in zip(free.pairs, tied.pairs, strict=True))
    # 25 parts with 1/4: the variance of a mean is 0.04 + 0.25 instead of 0.04 (Nadeau and Bengio).
    scores = table(3, 25)
    free, tied = compare(scores).pairs[0], compare(scores, overlap=0.25).pairs[0]
    assert (tied.high - tied.low) / (free.high - free.low) == pytest.approx(sqrt(0.29 / 0.04))


def corrected_t_test(gaps, overlap):
    """Return the p-value of Nadeau and Bengio's corrected t-test of the mean gap."""
    gaps = np.array(gaps)
    error = sqrt((1 / len(gaps) + overlap) * gaps.var(ddof=1))
    return 2 * stats.t.sf(abs(gaps.mean()) / error, len(gaps) - 1)


def test_repeating_a_cross_validation_does_not_make_equal_methods_differ():
    """Simulate 5 x 5 folds of two equal methods: errors belong to graphs, as in real data."""
    wrong = {0.0: 0, 0.25: 0}
    for _ in range(200):
        one, other = NOISE.random((2, 100)) < 0.8  # which graphs a method learns
        folds = [fold for _ in range(5) for fold in np.split(NOISE.permutation(100), 5)]
        gaps = [float(one[fold].mean() - other[fold].mean()) for fold in folds]
        for overlap in wrong:  # two methods: the tests of `compare` are this one
            wrong[overlap] += corrected_t_test(gaps, overlap) < ALPHA
    assert wrong[0.25] <= 0.08 * 200 < wrong[0.0]


def test_ranks_against_the_mean_are_no_evidence():
    # b wins 9 of 10 blocks by little, a wins one by far: means and ranks disagree.
    scores = {"a": [0.0] * 9 + [90.0], "b": [1.0] * 10, "c": [-40.0, 30.0] * 5}
    made = compare(scores)
    assert made.test.startswith("Friedman")
    assert (next(iter(made.means)), made.pairs[0].p) == ("a", 1.0)


def test_equal_methods_share_the_block_of_the_best():
    twin = [70.0, 80.0, 75.0, 71.0]
    made = compare({"a": twin, "b": list(twin), "c": [value - 30 for value in twin]})
    assert made.best == ("a", "b")
    noisy = compare({"a": twin, "b": list(twin), "c": [10.0, 55.0, 20.0, 40.0]})
    assert {"a", "b"} <= set(noisy.best)
    rounding = [0.1 + 0.2, 0.3, 0.7], [0.3, 0.1 + 0.2, 0.7]
    assert compare(dict(zip("ab", rounding, strict=True))).best == ("a", "b")


def test_unpaired_scores_agree_with_scipy():
    scores = {"a": [3.0, 3.5, 3.1], "b": [1.0, 1.4, 1.2, 1.1], "c": [3.0, 3.3], "d": [2.0, 2.6]}
    made = compare_unpaired(scores)
    names = list(scores)
    told = stats.tukey_hsd(*scores.values())
    ends = told.confidence_interval(1 - ALPHA)
    for pair in made.pairs:
        at = names.index(pair.first), names.index(pair.second)
        assert pair.p == pytest.approx(told.pvalue[at], abs=1e-7)
        assert (pair.low, pair.high) == pytest.approx((ends.low[at], ends.high[at]), abs=1e-4)
    assert made.p == pytest.approx(stats.f_oneway(*scores.values()).pvalue)
    assert (made.blocks, made.best) == (2, ("a", "c"))
    down = compare_unpaired(scores, higher_is_better=False)
    assert (next(iter(down.means)), down.means["b"]) == ("b", made.means["b"])
    assert compare_unpaired({"a": [2.0, 2.0], "b": [1.0, 1.0]}).best == ("a",)
    assert compare_unpaired({"a": [2.0, 2.0], "b": [2.0, 2.0]}).best == ("a", "b")
    with pytest.raises(ValueError, match="b: 1"):
        compare_unpaired({"a": [1.0, 2.0], "b": [1.0]})
    with pytest.raises(ValueError, match="missing"):
        compare_unpaired({"a": [1.0, 2.0], "b": [1.0, float("nan")]})
