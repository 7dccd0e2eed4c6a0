"""How sure are we? Intervals over documents, one-sided tests, and false discovery rates.

Everything starts from totals a group of documents: documents, never tokens, are the units that repeat independently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np
from scipy import special

from interp.errors import whole_number

Array = np.ndarray
REPLICATES = 1000
FEWEST_CLUSTERS = 8  # of one way in which pairs are related; of fewer no variance between them can be told
_FEWEST = 3  # groups that an interval needs
_FEWEST_DRAWN = 8  # groups from which on drawing them again tells more of their spread than Student's t
_SAME = 1e-6  # of a value: groups that vary by less say the same, and what is left is rounding
_BLOCK = 5120  # products of two quantities that are resampled at once


@dataclass(frozen=True)
class Estimate:
    """A ratio of totals beside its baseline's; every field has one value a column.

    `gain` is value - baseline; `low` and `high` bound it at 95%; `p` is one-sided, for gain > 0, and `p_below` for
    gain < 0. Without a baseline the gain is the value itself. `groups` is how many were observed.
    """

    value: Array
    baseline: Array
    gain: Array
    low: Array
    high: Array
    p: Array
    p_below: Array
    groups: Array

    @property
    def two_sided(self) -> Array:
        """p for gain != 0."""
        return np.minimum(2 * np.minimum(self.p, self.p_below), 1.0)


def estimate(
    totals: Array,
    weights: Array,
    baseline_totals: Array | None = None,
    baseline_weights: Array | None = None,
    *,
    present: Array | None = None,
    seed: int = 0,
) -> Estimate:
    """Ratio sum(totals) / sum(weights) a column, against the baseline's on the same groups or against nothing.

    The interval is the studentised bootstrap over groups (Efron & Tibshirani 1993, 12.5), with the delta-method error
    of a ratio or a difference of two. For three to seven groups it is Student's, with the same error: some draws of so
    few hardly vary, and bounds in units of their error are arbitrary. `p` is Student's t with groups - 1 degrees of
    freedom, of t or of Hall's t without the groups' skewness (1992), whichever is less certain: far out, Hall's cube
    overstates t. If all n groups agree to a millionth, p is that of a sign test, 2^-n, and the interval that of n + 1
    groups of which one says 0; if all say 0, it is 0 to 0. Columns without weight are NaN. With weight in one group
    only the value is defined, in two groups all but the interval.

    Args:
        totals, weights, baseline_totals, baseline_weights: group x column.
        present: which groups were observed (in every column, or group x column); by default those with weight in it.
            Give it if weights are differences, which may be 0 in an observed group.
        seed: of the resampling.
    """
    beside = [] if baseline_totals is None or baseline_weights is None else [baseline_totals, baseline_weights]
    signs = (1, -1)[: 1 + len(beside) // 2]
    full = np.stack(np.broadcast_arrays(totals, weights, *beside)).astype(float)
    observed = full[1] != 0 if present is None else np.broadcast_to(present.T, full.shape[:0:-1]).T
    ratios, gain, low, high, p, p_below, n_groups = _tested(full, signs, observed, seed)
    baseline = ratios[1] if beside else np.zeros_like(gain)
    return Estimate(ratios[0], baseline, gain, low, high, p, p_below, n_groups)


def _tested(full: Array, signs: Sequence[int], observed: Array, seed: int) -> tuple[Array, ...]:
    """Ratios of totals and weights, which alternate in `full`; their signed sum, its bounds, p for more and for less.

    Last comes how many groups were observed, a column.
    """
    full, n_groups = full[:, observed.any(1)], observed.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, influence, error = _to_first_order(full, signs, n_groups)
        value = _signed(signs, ratios)
        quantiles = _studentised_quantiles(full, signs, value, error, n_groups, seed)
        return ratios, value, *_sure(value, error, influence, quantiles, n_groups), n_groups


def ratio(totals: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Sum(totals) / sum(weights) over groups, its delta-method standard error, and how many groups have weight.

    Args:
        totals, weights: group x anything. Of one group the error is 0, which says nothing; of none the ratio is NaN.
    """
    groups = (weights > 0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        (ratios,), _, error = _to_first_order(np.stack([totals, weights]), (1,), groups)
    return ratios, error, groups


def _to_first_order(full: Array, signs: Sequence[int], n_groups: Array) -> tuple[Array, Array, Array]:
    """The ratios, what each group adds to their signed sum (group x column), and the sum's standard error.

    Group by group, and not from sums of products, which do not cancel to the last digit.
    """
    sums = full.sum(1)
    ratios = sums[0::2] / sums[1::2]
    influence = _signed(signs, (full[0::2] - ratios[:, None] * full[1::2]) / sums[1::2, None])
    return ratios, influence, _error((influence**2).sum(0), n_groups)


def _sure(
    value: Array, error: Array, influence: Array, quantiles: tuple[Array, Array], n_groups: Array
) -> tuple[Array, Array, Array, Array]:
    """Bounds of a value at 95%, and its p on either side, for more than 0 and for less."""
    t, degrees = value / error, n_groups - 1
    g = _unskewed(t, influence)
    above, below = (np.maximum(*special.stdtr(degrees, np.stack([-sign * t, -sign * g]))) for sign in (1, -1))
    low, high = value - quantiles[1] * error, value - quantiles[0] * error
    same = (error <= _SAME * np.abs(value)) & (n_groups > 1)
    agreed = 0.5 - np.sign(value) * (0.5 - 0.5**n_groups)
    untested = np.isnan(value) | (n_groups < 2)
    above = np.where(untested, np.nan, np.where(same, agreed, above))
    below = np.where(untested, np.nan, np.where(same, 1 - agreed, below))
    apart = special.stdtrit(np.maximum(n_groups, 1), 0.975) * np.abs(value) / (n_groups + 1)
    low, high = np.where(same, value - apart, low), np.where(same, value + apart, high)
    few = n_groups < _FEWEST
    return np.where(few, np.nan, low), np.where(few, np.nan, high), above, below


def _unskewed(t: Array, influence: Array) -> Array:
    """Hall's transformation of t (1992): g = t + k t² / 3 + k² t³ / 27 + k / 6, whose law is less skewed than t's.

    k is the sample's skewness over the square root of its size, here of the groups' influences: sum of their cubes over
    the sum of their squares to the power of 3/2.
    """
    k = (influence**3).sum(0) / (influence**2).sum(0) ** 1.5
    return t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6


@dataclass(frozen=True)
class Contrast:
    """A signed sum of ratios over `n` groups, or a share of a whole over `n` pairs; every field has one value a column.

    `low` and `high` bound `value` at 95%; `p` is two-sided, for value != 0.
    """

    value: Array
    low: Array
    high: Array
    p: Array
    n: Array


Shares = Contrast


def shares(effects: Array, wholes: Array, *, clusters: Sequence[Sequence[object]] = (), seed: int = 0) -> Shares:
    """Sum of a column's effects over the sum of the wholes, over the pairs in which it has an effect (not NaN).

    A pair whose whole difference is 0 counts like any other: its effect adds to the numerator, and it is resampled.
    Without such pairs a share would be larger the less its pairs differ.

    Args:
        effects: pair x column, or pair x anything that broadcasts; NaN where a pair lacks the column.
        wholes: of each pair.
        clusters: ways in which pairs are related, each with a name a pair: pairs of one name are not independent. Error
            and test are then of crossed clusters (Cameron, Gelbach & Miller 2011), Student's t with one degree less
            than the fewest clusters. A way with fewer than eight names is fixed: the finding is about these names.
        seed: of the resampling.
    """
    totals, weights, there = _over_pairs(effects, wholes)
    estimates = estimate(totals, weights, present=there, seed=seed)
    # nothing of a negative whole is 0
    value, low, high = (each + 0.0 for each in (estimates.value, estimates.low, estimates.high))
    p, crossed = estimates.two_sided, [each for each in clusters if len({*each}) >= FEWEST_CLUSTERS]
    if crossed:
        with np.errstate(divide="ignore", invalid="ignore"):
            influence = (totals - estimates.value * weights) / weights.sum(0)
            error = np.maximum(_crossed_error(influence, crossed), 0)
            degrees = min(len({*each}) for each in crossed) - 1
            apart = special.stdtrit(degrees, 0.975) * error
            varies = error > 1e-12
            p = np.where(varies, 2 * special.stdtr(degrees, -np.abs(value) / error), p)
        low, high = np.where(varies, value - apart, low), np.where(varies, value + apart, high)
    return Shares(value, low, high, p, there.sum(0))


def _crossed_error(influence: Array, clusters: Sequence[Sequence[object]]) -> Array:
    """The standard error of a sum of influences (pair x column) whose pairs share clusters in one or more ways.

    Each way's variance, less that of clusters in two ways at once, and so on; at least that of the largest way alone.
    """
    total, alone = np.zeros(influence.shape[1]), []
    for size in range(1, len(clusters) + 1):
        for ways in combinations(clusters, size):
            names = {name: at for at, name in enumerate(dict.fromkeys(zip(*ways, strict=True)))}
            sums = np.zeros((len(names), influence.shape[1]))
            np.add.at(sums, [names[name] for name in zip(*ways, strict=True)], influence)
            variance = (sums**2).sum(0) * len(names) / max(len(names) - 1, 1)
            total += variance if size % 2 else -variance
            alone += [variance] if size == 1 else []
    return np.sqrt(np.maximum(total, np.max(alone, 0)))


def share(effects: Array, wholes: Array) -> Array:
    """The value of `shares` alone, without the cost of an interval."""
    totals, weights, _ = _over_pairs(effects, wholes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return totals.sum(0) / weights.sum(0) + 0.0


def _over_pairs(effects: Array, wholes: Array) -> tuple[Array, Array, Array]:
    """Effects and wholes where there is an effect, else 0; and where that is."""
    there = ~np.isnan(effects)
    return np.where(there, effects, 0.0), np.where(there, wholes[:, None], 0.0), there


def contrast(totals: Array, weights: Array, signs: Sequence[int], *, seed: int = 0) -> Contrast:
    """Signed sum of the ratios sum(totals) / sum(weights), on the same groups: a difference of gains is one of four.

    Interval and p are as in `estimate`. Equal neighbouring ratios cancel exactly: what is compared with itself differs
    by 0, with p 1. Columns in which a ratio has no weight are NaN. With one group only the value is defined, with two
    all but the interval.

    Args:
        totals, weights: ratio x group x column. A group counts in a column where any ratio has weight in it.
        signs: 1 or -1 a ratio.
        seed: of the resampling.
    """
    full = np.stack(np.broadcast_arrays(totals, weights), 1).astype(float)  # ratio 2 group column
    full = full.reshape(-1, *full.shape[2:])
    observed = (full[1::2] != 0).any(0)
    _, value, low, high, above, below, n_groups = _tested(full, signs, observed, seed)
    return Contrast(value, low, high, np.minimum(2 * np.minimum(above, below), 1.0), n_groups)


def _pairs(count: int) -> list[tuple[int, int]]:
    return [*combinations_with_replacement(range(count), 2)]


def _ratios(sums: Array, squares: Array, signs: Sequence[int], n_groups: Array) -> tuple[Array, Array]:
    """The ratios of totals and weights, which alternate in `sums`, and the standard error of their signed sum.

    A group's influence on the sum is linear in its quantities, so its square needs only their products.
    """
    ratios = sums[0::2] / sums[1::2]
    influence = [
        part
        for sign, ratio, weight in zip(signs, ratios, sums[1::2], strict=True)
        for part in (sign / weight, -sign * ratio / weight)
    ]
    variance = sum(
        (1 + (i != j)) * influence[i] * influence[j] * square
        for (i, j), square in zip(_pairs(len(sums)), squares, strict=True)
    )
    return ratios, _error(np.asarray(variance), n_groups)


def _error(variance: Array, n_groups: Array) -> Array:
    spread = variance * (n_groups / np.maximum(n_groups - 1, 1))
    # rounding leaves a variance of nothing a little beside zero
    return np.sqrt(np.where(spread < 1e-24, 0.0, spread))


def _signed(signs: Sequence[int], parts: Array) -> Array:
    """Their signed sum, in their order: equal neighbours of opposite sign leave exactly nothing."""
    return np.asarray(sum(sign * part for sign, part in zip(signs, parts, strict=True)))


def _studentised_quantiles(
    full: Array, signs: Sequence[int], value: Array, plain_error: Array, n_groups: Array, seed: int
) -> tuple[Array, Array]:
    """Bounds of t a column: drawn, Student's where there are few groups, NaN where there are too few."""
    high = np.where(n_groups < _FEWEST, np.nan, special.stdtrit(np.maximum(n_groups - 1, 1), 0.975))
    low, count, random = -high, full.shape[1], np.random.default_rng(whole_number("seed", seed))
    if count < _FEWEST_DRAWN:
        return low, high
    draws = random.multinomial(count, np.full(count, 1 / count), REPLICATES).astype(float)
    step = _BLOCK // len(_pairs(len(full)))
    for begin in range(0, value.shape[0], step):  # columns a block: memory stays small for any table
        columns = slice(begin, begin + step)
        if not (enough := n_groups[columns] >= _FEWEST_DRAWN).any():
            continue
        block = full[:, :, columns]
        sums = np.einsum("rg,kgc->krc", draws, block, optimize=True)
        products = np.stack([block[i] * block[j] for i, j in _pairs(len(block))])  # pair group column
        squares = np.einsum("rg,kgc->krc", draws, products, optimize=True)
        ratios, error = _ratios(sums, squares, signs, n_groups[columns])
        t = (_signed(signs, ratios) - value[columns]) / error
        # a replicate that drew hardly any group with a difference in it has no error to be measured by
        t = np.where(error <= 1e-3 * plain_error[columns], 0.0, t)
        drawn, missing = np.full((2, t.shape[1]), np.nan), np.isnan(t)  # a column of NaN has nothing to resample
        whole, part = ~missing.any(0), missing.any(0) & ~missing.all(0)
        for usable, quantile in ((whole, np.quantile), (part, np.nanquantile)):  # the second goes column by column
            if usable.any():
                drawn[:, usable] = quantile(t[:, usable], [0.025, 0.975], axis=0)
        for bounds, of_drawn in zip((low, high), drawn, strict=True):
            bounds[columns] = np.where(enough, of_drawn, bounds[columns])
    return low, high


def mean_interval(values: Array, *, seed: int = 0) -> tuple[float, float, float, float]:
    """Mean of independent observations (prompts), its studentised 95% interval, and a two-sided p for mean != 0."""
    values = np.asarray(values, dtype=float)[:, None]
    estimates = estimate(values, np.ones_like(values), seed=seed)
    columns = estimates.value, estimates.low, estimates.high, estimates.two_sided
    mean, low, high, p = (float(column[0]) for column in columns)
    return mean, low, high, p


def benjamini_hochberg(p: Array) -> Array:
    """Smallest false discovery rate at which each test would be called (Benjamini & Hochberg 1995); NaN stays NaN."""
    p = np.asarray(p, dtype=float)
    q = np.full_like(p, np.nan)
    tested = ~np.isnan(p)
    if tested.any():
        from scipy.stats import false_discovery_control  # noqa: PLC0415 (`import interp` need not wait for it)

        q[tested] = false_discovery_control(p[tested])
    return q
