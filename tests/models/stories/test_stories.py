"""The stories are what they claim: valid trees and chains, correct agreement, no shortcut to the antecedent."""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

import pytest

from analyses.corpora.mentions import PRONOUNS
from analyses.scoring.antecedents import RIVALS, AntecedentItem, antecedent_items
from interp.annotation import ROOT, AnnotatedText, Mention
from models.stories import GENERATORS, lexicon, new_sentences, portraits, sentences, stories, tales
from models.stories.questions import questions
from models.stories.references import Teller
from models.stories.scripts import Script
from models.stories.writer import _LISTS, _PEOPLE, SENTENCES, TRADES, VERBS

MANY = 500
EITHER = {
    "friend",
    "neighbour",
    *(noun.singular for noun in (*lexicon.MASCULINE_HELPERS, *lexicon.FEMININE_HELPERS)),
}  # of no gender
RULES = {rival.name: rival.looks for rival in RIVALS}
NOMINAL = ("NOUN", "PRON")
FORMS = {verb.third: "Sing" for verb in VERBS} | {"is": "Sing", "are": "Plur"}
FORMS |= {verb.base: "Plur" for verb in VERBS}
DID = {trade.did: trade for trade in TRADES}
TRADE_NOUNS = {form: trade for trade in TRADES for form in (trade.noun, trade.noun + "s")}
WRITERS = pytest.mark.parametrize("generator", [sentences, new_sentences])
DIGESTS = {
    "stories": "342601fed1ea35c71b0c45f744b94b0aa444fa9b7277c74f3d18f3f2215bff20",
    "portraits": "7cf71ace3df05de1b2d33127a0ec7bb56b9b5ec70262dfb43c92909b1691305d",
    "tales": "c3c449fe21841838a8df1728d204ad3f53ca8a87049227027fa57636da1639ab",
    "sentences": "f139a0d4b3b0a8e3e54e3d0630e6261961dae7d1504fb39872da3a7ad96a23c3",
    "new-sentences": "37aedba57b554ca689626aa19f71e41440b9635ede169f617954742ae03ee3a3",
}


@cache
def texts(generator: Callable[..., Iterator[AnnotatedText]]) -> list[AnnotatedText]:
    return list(generator(MANY if generator in (stories, portraits) else MANY // 5))


@pytest.fixture(params=[stories, portraits, tales], ids=lambda generator: generator.__name__)
def corpus(request: pytest.FixtureRequest) -> list[AnnotatedText]:
    return texts(request.param)


def sentences_of(text: AnnotatedText) -> list[range]:
    return [range(*ends) for ends in pairwise((*text.sentence_starts, len(text.words)))]


def chains_of(text: AnnotatedText) -> dict[str, list[Mention]]:
    chains: dict[str, list[Mention]] = {}
    for mention in text.mentions or ():
        chains.setdefault(mention.chain, []).append(mention)
    return chains


def share_right(items: list[AntecedentItem], baseline: str) -> float:
    """How often a baseline chooses a mention of the chain; ties count in parts."""
    total = 0.0
    for item in items:
        scores = RULES[baseline](item)
        tied = [correct for correct, score in zip(item.correct, scores, strict=True) if score == max(scores)]
        total += sum(tied) / len(tied)
    return total / len(items)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_text_depends_on_seed_and_index_only_and_stays_word_for_word(name) -> None:
    """Committed models read these texts and published numbers come from them: a change of the grammar shows here."""
    generator = GENERATORS[name]
    text = list(generator(20, seed=7))[13]
    assert text == next(islice(generator(None, seed=7), 13, None)) != next(islice(generator(None, seed=8), 13, None))
    assert text.document in (f"{name}-7-13", f"{name.removesuffix('s').replace('ie', 'y')}-7-13")
    assert hashlib.sha256("".join(map(repr, texts(generator))).encode()).hexdigest() == DIGESTS[name]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_sentence_is_one_tree(name) -> None:
    for text in texts(GENERATORS[name]):
        assert "sentences" not in name or len(text.sentence_starts) == SENTENCES
        for sentence in sentences_of(text):
            (root,) = (i for i in sentence if text.heads[i] == ROOT)
            assert text.relations[root] == "root"
            for i in sentence:
                above = [i]
                while text.heads[above[-1]] != ROOT:
                    above.append(text.heads[above[-1]])
                    assert above[-1] in sentence
                    assert len(above) <= len(sentence), f"a circle in {text.text}"


def test_text_is_spaced_and_cased_like_print(corpus: list[AnnotatedText]) -> None:
    for text in corpus:
        assert re.fullmatch(r"([A-Z][A-Za-z']*(,? [A-Za-z']+)*\. ?)+", text.text), text.text
        assert " 's" not in text.text
        assert [text.text[a:b] for a, b in text.word_spans] == list(text.words)


def test_third_person_pronouns_are_mentions_with_an_antecedent(corpus: list[AnnotatedText]) -> None:
    for text in corpus:
        mentioned = {mention.start: mention for mention in text.mentions if mention.end - mention.start == 1}
        for i, word in enumerate(text.words):
            if word.lower() in PRONOUNS:
                chain = mentioned[i].chain
                assert any(m.chain == chain and m.end <= i for m in text.mentions), f"{word} in {text.text}"


def test_gender_and_number_fit_the_chain(corpus: list[AnnotatedText]) -> None:
    masculine = {
        *lexicon.MASCULINE_NAMES,
        *(noun.singular for noun in (*lexicon.MASCULINE_NOUNS, *lexicon.MASCULINE_KIN)),
    }
    feminine = {*lexicon.FEMININE_NAMES, *(noun.singular for noun in (*lexicon.FEMININE_NOUNS, *lexicon.FEMININE_KIN))}
    sort_of = {each: "masculine" for each in masculine} | {each: "feminine" for each in feminine}
    sort_of |= {noun.plural: "plural" for noun in lexicon.NOUNS} | PRONOUNS
    for text in corpus:
        for mentions in chains_of(text).values():
            has_conjunct = any(text.relations[i] == "conj" for m in mentions for i in range(m.head + 1, m.end))
            heads = {text.words[m.head] for m in mentions} - EITHER
            sorts = {sort_of.get(each, sort_of.get(each.lower())) for each in heads}
            if not has_conjunct:  # the head of "Tim and Lily" is Tim
                assert len(sorts - {None, "neuter"}) <= 1, text.text
                assert not {None, "neuter"} & sorts or sorts <= {None, "neuter"}, text.text


@pytest.mark.parametrize("baseline", ["nearest", "first", "same form", "same gender"])
def test_no_shortcut_finds_the_antecedent(baseline: str) -> None:
    items = [item for text in texts(stories) for item in antecedent_items(text, PRONOUNS)]
    assert len(items) > 2 * MANY
    assert 0.2 < share_right(items, baseline) < 0.8
    names = [item for item in items if item.named]
    assert 0.4 < len(names) / len(items) < 0.8
    assert 0.2 < share_right(names, baseline) < 0.8


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


# Sentences in which fixed rules fail.


def subjects(text):
    """Each finite word with the subject it agrees with: "that" stands for the noun of its clause."""
    edges = [*zip(text.heads, text.relations, strict=True)]
    of_verb = {head: word for word, (head, name) in enumerate(edges) if name == "nsubj"}
    for verb, subject in of_verb.items():
        helpers = [word for word, (head, name) in enumerate(edges) if head == verb and name in {"aux", "cop"}]
        noun = edges[verb][0] if text.words[subject] == "that" else subject
        yield (helpers or [verb])[0], noun, subject


def joined(text, noun):
    return any(head == noun and text.relations[word] == "conj" for word, head in enumerate(text.heads))


def number(text, noun):
    return "Plur" if joined(text, noun) else text.feats[noun]["Number"]


@WRITERS
def test_finite_words_agree_with_their_subjects(generator):
    count, of_two = 0, 0
    for text in generator(60, 2):
        for verb, noun, subject in subjects(text):
            if text.words[verb] in FORMS:
                agrees = number(text, noun) if noun == subject else text.feats[noun]["Number"]
                assert FORMS[text.words[verb]] == agrees, (text.text, text.words[verb])
                count, of_two = count + 1, of_two + joined(text, noun)
    assert count > 300
    assert of_two > 5


@WRITERS
def test_a_pronoun_means_the_one_of_whom_the_rest_is_true(generator):
    nearer, of_two, owned = 0, 0, 0
    for text in generator(200, 4):
        chains = {mention.head: mention.chain for mention in text.mentions}
        for words in sentences_of(text):
            people = [word for word in words if text.words[word].lower() in TRADE_NOUNS]
            for word in words:
                if text.words[word] in {"he", "she", "they", "his", "her", "their"}:
                    (antecedent,) = [place for place in words if place < word and chains.get(place) == chains[word]]
                    assert (text.words[word] in {"they", "their"}) == (text.feats[antecedent]["Number"] == "Plur")
                    owned += text.relations[word] == "nmod:poss"
                    if antecedent in people:
                        assert text.words[word + 1] in TRADE_NOUNS[text.words[antecedent].lower()]
                    else:
                        assert text.words[word + 1] not in DID
                    if len(people) == 2:
                        nearer, of_two = nearer + (antecedent == people[1]), of_two + 1
    assert of_two > 120
    assert owned > 20
    assert 0.4 < nearer / of_two < 0.6


@WRITERS
def test_reflexives_are_of_their_subject(generator):
    counts = Counter()
    for text in generator(150, 5):
        chains = {(mention.head, mention.chain) for mention in text.mentions}
        chain_of = dict(chains)  # a pronoun is in one chain
        subject_of = {text.heads[subject]: noun for _, noun, subject in subjects(text) if noun == subject}
        for word, form in enumerate(text.words):
            if form.endswith(("self", "selves")):
                noun = subject_of[text.heads[word]]
                assert (noun, chain_of[word]) in chains
                plural, name = number(text, noun) == "Plur", text.words[noun]
                assert (form == "themselves") == plural
                assert plural or (form == "itself") == (name not in _PEOPLE)
                assert (name, form) not in {("king", "herself"), ("girl", "himself")}
                counts[form] += 1
    assert min(counts[form] for form in ("himself", "herself", "itself", "themselves")) >= 10


@WRITERS
def test_no_plain_rule_finds_six_in_ten_subjects(generator):
    hits, n = Counter(), 0
    for text in generator(150, 6):
        begins = [max(start for start in text.sentence_starts if start <= word) for word in range(len(text.words))]
        for verb, _, subject in subjects(text):
            nominals = [word for word in range(begins[verb], verb) if text.tags[word] in NOMINAL]
            hits.update({"last": nominals[-1] == subject, "first": nominals[0] == subject})
            hits["second-last"] += nominals[-2:][0] == subject and len(nominals) > 1
            hits["word before"] += verb - 1 == subject
            n += 1
    assert max(hits.values()) <= 0.6 * n, {name: count / n for name, count in hits.items()}


def kept_of(name, reserved=True):
    nouns = _LISTS[name].reserved if reserved else _LISTS[name].usual
    forms = [(each.noun, each.noun + "s") if name == "TRADES" else each for each in nouns]
    return {form for pair in forms for form in pair}


def test_kept_words_never_compete():
    living = kept_of("PEOPLE", reserved=False) | kept_of("ANIMALS", reserved=False)
    reserved, trades = kept_of("PEOPLE") | kept_of("ANIMALS"), kept_of("TRADES")
    verbs = {form for verb in _LISTS["ALONE"].reserved for form in (verb.base, verb.third)}
    alone, together = 0, 0
    for text in sentences(150, 7):
        for words in sentences_of(text):
            forms = [text.words[word].lower() for word in words]
            assert len(reserved & {*forms}) <= 1
            assert len(trades & {*forms}) <= 1
            alone += bool(verbs & {*forms})
            together += bool(reserved & {*forms}) and bool(living & {*forms})
            assert not verbs & {*forms} or sum(text.tags[word] == "NOUN" for word in words) <= 2, forms
    assert alone > 20
    assert together > 100
    for text in new_sentences(20, 7):
        assert not {word.lower() for word in text.words} & (living | kept_of("TRADES", reserved=False))


def test_fifty_sentences_are_as_they_were_analysed_by_hand():
    lines = (Path(__file__).parent / "trees.txt").read_text("utf-8").splitlines()
    names = dict(
        pair.split() for pair in " ".join(lines[:2]).split("root) and its relation: ")[1].strip("#. ").split(", ")
    )
    by_hand = {}
    for words, tree in zip(lines[2::2], lines[3::2], strict=True):
        by_hand[words] = [(int(each[:-1]), names[each[-1]]) for each in tree.split()]
    trees = {}
    for text in (*sentences(4, 1), *new_sentences(3, 1)):
        for words in sentences_of(text):
            edges = [
                (0 if text.heads[word] == ROOT else text.heads[word] - words.start + 1, text.relations[word])
                for word in words
            ]
            trees[" ".join(text.words[word] for word in words)] = edges
    assert len(by_hand) == 50
    assert {words: trees.get(words) for words in by_hand} == by_hand


# What sentences require of a model.


def asked_of(generator, count, seed):
    return [question for text in generator(count, seed) for question in questions(text)]


def test_known_sentences():
    by_prompt = {each.prompt: each for generator in (sentences, new_sentences) for each in asked_of(generator, 4, 1)}
    assert all(
        each.prompt[slice(*each.decides)] == "lawyer"
        for each in by_prompt.values()
        if each.right == "herself" and "lawyer" in each.prompt
    )
    answers = {prompt: (each.kind, each.right, each.wrong, each.attractor) for prompt, each in by_prompt.items()}
    clause = "Behind the church the lawyer that the queens"
    assert answers[clause] == ("agreement", "follow", ("follows",), False)
    assert answers[f"{clause} follow still"] == ("agreement", "sees", ("see",), True)
    assert answers[f"{clause} follow still sees"] == ("reflexive", "herself", ("themselves",), True)
    two = "By the churches the poet near the trees and the pilot"
    assert answers[two] == ("agreement", "help", ("helps",), True)
    sailor = "By the benches, the sailor admired the teacher because he"
    assert answers[sailor] == ("reference", "taught", ("sailed",), False)
    tailor = "The tailor amazed the runner because her"
    assert answers[tailor] == ("reference", "coat", ("pace",), True)
    assert not any(prompt.startswith("The clown pleased") for prompt in answers)  # a clown has no trade


@WRITERS
def test_what_is_right_stands_there(generator):
    kinds = {"agreement": 0, "reflexive": 0, "reference": 0}
    over = dict(kinds)
    for text in generator(40, 3):
        nouns = {form.lower() for form, tag in zip(text.words, text.tags, strict=True) if tag == "NOUN"}
        for question in questions(text):
            assert text.words[question.word] == question.right
            assert question.right not in question.wrong
            assert text.text[: text.word_spans[question.word][0]].rstrip().endswith(question.prompt)
            begin, end = question.decides
            assert question.prompt[begin:end].lower() in nouns
            kinds[question.kind] += 1
            over[question.kind] += question.attractor
    assert min(kinds.values()) > 20
    assert all(0.15 * kinds[kind] < over[kind] < 0.85 * kinds[kind] for kind in kinds)
