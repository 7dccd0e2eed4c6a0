"""The effect of a label is the least of three arms, and no label is given for what a head does not look at."""

import numpy as np
import pandas as pd
import pytest

from analyses.labels import judgement
from analyses.labels.knockouts import least
from benchmarks.labels import readers_one, sinks_one

PARTS = ("", "_low", "_high", "_p")


def arms(*rows: tuple[float, float, float]) -> pd.DataFrame:
    """What hiding, exchange and removal cost; each with an interval of 0.1 on both sides, and as p a tenth of it."""
    columns = {}
    for at, names in enumerate(
        [("effect", "ci_low", "ci_high", "p"), *([f"{arm}{part}" for part in PARTS] for arm in ("exchange", "removal"))]
    ):
        cost = np.array([row[at] for row in rows])
        columns |= dict(zip(names, (cost, cost - 0.1, cost + 0.1, cost / 10), strict=True))
    return pd.DataFrame(columns)


def test_the_effect_is_that_of_the_least_arm_and_p_the_largest():
    found = least(arms((0.3, 0.2, 0.4), (0.1, 0.5, 0.2), (0.5, 0.4, 0.3)))
    np.testing.assert_allclose(found["effect"], [0.2, 0.1, 0.3])
    np.testing.assert_allclose(found["ci_low"], [0.1, 0.0, 0.2])
    np.testing.assert_allclose(found["ci_high"], [0.3, 0.2, 0.4])
    np.testing.assert_allclose(found["p"], [0.04, 0.05, 0.05])
    np.testing.assert_allclose(found["hiding"], [0.3, 0.1, 0.5])


def test_where_keys_were_only_hidden_the_effect_is_what_that_costs_and_p_is_not_known():
    found = least(arms((0.002, np.nan, np.nan)))
    assert found["effect"].tolist() == found["hiding"].tolist() == [0.002]
    assert found["p"].isna().all()


def held(**values: object) -> list[str]:
    """The evidence of a head that the half which chooses shows by its effect, with some other values."""
    row = {"stack": "decoder", "attention": "self", "layer": 0, "head": 0, "measure": "induction", "label": "induction"}
    row |= {"behaviour": "position", "p_attention": 1e-9, "p_effect": 1e-9, "readout": "next token", "fit": True}
    row |= {"masked": np.nan, "masked_low": np.nan, "masked_p": np.nan, "attends": False, "moves": True, "bar": 0.03}
    row |= {"gain": 0.04, "gain_low": 0.035, "effect": 0.05, "effect_low": 0.02}
    return judgement._held(pd.DataFrame([row | values]))["evidence"].tolist()


def test_what_a_head_needs_without_looking_there_is_no_label():
    """It must look there by more than any head that has learnt nothing does, beyond its interval."""
    assert held() == ["effect"]
    assert held(gain_low=0.025) == []
    assert held(gain=0.2, gain_low=0.15, attends=True) == ["both"]
    assert held(gain=0.2, gain_low=0.15, attends=True, effect=0.009) == ["attention"]
    assert held(effect=0.009) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_single_and_joint_effects_tell_sinks_unread_heads_and_twins_apart(seed):
    """Twenty of each: `benchmarks.labels --only readers --models 80`."""
    assert readers_one(seed) == {"unread beside a reader": True, "twins": True}
    labels, hiding, (all_hiding, needed) = sinks_one(seed)
    assert all(each.startswith("attention") for each in labels)
    assert min(*hiding, all_hiding) > 0.1
    assert abs(needed) < 0.01
