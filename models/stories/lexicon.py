"""The words of the stories, and of the minimal pairs that are built from the same ones."""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun in both numbers."""

    singular: str
    plural: str


class Verb(NamedTuple):
    """A verb in the forms the stories use."""

    base: str
    third: str  # present, third person singular
    past: str


MASCULINE_NAMES = ("Tim", "Tom", "Ben", "Max", "Jack", "Bob", "Leo", "John", "Dan", "Paul", "Peter", "Joe")
FEMININE_NAMES = ("Lily", "Sue", "Mia", "Anna", "Lucy", "Amy", "Jane", "Emma", "Kate", "Rose", "Sara", "Mary")


def _nouns(regular: str, *irregular: Noun) -> tuple[Noun, ...]:
    return (*(Noun(word, word + "s") for word in regular.split()), *irregular)


MASCULINE_NOUNS = _nouns("boy king", Noun("man", "men"))
FEMININE_NOUNS = _nouns("girl queen", Noun("woman", "women"))
NEUTRAL_NOUNS = _nouns("friend", Noun("child", "children"))
MASCULINE_KIN = _nouns("father brother uncle")
FEMININE_KIN = _nouns("mother sister aunt")

ANIMALS = _nouns(
    "dog cat bird frog duck horse bear rabbit mole pig",
    Noun("mouse", "mice"),
    Noun("fox", "foxes"),
    Noun("puppy", "puppies"),
)
THINGS = _nouns(
    "ball hat book cup kite boat cake drum bell coat ring toy flower apple stone",
    Noun("box", "boxes"),
    Noun("brush", "brushes"),
)
TOYS = tuple(noun for noun in THINGS if noun.singular in {"ball", "kite", "boat", "drum", "toy", "box"})
BODY = _nouns("nose hand leg head")
PLACES = _nouns("park garden house school river road wood shop farm hill tree")

NOUNS = (
    *MASCULINE_NOUNS,
    *FEMININE_NOUNS,
    *NEUTRAL_NOUNS,
    *MASCULINE_KIN,
    *FEMININE_KIN,
    *ANIMALS,
    *THINGS,
    *BODY,
    *PLACES,
)

SIZES = ("big", "small", "little", "tiny", "huge")
COLOURS = ("red", "blue", "green", "black", "white", "brown", "yellow")
LOOKS = ("new", "old", "pretty", "clean", "shiny", "round")
CHARACTERS = ("kind", "brave", "clever", "funny", "shy", "young", "quiet")
MOODS = ("happy", "sad", "tired", "hungry", "angry", "sleepy", "proud", "cold")
QUALITIES = ("good", "nice", "long", "strange", "hard", "great", "sweet", "lovely")
ADJECTIVES = tuple(dict.fromkeys((*SIZES, *COLOURS, *LOOKS, *CHARACTERS, *MOODS, *QUALITIES)))


def _regular(words: str) -> dict[str, Verb]:
    """Verbs that take -s and -ed; those in -e only -d, those in -ch and -sh -es."""
    return {
        base: Verb(base, base + ("es" if base.endswith(("ch", "sh")) else "s"), base + "ed"[base.endswith("e") :])
        for base in words.split()
    }


_IRREGULAR = (
    "see sees saw, find finds found, lose loses lost, give gives gave, run runs ran, go goes went, sleep sleeps slept, "
    "hurt hurts hurt, hear hears heard, make makes made, hold holds held, hide hides hid, sit sits sat, eat eats ate, "
    "take takes took, bring brings brought, sing sings sang, draw draws drew, ring rings rang, have has had, "
    "carry carries carried, cry cries cried, hug hugs hugged, miss misses missed"
)
VERBS: dict[str, Verb] = {
    **_regular(
        "work call change help love walk play dance dream chase like want look wash follow watch thank live jump "
        "visit smile laugh wait show open need start paint pull"
    ),
    **{forms.split()[0]: Verb(*forms.split()) for forms in _IRREGULAR.split(", ")},
}
"""Every verb by its base form."""

AMBIGUOUS = ("ring", "work", "call", "change", "help", "love", "walk", "play", "dance", "dream")
"""Words that the stories use as nouns and as verbs."""


class Pronouns(NamedTuple):
    """The forms of a third-person pronoun."""

    subject: str
    object: str
    possessive: str  # before a noun
    own: str  # alone: "the ball was hers"
    reflexive: str


MASCULINE = Pronouns("he", "him", "his", "his", "himself")
FEMININE = Pronouns("she", "her", "her", "hers", "herself")
PLURAL = Pronouns("they", "them", "their", "theirs", "themselves")
NEUTER = Pronouns("it", "it", "its", "its", "itself")
