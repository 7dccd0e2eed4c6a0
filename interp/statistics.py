"""How sure are we? Intervals over documents, one-sided tests, and false discovery rates.

Everything starts from totals a group of documents: documents, never tokens, are the units that repeat independently.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

Array = np.ndarray
REPLICATES = 1000
_FEWEST = 3  # groups that an interval needs


@dataclass(frozen=True)
class Estimate:
    """A ratio of totals beside its baseline's; every field has one value a column.

    `gain` is value - baseline; `low` and `high` bound it at 95%; `p` is one-sided, for gain > 0.
    """

    value: Array
    baseline: Array
    gain: Array
    low: Array
    high: Array
    p: Array


def estimate(
    totals: Array, weights: Array, baseline_totals: Array, baseline_weights: Array, *, seed: int = 0
) -> Estimate:
    """Ratio sum(totals) / sum(weights) a column against the baseline's, on the same groups.

    The interval is the studentised bootstrap over groups (Efron & Tibshirani 1993, 12.5), with the delta-method error
    of a difference of ratios; `p` is Student's t with groups - 1 degrees of freedom. Columns without weight are NaN;
    with fewer than two groups the value stands and the rest is NaN, with two the interval is.

    Args:
        totals, weights, baseline_totals, baseline_weights: group x column.
        seed: of the resampling.
    """
    full = np.stack(np.broadcast_arrays(totals, weights, baseline_totals, baseline_weights)).astype(float)
    full = full[:, (full[1] != 0).any(1)]  # groups without any document; weights of either sign count
    n_groups = full.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        (value, baseline), error = _ratios(full.sum(1), _products(full).sum(1), n_groups)
        gain = value - baseline
        if n_groups < 2:
            missing = np.full_like(gain, np.nan)
            return Estimate(value, baseline, gain, missing, missing, missing)
        low_t, high_t = _studentised_quantiles(full, gain, error, seed)
        if n_groups < _FEWEST:  # two groups resampled are one of them twice, or the plain pair: no spread to see
            low_t, high_t = np.full_like(gain, np.nan), np.full_like(gain, np.nan)
        p = stats.t.sf(gain / error, n_groups - 1)
    p = np.where(error == 0, 0.5 - 0.5 * np.sign(gain), p)  # every group says exactly the same: sure, or nothing there
    p = np.where(np.isnan(gain), np.nan, p)
    return Estimate(value, baseline, gain, gain - high_t * error, gain - low_t * error, p)


_PAIRS = [(i, j) for i in range(4) for j in range(i, 4)]


def _products(u: Array) -> Array:
    """All products of two of the four quantities, a group: pair x group x column."""
    return np.stack([u[i] * u[j] for i, j in _PAIRS])


def _ratios(sums: Array, squares: Array, n_groups: int) -> tuple[tuple[Array, Array], Array]:
    """The two ratios and the standard error of their difference.

    A group's influence on the difference is linear in its four quantities, so its square needs only their products.
    """
    value, baseline = sums[0] / sums[1], sums[2] / sums[3]
    influence = (1 / sums[1], -value / sums[1], -1 / sums[3], baseline / sums[3])
    variance = sum(
        (1 + (i != j)) * influence[i] * influence[j] * square for (i, j), square in zip(_PAIRS, squares, strict=True)
    )
    scale = n_groups / max(n_groups - 1, 1)
    # rounding leaves a variance of nothing a little beside zero
    spread = np.asarray(variance) * scale
    return (value, baseline), np.sqrt(np.where(spread < 1e-24, 0.0, spread))


def _studentised_quantiles(full: Array, gain: Array, plain_error: Array, seed: int) -> tuple[Array, Array]:
    n_groups = full.shape[1]
    draws = np.random.default_rng(seed).multinomial(n_groups, np.full(n_groups, 1 / n_groups), REPLICATES).astype(float)
    low, high = np.empty_like(gain), np.empty_like(gain)
    for at in range(0, gain.shape[0], 512):  # columns a block: memory stays small for any table
        block = full[:, :, at : at + 512]
        sums = np.einsum("rg,kgc->krc", draws, block, optimize=True)
        squares = np.einsum("rg,kgc->krc", draws, _products(block), optimize=True)
        (value, baseline), error = _ratios(sums, squares, n_groups)
        t = (value - baseline - gain[at : at + 512]) / error
        # a replicate that drew hardly any group with a difference in it has no error to be measured by
        t = np.where(error <= 1e-3 * plain_error[at : at + 512], 0.0, t)
        low[at : at + 512], high[at : at + 512] = _quantiles(t)
    return low, high


def _quantiles(t: Array) -> tuple[Array, Array]:
    """2.5% and 97.5% of each column; NaN where a column has nothing to resample."""
    usable = ~np.isnan(t).all(0)
    low, high = np.full(t.shape[1], np.nan), np.full(t.shape[1], np.nan)
    if usable.any():
        low[usable], high[usable] = np.nanquantile(t[:, usable], [0.025, 0.975], axis=0)
    return low, high


def mean_interval(values: Array, *, seed: int = 0) -> tuple[float, float, float, float]:
    """Mean of independent observations (prompts), its studentised 95% interval, and a two-sided p for mean != 0."""
    values = np.asarray(values, dtype=float)
    ones, none = np.ones((len(values), 1)), np.zeros((len(values), 1))
    found = estimate(values[:, None], ones, none, ones, seed=seed)
    one_sided = float(found.p[0])
    return float(found.value[0]), float(found.low[0]), float(found.high[0]), 2 * min(one_sided, 1 - one_sided)


def benjamini_hochberg(p: Array) -> Array:
    """Smallest false discovery rate at which each test would be called (Benjamini & Hochberg 1995); NaN stays NaN."""
    p = np.asarray(p, dtype=float)
    q = np.full_like(p, np.nan)
    tested = ~np.isnan(p)
    if tested.any():
        q[tested] = stats.false_discovery_control(p[tested])
    return q
