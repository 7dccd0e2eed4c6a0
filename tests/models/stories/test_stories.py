"""The stories are what they claim: sound trees and chains, words of two readings, no shortcut to the antecedent."""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise

import pytest

from analyses.corpora.mentions import PRONOUNS
from analyses.scoring.antecedents import RIVALS, AntecedentItem, antecedent_items
from interp.annotation import ROOT, AnnotatedText, Mention
from models.stories import lexicon, portrait, portraits, stories, story, tale, tales
from models.stories.references import Teller
from models.stories.scripts import Script

MANY = 500
EITHER = {
    "friend",
    "neighbour",
    *(noun.singular for noun in (*lexicon.MASCULINE_HELPERS, *lexicon.FEMININE_HELPERS)),
}  # of no gender
RULES = {rival.name: rival.looks for rival in RIVALS}


@cache
def texts(generator: Callable[..., Iterator[AnnotatedText]]) -> list[AnnotatedText]:
    return list(generator(MANY // 5 if generator is tales else MANY))


@pytest.fixture
def many() -> list[AnnotatedText]:
    return texts(stories)


@pytest.fixture(params=[stories, portraits, tales], ids=lambda generator: generator.__name__)
def told(request: pytest.FixtureRequest) -> list[AnnotatedText]:
    return texts(request.param)


def sentences_of(text: AnnotatedText) -> list[range]:
    return [range(*ends) for ends in pairwise((*text.sentence_starts, len(text.words)))]


def chains_of(text: AnnotatedText) -> dict[str, list[Mention]]:
    chains: dict[str, list[Mention]] = {}
    for mention in text.mentions or ():
        chains.setdefault(mention.chain, []).append(mention)
    return chains


def share_right(items: list[AntecedentItem], baseline: str) -> float:
    """How often a baseline chooses a mention of the chain; ties share."""
    total = 0.0
    for item in items:
        scores = RULES[baseline](item)
        tied = [correct for correct, score in zip(item.correct, scores, strict=True) if score == max(scores)]
        total += sum(tied) / len(tied)
    return total / len(items)


@pytest.mark.parametrize(
    ("make", "generator", "digest"),
    [
        (story, stories, "342601fed1ea35c71b0c45f744b94b0aa444fa9b7277c74f3d18f3f2215bff20"),
        (portrait, portraits, "7cf71ace3df05de1b2d33127a0ec7bb56b9b5ec70262dfb43c92909b1691305d"),
        (tale, tales, "c3c449fe21841838a8df1728d204ad3f53ca8a87049227027fa57636da1639ab"),
    ],
)
def test_a_text_depends_on_seed_and_index_only_and_stays_word_for_word(make, generator, digest) -> None:
    """The default model has read these and measured figures are of them: a change of the grammar shows here."""
    assert list(generator(20, seed=7))[13] == make(7, 13) == next(islice(generator(None, seed=7), 13, None))
    assert make(7, 13) != make(8, 13)
    assert make(7, 13).document == f"{make.__name__}-7-13"
    assert hashlib.sha256("".join(map(repr, texts(generator))).encode()).hexdigest() == digest


def test_every_sentence_is_one_tree(told: list[AnnotatedText]) -> None:
    for text in told:
        for sentence in sentences_of(text):
            (root,) = (i for i in sentence if text.heads[i] == ROOT)
            assert text.relations[root] == "root"
            for i in sentence:
                above = [i]
                while text.heads[above[-1]] != ROOT:
                    above.append(text.heads[above[-1]])
                    assert above[-1] in sentence
                    assert len(above) <= len(sentence), f"a circle in {text.text}"


def test_text_is_spaced_and_cased_like_print(told: list[AnnotatedText]) -> None:
    for text in told:
        assert re.fullmatch(r"([A-Z][A-Za-z']*(,? [A-Za-z']+)*\. ?)+", text.text), text.text
        assert " 's" not in text.text
        assert [text.text[a:b] for a, b in text.word_spans] == list(text.words)


def test_third_person_pronouns_are_mentions_with_an_antecedent(told: list[AnnotatedText]) -> None:
    for text in told:
        mentioned = {mention.start: mention for mention in text.mentions if mention.end - mention.start == 1}
        for i, each in enumerate(text.words):
            if each.lower() in PRONOUNS:
                chain = mentioned[i].chain
                assert any(m.chain == chain and m.end <= i for m in text.mentions), f"{each} in {text.text}"


def test_gender_and_number_fit_the_chain(told: list[AnnotatedText]) -> None:
    masculine = {
        *lexicon.MASCULINE_NAMES,
        *(noun.singular for noun in (*lexicon.MASCULINE_NOUNS, *lexicon.MASCULINE_KIN)),
    }
    feminine = {*lexicon.FEMININE_NAMES, *(noun.singular for noun in (*lexicon.FEMININE_NOUNS, *lexicon.FEMININE_KIN))}
    sort_of = {each: "masculine" for each in masculine} | {each: "feminine" for each in feminine}
    sort_of |= {noun.plural: "plural" for noun in lexicon.NOUNS} | PRONOUNS
    for text in told:
        for mentions in chains_of(text).values():
            several = any(text.relations[i] == "conj" for m in mentions for i in range(m.head + 1, m.end))
            said = {text.words[m.head] for m in mentions} - EITHER
            sorts = {sort_of.get(each, sort_of.get(each.lower())) for each in said}
            if not several:  # the head of "Tim and Lily" is Tim
                assert len(sorts - {None, "neuter"}) <= 1, text.text
                assert not {None, "neuter"} & sorts or sorts <= {None, "neuter"}, text.text


@pytest.mark.parametrize("baseline", ["nearest", "first", "same form", "same gender"])
def test_no_shortcut_finds_the_antecedent(many: list[AnnotatedText], baseline: str) -> None:
    items = [item for text in many for item in antecedent_items(text, PRONOUNS)]
    assert len(items) > 2 * MANY
    assert 0.2 < share_right(items, baseline) < 0.8
    named = [item for item in items if item.named]
    assert 0.4 < len(named) / len(items) < 0.8
    assert 0.2 < share_right(named, baseline) < 0.8


def test_a_portrait_tells_of_one_person_in_every_sentence_and_not_what_the_test_of_gender_asks() -> None:
    begun, having = Counter(), 0
    for text in texts(portraits):
        chain = {mention.head: mention.chain for mention in text.mentions}
        subjects = [i for i, name in enumerate(text.relations) if name == "nsubj" and text.heads[text.heads[i]] == ROOT]
        assert len({chain[i] for i in subjects}) == 1, text.text
        assert len(subjects) >= len(text.sentence_starts) >= 3
        begun.update(text.words[start] for start in text.sentence_starts[1:])
        having += bool(re.search(r"\b(had|has) an?( \w+)? \w+", text.text))
        assert not re.search(r"\b(had|has) an?( \w+)? dog\b", text.text)
    assert min(begun["He"], begun["She"]) > MANY / 2
    assert having > MANY / 5


def test_what_a_script_calls_and_nobody_knows_is_named():
    script = Script("stories", Teller(random.Random(0)))
    with pytest.raises(LookupError, match=r"\(dose \.\.\.\)"):
        script.value(["dose", "hero", "find"])
