"""Sentences that fixed rules do not solve, so that it pays to find out who is meant.

A verb agrees with a subject that is often neither the nearest noun nor the first: with phrases and clauses behind it,
clauses around it and phrases in front. "Himself" agrees likewise. In "the baker praised the tailor because he sewed
well" the pronoun may mean either, one as often as the other; the verb tells which (implicit causality, Garvey &
Caramazza 1974), and what he did is the trade of the one who is meant.

Some words and phrases within phrases are kept for testing. In `sentences` these words come where nothing stands between
a verb and its subject, in `new_sentences` everywhere, and no others do.
"""

import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from interp.annotation import AnnotatedText, Attributes
from interp.errors import whole_number
from models.pair_tasks import series
from models.stories import grammar
from models.stories.grammar import HEAD, Part, Phrase, join, word
from models.stories.lexicon import FEMININE, MASCULINE, NEUTER, PLURAL, Noun, Pronouns, gerund, nouns, verbs

SENTENCES = 8  # of a text
_PLAIN = 0.2  # of sentences, in which nothing stands between a verb and its subject
_REFERENCE = 0.3  # in which somebody is meant by a pronoun
_RELATIVE = 0.4  # of nouns with something behind them, that have a clause there
_OF_ITSELF = 0.6  # the same of those who do something to themselves
_BE = {False: "is", True: "are"}
_GENDERS: dict[str, Pronouns] = {
    **dict.fromkeys(["king", "boy", "man", "prince"], MASCULINE),
    **dict.fromkeys(["queen", "girl", "woman"], FEMININE),
}


class Trade(NamedTuple):
    """Who does something for a living, and what they did: `baker`, `baked`."""

    noun: str
    did: str


class Kept(NamedTuple):
    """Words that training has everywhere, and those that it has in plain sentences alone."""

    seen: Sequence[Any]
    kept: Sequence[Any]


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_READERS: dict[str, Callable[[str], Sequence[Any]]] = {
    "nouns": nouns,
    "verbs": lambda text: [*verbs(text).values()],
    "words": str.split,
    "trades": lambda text: [Trade(*trade.split("-")) for trade in text.split()],
}
_LISTS = {
    name: Kept(*map(_READERS[kind], (*text.split("|"), "")[:2]))
    for kind, table in _TABLES.items()
    for name, text in table.items()
}
_PEOPLE = {noun.singular for part in _LISTS["PEOPLE"] for noun in part}
_PLURALS = {noun.plural for name in _TABLES["nouns"] for part in _LISTS[name] for noun in part}


def sentences(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The first `count` texts of sentences of a seed; endless if it is None."""
    return series(text_of_sentences, count, seed)


def new_sentences(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The same with the words and phrases that `sentences` keep for testing."""
    return series(text_of_new_sentences, count, seed)


def text_of_sentences(seed: int, index: int, *, new: bool = False) -> AnnotatedText:
    """Some sentences that have nothing to do with each other; the same whenever they are asked for."""
    name = f"{'new-' * new}sentences-{whole_number('seed', seed)}-{index}"
    writer = Writer(random.Random(name), new=new)
    text = grammar.text([writer.sentence() for _ in range(SENTENCES)], name)
    tags = zip(text.words, text.tags or (), strict=True)
    numbers = (
        f"Number={'Plur' if form.lower() in _PLURALS else 'Sing'}" if tag == "NOUN" else "" for form, tag in tags
    )
    return replace(text, feats=tuple(map(Attributes, numbers)))


def text_of_new_sentences(seed: int, index: int) -> AnnotatedText:
    """The same, of what is kept for testing."""
    return text_of_sentences(seed, index, new=True)


class Writer:
    """Writes the sentences of one text, of `new` words and phrases or of those for training."""

    def __init__(self, rng: random.Random, *, new: bool):
        self.rng, self.new, self._chains = rng, new, 0
        self._plain = False  # whether a plain sentence is being written

    def sentence(self) -> Phrase:
        """Any."""
        self._plain = not self.new and self.rng.random() < _PLAIN
        if self.rng.random() < _REFERENCE:
            return self._trade() if self._plain else self.reference()
        return self.clause()

    # Agreement.

    def clause(self, depth: int = 0) -> Phrase:
        """A subject with its verb, perhaps in a sentence of somebody who says so, with a place in front."""
        front: list[Part] = []
        if not self._plain and self._maybe(0.45):
            front = [
                ("obl", self._beside(self._mentioned(self.noun("PLACES"))[0])),
                *([grammar.comma()] * self._maybe(0.5)),
            ]
        says = not self._plain and depth == 0 and self._maybe(0.25)
        way = self.rng.random()
        sort, relative = "PEOPLE" if says or self._maybe(0.5) else "ANIMALS", _OF_ITSELF if way < 0.2 else _RELATIVE
        subject, chain = self._mentioned(self.noun(sort, depth, relative))
        often = [grammar.adverb(self._pick("OFTEN"))] if self._maybe(0.3) else []
        parts: list[Part] = [*front, ("nsubj", subject)]
        if says:
            return join(
                *parts, *often, (HEAD, self._verb("SAID", subject)), ("ccomp", grammar.marked("that", self.clause(1)))
            )
        if way < 0.2:
            itself = grammar.refer(word(self._pronouns(subject).reflexive, "PRON"), chain)
            return join(*parts, *often, (HEAD, self._verb("TO_ITSELF", subject)), ("obj", itself))
        if way < 0.4:
            state = word(self._pick("STATES"), "ADJ")
            return join(*parts, ("cop", word(_BE[subject.plural], "AUX")), *often, (HEAD, state))
        if way < 0.55:
            form = word(gerund(self._pick("ALONE")), "VERB")
            return join(*parts, ("aux", word(_BE[subject.plural], "AUX")), *often, (HEAD, form))
        if way < 0.75:
            object_of = self._mentioned(self.noun("ANIMALS", 2))[0]
            return join(*parts, *often, (HEAD, self._verb("DONE", subject)), ("obj", object_of))
        return join(*parts, *often, (HEAD, self._verb("ALONE", subject)))

    def noun(self, name: str, depth: int = 2, relative: float = _RELATIVE) -> Phrase:
        """A noun with its article, perhaps an adjective, and up to some depth with a phrase or a clause behind it."""
        noun: Noun = self._pick(name)
        plural = self._maybe(0.5)
        form = word(noun.plural if plural else noun.singular, "NOUN", plural=plural)
        base = self._described(form)
        if self._plain or depth > int(self.new) or not self._maybe(0.9):
            return base
        other = self._mentioned(self.noun(self.rng.choice(("PEOPLE", "ANIMALS")), depth + 1))[0]
        if not self._maybe(relative):
            further = [("nmod", self._beside(self._mentioned(self.noun("PLACES"))[0]))] if self._maybe(0.4) else []
            return join((HEAD, base), ("nmod", self._beside(other)), *further)
        that = word("that", "PRON")
        if self._maybe(0.5):
            clause = join(("nsubj", that), (HEAD, self._verb("DONE", base)), ("obj", other))
        else:
            clause = join(("obj", that), ("nsubj", other), (HEAD, self._verb("DONE", other)))
        return join((HEAD, base), ("acl:relcl", clause))

    # Reference.

    def reference(self) -> Phrase:
        """Two people of one gender: the verb tells which of them does what only one can do."""
        first, second = self.rng.sample(self._list("TRADES"), 2)
        people = [self._mentioned(self._person(trade)) for trade in (first, second)]
        meant = int(self._maybe(0.5))
        done = word(self._pick("OF_OBJECT" if meant else "OF_SUBJECT").past, "VERB")
        pronoun = grammar.refer(word(self.rng.choice((MASCULINE, FEMININE)).subject, "PRON"), people[meant][1])
        manner = grammar.adverb(self._pick("MANNERS"))
        did = join(("nsubj", pronoun), (HEAD, word((first, second)[meant].did, "VERB")), manner)
        reason = ("advcl", grammar.marked(self._pick("REASONS"), did))
        return join(("nsubj", people[0][0]), (HEAD, done), ("obj", people[1][0]), reason)

    def _trade(self) -> Phrase:
        trade = self._pick("TRADES")
        subject = self._mentioned(self._person(trade))[0]
        return join(("nsubj", subject), (HEAD, word(trade.did, "VERB")), grammar.adverb(self._pick("MANNERS")))

    def _person(self, trade: Trade) -> Phrase:
        """Somebody of a trade, sometimes near something."""
        base = self._described(word(trade.noun, "NOUN"))
        if self._plain or not self._maybe(0.6):
            return base
        return join((HEAD, base), ("nmod", self._beside(self._mentioned(self.noun("PLACES"))[0])))

    # Words.

    def _maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def _list(self, name: str) -> Sequence[Any]:
        seen, kept = _LISTS[name]
        return [*seen, *kept] if self._plain else kept if self.new and kept else seen

    def _pick(self, name: str) -> Any:
        return self.rng.choice(self._list(name))

    def _described(self, noun: Phrase) -> Phrase:
        """A noun with its article, perhaps with an adjective."""
        looks: list[Part] = [("amod", word(self._pick("LOOKS"), "ADJ"))] if self._maybe(0.2) else []
        return join(grammar.article("the"), *looks, (HEAD, noun))

    def _verb(self, name: str, subject: Phrase) -> Phrase:
        return word(grammar.verb_form(self._pick(name), "present", plural=subject.plural), "VERB")

    def _beside(self, phrase: Phrase) -> Phrase:
        return grammar.prepositional(self._pick("NEAR"), phrase)

    def _mentioned(self, phrase: Phrase) -> tuple[Phrase, str]:
        """The phrase as a mention, and its chain."""
        self._chains += 1
        chain = f"{self._chains}"
        return grammar.refer(phrase, chain), chain

    def _pronouns(self, phrase: Phrase) -> Pronouns:
        """Of an animal "it"; of people whose noun says nothing "he" or "she"."""
        form = phrase.words[phrase.root].form
        if phrase.plural or form not in _PEOPLE:
            return PLURAL if phrase.plural else NEUTER
        return _GENDERS.get(form) or self.rng.choice((MASCULINE, FEMININE))
