"""Heads are shown at words that their labels are about; for planted heads, these are known on paper."""

from dataclasses import replace

import pandas as pd
import pytest

from analyses.behaviours import OURS
from analyses.headlines.fact_examples import fact_examples
from analyses.headlines.facts import Fact, Size
from analyses.reading.windows import Batch, Reading
from analyses.scoring.asked_words import questions
from analyses.wording.head_names import Place
from analyses.wording.plain_words import Label, Words
from interp import AnnotatedText, Mention
from models import planted
from models.planted import Planted

TAGS = {"Tim": "PROPN", "Sue": "PROPN", "saw": "VERB", "fed": "VERB", "the": "DET", "big": "ADJ"}
TAGS |= {"dog": "NOUN", "cat": "NOUN", "and": "CCONJ", "she": "PRON", ".": "PUNCT"}
WORDS = [*TAGS]


def text(sentence: str, document: str = "d", mentions: tuple[Mention, ...] = ()) -> AnnotatedText:
    """A text whose object is the last word but one, with the verb as its head."""
    plain = AnnotatedText.plain(sentence, document)
    words = plain.words
    verb, thing = words.index(next(word for word in words if TAGS[word] == "VERB")), len(words) - 2
    heads = tuple(verb if position == thing else -1 for position in range(len(words)))
    relations = tuple("obj" if position == thing else "root" for position in range(len(words)))
    tags = tuple(TAGS[word] for word in words)
    return replace(plain, tags=tags, heads=heads, relations=relations, mentions=mentions)


TEXTS = [
    text(f"{who} {did} the big {what} and {second} {did} the {thing} .", f"document {number}")
    for number, (who, did, what, second, thing) in enumerate(
        [("Tim", "saw", "dog", "Sue", "cat"), ("Sue", "fed", "cat", "Tim", "dog"), ("Sue", "saw", "dog", "Tim", "dog")]
    )
]


def batch(*texts: AnnotatedText) -> Batch:
    model = Planted(WORDS, [[planted.uniform]], n_ctx=40, start="<s>").build()
    (result,) = Reading(model, texts)
    return result


def asked_by(measure: str, label: str = "", *texts: AnnotatedText) -> dict[int, set[int]]:
    behaviour = next(each for each in OURS.values() if measure in {entry.name for entry in each.measures})
    (items,) = questions(behaviour[measure], label or measure, batch(*(texts or TEXTS[:1])), causal=True)
    return {each.asker: {*each.sought} for each in items}


OBJECT = "relation:obj:dependent->head"


@pytest.mark.parametrize(
    ("measure", "label", "words"),
    [
        ("tag:VERB->PROPN", "", {1: {0}, 7: {0, 6}}),  # for two tags, words of the first that see one of the second
        ("tag:NOUN->VERB", "", {4: {1}, 9: {1, 7}}),
        (OBJECT, "", {9: {1}}),  # for a relation, the words in it
        ("relation:obj:head->dependent", "", {}),  # not visible
        (OBJECT, "rule:last VERB", {9: {7}}),  # for a rule, its choice from the measure's query words
        (OBJECT, "rule:offset -2", {9: {7}}),
        ("tag:VERB->NOUN", "rule:any->NOUN", {**{row: {4} for row in range(5, 10)}, 10: {4, 9}}),  # all that see one
        ("duplicate-token", "", {7: {1}, 8: {2}}),
        ("induction", "", {7: {2}, 8: {3}}),
    ],
)
def test_which_words_a_label_is_about(measure, label, words):
    """Tim(0) saw(1) the(2) big(3) dog(4) and(5) Sue(6) saw(7) the(8) cat(9) .(10); only earlier words are visible."""
    assert asked_by(measure, label) == words


def test_of_an_antecedent_the_pronouns_and_their_mentions_or_the_words_before_them():
    chains = (Mention(0, 1, 0, "Sue"), Mention(2, 3, 2, "Tim"), Mention(4, 5, 4, "Sue"))
    passage = text("Sue saw Tim and she fed the dog .", mentions=chains)
    assert asked_by("antecedent:named", "antecedent", passage) == {4: {0}}
    assert asked_by("antecedent-predicting:named", "antecedent-predicting", passage) == {3: {0}}
    assert asked_by("antecedent:named", "rule:nearest", passage) == {4: {2}}
    (items,) = questions(OURS["coreference"]["antecedent:named"], "antecedent", batch(passage), causal=True)
    assert items[0].candidates == {0, 2}


def fact(label: str, *measures: str) -> Fact:
    size = Size("gain", 0.5, 0.4, 0.6, "share")
    words = Words(label, label)
    return Fact(words, "x", "looks there", Label.parse(label), (size,), 0.001, 0.4, (), measures=measures or (label,))


def of_head(examples: pd.DataFrame, head: int, choice: str) -> pd.DataFrame:
    return examples.loc[(examples["head"] == head) & (examples["choice"] == choice)]


def test_a_head_that_rests_on_a_token_before_the_words_is_shown_with_that_token():
    model = Planted(WORDS, [[planted.first_token, planted.offset(-1)]], n_ctx=40, start="<s>").build()
    facts = {Place("decoder", "self", 0, head): [fact("first-token")] for head in (0, 1)}
    examples = fact_examples(model, dict.fromkeys(OURS, TEXTS), facts, OURS)
    best = of_head(examples, 0, "best")
    assert len(best) == 3
    assert best["right"].all()
    assert {row["sentence"].split(" ")[row["seen"]] for row in best.to_dict("records")} == {"<s>"}
    assert not of_head(examples, 1, "random")["right"].astype(bool).all()  # from later words it looks elsewhere


def test_a_head_is_shown_at_words_of_its_label_and_those_at_random_tell_its_failures():
    """One back from a verb is the name: always right. One back from a noun is an adjective or article: never."""
    layers = [[planted.offset(-1), planted.offset(-1), planted.uniform, planted.uniform]]
    model = Planted(WORDS, layers, n_ctx=40, start="<s>").build()
    by_head = [[fact("tag:VERB->PROPN")], [fact("tag:NOUN->VERB")], []]
    facts = {Place("decoder", "self", 0, head): by_head[head] for head in range(3)}
    facts[Place("decoder", "self", 0, 3)] = by_head[1]
    examples = fact_examples(model, dict.fromkeys(OURS, TEXTS), facts, OURS)
    best, sample = of_head(examples, 0, "best"), of_head(examples, 0, "random")
    assert len(best) == 3  # one from each passage
    assert len(sample) == 5
    for row in pd.concat([best, sample]).to_dict("records"):
        words = row["sentence"].split(" ")
        assert (row["asked"], row["right"]) == (6, True)
        assert [TAGS[words[row[which]]] for which in ("asks", "seen")] == ["VERB", "PROPN"]
    assert of_head(examples, 1, "best").empty
    assert not of_head(examples, 1, "random")["right"].any()
    assert (of_head(examples, 1, "random")["fact"] == "tag:NOUN->VERB").all()
    samples = [of_head(examples, head, "random")[["sentence", "asks"]].to_numpy().tolist() for head in (1, 3)]
    assert samples[0] == samples[1]  # heads with the same label
    assert examples.loc[examples["head"] == 2].empty  # no fact mentions it
