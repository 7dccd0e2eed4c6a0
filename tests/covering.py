"""Pairwise covering arrays: every possible pair of two factors' values occurs, in far fewer cases than the product."""

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heapreplace
from itertools import combinations, product

Case = tuple[Hashable, ...]


def pairs_in(case: Case) -> set[tuple[tuple[int, Hashable], tuple[int, Hashable]]]:
    return set(combinations(enumerate(case), 2))


def pairwise(*factors: Iterable, possible: Callable[..., bool] = lambda *case: True) -> list[Case]:
    """Deterministic cases that contain every pair of values of some possible case at least once."""
    candidates = {case: pairs_in(case) for case in product(*factors) if possible(*case)}
    missing, chosen = set().union(*candidates.values()), []
    heap = [(-len(pairs), i, case) for i, (case, pairs) in enumerate(candidates.items())]
    heapify(heap)
    while missing:
        _, i, best = heap[0]
        covered = len(candidates[best] & missing)  # what a case adds never grows
        if heapreplace(heap, (-covered, i, best)) and heap[0] == (-covered, i, best):  # the first of the best cases
            missing -= candidates[best]
            chosen.append(best)
    assert set().union(*map(pairs_in, chosen)) == set().union(*candidates.values())
    return chosen
