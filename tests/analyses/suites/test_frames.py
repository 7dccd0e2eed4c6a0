"""Our suites are balanced: no preference for words or lengths passes, and simple rules score as the page says."""

import random
import re
from collections import Counter

import pytest
from repository import ROOT

from analyses.suites.frames import BUILTIN, builtin
from analyses.suites.items import BAD, CRITICAL, GOOD, NAMED, Item
from interp.errors import InputError
from models import load
from models.stories.writer import WORDS

PARADIGMS = {f"{name} {each.name}": each for name in BUILTIN for each in builtin(name).paradigms}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def halves(item: Item, condition: str = GOOD) -> tuple[list[str], str]:
    """The words before the deciding word, and that word."""
    sentence = item.sentences[condition]
    start, end = sentence.spans[CRITICAL]
    return words(sentence.text[:start]), sentence.text[start:end]


@pytest.mark.parametrize("name", PARADIGMS)
def test_a_paradigm_has_enough_items_groups_and_both_poles_whose_twins_exchange_their_answers(name):
    items = PARADIGMS[name].items
    assert len(items) >= 100
    assert len({item.group for item in items}) >= 8
    assert len({item.sentences[GOOD].text for item in items}) == len(items)
    for first, second in zip(items[::2], items[1::2], strict=True):
        good = [item.sentences[GOOD] for item in (first, second)]
        names = [sentence.text[slice(*sentence.spans[NAMED])] for sentence in good]
        assert first.group == second.group
        assert first.pole != second.pole
        assert names[0] != names[1]
        (before, right), (_, wrong) = halves(first), halves(first, BAD)
        assert (len(halves(second)[0]), halves(second)[1], halves(second, BAD)[1]) == (len(before), wrong, right)
        for item in (first, second):
            assert halves(item)[0] == halves(item, BAD)[0]
            assert len({len(words(sentence.text)) for sentence in item.sentences.values()}) == 1


@pytest.mark.parametrize("name", PARADIGMS)
def test_what_scores_words_or_lengths_alone_is_right_in_half_of_the_items(name):
    items, draw = PARADIGMS[name].items, random.Random(0)
    weight = {word: draw.gauss(0, 1) for item in items for each in item.sentences.values() for word in words(each.text)}
    for score in (lambda text: sum(weight[word] for word in words(text)), len):
        margins = [score(item.sentences[GOOD].text) - score(item.sentences[BAD].text) for item in items]
        assert sum((margin > 1e-9) - (margin < -1e-9) for margin in margins) == 0


def test_a_suite_is_its_seed_s_and_says_what_it_cannot_make():
    assert builtin("agreement") == builtin("agreement", seed=0) != builtin("agreement", seed=1)
    assert len(builtin("two-people", pairs=3).paradigms[0].items) == 6
    with pytest.raises(InputError, match=r"no suite builtin:islands; there are agreement, .*two-people:stories"):
        builtin("islands")
    with pytest.raises(InputError, match=r":stories: expected fewer pairs, because its words make about \d+; got"):
        builtin("agreement:stories", pairs=10_000)


def test_the_textbook_knows_every_word_but_those_of_polarity():
    tokenizer = load("textbook").tokenizer
    unknown = Counter[str]()
    for name in BUILTIN[:6]:
        for item in (item for paradigm in builtin(name).paradigms for item in paradigm.items):
            forms = words(item.sentences[GOOD].text)[1:]
            unknown.update((name, word) for word in forms if len(tokenizer.continuation(f" {word}")) > 1)
    assert {*unknown} <= {("polarity", word) for word in ("any", "no", "will")}


def kinds(item: Item, suite: str) -> list[str]:
    """The pole that each word of the deciding kind would indicate, in order."""
    if suite == "two-people":
        return ["subject", "object"]
    return [POLES[suite][word.lower()] for word in halves(item)[0] if word.lower() in POLES[suite]]


NOUNS = [noun for name in ("PEOPLE", "ANIMALS", "PLACES") for noun in WORDS[name]]
POLES = {  # word: pole, for suites in the textbook's words
    "agreement": {noun.singular: "singular" for noun in NOUNS} | {noun.plural: "plural" for noun in NOUNS},
    "reflexives-gender": dict.fromkeys(("king", "boy", "man"), "masculine")
    | dict.fromkeys(("queen", "girl", "woman"), "feminine"),
    "reflexives-animal": {noun.singular: "animal" for noun in WORDS["ANIMALS"]}
    | dict.fromkeys(("king", "boy", "man"), "person"),
    "polarity": {"no": "licensed", "not": "licensed", "the": "unlicensed", "soon": "unlicensed"},
    "filler-gap": {verb.third: "no gap" for verb in WORDS["SAID"]} | dict.fromkeys(WORDS["LOOKS"], "gap"),
    "determiner": {"a": "singular", "two": "plural", "three": "plural"},
}


def test_rules_that_look_at_the_first_or_last_such_word_get_what_the_page_says():
    """The two columns of its table; 1 if the sentence has no other word of the kind."""
    table = {row[0]: row[1:] for row in cells((ROOT / "docs/suites.md").read_text())}
    for name in BUILTIN[:6]:
        for paradigm in builtin(name).paradigms:
            suite = paradigm.name if paradigm.name in POLES else name
            right = [[pole == item.pole for pole in kinds(item, suite)] for item in paradigm.items]
            first, last = (sum(each[end] for each in right) / len(right) for end in (0, -1))
            assert table[paradigm.name][-2:] == [f"{first:.2f}", f"{last:.2f}"], paradigm.name


def cells(page: str) -> list[list[str]]:
    """The rows of a page's tables."""
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
