import re

import pandas as pd
import pytest

from analyses.behaviours import OURS
from analyses.causal_tests import Effects
from analyses.head_tables import Measured
from analyses.numerals import percent
from analyses.report.behaviour_sentences import attention, cause, said_of_rule
from analyses.rivals.rules import ANTECEDENT, BEATS, FAILS, NO_RULE, OTHERS, UNTESTED
from analyses.sections import plain
from tests.analyses.headlines.hand_made_tables import effect_row, hand_made, heads_row


def row(measure, rule, verdict, rival="last VERB"):
    return {
        "measure": measure,
        "rival": rival,
        "rival_value": 0.914,
        "rule": rule,
        "predicts": 0.743,
        "verdict": verdict,
    }


OBJECT = "relation:obj:dependent->head"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            row(OBJECT, "last VERB", FAILS),
            "It goes to the last verb (74% of its choices), which is right in 91%: "
            "it is not shown that the head does more.",
        ),
        (
            row(OBJECT, "offset -1", UNTESTED),
            "It goes to the word before (74% of its choices); taking the last verb is right in 91%: "
            "this text cannot tell the head from a rule.",
        ),
        (
            row(OBJECT, NO_RULE, BEATS),
            "It goes by no simple rule; taking the last verb is right in 91%: "
            "the head is right more often, and where rules are wrong more often than it follows them.",
        ),
        (
            row("antecedent", ANTECEDENT, BEATS, "same gender"),
            "Nothing simpler predicts its choices than the antecedent itself; "
            "taking the last mention of the same gender is right in 91%: "
            "the head is right more often, and where rules are wrong more often than it follows them.",
        ),
        (row("tag:NOUN->ADJ", None, BEATS, OTHERS), "Nouns look at adjectives more than other words do."),
        (
            row("tag:VERB->PRON", None, FAILS, OTHERS),
            "It is not shown that verbs look at pronouns more than other words do.",
        ),
    ],
)
def test_beside_a_head_stands_the_rule_that_it_goes_by_and_what_rules_get(given, said):
    of_choices = given["rival"] != OTHERS  # their numbers are of one half, those beside them of the whole text
    expected = f"On the half that reports {said[0].lower()}{said[1:]}" if of_choices else said
    assert said_of_rule(given) == expected


def measured(behaviour: str, *rows: dict) -> Measured:
    return Measured(pd.DataFrame([row | {"behaviour": behaviour} for row in rows]))


def in_short(behaviour: str, *rows: dict) -> list[str]:
    return [plain(each) for each in attention(OURS[behaviour], measured(behaviour, *rows), {})]


@pytest.mark.parametrize(
    ("behaviour", "row", "said"),
    [
        (
            "position",
            heads_row(1, 5, "position", "previous-token", 0.9612, 0.0217),
            "L1.H5 looks at the token before with {value} of its attention; uniform attention gets {baseline}.",
        ),
        (
            "position",
            heads_row(1, 0, "position", "positional-head", 0.921, 0.063, baseline_name="untrained heads"),
            "L1.H0 looks hardest at one and the same distance in {value} of cases; "
            "the best untrained head gets {baseline}.",
        ),
        (
            "position",
            heads_row(2, 0, "position", "induction", 0.96, 0.013, corpus="random repeats"),
            "L2.H0 looks at what followed this token before (induction) with {value} of its attention on random "
            "repeats; uniform attention gets {baseline}.",
        ),
        (
            "part-of-speech",
            heads_row(3, 6, "part-of-speech", "tag:VERB->NOUN", 2.61, 1.0, baseline_name="no preference"),
            "L3.H6 looks from verbs to nouns 2.6 times as much as distance explains.",
        ),
        (
            "coreference",
            heads_row(2, 6, "coreference", "antecedent-mass", 0.54, 0.27, baseline_name="nearest"),
            "L2.H6 gives what a pronoun stands for {value} of what it gives mentions before it; "
            "the nearest mention gets {baseline}.",
        ),
    ],
)
def test_what_a_head_does_is_said_from_its_row_in_words_and_two_digits(behaviour, row, said):
    numbers = {name: percent(row[name]) for name in ("value", "baseline")}
    assert in_short(behaviour, row) == [said.format(**numbers)]


def test_other_heads_that_show_it_are_named_behind_the_best():
    rows = [heads_row(0, head, "position", "previous-token", 0.9 - 0.1 * head, 0.02) for head in range(3)]
    assert in_short("position", *rows)[0].endswith("gets 2%. 3 of 3 heads are above it, next L0.H1, L0.H2.")


def test_what_heads_gain_that_have_learnt_nothing_is_beside_what_trained_heads_gain():
    rows = [heads_row(0, head, "position", "previous-token", 0.9 - 0.1 * head, 0.02) for head in range(3)]
    own = measured("position", *rows)

    def said(bars: dict[str, float] | None) -> list[str]:
        return [plain(each) for each in attention(OURS["position"], own, bars)]

    assert said({"previous-token": 0.04})[0].endswith("gets 2%. 3 of 3 heads are above it, next L0.H1, L0.H2.")
    assert said({"previous-token": 0.88})[0].endswith(" Heads that have learnt nothing gain up to 88%.")
    assert said(None)[-1] == "Without labels nothing says what heads gain that have learnt nothing."


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
    said = [plain(each) for each in cause(Effects(effects, [repeat, agreement]))]
    assert said[0] == (
        "Replacing L1.H0 removes 15% of copying, and alone it restores 16% (6 and 6 of 40 answers change); "
        "L0.H0 12% and 12% (6 and 6 of 40); L0.H1 12% and 12% (6 and 6 of 40)."
    )
    assert said[1].startswith("Replacing L0.H1 removes 35% of the choice of was or were, and alone it restores 30% (6 ")
    assert said[1].endswith(
        ". The model is right in only 65% of the prompts; what these heads carry often does not decide its answer."
    )


def test_a_task_without_heads_or_prompts_is_told_in_words_too():
    effects, refused = hand_made()["effects"].head(0), "the model puts the right answer first in 3 of 40 prompts"
    tasks = [
        {"task": "agreement-adjacent", "carried": "adjacent was/were", "accuracy": 0.9},
        {"task": "gender", "carried": "his/her", "refused": refused},
        {"task": "mine"},
    ]
    assert [plain(each) for each in cause(Effects(effects, tasks))] == [
        "No single head surely carries 5% of the choice of was or were right after its noun.",
        f"Of the choice of his or her no head was tested: {refused}.",
        "No single head surely carries 5% of mine.",
    ]


def test_what_one_way_of_patching_shows_is_told_alone():
    rows = pd.DataFrame([effect_row(1, 0, "repeat", way, 0.15, 0.1) for way in ("noise", "denoise")])
    task = {"task": "repeat", "carried": "copying"}
    for way, said in (
        ("noise", "Replacing L1.H0 removes 15% of copying (6 of 40 answers change)."),
        ("denoise", "Alone L1.H0 restores 15% of copying (6 of 40 answers change)."),
    ):
        assert [plain(each) for each in cause(Effects(rows.loc[rows["intervention"] == way], [task]))] == [said]
