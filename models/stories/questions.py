"""Questions that sentences put to a model: a text up to a word, the right word, and wrong ones.

After "the dogs near the cat" a finite verb agrees with "dogs"; after "the farmer hurts" comes "himself" or "herself";
after "the baker praised the tailor because he" comes what tailors did.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from interp.annotation import AnnotatedText
from interp.tokens import Span
from models.stories import grammar
from models.stories.lexicon import FEMININE, MASCULINE, NEUTER, PLURAL
from models.stories.writer import TRADES, VERBS

_OTHER_NUMBER = {one: other for verb in VERBS for one, other in ((verb.base, verb.third), (verb.third, verb.base))}
_IS, _ARE = (grammar.be("present", plural=plural).words[0].form for plural in (False, True))
_OTHER_NUMBER |= {_IS: _ARE, _ARE: _IS}
_OF_PEOPLE = (MASCULINE.reflexive, FEMININE.reflexive)
_REFLEXIVES = (*_OF_PEOPLE, NEUTER.reflexive, PLURAL.reflexive)
_TRADE_OF = {form: trade for trade in TRADES for form in (trade.noun, trade.noun + "s")}


class Question(NamedTuple):
    """A model's choice at a word of a sentence, given the words before it in the sentence."""

    kind: str  # agreement, reflexive or reference
    prompt: str
    right: str
    wrong: tuple[str, ...]
    word: int  # the index of the right word in the text
    decides: Span  # the noun in the prompt that decides, in characters
    attractor: bool  # whether the last noun calls for another word


def questions(text: AnnotatedText) -> Iterator[Question]:
    """The questions of a text's sentences, in order; a verb with an auxiliary asks once, at the first finite word."""
    heads, relations, tags, feats = text.heads or (), text.relations or (), text.tags or (), text.feats or ()
    spans, heads_of = text.word_spans, {mention.head: mention.chain for mention in text.mentions or ()}
    subjects = {head: word for word, head in enumerate(heads) if relations[word] == "nsubj"}

    def number(word: int) -> str:
        joined = any(head == word and relations[other] == "conj" for other, head in enumerate(heads))
        return "Plur" if joined else feats[word].get("Number", "")

    for start, stop in pairwise([*text.sentence_starts, len(text.words)]):
        nouns = [word for word in range(start, stop) if tags[word] == "NOUN"]
        people = [word for word in nouns if text.words[word].lower() in _TRADE_OF and word in heads_of]
        for word in range(start + 1, stop):
            form, before = text.words[word], [noun for noun in nouns if noun < word]
            prompt, places = text.text[spans[start][0] : spans[word - 1][1]], partial(_within, spans, spans[start][0])
            if form in _REFLEXIVES:
                subject = subjects[heads[word]]
                of_other = (PLURAL.reflexive,) if number(subject) == "Sing" else (*_OF_PEOPLE, NEUTER.reflexive)
                attractor = number(before[-1]) != number(subject)
                yield Question("reflexive", prompt, form, of_other, word, places(subject), attractor)
            elif form in _OTHER_NUMBER and before:
                verb = heads[word] if relations[word] in {"aux", "cop"} else word
                subject = subjects.get(verb, subjects.get(heads[verb], -1))  # of the first of two verbs
                own = subject >= 0 and text.words[subject] == "that"
                subject = heads[verb] if own else subject
                if subject >= 0:
                    of_subject = feats[subject]["Number"] if own else number(subject)
                    attractor = feats[before[-1]]["Number"] != of_subject
                    yield Question("agreement", prompt, form, (_OTHER_NUMBER[form],), word, places(subject), attractor)
            elif tags[word - 1] == "PRON" and word - 1 in heads_of and len(people) == 2:
                meant = [person for person in people if heads_of[person] == heads_of[word - 1]]
                others = [_TRADE_OF[text.words[person].lower()] for person in people if person not in meant]
                if len(meant) == 1 and form in (trade := _TRADE_OF[text.words[meant[0]].lower()]):
                    wrong = others[0][trade.index(form)]
                    yield Question("reference", prompt, form, (wrong,), word, places(meant[0]), meant[0] != people[1])


def _within(spans: Sequence[Span], first: int, word: int) -> Span:
    return spans[word][0] - first, spans[word][1] - first
