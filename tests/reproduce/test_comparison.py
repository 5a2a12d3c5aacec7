"""Comparison of several methods: against scipy's own tests and by hand."""

from math import isnan, sqrt

import numpy as np
import pytest
from scipy import stats

from gtpool.reproduce.comparison import ALPHA, compare

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
    gaps = np.subtract(*scores.values())
    t = gaps.mean() / sqrt((1 / 10 + 1 / 9) * gaps.var(ddof=1))
    found = compare(scores, overlap=1 / 9)
    assert found.pairs[0].p == pytest.approx(2 * stats.t.sf(abs(t), 9), abs=1e-7)


def test_friedman_agrees_with_scipy():
    scores = table(4, 15, shift=(0, 0, 2, 9), scale=(0.1, 1, 5, 20))
    found = compare(scores)
    assert found.test.startswith("Friedman")
    assert found.p == pytest.approx(stats.friedmanchisquare(*scores.values()).pvalue)
    assert all(isnan(pair.low) for pair in found.pairs)


def test_conover_of_two_blocks_by_hand():
    # Ranks: (1, 2, 3), (1, 2, 3), (2, 1, 3); sums 4, 5, 9; squares of ranks add up to 42.
    scores = {"a": [0.0, 0.0, 20.0], "b": [1.0, 1.0, 19.0], "c": [100.0, 2.0, 900.0]}
    error = sqrt(2 * 3 * (42 - (16 + 25 + 81) / 3) / 4)
    raw = {
        pair: 2 * stats.t.sf(gap / error, 4)
        for pair, gap in ((("c", "a"), 5), (("c", "b"), 4), (("b", "a"), 1))
    }
    found = {(pair.first, pair.second): pair.p for pair in compare(scores).pairs}
    assert found["c", "a"] == pytest.approx(3 * raw["c", "a"])
    assert found["c", "b"] == pytest.approx(max(2 * raw["c", "b"], 3 * raw["c", "a"]))


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
