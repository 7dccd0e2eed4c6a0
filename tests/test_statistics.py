"""Intervals and tests on numbers that can be derived by hand, and coverage on data without any effect."""

import numpy as np
import pytest
from scipy import stats

from interp.statistics import benjamini_hochberg, estimate, mean_interval


def ratio(totals: np.ndarray, weights: np.ndarray, seed: int = 0):
    nothing = np.zeros_like(totals)
    return estimate(totals, weights, nothing, nothing + 1, seed=seed)


def test_a_ratio_is_the_totals_over_the_weights_of_every_group_whatever_their_sign():
    found = ratio(np.array([[3.0], [-1.0], [4.0]]), np.array([[4.0], [-2.0], [6.0]]))
    assert found.value[0] == pytest.approx(6 / 8)


def test_groups_without_any_weight_are_no_observations():
    totals, weights = np.array([[1.0], [3.0], [2.0]]), np.ones((3, 1))
    padded = np.concatenate([totals, np.zeros((100, 1))]), np.concatenate([weights, np.zeros((100, 1))])
    alone, among = ratio(totals, weights), ratio(*padded)
    for name in ("value", "low", "high", "p"):
        np.testing.assert_allclose(getattr(among, name), getattr(alone, name))


def test_student_t_of_a_mean():
    mean, low, high, p = mean_interval(np.array([1.0, 2.0, 3.0, 4.0]))
    # mean 2.5, standard error sqrt(5/3)/2 = 0.6455, t = 3.873 with 3 degrees of freedom
    assert mean == 2.5
    assert p == pytest.approx(0.0305, abs=1e-3)
    assert low < 2.5 < high


@pytest.mark.parametrize(("value", "p"), [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)])
def test_observations_that_never_vary_are_certain_and_nothing_is_no_effect(value, p):
    assert mean_interval(np.full(5, value)) == (value, value, value, p)


def test_a_single_group_has_a_value_and_no_interval():
    found = ratio(np.array([[2.0]]), np.array([[4.0]]))
    assert found.value[0] == 0.5
    assert np.isnan([found.low[0], found.high[0], found.p[0]]).all()


def test_a_column_without_weight_is_missing():
    found = ratio(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[2.0, 0.0], [2.0, 0.0]]))
    assert np.isnan(found.value[1])
    assert np.isnan(found.p[1])


def test_intervals_of_forty_documents_of_uneven_length_cover_the_truth():
    rng = np.random.default_rng(0)
    n_runs, truth = 1_000, 0.3
    words = rng.integers(5, 60, (40, n_runs)).astype(float)
    rate = rng.beta(3, 7, (40, n_runs))  # documents differ, with mean 0.3
    found = ratio(rng.binomial(words.astype(int), rate).astype(float), words)
    covered = ((found.low <= truth) & (truth <= found.high)).mean()
    assert 0.93 <= covered <= 0.97


def test_false_discovery_rate_leaves_missing_values_out():
    q = benjamini_hochberg(np.array([0.01, np.nan, 0.04, 0.03]))
    np.testing.assert_allclose(q, [0.03, np.nan, 0.04, 0.04])


def test_two_groups_have_a_test_and_no_interval():
    totals, ones = np.array([[1.0], [3.0]]), np.ones((2, 1))
    found = estimate(totals, ones, np.zeros((2, 1)), ones)
    assert found.gain[0] == 2.0
    assert np.isnan(found.low[0])
    assert np.isnan(found.high[0])
    assert found.p[0] == pytest.approx(stats.t.sf(2.0, 1))
