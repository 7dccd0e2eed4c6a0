"""What a page says of one behaviour in short: sentences made from rows of its tables."""

import re

import pandas as pd
import pytest

from analyses.behaviours import OURS
from analyses.headlines.sentences import rule_sentence
from analyses.measures.head_tables import Measured
from analyses.page.sections import plain
from analyses.report.behaviour_sections import attention, cause
from analyses.scoring.rules import ANTECEDENT, BEATS, FAILS, NO_RULE, OTHERS, UNTESTED
from analyses.tasks.causal_tests import Effects
from tests.analyses.headlines.hand_made_tables import effect_row, hand_made, heads_row

OBJECT = "relation:obj:dependent->head"


@pytest.mark.parametrize(
    ("measure", "rule", "verdict", "rival", "said"),
    [
        (OBJECT, "last VERB", FAILS, "last VERB", "it goes to the last verb (74% of its choices), which is right in"),
        (OBJECT, "offset -1", UNTESTED, "last VERB", "it goes to the word before (74% of its choices); taking the la"),
        (OBJECT, NO_RULE, BEATS, "last VERB", "it goes by no simple rule; taking the last verb is right in 91%: the "),
        ("antecedent", ANTECEDENT, BEATS, "same gender", "nothing simpler predicts its choices than the antecedent"),
        ("tag:NOUN->ADJ", None, BEATS, OTHERS, "Nouns look at adjectives more than other words do."),
        ("tag:VERB->PRON", None, FAILS, OTHERS, "It is not shown that verbs look at pronouns more than other words do"),
    ],
)
def test_beside_a_head_stands_the_rule_that_it_goes_by_and_what_rules_get(measure, rule, verdict, rival, said):
    row = {"measure": measure, "rival": rival, "rival_value": 0.914, "rule": rule, "predicts": 0.743}
    of_choices = rival != OTHERS  # their numbers are of one half, those beside them of the whole text
    assert rule_sentence(row | {"verdict": verdict}).startswith("On the half that reports " * of_choices + said)


def measured(behaviour: str, *rows: dict) -> Measured:
    return Measured(pd.DataFrame([row | {"behaviour": behaviour} for row in rows]))


def in_short(behaviour: str, *rows: dict, bars: dict[str, float] | None = None) -> list[str]:
    known = {} if bars is None else bars
    return [plain(each) for each in attention(OURS[behaviour], measured(behaviour, *rows), known)]


def test_behind_the_best_head_stand_others_that_show_it_and_what_heads_gain_that_have_learnt_nothing():
    rows = [heads_row(0, head, "position", "previous-token", 0.9 - 0.1 * head, 0.02) for head in range(3)]
    others = "gets 2%. 3 of 3 heads are above it, next L0.H1, L0.H2."
    assert in_short("position", *rows)[0].endswith(others)
    assert in_short("position", *rows, bars={"previous-token": 0.04})[0].endswith(others)
    assert in_short("position", *rows, bars={"previous-token": 0.88})[0].endswith(
        f"{others} Heads that have learnt nothing stay below 88%."
    )
    (*_, last) = attention(OURS["position"], measured("position", *rows))
    assert last == "Without labels nothing says what heads gain that have learnt nothing."


def test_where_no_head_stands_out_the_closest_is_named():
    row = heads_row(0, 1, "position", "self", 0.03, 0.02)
    rows = [row, heads_row(0, 1, "position", "previous-token", 0.04, 0.02)]
    assert in_short("position", *rows) == [
        "No head stands out. The closest: L0.H1 looks at the token before with 4% of its attention; uniform attention "
        "gets 2%."
    ]


@pytest.mark.parametrize("name", [name for behaviour in OURS.values() for name in behaviour.headline])
def test_no_measure_that_leads_a_page_is_called_by_its_name(name):
    behaviour = next(each.name for each in OURS.values() if name in each.headline)
    unit = OURS[behaviour][name].unit
    (said, *_) = in_short(behaviour, heads_row(0, 0, behaviour, name, 0.9, 0.1, unit=unit))
    assert unit == "entropy" or said.startswith("L0.H0 ")
    assert not re.search(r":|->|→|“|\d\.\d\d", said)


def test_a_task_is_told_by_what_it_decides_with_what_each_head_removes_and_restores():
    tables = hand_made()
    others = [effect_row(0, head, "repeat", way, 0.12, 0.1) for head in (0, 1) for way in ("noise", "denoise")]
    effects = pd.concat([tables["effects"], pd.DataFrame(others)])
    repeat, agreement = tables["tasks"].to_dict("records")
    first, second = cause(Effects(effects, [repeat, agreement]))
    assert first == (
        "Replacing L1.H0 removes 15% of copying, and alone it restores 16% (6 and 6 of 40 answers change); "
        "L0.H0 12% and 12% (6 and 6 of 40); L0.H1 12% and 12% (6 and 6 of 40)."
    )
    assert plain(second).startswith("Replacing L0.H1 removes 35% of the choice of was or were, and alone it restores")
    assert plain(second).endswith(
        ". The model is right in only 65% of the prompts; what these heads carry often does not decide its answer."
    )
    for way, said in (("noise", "Replacing L1.H0 removes"), ("denoise", "Alone L1.H0 restores")):
        rows = effects.loc[(effects["intervention"] == way) & (effects["head"] == 0) & (effects["layer"] == 1)]
        (one,) = cause(Effects(rows, [repeat]))
        assert plain(one).startswith(said)
    refused = {"task": "gender", "carried": "his/her", "refused": "the model puts the right answer first in 3 of 40"}
    adjacent = {"task": "agreement-adjacent", "carried": "adjacent was/were", "accuracy": 0.9}
    assert cause(Effects(effects.head(0), [refused, adjacent])) == [
        f"Of the choice of his or her no head was tested: {refused['refused']}.",
        "No single head surely carries 5% of the choice of was or were right after its noun.",
    ]
