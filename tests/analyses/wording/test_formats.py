"""Numbers as they stand on a page."""

import math

from analyses.wording.formats import number, percent, whole


def test_counts_have_no_decimals_and_what_is_undefined_is_a_dash():
    assert [*map(whole, (11, 1234.0, 0.0, math.nan, math.inf))] == ["11", "1\u202f234", "0", "–", "–"]
    assert [*map(number, (-0.25, 1234, None))] == ["−0.250", "1\u202f234", "–"]


def test_a_share_that_is_not_all_is_not_said_to_be():
    shares = {0.0: "0%", 0.004: "under 1%", 0.44: "44%", 0.994: "99%", 0.998: "over 99%", 1.0: "100%", -0.2: "−20%"}
    assert {share: percent(share) for share in shares} == shares
