"""Covering arrays cover: what is tested pair by pair rests on it."""

from itertools import combinations, product

import pytest
from covering import pairwise


@pytest.mark.parametrize("sizes", [(2, 2, 2), (5, 11, 3, 2), (4, 4, 4)])
def test_every_two_values_meet_in_few_cases(sizes):
    factors = [[*range(size)] for size in sizes]
    cases = pairwise(*factors)
    for one, other in combinations(range(len(sizes)), 2):
        assert {(case[one], case[other]) for case in cases} == {*product(factors[one], factors[other])}
    two_largest = sorted(sizes)[-1] * sorted(sizes)[-2]
    assert two_largest <= len(cases) <= 1.6 * two_largest
    assert cases == pairwise(*factors)


def test_what_is_not_possible_is_left_out_and_all_else_is_met():
    cases = pairwise("ab", "xyz", "+-", possible=lambda one, two, _: (one, two) != ("b", "z"))
    assert {case[:2] for case in cases} == {*product("ab", "xyz")} - {("b", "z")}
    assert {case[1:] for case in cases} == {*product("xyz", "+-")}
