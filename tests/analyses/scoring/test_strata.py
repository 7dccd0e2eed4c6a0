"""Strata, predicting rows, kinds of words: each by hand."""

from collections import Counter

import numpy as np
import pytest
import torch

from analyses.measures.head_tables import Heads
from analyses.part_of_speech import BEHAVIOUR
from analyses.reading.windows import Reading
from analyses.scoring.antecedents import antecedent_items
from analyses.scoring.choices import Choices, Items, PairScorer, masked
from analyses.scoring.outcomes import N_KINDS
from analyses.scoring.rules import LADDER
from analyses.scoring.strata import PREDICTED, of_pair, of_pronoun, predicted
from interp import run
from interp.annotation import AnnotatedText, Attributes, Mention
from models.stories import stories
from tests.analyses.scoring.test_rules import reader

WORDS = ["The", "keys", "near", "the", "old", "door", "that", "Sam", "saw", "were", "hers"]
TAGS = ["DET", "NOUN", "ADP", "DET", "ADJ", "NOUN", "PRON", "PROPN", "VERB", "AUX", "PRON"]
HEADS = (1, 10, 5, 5, 5, 1, 8, 8, 5, 10, -1)
RELATIONS = ["det", "nsubj", "case", "det", "amod", "nmod", "obj", "nsubj", "acl:relcl", "cop", "root"]
FEATS = tuple(Attributes({1: "Number=Plur", 5: "Number=Sing", 7: "Number=Sing"}.get(word, "")) for word in range(11))
_ANNOTATION = {"tags": tuple(TAGS), "heads": HEADS, "relations": tuple(RELATIONS), "feats": FEATS}
TEXT = AnnotatedText(tuple(WORDS), (True,) * 11, "keys", **_ANNOTATION)


def test_what_stands_between_two_words_gives_their_strata():
    assert of_pair(TEXT, 9, 1) == ["attractor between", "clause between"]  # keys ... were
    assert of_pair(TEXT, 8, 7) == ["nothing between"]  # Sam saw
    assert of_pair(TEXT, 8, 5) == []  # a pronoun and a name, so two words
    assert of_pair(TEXT, 5, 1) == []  # only a preposition
    assert of_pair(TEXT, 7, 5) == ["one noun between"]


def test_what_is_asked_in_the_row_before_a_word():
    pairs = [(WORDS[query], WORDS[target], PREDICTED[number]) for query, target, number, _ in predicted(TEXT)]
    assert pairs == [
        ("that", "saw", ("obj", "dependent->head")),
        ("saw", "Sam", ("nsubj", "head->dependent")),
        ("were", "keys", ("aux-subject", "dependent->head")),
        ("hers", "keys", ("nsubj", "head->dependent")),
    ]
    (batch,) = Reading(reader([TEXT], causal=True), [TEXT])
    (window,) = batch.windows
    measure = BEHAVIOUR["relation-predicting:aux-subject:dependent->head@clause between"]
    columns = window.columns
    assert measure.keys_of(window) == {columns[8][0]: {*columns[1]}}  # in the row of "saw"
    assert BEHAVIOUR["relation-predicting:aux-subject:dependent->head@nothing between"].keys_of(window) == {}


def test_the_longer_rules_choose_what_is_written():
    (batch,) = Reading(reader([TEXT], causal=True), [TEXT])
    items = Items.from_batch(batch, lambda text: [(9, 1, 0, 9)], np.zeros(1, dtype=int), causal=True)
    chosen = {rule.name: WORDS[int(rule(items))] for rule in LADDER}
    assert chosen == {
        "first noun of the sentence": "keys",
        "second-last noun": "that",
        "noun before the last preposition": "keys",
        "subject of the clause before": "Sam",
    }


def test_a_row_before_the_word_is_read_in_its_place():
    """The row before "were" puts all attention on "keys", its own row on "door"."""
    (batch,) = Reading(reader([TEXT], causal=True), [TEXT])
    items = Items.from_batch(batch, lambda text: [(9, 1, 0, 9)], np.zeros(1, dtype=int), causal=True)
    columns = batch.windows[0].columns
    pattern = torch.zeros_like(batch.pattern)
    pattern[0, :, columns[8][0], columns[1][0]] = pattern[0, :, columns[9][0], columns[5][0]] = 1
    batch.pattern.copy_(pattern)
    for predicting, word in ((True, 1), (False, 5)):
        assert Choices(items, predicting=predicting).full.choice.tolist() == [[word]]


def test_an_encoder_is_asked_where_a_word_is_masked():
    model = reader([TEXT], causal=False, start="[MASK]")
    mask_id = model.tokenizer.mask_id
    (batch,) = Reading(model, [TEXT])
    pairs = lambda text: [(8, 7, 0, 8), (10, 8, 0, 10)]  # noqa: E731 (the second seeks what the first asks in)
    read = masked(batch, pairs, mask_id)
    (ids,), (window,) = read.tokens.ids.tolist(), batch.windows
    (hidden,) = {column for column, id in enumerate(ids) if id != window.ids[column]}
    word = window.word_of[hidden]
    assert word in {8, 10}
    assert ids[hidden] == mask_id
    alone = run(model, torch.tensor([ids]), capture="*.attn.pattern").activations
    assert torch.equal(read.pattern[0], next(iter(alone.values()))[0])
    items = Items.from_batch(read, pairs, np.zeros(1, dtype=int), causal=False).masked(mask_id)
    assert items.query.tolist() == [word]
    scorer = PairScorer(
        Heads.from_model(model), [BEHAVIOUR["relation-masked:nsubj:head->dependent"]], pairs, Counter(), mask_id=mask_id
    )
    scorer.add(batch)
    (part, _) = scorer.scored()
    chosen = Choices(items).full.right[0, 0]
    assert part.totals.finish().scores[:, 0, 0].sum() == chosen


def test_masked_words_are_at_most_a_seventh_and_none_seeks_another():
    corpus = list(stories(4, 5))
    model = reader(corpus, causal=False, start="[MASK]")
    count = 0
    for batch in Reading(model, corpus):
        for window, ids in zip(batch.windows, masked(batch, predicted, model.tokenizer.mask_id).windows, strict=True):
            words = {word for word, old, new in zip(window.word_of, window.ids, ids.ids, strict=True) if old != new}
            assert 0 < len(words) <= 0.15 * len(window.content)
            sought = {target for query, target, *_ in predicted(window.text) if query in words}
            assert words <= {query for query, *_ in predicted(window.text)}
            assert words.isdisjoint(sought)
            count += len(words)
    assert count > 20


def test_kinds_are_tags_sides_orders_and_distances():
    """Kinds of words, by a search over words in both directions."""
    corpus, count = list(stories(3, 5)), 0
    model = reader(corpus, causal=False)
    for batch in Reading(model, corpus):
        pairs = lambda text: [(word, word - 3, 0, word) for word in range(5, len(text.words), 7)]  # noqa: E731
        items = Items.from_batch(batch, pairs, np.zeros(1, dtype=int), causal=False)
        of_tag = {}
        for row, (prompt, query) in enumerate(zip(items.prompt.tolist(), items.query.tolist(), strict=True)):
            tags = batch.windows[prompt].text.tags
            assert tags is not None
            for word, kind in enumerate(items.kinds[row].tolist()):
                if word == query or not items.candidates[row, word]:
                    continue
                between = range(min(word, query) + 1, max(word, query))
                nearer = sum(tags[place] == tags[word] for place in between if place in batch.windows[prompt].columns)
                side = int(np.sign(word - query))
                described = tags[word], min(nearer, 2), side * abs(word - query).bit_length()
                assert of_tag.setdefault(kind, described) == described
                count += 1
        assert len({*of_tag.values()}) == len(of_tag)
        assert max(of_tag) < N_KINDS
        words, right = items.words_of_kinds(1)
        assert (words.sum(), right.sum()) == (int(items.candidates.sum()), len(items))
    assert count > 1000


@pytest.mark.parametrize(
    ("words", "chains", "strata"),
    [
        ("Sue met the man and she", (0, 3, 5), ["antecedent a name", "other gender between"]),
        ("the lady met a dog and she", (1, 4, 6), ["antecedent a noun"]),
        ("Tom met her and she", (0, 2, 4), ["antecedent a pronoun"]),
    ],
)
def test_a_pronouns_strata_are_those_of_its_nearest_antecedent(words, chains, strata):
    first, second, pronoun = chains
    right = second if strata == ["antecedent a pronoun"] else first
    mentions = [Mention(place, place + 1, place, "a" if place in {right, pronoun} else "b") for place in chains]
    split = tuple(words.split())
    (item,) = antecedent_items(AnnotatedText(split, (True,) * len(split), words, mentions=tuple(mentions)))
    assert of_pronoun(item) == strata
