"""Heads that are needed together: planted twins, made-up costs, and sentences."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest
from repeats import PREVIOUS, repeating_texts, two_layers

from analyses.behaviours import OURS
from analyses.headlines.head_cards import overview
from analyses.labels import Labelled, knockouts, label, sets
from analyses.page.sections import Figure, Section
from analyses.report.report_parts import labels as labels_part
from analyses.report.scaffold import render
from interp import Transformer
from interp.patterns import group_of
from models import planted
from tests.analyses.headlines.hand_made_tables import heads_row
from tests.pages import Page

TWINS, TEXTS = [(0, 0), (0, 2)], repeating_texts(24)


@pytest.fixture(scope="module")
def twins() -> tuple[Transformer, Labelled]:
    model = two_layers(PREVIOUS, planted.uniform, PREVIOUS)
    return model, label(model, {"position": TEXTS}, documents=12)


def test_twins_are_a_set_and_neither_has_an_effect_alone(twins):
    _, labelled = twins
    (row,) = labelled.sets.to_dict("records")
    assert (row["label"], row["heads"], row["size"]) == ("set:previous-token", "L0.H0+L0.H2", 2)
    assert row["singles"] < 0.01 < row["low"] < row["effect"] < row["high"]
    rows = labelled.labels.loc[labelled.labels["label"].str.endswith("previous-token")]
    kinds = {(row["layer"], row["head"], row["label"]): row["evidence"] for row in rows.to_dict("records")}
    names = {"previous-token": "attention", "set:previous-token": "effect"}
    assert kinds == {(*place, name): kind for place in TWINS for name, kind in names.items()}


def test_the_table_is_what_plain_knock_outs_of_the_reporting_half_say(twins):
    model, labelled = twins
    (row,) = labelled.sets.to_dict("records")
    all_heads = [*product(range(2), range(3))]
    others = [(0, 1), (1, 0)], [(0, 1), (1, 1)], [(0, 1), (1, 2)]  # the layer has one head left: others are above
    pairs = [("previous-token", heads) for heads in (TWINS, all_heads, *others)]
    half = [text for text in TEXTS if group_of(text.document) % 2 == 1][:12]
    costs = knockouts.measure_together(model, half, pairs, behaviours=["position"], texts=720, seed=1)
    plain = knockouts.least(costs).to_dict("records")
    names = {"effect": "effect", "ci_low": "low", "ci_high": "high"}
    assert [plain[0][name] for name in names] == pytest.approx([row[name] for name in names.values()], abs=1e-5)
    assert plain[1]["effect"] == pytest.approx(row["all_effect"], abs=1e-5)
    best = max(cost["removal"] for cost in plain[2:])
    assert (row["others"], row["possible"]) == (3, 3)
    assert [row["others_best"], row["difference"]] == pytest.approx([best, row["effect"] - best], abs=1e-5)


@pytest.mark.parametrize("heads", [(PREVIOUS, planted.offset(-1), planted.uniform), (planted.offset(-1),) * 3])
def test_no_set_where_one_head_does_it_or_nothing_reads_them(heads):
    labelled = label(two_layers(*heads), {"position": TEXTS}, documents=12)
    assert labelled.sets.empty
    assert not labelled.labels["label"].str.startswith("set:").any()


def additive(costs: dict[tuple[int, int], float]):
    """Heads whose costs add up."""
    return lambda head_sets: np.array([sum(costs[head] for head in heads) for heads in head_sets])


def smallest(places, single, enough, cost) -> list[tuple[int, int]]:
    """The set found if sets cost `cost`."""
    search = sets.smallest(places, single, enough)
    heads = next(search)
    while True:
        try:
            heads = search.send(cost(heads))
        except StopIteration as end:
            return end.value


def test_the_smallest_set_is_of_heads_that_each_add_something():
    costs = {(0, 0): 0.3, (0, 1): 0.005, (1, 0): 0.25, (1, 1): 0.2}
    single = np.array([*costs.values()])
    assert smallest([*costs], single, 0.5, additive(costs)) == [(0, 0), (1, 0)]
    assert smallest([*costs], single, 0.25, additive(costs)) == []  # one head suffices
    assert smallest([*costs], single, 0.8, additive(costs)) == []
    assert smallest([*costs], single, 0.753, additive(costs)) == []  # the last head adds too little


def test_heads_that_stand_in_for_each_other_are_found_though_none_has_an_effect():
    def cost(head_sets):
        return np.array([float({(0, 1), (2, 0), (2, 3)} <= {*heads}) for heads in head_sets])

    assert smallest([*product(range(3), range(4))], np.zeros(12), 0.5, cost) == [(0, 1), (2, 0), (2, 3)]


def test_other_sets_have_as_many_heads_of_the_same_layers():
    others, possible = sets.other_sets([(0, 1), (0, 2), (2, 0)], [*product(range(3), range(4))], 999, 0)
    assert possible == len(others) == 3
    assert [[*each] for each in others] == [[(0, 0), (0, 3), (2, head)] for head in (1, 2, 3)]
    sample, possible = sets.other_sets([(0, 0), (1, 1), (1, 2)], [*product(range(2), range(12))], 9, 0)
    assert (len({*sample}), possible) == (9, 11 * math.comb(10, 2))
    assert all([layer for layer, _ in each] == [0, 1, 1] and {*each}.isdisjoint({(0, 0), (1, 1)}) for each in sample)
    fallback, _ = sets.other_sets([(0, 0), (0, 1), (0, 2)], [*product(range(2), range(4))], 99, 0)
    assert [layer for layer, _ in fallback[0]] == [0, 1, 1]
    assert sets.other_sets([(0, 0), (0, 1)], [(0, 0), (0, 1)], 9, 0) == ([], 0)


def test_p_is_over_documents_and_p_rank_counts_the_sets_that_reach_the_effect():
    rng = np.random.default_rng(0)
    rows = np.full(20, 10.0)
    lost = rows * rng.normal([[0.3], [0.4], [0.5]], 0.05, (3, 20))
    others = rows[:, None] * rng.normal([0.0, 0.1, 0.2], 0.05, (20, 3))
    result = sets.compare(lost, others, rows)
    means = others.sum(0) / 200
    assert result["difference"] == pytest.approx(lost[0].sum() / 200 - means[2])
    assert result["diff_low"] < result["difference"] < result["diff_high"]
    assert (result["others_best"], result["p_rank"]) == (pytest.approx(means[2]), 1 / 4)
    alone = [sets.estimate(lost[0][:, None] - others[:, [n]], rows[:, None], replicates=0).p[0] for n in range(3)]
    assert result["p"] == pytest.approx(max(alone))
    less = sets.compare(lost, others + 40, rows)
    assert (less["p"] > 0.1, less["p_rank"]) == (True, 1.0)


def test_a_set_is_called_by_the_rule_that_all_its_heads_follow_and_mixed_ones_by_nothing():
    def rules(*pairs: tuple[str, str]) -> pd.DataFrame:
        return pd.DataFrame(pairs, columns=["verdict", "rule"])

    last, next_noun = ("worse", "last VERB"), ("worse", "next NOUN")
    cases = [(), (last, last), (last, next_noun), (last, ("beats", "no rule"))]
    names = [sets._name("relation:obj", rules(*case)) for case in cases]
    assert names == ["set:relation:obj", "set:rule:last VERB", None, "set:relation:obj"]


def test_atlas_card_and_report_say_that_they_are_needed_together(twins):
    model, labelled = twins
    heads = pd.DataFrame([heads_row(0, head, "position", "previous-token", 0.9, 0.1) for head in range(3)])
    labels = labelled.labels.loc[labelled.labels["layer"] == 0]
    tables = {"heads": heads, "labels": labels, "evidence": labelled.evidence, "sets": labelled.sets}
    part = labels_part(labelled, model, OURS)
    line, first = overview(tables, OURS)
    report = Section("Labels", [each for each in part.sections[0].blocks if not isinstance(each, Figure)])
    page = Page(render(line, [first, report], [], {}))
    (atlas,) = first.atlases
    assert [each.state for each in atlas.layers[0]] == ["needed", "quiet", "needed"]
    sentence = "L0.H0 and L0.H2 look at the token before: hiding that from all of them costs"
    assert page.text.count(sentence) == 7  # in the headline, in the report, and twice on each of two cards
