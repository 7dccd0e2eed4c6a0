"""Would a measure come out the same if each row gave its attention to its keys in another order?

The null permutes each row's attention over the keys that could receive it. Mean and variance have a closed form: the
attention on k of n keys is the sum of a sample drawn without replacement (Cochran 1977, theorems 2.1 and 2.2), k/n of
the mass, with variance k(n-k)/(n(n-1)) sum (a - mean a)^2. If only keys at about the same distance are exchanged, each
bin of distances is a population of its own.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import special
from torch import Tensor

from interp.patterns.selection import PerHead, Scores
from interp.patterns.totals import GroupSums

# A row shared alike has no order to permute; what float32 leaves of its variance is this little of its squares.
_ROUNDING = 1e-6
Words = Bool[Tensor, "item word"]
Bins = Int[Tensor, "item word"]


@dataclass
class Null(GroupSums):
    """Mean and variance of the sums that `Totals.scores` hold, under permuted keys, by group of documents.

    NaN where a measure has no such null.
    """

    mean: Float[Tensor, "group head measure"]
    variance: Float[Tensor, "group head measure"]

    def test(self, scores: Float[Tensor, "group head measure"]) -> np.ndarray:
        """One-sided normal p, head x measure, that the scores add up to more than under permuted keys.

        NaN where no row could have come out otherwise (one key at its distance, attention shared alike).
        """
        variance = self.variance.sum(0).numpy()
        excess = (scores - self.mean).sum(0).numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(variance > 0, special.ndtr(-excess / np.sqrt(variance)), np.nan)


def spread(
    mass: Float[Tensor, "*row"], squares: Float[Tensor, "*row"], n: Float[Tensor, "*row2"]
) -> Float[Tensor, "*row"]:
    """sum (a - mean a)^2 over n keys from their sum and sum of squares; 0 where rounding is all there is."""
    deviation = squares - mass * mass / n.clamp(min=1)
    return torch.where(deviation > _ROUNDING * squares, deviation, 0)


def on_set(k: Float[Tensor, "*row"], n: Float[Tensor, "*row2"]) -> tuple[Float[Tensor, "*row"], Float[Tensor, "*row"]]:
    """What the mean takes of the mass, and the variance of the spread, for the attention on k of n keys."""
    return k / n.clamp(min=1), k * (n - k) / (n * (n - 1)).clamp(min=1)


def weighted(
    sums: Float[Tensor, "*row"], squares: Float[Tensor, "*row"], n: Float[Tensor, "*row"]
) -> tuple[Float[Tensor, "*row"], Float[Tensor, "*row"]]:
    """The same factors for sum a·d, with d any number a key has, from the n keys' sum of d and of d^2 (Hoeffding 1951).

    Mean: the mean of d times the mass. Variance: sum (d - mean d)^2 / (n - 1) times the spread.
    """
    return sums / n.clamp(min=1), (squares - sums * sums / n.clamp(min=1)).clamp(min=0) / (n - 1).clamp(min=1)


def distance_bin(offset: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """The bin of a key: 1, 2, 3, ... at distances 1, 2-3, 4-7, ..., negative before the query, which is 0.

    Bins that double hold several keys from distance 2 on, and keep near and far apart.
    """
    exponent = torch.frexp(offset.abs().to(torch.float32)).exponent  # frexp: exact, where a logarithm rounds
    return exponent.to(offset.dtype) * offset.sign()


def choice(scores: Scores, candidates: Words, correct: Words, bins: Bins) -> tuple[PerHead, PerHead]:
    """Mean and variance of `selection.accuracy` when scores are permuted among the candidates of each bin.

    The candidates that tie for the highest stay in their bins, as many as there were, and fall on any of the bin's
    words alike: of t there, the correct ones are hypergeometric. `correct` are among `candidates`.
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
    """1 where a candidate is in a bin; how many candidates each bin has, and how many correct ones."""
    inside = (candidates[..., None] & (bins[..., None] == bins[candidates].unique())).to(dtype)
    return inside, inside.sum(1, keepdim=True), correct[:, None].to(dtype) @ inside
