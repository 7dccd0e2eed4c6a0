"""Numbers as they stand on a page."""

import math

import pytest

from analyses.numerals import number, percent, whole


@pytest.mark.parametrize(
    ("value", "expected"), [(11, "11"), (1234.0, "1\u202f234"), (0.0, "0"), (math.nan, "–"), (math.inf, "–")]
)
def test_counts_have_no_decimals(value, expected):
    assert whole(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(-0.25, "−0.250"), (1234, "1\u202f234"), (None, "–")])
def test_numbers_as_text(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (0.004, "under 1%"),
        (0.44, "44%"),
        (0.994, "99%"),
        (0.998, "over 99%"),
        (1.0, "100%"),
        (-0.2, "−20%"),
    ],
)
def test_a_share_that_is_not_all_is_not_said_to_be(share, text):
    assert percent(share) == text
