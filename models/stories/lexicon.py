"""The words of the stories, and of minimal pairs with the same words, from `lexicon.toml`.

Every list there is a name here: `lexicon.MOODS` is a tuple of words, `lexicon.THINGS` one of nouns.
"""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

_TABLES = tomllib.loads(Path(__file__).with_name("lexicon.toml").read_text("utf-8"))


class Noun(NamedTuple):
    """A noun in both numbers."""

    singular: str
    plural: str


class Verb(NamedTuple):
    """A verb in the forms the stories use."""

    base: str
    third: str  # present, third person singular
    past: str


class Pronouns(NamedTuple):
    """The forms of a third-person pronoun."""

    subject: str
    object: str
    possessive: str  # before a noun
    alone: str  # alone: "the ball was hers"
    reflexive: str


MASCULINE = Pronouns("he", "him", "his", "his", "himself")
FEMININE = Pronouns("she", "her", "her", "hers", "herself")
PLURAL = Pronouns("they", "them", "their", "theirs", "themselves")
NEUTER = Pronouns("it", "it", "its", "its", "itself")


def nouns(text: str) -> tuple[Noun, ...]:
    """Nouns as they are listed: "dog mouse-mice"."""
    forms = [word.partition("-") for word in text.split()]
    return tuple(Noun(singular, plural or singular + "s") for singular, _, plural in forms)


def verbs(text: str) -> dict[str, Verb]:
    """Verbs by base form."""
    verbs = {}
    for word in text.split():
        base, *forms = word.split("-")
        regular = (base + ("es" if base.endswith(("ch", "sh")) else "s"), base + "ed"[base.endswith("e") :])
        verbs[base] = Verb(base, *(forms or regular))
    return verbs


def _by_kind(table: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(words.split()) for kind, words in table.items()}


_LISTS: dict[str, tuple[Any, ...]] = _by_kind(_TABLES["words"]) | {
    name: nouns(text) for name, text in _TABLES["nouns"].items()
}


def __getattr__(name: str) -> Any:
    """The words or nouns of a list."""
    if name not in _LISTS:
        raise AttributeError(f"no list {name} in lexicon.toml")
    return _LISTS[name]


CHILD, FRIEND = Noun("child", "children"), Noun("friend", "friends")
_OF_STORIES = ("MASCULINE_NOUNS", "FEMININE_NOUNS", "NEUTRAL_NOUNS", "MASCULINE_KIN", "FEMININE_KIN")
NOUNS: tuple[Noun, ...] = tuple(
    noun for name in (*_OF_STORIES, "ANIMALS", "THINGS", "BODY", "PLACES") for noun in _LISTS[name]
)
ADJECTIVES: tuple[str, ...] = tuple(
    dict.fromkeys(
        word for name in ("SIZES", "COLOURS", "LOOKS", "CHARACTERS", "MOODS", "QUALITIES") for word in _LISTS[name]
    )
)
VERBS = verbs(_TABLES["verbs"]["VERBS"])
TALE_VERBS = VERBS | verbs(_TABLES["verbs"]["TALE_VERBS"])
COMPOUNDS: dict[str, tuple[str, ...]] = {
    noun: tuple(before.split()) for before, nouns in _TABLES["compounds"].items() for noun in nouns.split()
}
STATES, TRAITS = _by_kind(_TABLES["states"]), _by_kind(_TABLES["traits"])
PASSING = tuple((state, Noun(name, name + "s")) for name, state in _TABLES["passing"].items())


def participle(verb: Verb) -> str:
    """What follows "had"."""
    return _TABLES["participles"].get(verb.base, verb.past)


def gerund(verb: Verb) -> str:
    """The form in -ing."""
    if verb.base == "lie":
        return "lying"
    silent = verb.base.endswith("e") and not verb.base.endswith("ee")
    doubled = verb.base in ("run", "sit", "hug", "begin", "stop", "nod")
    return (verb.base[:-1] if silent else verb.base + verb.base[-1] * doubled) + "ing"
