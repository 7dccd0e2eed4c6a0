"""Sentences over a planted vocabulary, with gold tags, relations and chains, and balanced accidental patterns.

In `sentences` an adjective stands right before its noun and a subject right before its verb. With `apart`, something
stands between half of the pairs, so no fixed offset is right more than half of the time. In `meetings` a pronoun refers
to the first or the last of two people, equally often. `shuffled` is random words without any order.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from interp import AnnotatedText, InputError
from interp.annotation import ROOT
from models.stories import grammar
from models.stories.grammar import HEAD, Part, Phrase, join, word
from models.stories.lexicon import ADJECTIVES, ANIMALS, FEMININE_NAMES, MASCULINE_NAMES, THINGS, VERBS

ADVERBS = ("very", "quite", "so", "rather", "really")
HE, SHE = ("he", "He"), ("she", "She")  # the second one begins a sentence
PREPOSITIONS = ("near", "beside", "behind", "under", "by")
_FUNCTION = ("the", "The", ".")
_ENOUGH_NAMES = 3  # per gender: with fewer, people recur too often


@dataclass(frozen=True)
class Lexicon:
    """The words of a planted model, by class."""

    masculine: tuple[str, ...]
    feminine: tuple[str, ...]
    animals: tuple[str, ...]  # nouns for subjects
    things: tuple[str, ...]  # other nouns
    adjectives: tuple[str, ...]
    adverbs: tuple[str, ...]
    prepositions: tuple[str, ...]
    verbs: tuple[str, ...]

    @staticmethod
    def draw(rng: random.Random, least: int = _ENOUGH_NAMES) -> "Lexicon":
        """Random words, from `least` to ten of each class."""

        def sample(words: Sequence[str], most: int = 10, least: int = least) -> tuple[str, ...]:
            return tuple(sorted(rng.sample(list(words), rng.randint(min(least, len(words)), min(most, len(words))))))

        return Lexicon(
            sample(MASCULINE_NAMES),
            sample(FEMININE_NAMES),
            sample([noun.singular for noun in ANIMALS]),
            sample([noun.singular for noun in THINGS]),
            sample(ADJECTIVES),
            sample(ADVERBS),
            sample(PREPOSITIONS),
            sample([verb.past for verb in VERBS.values()]),
        )

    @property
    def tags(self) -> dict[str, str]:
        """The universal tag of every word."""
        return {
            **dict.fromkeys((*self.masculine, *self.feminine), "PROPN"),
            **dict.fromkeys((*self.animals, *self.things), "NOUN"),
            **dict.fromkeys(self.adjectives, "ADJ"),
            **dict.fromkeys(self.adverbs, "ADV"),
            **dict.fromkeys(self.prepositions, "ADP"),
            **dict.fromkeys(self.verbs, "VERB"),
            **dict.fromkeys((*HE, *SHE), "PRON"),
            **dict(zip(_FUNCTION, ("DET", "DET", "PUNCT"), strict=True)),
        }

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words, each once."""
        return tuple(self.tags)

    @property
    def directions(self) -> dict[str, tuple[str, ...]]:
        """The classes that planted heads read."""
        names, nouns, pronouns = (*self.masculine, *self.feminine), (*self.animals, *self.things), (*HE, *SHE)
        return {
            "noun": nouns,
            "adjective": self.adjectives,
            "verb": self.verbs,
            "subject": (*self.animals, *names, *pronouns),
            "masculine": self.masculine,
            "feminine": self.feminine,
            "he": HE,
            "she": SHE,
            "pronoun": pronouns,
            "noun or name": (*nouns, *names),
            "mention": (*nouns, *names, *pronouns),
        }


def sentences(lexicon: Lexicon, count: int, seed: int = 0, *, apart: bool, length: int = 4) -> list[AnnotatedText]:
    """Texts of `length` sentences: "The big cat saw the old box."

    With `apart`, one noun per sentence has an adverb between it and its adjective ("the big very cat"; the grammar is
    planted too), and half of the subjects have another noun before their verb ("the big cat near the box saw").

    Raises:
        InputError: the length is odd, so it has no half.
    """
    if length % 2:
        raise InputError(f"expected an even number of sentences per text, got {length}")
    rng = random.Random(f"sentences-{seed}")

    def sentence(has_place: bool) -> Phrase:
        widened = rng.randrange(2) if apart else -1
        between: list[Part] = [("nmod", _place(lexicon, rng))] if has_place else []
        subject = _described(lexicon, rng, lexicon.animals, widened == 0, *between)
        return _clause(subject, lexicon, rng, _described(lexicon, rng, lexicon.things, widened == 1))

    def text(number: int) -> AnnotatedText:
        places = [apart and index % 2 == 0 for index in range(length)]
        rng.shuffle(places)
        return grammar.text(map(sentence, places), f"sentences-{seed}-{number}")

    return [text(number) for number in range(count)]


def meetings(lexicon: Lexicon, count: int, seed: int = 0, *, episodes: int = 1) -> list[AnnotatedText]:
    """Texts of `episodes` like "Tim saw Sue. She slept." Gender and position of the antecedent are balanced.

    With one episode per text and a count divisible by four, the nearest and the first mention are each right in exactly
    half of the items. With more episodes, a pronoun of the same form often refers to someone else.
    """
    rng = random.Random(f"meetings-{seed}")

    def episode(case: int) -> list[Phrase]:
        pair = [(rng.choice(lexicon.masculine), "he"), (rng.choice(lexicon.feminine), "she")]
        if case // 2 % 2:
            pair.reverse()
        (first, _), (second, _) = pair
        antecedent, pronoun = pair[case % 2]
        met = _clause(_person(first), lexicon, rng, _person(second))
        return [met, _clause(grammar.refer(word(pronoun, "PRON"), antecedent), lexicon, rng)]

    return [
        grammar.text([phrase for i in range(episodes) for phrase in episode(number + i)], f"meetings-{seed}-{number}")
        for number in range(count)
    ]


def shuffled(lexicon: Lexicon, count: int, seed: int = 0, *, length: int = 40) -> list[AnnotatedText]:
    """Texts of `length` independently drawn words: every tag has the same share of words at every distance."""
    rng, tags = random.Random(f"shuffled-{seed}"), lexicon.tags
    texts = []
    for number in range(count):
        words = tuple(rng.choice(lexicon.vocabulary) for _ in range(length))
        texts.append(
            AnnotatedText(
                words,
                (True,) * length,
                f"shuffled-{seed}-{number}",
                tags=tuple(tags[each] for each in words),
                heads=(ROOT,) * length,
                relations=("root",) * length,
                mentions=(),
            )
        )
    return texts


def _clause(subject: Phrase, lexicon: Lexicon, rng: random.Random, object_: Phrase | None = None) -> Phrase:
    rest: list[Part] = [] if object_ is None else [("obj", object_)]
    return join(("nsubj", subject), (HEAD, word(rng.choice(lexicon.verbs), "VERB")), *rest)


def _described(lexicon: Lexicon, rng: random.Random, nouns: Sequence[str], widened: bool, *after: Part) -> Phrase:
    adverb = [grammar.adverb(rng.choice(lexicon.adverbs))] if widened else []
    adjective: Part = ("amod", word(rng.choice(lexicon.adjectives), "ADJ"))
    return join(grammar.article("the"), adjective, *adverb, (HEAD, word(rng.choice(nouns), "NOUN")), *after)


def _place(lexicon: Lexicon, rng: random.Random) -> Phrase:
    thing = join(grammar.article("the"), (HEAD, word(rng.choice(lexicon.things), "NOUN")))
    return grammar.prepositional(rng.choice(lexicon.prepositions), thing)


def _person(name: str) -> Phrase:
    return grammar.refer(word(name, "PROPN"), name)
