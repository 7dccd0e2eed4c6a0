import pytest

from analyses.report.behaviour_sections import said_of_rule
from analyses.rivals.rules import ANTECEDENT, BEATS, FAILS, NO_RULE, OTHERS, UNTESTED


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
            "It goes to “last VERB” (74% of its choices), which is right in 91%: that the head does more is not shown.",
        ),
        (
            row(OBJECT, "offset -1", UNTESTED),
            "It goes to “offset −1” (74% of its choices); the rule “last VERB” is right in 91%: "
            "this text cannot tell the head from a rule.",
        ),
        (
            row(OBJECT, NO_RULE, BEATS),
            "It goes by no simple rule; the rule “last VERB” is right in 91%: "
            "the head is right more often, and where rules are wrong more often than it follows them.",
        ),
        (
            row("antecedent", ANTECEDENT, BEATS, "same gender"),
            "Nothing simpler predicts its choices than the antecedent itself; the rule “same gender” is right in 91%: "
            "the head is right more often, and where rules are wrong more often than it follows them.",
        ),
        (row("tag:NOUN->ADJ", None, BEATS, OTHERS), "NOUN words give ADJ words more than words of other tags do."),
        (
            row("tag:VERB->PRON", None, FAILS, OTHERS),
            "That VERB words give PRON words more than words of other tags do is not shown.",
        ),
    ],
)
def test_beside_a_head_stands_the_rule_that_it_goes_by_and_what_rules_get(given, said):
    of_choices = given["rival"] != OTHERS  # their numbers are of one half, those beside them of the whole text
    expected = f"On the half that reports {said[0].lower()}{said[1:]}" if of_choices else said
    assert said_of_rule(given) == expected
