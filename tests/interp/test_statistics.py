"""Intervals and tests against numbers derived by hand, and coverage on data without effects."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from interp import statistics
from interp.statistics import benjamini_hochberg, contrast, estimate, mean_interval, share, shares


def halls_p(influences: Sequence[float] | np.ndarray, gain: np.ndarray | float) -> np.ndarray:
    """One-sided p of a gain from each group's influence, by hand: of t, plain or corrected for skewness."""
    parts, n = np.asarray(influences), len(influences)
    squares = (parts**2).sum(0)
    t, k = gain / np.sqrt(squares * n / (n - 1)), (parts**3).sum(0) / squares**1.5
    return np.maximum(stats.t.sf(t, n - 1), stats.t.sf(t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6, n - 1))


def test_a_ratio_has_the_error_that_leaving_each_group_out_gives():
    draws = np.random.default_rng(0)
    weights = draws.integers(1, 9, (60, 2, 3)).astype(float)
    totals = weights * (0.3 + 0.1 * draws.standard_normal((60, 2, 3)))
    weights[7, 0] = totals[7, 0] = 0.0
    result, error, groups = statistics.ratio(totals, weights)
    np.testing.assert_allclose(result, totals.sum(0) / weights.sum(0))
    without = (totals.sum(0) - totals) / (weights.sum(0) - weights)
    jackknife = np.sqrt((groups - 1) / groups * ((without - without.mean(0)) ** 2).sum(0))
    np.testing.assert_allclose(error, jackknife, rtol=0.03)
    assert groups.tolist() == [[59] * 3, [60] * 3]


def test_a_group_whose_weights_cancel_is_an_observation_where_it_is_said_to_be_one():
    totals, weights = np.array([[2.0], [-1.0], [2.0], [1.0], [0.0]]), np.array([[1.0], [0.0], [1.0], [1.0], [0.0]])
    alone, result = (estimate(*each, present=np.array([True] * 4 + [False] * (len(each[0]) - 4)))
                    for each in ((totals[:4], weights[:4]), (totals, weights)))  # fmt: skip
    assert [result.low[0], result.high[0]] == [alone.low[0], alone.high[0]]  # groups without weight are no observations
    # ratio 4/3 of sums; influences (2 - 4/3, -1, 2 - 4/3, 1 - 4/3) / 3
    assert result.value[0] == pytest.approx(4 / 3)
    assert result.p[0] == pytest.approx(halls_p([2 / 9, -1 / 3, 2 / 9, -1 / 9], 4 / 3))
    assert estimate(totals, weights).value[0] == pytest.approx(5 / 3)  # by its weights alone, no observation
    signed = estimate(np.array([[3.0], [-1.0], [4.0]]), np.array([[4.0], [-2.0], [6.0]]))
    assert signed.value[0] == pytest.approx(6 / 8)  # totals over weights of every group, whatever their sign


def test_a_column_rests_on_its_own_groups_and_not_on_those_of_its_neighbours():
    weights = (np.arange(20)[:, None] < [1, 2, 3, 20]).astype(float)
    full = np.random.default_rng(0).normal(1, 0.1, (20, 4)) * weights
    result = estimate(full, weights)
    assert np.isnan(result.p).tolist() == [True, False, False, False]
    assert np.isnan(result.low).tolist() == np.isnan(result.high).tolist() == [True, True, False, False]
    for column, groups in ((1, 2), (2, 3), (3, 20)):
        values = full[:groups, column]
        assert result.p[column] == pytest.approx(halls_p((values - values.mean()) / groups, values.mean()))
        if groups == 3:  # beside a column with twenty groups, whose interval is drawn
            student = stats.t.ppf(0.975, 2) * values.std(ddof=1) / 3**0.5
            assert [result.low[2], result.high[2]] == pytest.approx([values.mean() - student, values.mean() + student])
        nothing = np.zeros_like(full)
        signed = contrast(np.stack([full, nothing]), np.stack([weights, nothing + 1]) * (weights > 0), [1, -1])
        assert signed.p[column] == pytest.approx(2 * result.p[column])
    assert np.isnan(signed.p[0])
    np.testing.assert_array_equal(result.value, signed.value)


def test_a_share_is_over_the_pairs_that_have_the_column_and_pairs_without_a_difference_are_pairs():
    effects = np.array([[1.0, 1.0], [0.5, np.nan], [1.5, 0.0], [1.0, 1.0]])
    wholes = np.array([2.0, 4.0, 0.0, 2.0])
    result = shares(effects, wholes)
    np.testing.assert_allclose(result.value, [4 / 8, 2 / 4])  # with the third pair's effect above, nothing of it below
    np.testing.assert_array_equal(result.value, share(effects, wholes))
    assert result.n.tolist() == [4, 3]
    # influences of the second column: (1 - .5 * 2, 0 - 0, 1 - .5 * 2) / 4: none, so each pair says the same
    apart = stats.t.ppf(0.975, 3) * 0.5 / 4
    assert [result.p[1], result.low[1], result.high[1]] == pytest.approx([2 * 0.5**3, 0.5 - apart, 0.5 + apart])
    # of the first: (0, -1.5, 1.5, 0) / 8, which are symmetric; tested on both sides
    assert result.p[0] == pytest.approx(2 * stats.t.sf(0.5 / np.sqrt(4.5 / 64 * 4 / 3), 3))
    assert np.isnan(shares(np.full((4, 1), np.nan), wholes).value[0])


@pytest.mark.parametrize("n", [3, 4, 5, 7])
def test_intervals_of_a_few_prompts_cover_the_truth_and_none_is_absurd(n):
    """Resampling 4 normal values gave intervals 13 times as wide in one case of 20; 3 values covered 78%."""
    values = np.random.default_rng(n).normal(size=(n, 2_000))
    result = estimate(values, np.ones_like(values))
    covered = ((result.low <= 0) & (result.high >= 0)).mean()
    assert 0.935 <= covered <= 0.965
    student = stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / n**0.5
    np.testing.assert_allclose(result.high - result.low, 2 * student, rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "mean", "p", "apart"),
    [
        ([1.0, 2.0, 3.0, 4.0], 2.5, 0.0305, 3.1824 * 0.6455),  # error sqrt(5/3) / 2, t 3.873 with 3 degrees of freedom
        *(([sign] * 5, sign, 2 * 0.5**5, 2.571 / 6) for sign in (1.0, -1.0)),  # five, and one that is 0
        ([0.0] * 5, 0.0, 1.0, 0.0),
    ],
)
def test_means_by_hand(values, mean, p, apart):
    assert mean_interval(np.array(values)) == pytest.approx((mean, mean - apart, mean + apart, p), abs=1e-3)


@pytest.mark.parametrize(("sign", "most"), [(1, 0.0002), (-1, 0.007)])
def test_skewed_documents_seldom_look_like_a_finding(sign, most):
    """Twenty documents of lognormal gains (sigma 0.6), mean 0: t has p < .001 in 1.3% of left-skewed samples."""
    sigma, rng = 0.6, np.random.default_rng(0)
    values = sign * (np.exp(sigma * rng.standard_normal((20, 4_000))) - np.exp(sigma**2 / 2))
    result = estimate(values, np.ones_like(values))
    assert (result.p < 0.001).mean() <= most
    assert (result.p < 0.05).mean() <= 0.09
    np.testing.assert_allclose(result.p, halls_p((values - values.mean(0)) / 20, values.mean(0)), rtol=1e-9)
    np.testing.assert_allclose(estimate(-values, np.ones_like(values)).p, result.p_below, rtol=1e-9)


@pytest.mark.parametrize("rounding", [1e-9, 1e-7])
def test_groups_that_differ_by_rounding_say_the_same(rounding):
    """A saturated head's equal values in every document are no more certain than their number allows."""
    moved = 0.95 * (1 + rounding * np.array([[0.0], [1.0], [-1.0], [1.0], [0.0]]))
    estimates = [estimate(each, np.ones_like(each)) for each in (moved, np.full_like(moved, 0.95))]
    result, exact = ([each.p, each.p_below, each.low, each.high] for each in estimates)
    np.testing.assert_allclose(result, exact, rtol=1e-6)
    two = contrast(np.stack([moved, np.zeros_like(moved)]), np.ones((2, *moved.shape)), (1, -1))
    assert two.p[0] == pytest.approx(2 * 0.5**5)
    assert two.low[0] == pytest.approx(exact[2][0], rel=1e-6)


def test_false_discovery_rate_leaves_missing_values_out():
    q = benjamini_hochberg(np.array([0.01, np.nan, 0.04, 0.03]))
    np.testing.assert_allclose(q, [0.03, np.nan, 0.04, 0.04])


def four_ratios(n_groups: int, n_columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Values and baselines of two models on documents of unequal length; the document shifts all four."""
    rng = np.random.default_rng(seed)
    words = rng.integers(5, 60, (n_groups, n_columns))
    mood = rng.normal(0, 0.1, words.shape)
    totals = np.stack([rng.binomial(words, np.clip(rate + mood, 0, 1)) for rate in RATES]).astype(float)
    return totals, np.broadcast_to(words, totals.shape).astype(float)


RATES = (0.6, 0.5, 0.3, 0.35)  # values of both models, then baselines of both
GAIN_DIFFERENCE = (1, -1, -1, 1)


def test_a_contrast_of_two_ratios_is_their_estimate_tested_on_both_sides():
    totals, weights = four_ratios(12, 5)
    two = contrast(totals[:2], weights[:2], (1, -1), seed=4)
    single = estimate(totals[0], weights[0], totals[1], weights[1], seed=4)
    expected = [single.gain, single.low, single.high, single.two_sided]
    np.testing.assert_allclose([two.value, two.low, two.high, two.p], expected, atol=1e-9)


def test_intervals_of_forty_documents_of_uneven_length_cover_the_truth():
    rng, draws = np.random.default_rng(0), four_ratios(40, 1_000)
    words = rng.integers(5, 60, (40, 1_000))
    rate = estimate(rng.binomial(words, rng.beta(3, 7, words.shape)), words)  # documents vary around 0.3
    gains = contrast(*draws, GAIN_DIFFERENCE)
    for result, truth in ((rate, 0.3), (gains, (RATES[0] - RATES[2]) - (RATES[1] - RATES[3]))):
        assert 0.93 <= ((result.low <= truth) & (truth <= result.high)).mean() <= 0.97


def test_what_is_compared_with_itself_differs_by_exactly_0():
    totals, weights = four_ratios(9, 7)
    result = contrast(totals[[0, 0, 2, 2]], weights[[0, 0, 2, 2]], GAIN_DIFFERENCE)
    np.testing.assert_array_equal([result.value, result.low, result.high, 1 - result.p], np.zeros((4, 7)))


@pytest.mark.parametrize("ask", [lambda *sides: estimate(sides[0][0], sides[1][0], sides[0][1], sides[1][1]),
                                 lambda *sides: contrast(*sides, (1, -1))], ids=["estimate", "contrast"])  # fmt: skip
def test_on_few_groups_or_without_weight_what_is_not_known_is_missing_and_never_zero(ask):
    totals, weights = np.array([[[1.0], [3.0]], [[0.0], [0.0]]]), np.ones((2, 2, 1))
    two, alone = ask(totals, weights), ask(totals[:, :1], weights[:, :1])
    empty = ask(totals, weights * np.array([1, 0])[:, None, None])
    sides = 1 if hasattr(two, "gain") else 2  # one-sided test, or two-sided
    assert two.p[0] == pytest.approx(sides * stats.t.sf(2.0, 1))
    assert (two.value[0], alone.value[0]) == (2.0, 1.0)
    assert np.isnan([two.low[0], two.high[0], alone.low[0], alone.high[0], alone.p[0], empty.low[0], empty.p[0]]).all()


@pytest.mark.parametrize("groups", [8, 20])
def test_rounding_moves_intervals_no_more_than_itself_unless_one_document_is_all_the_variance(groups):
    """p, which is not drawn, does not move even there."""
    random = np.random.default_rng(1)
    weights = random.integers(1, 30, (groups, 300)).astype(float)
    uneven = 0.5 + 1e-3 * random.normal(size=weights.shape)
    uneven[0] += 0.3
    for shares_of, moves in ((random.uniform(0, 1, weights.shape), False), (uneven, True)):
        rounded = shares_of * (1 + 1e-7 * random.normal(size=weights.shape))
        exact, rough = estimate(shares_of * weights, weights), estimate(rounded * weights, weights)
        moved = np.max([np.abs(exact.low - rough.low), np.abs(exact.high - rough.high)], 0)
        assert (moved.max() > 1e-5) == moves
        np.testing.assert_allclose(exact.p, rough.p, rtol=1e-4, atol=1e-6)
