"""What do words alone tell about a mention? Its pronoun form, its gender, and its head word.

LitBank only marks mentions and chains, so closed word lists replace a parse and a lexicon (`mentions.toml`).
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from interp.annotation import AnnotatedText, Mention

MASCULINE, FEMININE, PLURAL, NEUTER = SORTS = "masculine", "feminine", "plural", "neuter"
_LISTS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _sorts(name: str) -> dict[str, str]:
    """The sort of each word in a table of lists."""
    return {word: sort for sort in SORTS for word in _LISTS[name].get(sort, "").split()}


PRONOUNS = _sorts("pronouns")
"""The sort of each third-person pronoun."""
GENDERED = tuple(form for form, sort in PRONOUNS.items() if sort in (MASCULINE, FEMININE))
"""The eight singular forms that distinguish men and women."""
ALL_PRONOUNS = frozenset((*PRONOUNS, *_LISTS["pronouns"]["other"].split()))
"""All pronouns; a mention with any other head is a name or a noun."""
TITLES_AND_KIN = _sorts("titles_and_kin")
"""Titles, kin and other nouns that name a man, a woman or several people, in lower case."""
_AFTER_HEAD = frozenset(_LISTS["after_head"]["words"].split())


def is_pronoun(word: str) -> bool:
    """Whether `word` is a pronoun of any person or kind, in any case."""
    return word.lower() in ALL_PRONOUNS


def head_word(words: Sequence[str], start: int, end: int) -> int:
    """The index of the head word of the mention words[start:end], without a parse.

    It is the last word before the first preposition, relative pronoun or comma that follows the first word: "man" in
    "that man in a hat".
    """
    return next((i for i in range(start + 1, end) if words[i].lower() in _AFTER_HEAD), end) - 1


def gender(text: AnnotatedText, mention: Mention) -> str | None:
    """A mention's gender by its words: a pronoun, else a title or kin word, else None.

    Only words from the head back to a possessor count ("Mr. Bennet's wife" is a wife). Names say nothing.
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
