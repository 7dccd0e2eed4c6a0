"""What do counts of five words in a row predict? An interpolated Kneser-Ney model as a rival of a trained one.

Modified Kneser-Ney smoothing as Chen & Goodman (1999, section 3) define it, after Kneser & Ney (1995):

    p(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v) + g(h) p(w | h')    h' is h without its first token
    g(h)     = sum_v D(c(h v)) / sum_v c(h v)                          the discounted mass; 1 if h was never seen
    p(w)     = the same with an empty h, and 1 / d_vocab for the next shorter p

For the longest n-grams, c counts occurrences; for shorter ones, it counts the different tokens that came before. D has
one value each for c = 1, 2 and 3 or more, estimated for each length from how many n-grams have each c.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from interp import InputError

Ids = Int[np.ndarray, " token"]
_FALLBACK = (0.5, 1.0, 1.5)  # discounts if they cannot be estimated, as in KenLM (Heafield 2013)


@dataclass(frozen=True)
class _Level:
    """The different n-grams of one length; a key combines the context's index among the shorter ones with a token."""

    keys: Int[np.ndarray, " gram"]  # index of the context * d_vocab + token, ascending
    counts: Int[np.ndarray, " gram"]
    discounts: Float[np.ndarray, " count"]  # for counts 0, 1, 2, and 3 or more
    totals: Float[np.ndarray, " context"]
    left: Float[np.ndarray, " context"]  # g(h)

    @staticmethod
    def of(keys: np.ndarray, counts: np.ndarray, d_vocab: int, n_contexts: int) -> "_Level":
        taken_off = discounts(counts)
        context = keys // d_vocab
        totals = np.bincount(context, counts, n_contexts)
        lost = np.bincount(context, taken_off[np.minimum(counts, 3)], n_contexts)
        # the only context without a count is the start of the text, which follows nothing
        return _Level(keys, counts, taken_off, totals, np.where(totals > 0, lost / np.maximum(totals, 1), 1.0))


def discounts(counts: Int[np.ndarray, " gram"]) -> Float[np.ndarray, " count"]:
    """The discounts of counts 0, 1, 2, and 3 or more (Chen & Goodman 1999, equation 17)."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[1:5]
    values = [0.0]
    for k, fallback in enumerate(_FALLBACK, 1):
        can_estimate = n[0] > 0 and n[k - 1] > 0
        value = k - (k + 1) * n[0] / (n[0] + 2 * n[1]) * n[k] / n[k - 1] if can_estimate else 0.0
        values.append(value if 0 < value <= k else fallback)
    return np.array(values)


class KneserNey:
    """Counts of all n-grams up to `order` in one running text; memory grows with the text, not the vocabulary."""

    def __init__(self, tokens: Ids, d_vocab: int, order: int = 5):
        """Count all n-grams: 14 million tokens take a minute on one core and 2 GB.

        Raises:
            InputError: the text has no n-gram of that order.
        """
        if not 1 <= order <= len(tokens):
            raise InputError(f"a text of {len(tokens)} tokens has no {order}-grams: give more text, or a lower order")
        self.d_vocab, self.order = d_vocab, order
        counted: list[tuple[np.ndarray, np.ndarray]] = []  # the different n-grams of each length, and their counts
        places = np.zeros(len(tokens) + 1, dtype=np.int64)  # of the n-gram that ends at each token; 0 at length 0
        for length in range(1, order + 1):
            keys, first, longer, counts = np.unique(
                places[:-1] * d_vocab + tokens[length - 1 :], return_index=True, return_inverse=True, return_counts=True
            )
            if counted:  # tokens before a shorter n-gram = n-grams of this length that end in it
                shorter, _ = counted[-1]
                counted[-1] = shorter, np.bincount(places[1:][first], minlength=len(shorter))
            counted.append((keys, counts))
            places = longer
        sizes = [1, *(len(keys) for keys, _ in counted[:-1])]
        self.levels = [_Level.of(*each, d_vocab, n) for each, n in zip(counted, sizes, strict=True)]

    def probabilities(self, tokens: Ids) -> Float[np.ndarray, " token"]:
        """The probability of each token given the `order` - 1 tokens before it, or fewer at the start."""
        p = np.full(len(tokens), 1 / self.d_vocab)
        context = np.zeros(len(tokens), dtype=np.int64)  # index of each token's context; -1: never seen
        for level in self.levels:
            (places,) = np.nonzero(context >= 0)
            places = places[level.totals[context[places]] > 0]
            before = context[places]
            keys = before * self.d_vocab + tokens[places]
            index = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
            is_known = level.keys[index] == keys
            counts = np.where(is_known, level.counts[index], 0)
            discounted = (counts - level.discounts[np.minimum(counts, 3)]) / level.totals[before]
            p[places] = discounted + level.left[before] * p[places]
            context = np.full(len(tokens), -1)
            followed = is_known & (places + 1 < len(tokens))
            context[places[followed] + 1] = index[followed]
        return p
