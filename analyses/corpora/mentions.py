"""Who is meant, as far as the words alone tell: pronoun forms, genders, and the head word of a mention.

LitBank marks mentions and chains only, so what a parse or a lexicon would know is read off closed lists of words.
"""

from collections.abc import Sequence

from interp.annotation import AnnotatedText, Mention

MASCULINE, FEMININE, PLURAL, NEUTER = "masculine", "feminine", "plural", "neuter"

PRONOUNS: dict[str, str] = {
    **dict.fromkeys(("he", "him", "his", "himself"), MASCULINE),
    **dict.fromkeys(("she", "her", "hers", "herself"), FEMININE),
    **dict.fromkeys(("they", "them", "their", "theirs", "themselves"), PLURAL),
    **dict.fromkeys(("it", "its", "itself"), NEUTER),
}
"""Third-person pronouns by form, with what the form says of the one it refers to."""

GENDERED: tuple[str, ...] = tuple(form for form, sort in PRONOUNS.items() if sort in (MASCULINE, FEMININE))
"""The eight singular forms that tell men from women."""

ALL_PRONOUNS: frozenset[str] = frozenset(PRONOUNS) | frozenset(
    (
        "i me my mine myself we us our ours ourselves you your yours yourself yourselves ye thou thee thy thine thyself "
        "who whom whose which that what whoever whomever this these those one oneself each other another "
        "anybody anyone everybody everyone nobody none somebody someone 'em"
    ).split()
)
"""Every word that stands for a noun; a mention headed by any other word is a name or a noun."""

_MASCULINE_WORDS = (
    "mr mr. mister sir master lord king prince duke earl baron count emperor squire monsieur signor herr esq esq. "
    "father papa dad daddy son brother husband uncle nephew grandfather grandpa grandson stepfather "
    "man men boy boys lad fellow gentleman gentlemen bachelor widower bridegroom monk priest bishop abbot wizard hero god "
    "fathers sons brothers husbands uncles kings lords lads fellows"
)
_FEMININE_WORDS = (
    "mrs mrs. miss ms ms. madam madame ma'am mistress lady queen princess duchess countess baroness empress dame "
    "mademoiselle signora frau mother mamma mama mom mum mommy daughter sister wife aunt aunty niece grandmother grandma "
    "granddaughter stepmother woman women girl girls lass maid maiden housemaid housekeeper governess spinster widow bride "
    "nun witch heroine goddess mothers daughters sisters wives aunts queens ladies"
)
TITLES_AND_KIN: dict[str, str] = {
    **dict.fromkeys(_MASCULINE_WORDS.split(), MASCULINE),
    **dict.fromkeys(_FEMININE_WORDS.split(), FEMININE),
}
"""Titles, kin and other nouns that name a man or a woman, in lower case."""

_AFTER_HEAD = frozenset(
    (
        ", of in on at by for from with without to into upon over under among amongst between beyond behind before after "
        "about above across against along around beneath beside near through toward towards within like "
        "who whom whose which that where"
    ).split()
)


def is_pronoun(word: str) -> bool:
    """Whether `word` is a pronoun of any person or kind, in any case."""
    return word.lower() in ALL_PRONOUNS


def head_word(words: Sequence[str], start: int, end: int) -> int:
    """The index of the head of the mention words[start:end], where there is no parse.

    It is the last word before the first preposition, relative pronoun or comma. The first word is never read as one
    of these, so "that man in a hat" gives "man" and a mention always has a head.
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
        if found := TITLES_AND_KIN.get(word.lower()):
            return found
    return None
