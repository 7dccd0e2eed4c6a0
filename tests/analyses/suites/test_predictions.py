"""SyntaxGym's formulas: what do they mean, written out for a few items, and what is refused?"""

import numpy as np
import pytest
from refusals import refusal

from analyses.suites.predictions import LONGEST, Prediction, Region

A, B, C = Region("1", "a"), Region("1", "b"), Region("*", "c-2")
VALUES = {A: np.array([1.0, 2.0, 3.0]), B: np.array([2.0, 2.0005, 1.0]), C: np.array([0.0, 9.0, np.nan])}
HOLDS = {
    "(1;%a%) < (1;%b%)": [1, 1, 0],
    "(1;%a%)>(1;%b%)": [0, 0, 1],
    "(1;%a%) = (1;%b%)": [0, 1, 0],  # within a thousandth
    "[(1;%a%) + (1;%b%)] > 3.5": [0, 1, 1],
    "(1;%a%) - (1;%b%) < -0.5": [1, 0, 0],
    "(1;%a%) - [(1;%b%) - 1] > 0": [0, 1, 1],  # from left to right, brackets first
    "(1;%a%) < 2 & (1;%b%) > 1.5": [1, 0, 0],
    "(1;%a%) < 2 | (1;%a%) > 2 & (1;%b%) < 2": [1, 0, 1],  # `&` binds more tightly
    "( 1 ; %a% ) < ( * ; %c-2% )": [0, 1, np.nan],
    "[(1;%a%) < 2] | [(*;%c-2%) > 5]": [1, 1, np.nan],
}


@pytest.mark.parametrize("formula", HOLDS)
def test_a_formula_means_what_is_written(formula):
    np.testing.assert_array_equal(Prediction.parse(formula).holds(VALUES), HOLDS[formula])


def test_claims_are_the_parts_that_hold_together():
    whole = Prediction.parse("[(1;%a%) < (1;%b%)] & [(1;%a%) > 1 & (*;%c-2%) < 3]")
    assert [claim.formula for claim in whole.claims] == ["(1;%a%) < (1;%b%)", "(1;%a%) > 1", "(*;%c-2%) < 3"]
    joined = np.minimum.reduce([claim.holds({**VALUES, C: VALUES[A]}) for claim in whole.claims])
    np.testing.assert_array_equal(whole.holds({**VALUES, C: VALUES[A]}), joined)
    either = Prediction.parse("(1;%a%) < 1 | (1;%b%) < 1")
    assert either.claims == (either,)


REFUSED = [
    *("", "(1;%a%)", "(1;%a%) + 1", "1 < 2", "R0 < 1", "(1;%a%) < R0", "(1;%a%) < x", "__import__('os')"),
    *("(1;%a%) < (1;%b%) < 3", "(1;%a%) & (1;%b%)", "(1;%a%) <= 2", "(1;%a%) == 2", "(1;%a%) < 1e9", "(1;%a%) << 2"),
    *("(1;%a%) < 2)", "((1;%a%) < 2", "(1;%a%)(1;%b%) < 1", "[(1;%a%) < 2] + 1", "(1;%a%) < 99999999999"),
    *("(" * 400 + "(1;%a%) < 1" + ")" * 400, "-" * 1_900 + "(1;%a%) < 1", "(1;%a%) < 1" + " " * LONGEST),
]


@pytest.mark.parametrize("formula", REFUSED)
def test_anything_else_is_refused(formula):
    assert "expected a formula as (5;%match%) < (5;%mismatch%)" in refusal(Prediction.parse, formula)
