"""How sure are we? Intervals over documents (not tokens, which depend on each other), tests, false discovery rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np
from scipy import special

from interp.errors import whole_number

__all__ = ["Contrast", "Estimate", "benjamini_hochberg", "contrast", "estimate", "mean_interval", "share", "shares"]
__dir__ = __all__.copy  # `dir()` lists the public names

Array = np.ndarray
REPLICATES = 1000
FEWEST_CLUSTERS = 8  # fewer have no variance that can be estimated
_FEWEST = 3  # groups for an interval
_FEWEST_RESAMPLED = 8  # groups for the bootstrap; with fewer Student's t is better
_ROUNDING = 1e-6  # of a value: groups that vary less agree
_BLOCK = 5120  # products of two quantities that are resampled at once


@dataclass(frozen=True)
class Estimate:
    """A ratio of totals beside its baseline's; every field has one value a column.

    `gain` is value - baseline, or the value without one; `low` and `high` bound it at 95%; `p` is one-sided, for
    gain > 0, and `p_below` for gain < 0. `groups` is the number of observed groups.
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
    replicates: int = REPLICATES,
) -> Estimate:
    """Ratio sum(totals) / sum(weights) a column, against the baseline's on the same groups or against nothing.

    The interval is the studentised bootstrap over groups (Efron & Tibshirani 1993, 12.5), with the delta-method error
    of a ratio or a difference of two. For three to seven groups it is Student's, with the same error. `p` is Student's,
    with groups - 1 degrees of freedom, for t or for Hall's t without the groups' skewness (1992), whichever is less
    certain, because for a large t Hall's cube overstates it. If all n groups agree to a millionth, p is a sign test's,
    2^-n, and the interval is that of n + 1 groups, one of them at 0; if all are 0, it is 0 to 0. Columns without weight
    are NaN. With one observed group only the value is defined, with two all but the interval.

    Args:
        totals, weights, baseline_totals, baseline_weights: group x column.
        present: the observed groups (for every column, or group x column); by default those with weight.
            Give it if weights are differences, which may be 0 in an observed group.
        seed: of the resampling.
        replicates: number of resamples; 0 gives Student's interval, at once.
    """
    baselines = [] if baseline_totals is None or baseline_weights is None else [baseline_totals, baseline_weights]
    signs = (1, -1)[: 1 + len(baselines) // 2]
    full = np.stack(np.broadcast_arrays(totals, weights, *baselines)).astype(float)
    observed = full[1] != 0 if present is None else np.broadcast_to(present.T, full.shape[:0:-1]).T
    ratios, gain, low, high, p, p_below, n_groups = _tested(full, signs, observed, seed, replicates)
    baseline = ratios[1] if baselines else np.zeros_like(gain)
    return Estimate(ratios[0], baseline, gain, low, high, p, p_below, n_groups)


def _tested(
    full: Array, signs: Sequence[int], observed: Array, seed: int, replicates: int = REPLICATES
) -> tuple[Array, ...]:
    """Ratios of alternating totals and weights; their signed sum, its bounds, p above and below 0, number of groups."""
    full, n_groups = full[:, observed.any(1)], observed.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, influence, error = _to_first_order(full, signs, n_groups)
        value = _signed(signs, ratios)
        lower, upper = _studentised_quantiles(full, signs, value, error, n_groups, seed, replicates)
        low, high = value - upper * error, value - lower * error
        t, k = value / error, (influence**3).sum(0) / (influence**2).sum(0) ** 1.5
        g = t + k * t**2 / 3 + k**2 * t**3 / 27 + k / 6  # Hall's transformation, less skewed than t
        sides = [special.stdtr(n_groups - 1, np.stack([-sign * t, -sign * g])) for sign in (1, -1)]
        above, below = (np.maximum(*side) for side in sides)
        agree = (error <= _ROUNDING * np.abs(value)) & (n_groups > 1)
        sign_test = 0.5 - np.sign(value) * (0.5 - 0.5**n_groups)
        untested = np.isnan(value) | (n_groups < 2)
        above = np.where(untested, np.nan, np.where(agree, sign_test, above))
        below = np.where(untested, np.nan, np.where(agree, 1 - sign_test, below))
        margin = special.stdtrit(np.maximum(n_groups, 1), 0.975) * np.abs(value) / (n_groups + 1)
        low, high = np.where(agree, value - margin, low), np.where(agree, value + margin, high)
        few = n_groups < _FEWEST
        return ratios, value, np.where(few, np.nan, low), np.where(few, np.nan, high), above, below, n_groups


def ratio(totals: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Sum(totals) / sum(weights) over groups, its delta-method standard error, and the number of groups with weight.

    Totals and weights are group x anything. For one group the error is 0, which means nothing; for none the ratio is
    NaN.
    """
    groups = (weights > 0).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        (ratios,), _, error = _to_first_order(np.stack([totals, weights]), (1,), groups)
    return ratios, error, groups


def _to_first_order(full: Array, signs: Sequence[int], n_groups: Array) -> tuple[Array, Array, Array]:
    """The ratios, each group's influence on their signed sum (group x column), and the sum's standard error."""
    sums = full.sum(1)  # group by group, because sums of products do not cancel to the last digit
    ratios = sums[0::2] / sums[1::2]
    influence = _signed(signs, (full[0::2] - ratios[:, None] * full[1::2]) / sums[1::2, None])
    return ratios, influence, _error((influence**2).sum(0), n_groups)


@dataclass(frozen=True)
class Contrast:
    """A signed sum of ratios over `n` groups, or a share of a whole over `n` pairs: interval at 95%, two-sided p."""

    value: Array
    low: Array
    high: Array
    p: Array
    n: Array


Shares = Contrast


def shares(effects: Array, wholes: Array, *, clusters: Sequence[Sequence[object]] = (), seed: int = 0) -> Shares:
    """Sum of a column's effects over the sum of the wholes, over the pairs with an effect there (not NaN).

    Pairs whose whole difference is 0 count too: without them, a share would grow as pairs differ less.

    Args:
        effects: pair x column, or pair x anything that broadcasts; NaN if a pair lacks the column.
        wholes: one for each pair.
        clusters: ways in which pairs are related, each with a name for each pair: pairs with the same name are not
            independent. Error and test are then for crossed clusters (Cameron, Gelbach & Miller 2011), Student's t with
            one degree less than the fewest clusters. A way with fewer than eight names is fixed: the result is about
            these names.
        seed: of the resampling.
    """
    totals, weights, present = _over_pairs(effects, wholes)
    estimates = estimate(totals, weights, present=present, seed=seed)
    # a share of -0 becomes 0
    value, low, high = (each + 0.0 for each in (estimates.value, estimates.low, estimates.high))
    p, crossed = estimates.two_sided, [names for names in clusters if len({*names}) >= FEWEST_CLUSTERS]
    if crossed:
        with np.errstate(divide="ignore", invalid="ignore"):
            influence = (totals - estimates.value * weights) / weights.sum(0)
            error, degrees = _crossed_error(influence, crossed), min(len({*names}) for names in crossed) - 1
            margin, varies = special.stdtrit(degrees, 0.975) * error, error > 1e-12
            p = np.where(varies, 2 * special.stdtr(degrees, -np.abs(value) / error), p)
        low, high = np.where(varies, value - margin, low), np.where(varies, value + margin, high)
    return Shares(value, low, high, p, present.sum(0))


def _crossed_error(influence: Array, clusters: Sequence[Sequence[object]]) -> Array:
    """The standard error of a sum of influences (pair x column) whose pairs share clusters in one or more ways.

    The variances of the ways, minus those of intersections of two, and so on; at least the largest way's variance.
    """
    total, variances = np.zeros(influence.shape[1]), []
    for size in range(1, len(clusters) + 1):
        for ways in combinations(clusters, size):
            pairs = [*zip(*ways, strict=True)]
            rows = {name: row for row, name in enumerate(dict.fromkeys(pairs))}
            sums = np.zeros((len(rows), influence.shape[1]))
            np.add.at(sums, [rows[name] for name in pairs], influence)
            variance = (sums**2).sum(0) * len(rows) / max(len(rows) - 1, 1)
            total += variance if size % 2 else -variance
            variances += [variance] if size == 1 else []
    return np.sqrt(np.maximum(total, np.max(variances, 0)))


def share(effects: Array, wholes: Array) -> Array:
    """The value of `shares` without an interval, and so cheap."""
    totals, weights, _ = _over_pairs(effects, wholes)
    with np.errstate(divide="ignore", invalid="ignore"):
        return totals.sum(0) / weights.sum(0) + 0.0


def _over_pairs(effects: Array, wholes: Array) -> tuple[Array, Array, Array]:
    """Effects and wholes, 0 without an effect; and whether there is one."""
    present = ~np.isnan(effects)
    return np.where(present, effects, 0.0), np.where(present, wholes[:, None], 0.0), present


def contrast(totals: Array, weights: Array, signs: Sequence[int], *, seed: int = 0) -> Contrast:
    """Signed sum of the ratios sum(totals) / sum(weights), on the same groups: a difference of gains is one of four.

    Interval and two-sided p are as in `estimate`. A ratio compared with itself differs by exactly 0, with p 1. Totals
    and weights are ratio x group x column; a group counts in a column if any ratio has weight there.
    """
    full = np.stack(np.broadcast_arrays(totals, weights), 1).astype(float)  # ratio 2 group column
    full = full.reshape(-1, *full.shape[2:])
    observed = (full[1::2] != 0).any(0)
    _, value, low, high, above, below, n_groups = _tested(full, signs, observed, seed)
    return Contrast(value, low, high, np.minimum(2 * np.minimum(above, below), 1.0), n_groups)


def _pairs(count: int) -> list[tuple[int, int]]:
    return [*combinations_with_replacement(range(count), 2)]


def _ratios(sums: Array, squares: Array, signs: Sequence[int], n_groups: Array) -> tuple[Array, Array]:
    """The ratios of totals and weights, which alternate in `sums`, and the standard error of their signed sum."""
    ratios = sums[0::2] / sums[1::2]
    influence = [  # linear in a group's quantities, so that its square needs only their products
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
    # rounding moves a variance of 0 slightly
    return np.sqrt(np.where(spread < 1e-24, 0.0, spread))


def _signed(signs: Sequence[int], parts: Array) -> Array:
    """The signed sum, in this order: equal neighbours of opposite sign cancel exactly."""
    return np.asarray(sum(sign * part for sign, part in zip(signs, parts, strict=True)))


def _studentised_quantiles(
    full: Array, signs: Sequence[int], value: Array, plain_error: Array, n_groups: Array, seed: int, replicates: int
) -> tuple[Array, Array]:
    """Bounds of t a column: resampled, or Student's for few groups, or NaN for too few."""
    high = np.where(n_groups < _FEWEST, np.nan, special.stdtrit(np.maximum(n_groups - 1, 1), 0.975))
    low, count, random = -high, full.shape[1], np.random.default_rng(whole_number("seed", seed))
    if count < _FEWEST_RESAMPLED or not replicates:
        return low, high
    draws = random.multinomial(count, np.full(count, 1 / count), replicates).astype(float)
    step = _BLOCK // len(_pairs(len(full)))
    for begin in range(0, value.shape[0], step):  # blocks of columns: memory stays small for any table
        columns = slice(begin, begin + step)
        if not (enough := n_groups[columns] >= _FEWEST_RESAMPLED).any():
            continue
        block = full[:, :, columns]
        sums = np.einsum("rg,kgc->krc", draws, block, optimize=True)
        products = np.stack([block[i] * block[j] for i, j in _pairs(len(block))])  # pair group column
        squares = np.einsum("rg,kgc->krc", draws, products, optimize=True)
        ratios, error = _ratios(sums, squares, signs, n_groups[columns])
        t = (_signed(signs, ratios) - value[columns]) / error
        # a resample whose groups hardly differ has no usable error
        t = np.where(error <= 1e-3 * plain_error[columns], 0.0, t)
        quantiles, missing = np.full((2, t.shape[1]), np.nan), np.isnan(t)  # columns of NaN stay NaN
        whole, part = ~missing.any(0), missing.any(0) & ~missing.all(0)
        for usable, quantile in ((whole, np.quantile), (part, np.nanquantile)):  # the second is slow
            if usable.any():
                quantiles[:, usable] = quantile(t[:, usable], [0.025, 0.975], axis=0)
        for bounds, resampled in zip((low, high), quantiles, strict=True):
            bounds[columns] = np.where(enough, resampled, bounds[columns])
    return low, high


def mean_interval(values: Array, *, seed: int = 0) -> tuple[float, float, float, float]:
    """Mean of independent observations (prompts), its studentised 95% interval, and a two-sided p for mean != 0."""
    values = np.asarray(values, dtype=float)[:, None]
    estimates = estimate(values, np.ones_like(values), seed=seed)
    columns = estimates.value, estimates.low, estimates.high, estimates.two_sided
    mean, low, high, p = (float(column[0]) for column in columns)
    return mean, low, high, p


def benjamini_hochberg(p: Array) -> Array:
    """Smallest false discovery rate at which each test is significant (Benjamini & Hochberg 1995); NaN stays NaN."""
    from scipy.stats import false_discovery_control  # noqa: PLC0415 (`import interp` need not wait for it)

    q = np.array(p, dtype=float)
    if (tested := ~np.isnan(q)).any():
        q[tested] = false_discovery_control(q[tested])
    return q
