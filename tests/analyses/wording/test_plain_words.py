"""How do readers see numbers and labels?"""

import math

import pytest

from analyses.behaviours import OURS, vocabulary
from analyses.part_of_speech import TAG_PAIRS, UNIVERSAL_TAGS
from analyses.scoring.antecedents import PREDICTING_RIVALS
from analyses.scoring.antecedents import RIVALS as OF_ANTECEDENTS
from analyses.scoring.rules import LADDER, NEAREST, OFFSETS, RELATIONS
from analyses.scoring.strata import OF_PAIRS, OF_PRONOUNS, PREDICTED
from analyses.wording import plain_words
from analyses.wording.formats import number, percent, whole
from analyses.wording.plain_words import Label


def test_counts_have_no_decimals_and_what_is_undefined_is_a_dash():
    assert [*map(whole, (11, 1234.0, 0.0, math.nan, math.inf))] == ["11", "1\u202f234", "0", "–", "–"]
    assert [*map(number, (-0.25, 1234, None))] == ["−0.250", "1\u202f234", "–"]


def test_a_share_that_is_not_all_is_not_said_to_be():
    shares = {0.0: "0%", 0.004: "under 1%", 0.44: "44%", 0.994: "99%", 0.998: "over 99%", 1.0: "100%", -0.2: "−20%"}
    assert {share: percent(share) for share in shares} == shares


@pytest.mark.parametrize(
    ("label", "short", "clause"),
    [
        ("relation:obj:dependent->head", "object to its verb", "goes from an object to its verb"),
        ("relation:obj:head->dependent", "verb to its object", "goes from a verb to its object"),
        ("relation:x:dependent->head", "x: dependent to head", "goes from the dependent of x to its head"),
        ("tag:NOUN->ADJ", "noun to adjective", "looks from nouns to adjectives"),
        ("offset:-3", "token 3 back", "looks at the token 3 back"),
        ("rule:last VERB/AUX", "last verb or auxiliary", "goes to the last verb or auxiliary"),
        ("rule:offset -1", "word before", "goes to the word before"),
        ("rule:any->NOUN", "any noun", "looks at nouns from any word"),
        ("antecedent", "antecedent", "goes from a pronoun to what it refers to"),
    ],
)
def test_labels_have_words_and_are_strings_again(label, short, clause):
    assert plain_words.worded(label, vocabulary(OURS))[:2] == (short, clause)
    assert str(Label.parse(label)) == label


def test_every_label_that_a_head_can_have_is_in_words():
    called = [measure.called for behaviour in OURS.values() for measure in behaviour.measures if measure.called]
    rules = [f"rule:{rule.name}" for rule in (*NEAREST, *LADDER, *OFFSETS, *OF_ANTECEDENTS, *PREDICTING_RIVALS)]
    for label in [*called, *rules, *(f"rule:any->{key}" for _, key in TAG_PAIRS)]:
        clause, infinitive = (words := plain_words.worded(label, vocabulary(OURS))).said, words.infinitive
        assert not infinitive.split()[0].endswith(("s", ",")), infinitive  # "to go", never "to goes"
        assert "->" not in clause
        assert "“" not in clause, label
        assert not any(part.isupper() for part in clause.split()), clause


def test_every_tag_and_relation_that_is_asked_has_a_word():
    assert plain_words.TAGS.keys() == UNIVERSAL_TAGS
    assert plain_words.RELATIONS.keys() == {*RELATIONS, *(name for name, _ in PREDICTED)}
    assert plain_words.WORDS["strata"].keys() == {*OF_PAIRS, *OF_PRONOUNS}
