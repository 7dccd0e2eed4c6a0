"""Which effects are measured, and what replaces the others?"""

import numpy as np
import pandas as pd
import pytest
from repeats import copying, repeating_texts

from analyses.labels import hiding, knockouts, label, screen
from analyses.labels.hiding import CLAIM, KINDS, Sums, effect_of, settled
from analyses.labels.screen import Screen, Screened
from models import planted
from tests.analyses.labels.test_knockouts import annotated, noisy

TOLD = ["effect", "ci_low", "ci_high", "p", "drop", "control"]
ARMS = ["exchange", "exchange_low", "exchange_p", "removal", "removal_high", "removal_p"]


def measured(chosen: Screen | None) -> knockouts.Knockouts:
    texts = [annotated(f"document {number}") for number in range(6)]
    return knockouts.measure(noisy().double(), texts, behaviours=["position"], screen=chosen)


@pytest.fixture(scope="module")
def exact() -> pd.DataFrame:
    return measured(None).table


def test_what_is_asked_for_is_measured_and_the_rest_is_missing(exact):
    cells = {(0, 1, "previous-token"), (1, 0, "offset:-2"), (1, 1, "self")}  # `self` has no key to hide
    result = measured(Screen(cells, least=-9.0, choosing=False)).table
    assert exact["measured"].all()
    rows = [key in cells for key in exact[["layer", "head", "measure"]].itertuples(index=False, name=None)]
    assert result["measured"].tolist() == rows
    assert sum(rows) == 2
    pd.testing.assert_frame_equal(result.loc[rows, TOLD + ARMS], exact.loc[rows, TOLD + ARMS], rtol=1e-9, atol=1e-12)
    others = ~np.array(rows)
    assert result.loc[others, ["drop", "effect", "p", "estimate", *ARMS]].isna().all(axis=None)


def test_what_is_not_measured_while_labels_are_chosen_is_estimated(exact):
    result = measured(Screen((), least=9.0, choosing=True)).table
    others = ~result["measured"].to_numpy()
    assert others.sum() > 5
    np.testing.assert_allclose(result["effect"][others], result["estimate"][others], rtol=1e-12)
    assert (result["effect"] - exact["effect"])[others].abs().max() > 1e-4  # an estimate is no measurement
    assert np.corrcoef(result["drop"][others], exact["drop"][others])[0, 1] > 0.5
    assert result.loc[others, ARMS].isna().all(axis=None)


def test_keys_are_exchanged_and_removed_where_hiding_them_costs_enough(exact):
    heads = exact.loc[exact["measure"] == "offset:-2", ["layer", "head", "measure", "effect"]]
    cells = {*heads[["layer", "head", "measure"]].itertuples(index=False, name=None)}
    least = float(heads["effect"].median())
    result = measured(Screen(cells, least, choosing=False)).table
    enough = result["measured"] & (result["effect"] >= least)
    assert 0 < enough.sum() < result["measured"].sum() == len(heads)
    pd.testing.assert_frame_equal(result.loc[enough, ARMS], exact.loc[enough, ARMS], rtol=1e-9, atol=1e-12)
    assert result.loc[~enough, ARMS].isna().all(axis=None)


def test_what_may_be_large_enough_is_measured_and_some_of_the_rest_drawn(exact, monkeypatch):
    monkeypatch.setattr(screen, "_CALIBRATING", 1)
    monkeypatch.setattr(hiding, "_PARTS", (100, 200))  # so nothing stops early
    least = float(exact["effect"].quantile(0.9))
    result = measured(Screen((), least, choosing=True))
    table, screened = result.table, result.screened
    assert screened is not None
    assert 0 < screened.sampled < screened.measured < screened.cells == len(exact)
    assert table["measured"].sum() == screened.measured
    assert table["sampled"].sum() == screened.sampled
    assert table.loc[table["estimate"] >= least, "measured"].all()
    assert not table.loc[table["estimate"] >= least, "sampled"].any()
    assert (table["sampled"] <= table["measured"]).all()
    rows = table["measured"]
    pd.testing.assert_frame_equal(table.loc[rows, TOLD], exact.loc[rows, TOLD], rtol=1e-9, atol=1e-12)
    assert (table.loc[~rows, "q"] == 1).all()
    assert (table["q"] >= exact["q"] - 1e-12).all()  # untested rows do not help others to be found
    off = (table["effect"] - table["estimate"]).abs()[table["sampled"]]
    assert screened.error == pytest.approx(np.quantile(off, 0.9))


def test_measuring_stops_where_an_effect_is_settled(exact, monkeypatch):
    monkeypatch.setattr(screen, "_CALIBRATING", len(exact))  # all are measured
    least = float(exact["effect"].quantile(0.9))
    result = measured(Screen((), least, choosing=True)).table
    early = result["documents"] < exact["documents"]
    assert result["measured"].all()
    assert {*result.loc[early, "measure"]} == {"induction"}  # ten of its sixteen sequences settle it
    assert (result["effect"] < least)[early].equals((exact["effect"] < least)[early])
    pd.testing.assert_frame_equal(result.loc[~early, TOLD], exact.loc[~early, TOLD], rtol=1e-9, atol=1e-12)


def test_a_cost_is_settled_where_more_documents_would_not_change_on_which_side_of_the_least_it_is():
    """Columns: clearly none; clearly large; large, but not after correction; near the least; of four groups."""
    rng = np.random.default_rng(0)
    mean, noise, groups = (0.0, 0.5, 0.06, 0.011, 0.0), (0.004, 0.1, 0.03, 0.004, 0.004), (10, 10, 10, 10, 4)
    costs = {kind: Sums(np.zeros((10, 1, 5)), np.zeros((10, 1, 5))) for kind in KINDS}
    for column, (level, off, n) in enumerate(zip(mean, noise, groups, strict=True)):
        lost = level + off * rng.standard_normal(n)
        lost += level - lost.mean()
        costs[CLAIM].lost[:n, 0, column] = 3 * lost
        for sums in costs.values():
            sums.rows[:n, 0, column] = 3.0
    np.testing.assert_allclose(effect_of(costs), [mean], atol=1e-12)
    assert settled(costs, 0.01, 100_000).tolist() == [[True, True, False, False, False]]
    assert settled(costs, 0.01, 1).tolist() == [[True, True, True, False, False]]


@pytest.mark.parametrize(("sampled", "missed", "bound"), [(59, 0, 0.0495), (10, 10, 1.0), (0, 0, 0.0), (20, 1, 0.2161)])
def test_the_share_of_misses_is_bounded_by_what_the_sample_shows(sampled, missed, bound):
    assert Screened(1000, 100, 0.0, sampled, 0.0, missed).most_missed == pytest.approx(bound, abs=1e-4)


@pytest.mark.slow
def test_screened_labels_are_those_of_all_effects(monkeypatch):
    monkeypatch.setattr(screen, "_CALIBRATING", 4)
    model = copying([planted.offset(-3)], [planted.uniform])
    options = {"documents": 10, "words": 27}
    whole, screened = (label(model, {"position": repeating_texts(30)}, exact=each, **options) for each in (True, False))
    arms = ["exchange", "removal", "all_exchange", "all_removal", "p_effect"]
    tables = [each.labels.drop(columns="agreement") for each in (whole, screened)]  # over all heads, measured or not
    needed = tables[0]["effect"] >= 0.01
    assert 0 < needed.sum() < len(needed)
    pd.testing.assert_frame_equal(*(table.drop(columns=arms) for table in tables), rtol=1e-3, atol=1e-5)
    pd.testing.assert_frame_equal(*(table.loc[needed, arms] for table in tables), rtol=1e-3, atol=1e-5)
    assert not whole.screened
    assert whole.evidence["measured"].dropna().all()
    assert screened.screened["position"].measured < screened.screened["position"].cells
    evidence = screened.evidence
    assert evidence.loc[evidence["measured"].eq(False), "error"].notna().all()
    assert evidence.loc[evidence["measured"].eq(True), "error"].isna().all()
