"""The n-gram baseline against the formula in dictionaries, on text small enough to check every number."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from analyses.suites.ngrams import KneserNey

D_VOCAB = 13


def text(length: int, seed: int) -> np.ndarray:
    """Tokens of very different frequencies, some absent, each likely to follow the one before."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, D_VOCAB) ** 1.5
    tokens = rng.choice(D_VOCAB - 1, length, p=shares / shares.sum())
    return np.where(rng.random(length) < 0.4, (np.roll(tokens, 1) + 1) % (D_VOCAB - 1), tokens)


class Written:
    """Modified Kneser-Ney, with a dictionary per length."""

    def __init__(self, tokens: list[int], order: int, d_vocab: int = D_VOCAB):
        grams = {n: [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)] for n in range(1, order + 1)}
        self.counts: dict[int, dict[tuple[int, ...], int]] = {order: dict(Counter(grams[order]))}
        for n in range(1, order):
            before = defaultdict(set)
            for gram in grams[n + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[n] = {gram: len(them) for gram, them in before.items()}
        self.taken_off = {n: self._discounts(list(counts.values())) for n, counts in self.counts.items()}
        self.order, self.d_vocab = order, d_vocab

    @staticmethod
    def _discounts(counts: list[int]) -> list[float]:
        n1, n2, n3, n4 = (counts.count(k) for k in (1, 2, 3, 4))
        discounts = [0.0, 0.5, 1.0, 1.5]
        if n1:
            y = n1 / (n1 + 2 * n2)
            for k, (these, those) in enumerate(((n1, n2), (n2, n3), (n3, n4)), 1):
                if these and 0 < (value := k - (k + 1) * y * those / these) <= k:
                    discounts[k] = value
        return discounts

    def __call__(self, context: tuple[int, ...], token: int) -> float:
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        shorter = self(context[1:], token) if context else 1 / self.d_vocab
        n = len(context) + 1
        follow = {gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == context}
        if not follow:
            return shorter
        total, off = sum(follow.values()), self.taken_off[n]
        count = follow.get(token, 0)
        mass = sum(off[min(each, 3)] for each in follow.values())
        return (count - off[min(count, 3)]) / total + mass / total * shorter


@pytest.mark.parametrize(("order", "far"), [(1, 1), (2, 1), (3, 1), (5, 1), (5, 1_000_003)])
def test_every_probability_is_that_of_the_formula(order: int, far: int):
    """For any vocabulary: `far` times as many tokens, of which the additional ones never occur."""
    train, test = far * text(600, 0), far * text(60, 1)
    test[-3:] = far * D_VOCAB - 1  # an unseen token
    reference = Written(train.tolist(), order, far * D_VOCAB)
    expected = [reference(tuple(test[:index].tolist()), int(token)) for index, token in enumerate(test)]
    result = KneserNey(train, far * D_VOCAB, order).probabilities(test)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=0)
