"""A report's passages are those that were typed, or begin the texts that were read."""

from dataclasses import replace

import pytest
import tiny
from worded import worded

from analyses.behaviours import OURS
from analyses.headlines.head_cards import overview
from analyses.viewer import Called, Viewer, corpus_passages
from interp import AnnotatedText, InputError, Mention
from tests.analyses.headlines.hand_made_tables import hand_made

SENTENCE = "Tim saw the dog because He saw Sue"  # 8 words


def text(n_sentences: int, sentence: str = SENTENCE) -> AnnotatedText:
    words = tuple(sentence.split())
    starts = tuple(len(words) * at for at in range(n_sentences))
    return AnnotatedText(words * n_sentences, (True,) * len(words) * n_sentences, "d", sentence_starts=starts)


def lengths(passages) -> list[int]:
    return [len(each.attentions[0].queries) for each in passages]


def test_whole_sentences_that_fit_begin_the_first_texts():
    model = worded()
    assert model.config.n_ctx == 29
    too_short, too_long = text(1, "Tim saw"), text(1, "saw " * 61)
    beyond_context = text(9)  # its first seven sentences are 56 words
    assert lengths(corpus_passages.choose(model, [too_short, too_long, beyond_context])) == []
    assert lengths(corpus_passages.choose(model, [too_short, text(3), text(1), text(2)])) == [24, 8]


def test_texts_with_more_pronouns_come_first():
    rests = "the dog because Sue saw Tim", "Sue because He saw the dog", "Sue because He saw his dog"
    bare, some, more = (text(1, f"Tim saw {rest}") for rest in rests)
    shown = corpus_passages.choose(worded("his"), [bare, some, more])
    assert [each.attentions[0].queries for each in shown] == [more.words, some.words]


def test_it_is_told_whom_a_pronoun_means_where_that_is_annotated():
    """He is the dog, which is named twice before; "his" is said of him again; Sue is nobody's pronoun."""
    words = ["The", "dog", "saw", "Sue", "because", "the", "dog", "saw", "He", "saw", "his", "dog"]
    chain = [Mention(*span, "dog") for span in ((0, 2, 1), (5, 7, 6), (8, 9, 8), (10, 11, 10))]
    mentions = (*chain, Mention(3, 4, 3, "Sue"), Mention(11, 12, 11, "another"))
    told = replace(text(1, " ".join(words)), mentions=mentions)
    (shown,) = corpus_passages.choose(worded(), [told])
    assert shown.meant == {8: "dog", 10: "dog"}
    (bare,) = corpus_passages.choose(worded(), [replace(told, mentions=None)])
    assert bare.meant == {}
    (unnamed,) = corpus_passages.choose(worded(), [replace(told, mentions=tuple(chain[2:]))])
    assert unnamed.meant == {}  # nobody is named before


def test_it_is_told_which_words_a_measure_asks_where_what_it_needs_is_annotated():
    words = ["Sue", "saw", "the", "dog", "because", "Tim", "saw", "Sue"]
    known = {
        "tags": ("PROPN", "VERB", "DET", "NOUN", "SCONJ", "PROPN", "VERB", "PROPN"),
        "heads": (1, -1, 3, 1, 6, 6, 1, 6),
    }
    known |= {"relations": ("nsubj", "root", "det", "obj", "mark", "nsubj", "advcl", "obj")}
    told = text(1, " ".join(words))
    measures = OURS["part-of-speech"].measures
    (shown,) = corpus_passages.choose(worded(), [replace(told, **known)], measures)
    assert shown.asking["tag:VERB->PROPN"] == [1, 6]
    assert shown.asking["relation:obj:dependent->head"] == [3, 7]
    assert "relation:obj:head->dependent" not in shown.asking  # objects come after their verbs, which do not see them
    assert "relation:root:dependent->head" not in shown.asking
    called = {("decoder", "self", 0, 0): Called("object to its verb", "part-of-speech", "relation:obj:dependent->head")}
    (data,) = Viewer((shown,), called).data["passages"]
    assert data["asking"] == {"relation:obj:dependent->head": [3, 7]}
    (bare,) = corpus_passages.choose(worded(), [told], measures)
    assert bare.asking == {}


def test_a_typed_text_is_read_and_refused_where_it_cannot_be():
    (passage,) = corpus_passages.read_texts(worded(), ["Tim saw the dog"])
    assert lengths([passage]) == [4]
    with pytest.raises(InputError, match="longer than the model's context of 29"):
        corpus_passages.read_texts(worded(), ["saw " * 30])
    with pytest.raises(InputError, match="has no tokenizer"):
        corpus_passages.read_texts(tiny.model("gpt2"), ["Tim saw"])
    assert corpus_passages.choose(tiny.model("gpt2"), [text(1)]) == []


def test_under_the_atlas_heads_are_called_by_their_first_fact_and_the_strongest_is_seen_first():
    _, first = overview(hand_made(), OURS, corpus_passages.read_texts(worded(), [SENTENCE]))
    ((viewer,),) = [section.blocks for section in first.below]
    assert isinstance(viewer, Viewer)
    assert not viewer.heads  # the atlas has them
    assert viewer.start == ("decoder", "self", 0, 1)
    assert viewer.called["decoder", "self", 1, 0] == Called("induction", "position", "induction", needed=True)
    assert overview(hand_made(), OURS)[1].below == []
