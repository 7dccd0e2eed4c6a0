"""Would a measure come out the same if each row gave its attention to its keys in another order?

The null permutes each row's attention over the keys that could receive it. Mean and variance have a closed form: the
attention on k of n keys is the sum of a sample drawn without replacement (Cochran 1977, theorems 2.1 and 2.2). Its mean
is k/n of the mass, its variance k(n-k)/(n(n-1)) sum (a - mean a)^2. If only keys at similar distances are exchanged,
each bin of distances is a separate population.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import special
from torch import Tensor

from interp.patterns.selection import PerHead, Scores
from interp.patterns.totals import GroupSums

# A uniform row has no order to permute; float32 rounding leaves at most this fraction of its squares as variance.
_ROUNDING = 1e-6
Words = Bool[Tensor, "item word"]
Bins = Int[Tensor, "item word"]


@dataclass
class Null(GroupSums):
    """Mean and variance of the sums in `Totals.scores` under permuted keys, by group of documents.

    NaN where a measure has no such null.
    """

    mean: Float[Tensor, "group head measure"]
    variance: Float[Tensor, "group head measure"]

    def test(self, scores: Float[Tensor, "group head measure"]) -> np.ndarray:
        """One-sided normal p, head x measure, for scores that sum to more than under permuted keys.

        NaN if no row could have come out otherwise (one key at its distance, or uniform attention).
        """
        variance = self.variance.sum(0).numpy()
        excess = (scores - self.mean).sum(0).numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(variance > 0, special.ndtr(-excess / np.sqrt(variance)), np.nan)


def spread(
    mass: Float[Tensor, "*row"], squares: Float[Tensor, "*row"], n: Float[Tensor, "*row2"]
) -> Float[Tensor, "*row"]:
    """sum (a - mean a)^2 over n keys from their sum and sum of squares; 0 if it is only rounding."""
    deviation = squares - mass * mass / n.clamp(min=1)
    return torch.where(deviation > _ROUNDING * squares, deviation, 0)


def on_set(k: Float[Tensor, "*row"], n: Float[Tensor, "*row2"]) -> tuple[Float[Tensor, "*row"], Float[Tensor, "*row"]]:
    """Mean / mass, and variance / spread, of the attention on k of n permuted keys."""
    return k / n.clamp(min=1), k * (n - k) / (n * (n - 1)).clamp(min=1)


def weighted(
    sums: Float[Tensor, "*row"], squares: Float[Tensor, "*row"], n: Float[Tensor, "*row"]
) -> tuple[Float[Tensor, "*row"], Float[Tensor, "*row"]]:
    """The same factors for sum a·d, d any number per key, from the n keys' sums of d and d^2 (Hoeffding 1951).

    Mean: the mean of d times the mass. Variance: sum (d - mean d)^2 / (n - 1) times the spread.
    """
    return sums / n.clamp(min=1), (squares - sums * sums / n.clamp(min=1)).clamp(min=0) / (n - 1).clamp(min=1)


def distance_bin(offset: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """The bin of a key: 1, 2, 3, ... at distances 1, 2-3, 4-7, ..., negative before the query, which is 0.

    Doubling bins hold several keys from distance 2 on, and keep near and far keys apart.
    """
    exponent = torch.frexp(offset.abs().to(torch.float32)).exponent  # frexp: exact, where a logarithm rounds
    return exponent.to(offset.dtype) * offset.sign()


def choice(scores: Scores, candidates: Words, correct: Words, bins: Bins) -> tuple[PerHead, PerHead]:
    """Mean and variance of `selection.accuracy` when scores are permuted among the candidates of each bin.

    The candidates that tie for the highest stay in their bins, and fall on any of the bin's words with equal
    probability: the number of correct ones among a bin's t is hypergeometric. `correct` are among `candidates`.
    """
    eligible = scores.masked_fill(~candidates[:, None], -1.0)
    best = eligible.amax(-1, keepdim=True)
    tied = ((eligible == best) & (best > 0)).to(scores.dtype)  # item head word
    inside, n, k = _within_bins(candidates, correct, bins, scores.dtype)
    t = tied @ inside
    of_ties, factor = on_set(k, n)
    n_tied = tied.sum(-1).clamp(min=1)
    return (t * of_ties).sum(-1) / n_tied, (t * (n - t) / n.clamp(min=1) * factor).sum(-1) / n_tied**2


def share(scores: Scores, candidates: Words, correct: Words, bins: Bins) -> tuple[PerHead, PerHead]:
    """Mean and variance of `selection.share` when scores are permuted among the candidates of each bin."""
    total = (scores * candidates[:, None]).sum(-1).clamp(min=1e-30)
    inside, n, k = _within_bins(candidates, correct, bins, scores.dtype)
    mass = scores @ inside
    of_mass, of_spread = on_set(k, n)
    mean = (of_mass * mass).sum(-1)
    return mean / total, (of_spread * spread(mass, scores.square() @ inside, n)).sum(-1) / total**2


def _within_bins(
    candidates: Words, correct: Words, bins: Bins, dtype: torch.dtype
) -> tuple[Float[Tensor, "item word bin"], Float[Tensor, "item 1 bin"], Float[Tensor, "item 1 bin"]]:
    """1 if a candidate is in a bin; and how many candidates, and correct ones, each bin has."""
    inside = (candidates[..., None] & (bins[..., None] == bins[candidates].unique())).to(dtype)
    return inside, inside.sum(1, keepdim=True), correct[:, None].to(dtype) @ inside
