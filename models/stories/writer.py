"""Sentences that fixed rules do not solve, so a model gains by finding out who is meant.

A verb's subject is often neither the nearest noun nor the first: phrases and clauses follow it, clauses and places come
before it. "Himself" agrees likewise. In "the baker praised the tailor because he sewed well" the pronoun may mean
either, equally often; the verb tells which (implicit causality, Garvey & Caramazza 1974). What follows is the trade of
the person meant, or its product: "because his coat was new".

Some words are reserved for testing, and so are people and animals near others that stand near others, and places in
front of a clause within a sentence. In `sentences`, a sentence that is not plain has at most one reserved noun and one
reserved trade, so these never compete, and no reserved verb. `new_sentences` uses only reserved words of these kinds.
"""

import random
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from interp.annotation import AnnotatedText, Attributes
from interp.errors import whole_number
from models.pair_tasks import series
from models.stories import grammar
from models.stories.grammar import HEAD, Part, Phrase, join, word
from models.stories.lexicon import FEMININE, MASCULINE, NEUTER, PLURAL, Noun, Pronouns, Verb, gerund, nouns, verbs

SENTENCES = 8  # of a text
_PLAIN = 0.25  # of sentences, with only one noun that could be meant
_REFERENCE = 0.3  # of sentences, with a pronoun for somebody
_TWO_CLAUSES = 0.1  # of sentences, with two clauses side by side
_RELATIVE = 0.4  # of nouns with something after them, with a clause there
_OF_ITSELF = 0.75  # the same for subjects of a reflexive
_THAT = word("that", "PRON")
_GENDERS: dict[str, Pronouns] = {
    **dict.fromkeys(["king", "boy", "man", "prince"], MASCULINE),
    **dict.fromkeys(["queen", "girl", "woman"], FEMININE),
}


class Trade(NamedTuple):
    """A trade: who, what they did, and their product or tool: `baker`, `baked`, `bread`."""

    noun: str
    did: str
    thing: str


class Listed(NamedTuple):
    """Words for every sentence, and words that training has only in plain sentences."""

    usual: Sequence[Any]
    reserved: Sequence[Any]


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_READERS: dict[str, Callable[[str], Sequence[Any]]] = {
    "nouns": nouns,
    "verbs": lambda text: [*verbs(text).values()],
    "words": str.split,
    "trades": lambda text: [Trade(*trade.split("-")) for trade in text.split()],
}
_LISTS = {
    name: Listed(*map(_READERS[kind], (*text.split("|"), "")[:2]))
    for kind, table in _TABLES.items()
    for name, text in table.items()
}
WORDS = {name: tuple(words.usual) for name, words in _LISTS.items()}  # those not reserved for testing
_PEOPLE = {noun.singular for part in _LISTS["PEOPLE"] for noun in part}
_PLURALS = {noun.plural for name in _TABLES["nouns"] for part in _LISTS[name] for noun in part}
_PLURALS |= {trade.noun + "s" for part in _LISTS["TRADES"] for trade in part}


_RESERVED = {noun for name in _TABLES["nouns"] for noun in _LISTS[name].reserved}
TRADES: tuple[Trade, ...] = tuple(trade for part in _LISTS["TRADES"] for trade in part)
OF_SUBJECT, OF_OBJECT = (tuple(verb.past for verb in _LISTS[name].usual) for name in ("OF_SUBJECT", "OF_OBJECT"))
VERBS: tuple[Verb, ...] = tuple(
    verb for name in ("ALONE", "DONE", "SAID", "TO_ITSELF") for part in _LISTS[name] for verb in part
)


def sentences(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The first `count` texts of sentences of a seed; endless if it is None."""
    return series(text_of_sentences, count, seed)


def new_sentences(count: int | None, seed: int = 0) -> Iterator[AnnotatedText]:
    """The same with the words and phrases that `sentences` reserve for testing."""
    return series(partial(text_of_sentences, new=True), count, seed)


def text_of_sentences(seed: int, index: int, *, new: bool = False) -> AnnotatedText:
    """Some unrelated sentences; always the same for a seed and index."""
    name = f"{'new-' * new}sentences-{whole_number('seed', seed)}-{index}"
    writer = Writer(random.Random(name), new=new)
    text = grammar.text([writer.sentence() for _ in range(SENTENCES)], name)
    tags = zip(text.words, text.tags or (), strict=True)
    numbers = (
        f"Number={'Plur' if form.lower() in _PLURALS else 'Sing'}" if tag == "NOUN" else "" for form, tag in tags
    )
    return replace(text, feats=tuple(map(Attributes, numbers)))


class Writer:
    """Writes the sentences of one text, of `new` words and phrases or of those for training."""

    def __init__(self, rng: random.Random, *, new: bool):
        self.rng, self.new, self._chains = rng, new, 0
        self._plain = False  # whether a plain sentence is being written
        self._named = set[Noun]()  # in the sentence; prevents "the bear sees the bear"

    def sentence(self) -> Phrase:
        """Any sentence."""
        self._named.clear()
        self._plain = not self.new and self.rng.random() < _PLAIN
        if self.rng.random() < _REFERENCE:
            return self._trade() if self._plain else self.reference()
        if not self._plain and self._maybe(_TWO_CLAUSES):
            return join((HEAD, self.clause(1)), grammar.conjunct(self._pick("JOINS"), self.clause(1)))
        return self.clause()

    # Agreement.

    def clause(self, depth: int = 0) -> Phrase:
        """A subject with its verb, perhaps as what somebody says, with a place in front."""
        front = self._front() if depth == 0 or self.new else []
        says = not self._plain and depth == 0 and self._maybe(0.25)
        way = self.rng.random()
        sort, relative = "PEOPLE" if says or self._maybe(0.5) else "ANIMALS", _OF_ITSELF if way < 0.2 else _RELATIVE
        subject, chain = self._mentioned(self._subject(sort, relative))
        often = [grammar.adverb(self._pick("OFTEN"))] if self._maybe(0.3) else []
        parts: list[Part] = [*front, ("nsubj", subject)]
        if says:
            claim = ("ccomp", grammar.marked("that", self.clause(1)))
            return join(*parts, *often, (HEAD, self._verb("SAID", subject)), claim)
        if way < 0.2:
            itself = grammar.refer(word(self._pronouns(subject).reflexive, "PRON"), chain)
            return join(*parts, *often, (HEAD, self._verb("TO_ITSELF", subject)), ("obj", itself))
        if way < 0.4:
            state = word(self._pick("STATES"), "ADJ")
            return join(*parts, ("cop", grammar.be("present", plural=subject.plural)), *often, (HEAD, state))
        if way < 0.55:
            form = word(gerund(self._pick("ALONE")), "VERB")
            return join(*parts, ("aux", grammar.be("present", plural=subject.plural)), *often, (HEAD, form))
        if way < 0.75:
            object_of = self._mentioned(self.noun("ANIMALS", 2))[0]
            return join(*parts, *often, (HEAD, self._verb("DONE", subject)), ("obj", object_of))
        does, also = (
            word(grammar.verb_form(verb, "present", plural=subject.plural), "VERB")
            for verb in self.rng.sample(self._list("ALONE"), 2)
        )
        return join(*parts, *often, (HEAD, does), *[grammar.conjunct("and", also)] * (not self._plain and way > 0.9))

    def _front(self) -> list[Part]:
        """Perhaps a place in front of a clause."""
        if self._plain or not self._maybe(0.45):
            return []
        place = ("obl", self._beside(self._mentioned(self.noun("PLACES"))[0]))
        return [place, *([grammar.comma()] * self._maybe(0.5))]

    def _subject(self, name: str, relative: float) -> Phrase:
        """A noun and what follows it, or two nouns."""
        if self._plain or not self._maybe(0.1):
            return self.noun(name, 0, relative)
        return grammar.coordinated(*(self._mentioned(self.noun(name))[0] for _ in range(2)))

    def noun(self, name: str, depth: int = 2, relative: float = 0.0) -> Phrase:
        """A noun with its article, perhaps an adjective, and up to some depth a phrase or a clause after it."""
        words = self._list(name)
        if not self.new and self._named & _RESERVED:
            words = _LISTS[name].usual
        noun: Noun = self.rng.choice([word for word in words if word not in self._named] or words)
        self._named.add(noun)
        plural = self._maybe(0.5)
        base = self._described(word(noun.plural if plural else noun.singular, "NOUN", plural=plural), name)
        if name == "PLACES":
            return base
        if depth == 0 and self._maybe(0.4 if self._plain else 0.1):
            return _with_clause(base, ("nsubj", _THAT), (HEAD, self._verb("ALONE", base)))
        if not self._plain and (depth > 1 or (depth == 1 and not (self.new and self._maybe(0.4)))):
            return self._near_place(base, 0.3)
        return base if self._plain else self._near_another(base, depth, relative)

    def _near_another(self, noun: Phrase, depth: int, relative: float) -> Phrase:
        """A noun with another person or animal after it, in a phrase or a clause."""
        has_clause = depth == 0 and self._maybe(relative)
        is_object = has_clause and self._maybe(0.5)  # "that the cats watch"
        sort = self.rng.choice(("PEOPLE", "ANIMALS"))
        other = self._mentioned(self.noun(sort, depth + 1))[0]
        if not has_clause:
            return join((HEAD, noun), ("nmod", self._beside(other)))
        if is_object:
            return _with_clause(noun, ("obj", _THAT), ("nsubj", other), (HEAD, self._verb("DONE", other)))
        return _with_clause(noun, ("nsubj", _THAT), (HEAD, self._verb("DONE", noun)), ("obj", other))

    def _near_place(self, noun: Phrase, chance: float) -> Phrase:
        """A noun, perhaps with a place after it."""
        if not self._maybe(chance):
            return noun
        return join((HEAD, noun), ("nmod", self._beside(self._mentioned(self.noun("PLACES"))[0])))

    # Reference.

    def reference(self) -> Phrase:
        """Two people of one gender and number; the verb tells which one the pronoun means."""
        usual, reserved = _LISTS["TRADES"]
        trade: Trade = self.rng.choice(reserved if self.new else TRADES)
        others: Sequence[Trade | Noun] = reserved if self.new else usual if trade in reserved else TRADES
        if not self.new and self._maybe(0.4):
            others = _LISTS["PEOPLE"].usual
        people = [trade, self.rng.choice([each for each in others if each != trade])]
        self.rng.shuffle(people)
        plural, meant = self._maybe(0.25), int(self._maybe(0.5))
        phrases = [self._mentioned(self._person(each, plural=plural)) for each in people]
        done = word(self._pick("OF_OBJECT" if meant else "OF_SUBJECT").past, "VERB")
        reason = self._because(people[meant], phrases[meant][1], plural=plural)
        return join(*self._front(), ("nsubj", phrases[0][0]), (HEAD, done), ("obj", phrases[1][0]), reason)

    def _because(self, person: Trade | Noun, chain: str, *, plural: bool) -> Part:
        """What the person behind a pronoun did, or what their work is like."""
        pronouns = PLURAL if plural else self.rng.choice((MASCULINE, FEMININE))
        if isinstance(person, Noun) or self._maybe(0.7):
            did = self._pick("RESTED") if isinstance(person, Noun) else person.did
            pronoun = grammar.refer(word(pronouns.subject, "PRON"), chain)
            reason = join(("nsubj", pronoun), (HEAD, word(did, "VERB")), grammar.adverb(self._pick("MANNERS")))
        else:
            whose = ("nmod:poss", grammar.refer(word(pronouns.possessive, "PRON"), chain))
            thing = self._mentioned(join(whose, (HEAD, word(person.thing, "NOUN"))))[0]
            quality = word(self._pick("QUALITIES"), "ADJ")
            reason = join(("nsubj", thing), ("cop", word("was", "AUX")), (HEAD, quality))
        return grammar.subordinate(self._pick("REASONS"), reason)

    def _trade(self) -> Phrase:
        """One person, whom any pronoun means."""
        trade, plural = self._pick("TRADES"), self._maybe(0.25)
        subject, chain = self._mentioned(self._person(trade, plural=plural))
        if self._maybe(0.3):
            return join(("nsubj", subject), (HEAD, word(trade.did, "VERB")), grammar.adverb(self._pick("MANNERS")))
        does = word(self._pick("RESTED"), "VERB")
        return join(("nsubj", subject), (HEAD, does), self._because(trade, chain, plural=plural))

    def _person(self, person: Trade | Noun, *, plural: bool) -> Phrase:
        """Somebody, sometimes near something."""
        noun = person if isinstance(person, Noun) else Noun(person.noun, person.noun + "s")
        form = word(noun.plural if plural else noun.singular, "NOUN", plural=plural)
        return self._near_place(self._described(form, "PEOPLE"), 0.0 if self._plain else 0.6)

    # Words.

    def _maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def _list(self, name: str) -> Sequence[Any]:
        usual, reserved = _LISTS[name]
        if self.new:
            return reserved or usual
        return [*usual, *reserved] if self._plain or name in _TABLES["nouns"] else usual

    def _pick(self, name: str) -> Any:
        return self.rng.choice(self._list(name))

    def _described(self, noun: Phrase, name: str) -> Phrase:
        """A noun of a list with its article, perhaps with an adjective."""
        sights = "SIGHTS" if name == "PLACES" else "LOOKS"
        looks: list[Part] = [("amod", word(self._pick(sights), "ADJ"))] if self._maybe(0.2) else []
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
        """For an animal "it"; for people whose noun tells no gender "he" or "she"."""
        form = phrase.words[phrase.root].form
        if phrase.plural or form not in _PEOPLE:
            return PLURAL if phrase.plural else NEUTER
        return _GENDERS.get(form) or self.rng.choice((MASCULINE, FEMININE))


def _with_clause(noun: Phrase, *parts: Part) -> Phrase:
    return join((HEAD, noun), ("acl:relcl", join(*parts)))
