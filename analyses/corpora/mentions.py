"""Who is meant, as far as the words alone tell: pronoun forms, genders, and the head word of a mention.

LitBank marks mentions and chains only, so what a parse or a lexicon would know is read off closed lists of words
(`mentions.toml`).
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from interp.annotation import AnnotatedText, Mention

MASCULINE, FEMININE, PLURAL, NEUTER = SORTS = "masculine", "feminine", "plural", "neuter"
_LISTS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _sorts(name: str) -> dict[str, str]:
    """By word of a table of lists, which sort it is of."""
    return {word: sort for sort in SORTS for word in _LISTS[name].get(sort, "").split()}


PRONOUNS = _sorts("pronouns")
"""Third-person pronouns by form, with what the form says of the one it refers to."""
GENDERED = tuple(form for form, sort in PRONOUNS.items() if sort in (MASCULINE, FEMININE))
"""The eight singular forms that tell men from women."""
ALL_PRONOUNS = frozenset((*PRONOUNS, *_LISTS["pronouns"]["other"].split()))
"""Every word that stands for a noun; a mention headed by any other word is a name or a noun."""
TITLES_AND_KIN = _sorts("titles_and_kin")
"""Titles, kin and other nouns that name a man, a woman or several people, in lower case."""
_AFTER_HEAD = frozenset(_LISTS["after_head"]["words"].split())


def is_pronoun(word: str) -> bool:
    """Whether `word` is a pronoun of any person or kind, in any case."""
    return word.lower() in ALL_PRONOUNS


def head_word(words: Sequence[str], start: int, end: int) -> int:
    """The index of the head of the mention words[start:end], where there is no parse.

    It is the last word before the first preposition, relative pronoun or comma, which the first word never is: "that
    man in a hat" gives "man".
    """
    stops = (i for i in range(start + 1, end) if words[i].lower() in _AFTER_HEAD)
    return next(stops, end) - 1


def gender(text: AnnotatedText, mention: Mention) -> str | None:
    """What the words of a mention say of its gender: that of a pronoun, else of a title or kin word, else None.

    Words are read from the head backwards to a possessor ("Mr. Bennet's wife" is a wife); names tell nothing.
    """
    head = text.words[mention.head].lower()
    if head in PRONOUNS:
        return PRONOUNS[head]
    for word in reversed(text.words[mention.start : mention.head + 1]):
        if word in ("'s", "’s"):
            return None
        if sort := TITLES_AND_KIN.get(word.lower()):
            return sort
    return None
