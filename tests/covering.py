"""Pairwise covering arrays: whatever two values of two factors may meet do, in far fewer cases than the product has."""

from collections.abc import Callable, Hashable, Iterable
from itertools import combinations, product

Case = tuple[Hashable, ...]


def pairs_in(case: Case) -> set[tuple[tuple[int, Hashable], tuple[int, Hashable]]]:
    return set(combinations(enumerate(case), 2))


def pairwise(*factors: Iterable, possible: Callable[..., bool] = lambda *case: True) -> list[Case]:
    """Cases, the same at every call, in which every pair of values that some possible case has meets at least once."""
    candidates = {case: pairs_in(case) for case in product(*factors) if possible(*case)}
    missing, chosen = set().union(*candidates.values()), []
    while missing:
        best = max(candidates, key=lambda case: len(candidates[case] & missing))  # the first of the best
        missing -= candidates[best]
        chosen.append(best)
    assert set().union(*map(pairs_in, chosen)) == set().union(*candidates.values())
    return chosen
