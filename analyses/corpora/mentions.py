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

_OTHER_PRONOUNS = (
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves "
    "ye thou thee thy thine thyself 'em "
    "who whom whose which that what whoever whomever this these those one oneself each other another "
    "anybody anyone everybody everyone nobody none somebody someone"
)
ALL_PRONOUNS: frozenset[str] = frozenset((*PRONOUNS, *_OTHER_PRONOUNS.split()))
"""Every word that stands for a noun; a mention headed by any other word is a name or a noun."""

_MASCULINE_WORDS = (
    "mr mr. mister sir master lord king prince duke earl baron count emperor squire monsieur signor herr esq esq. "
    "father papa dad daddy son brother husband uncle nephew grandfather grandpa grandson stepfather "
    "man boy lad fellow gentleman bachelor widower bridegroom monk priest bishop abbot wizard hero god"
)
_FEMININE_WORDS = (
    "mrs mrs. miss ms ms. madam madame ma'am mistress lady queen princess duchess countess baroness empress dame "
    "mademoiselle signora frau mother mamma mama mom mum mommy daughter sister wife aunt aunty niece "
    "grandmother grandma granddaughter stepmother woman girl lass maid maiden housemaid housekeeper governess "
    "spinster widow bride nun witch heroine goddess"
)
_PLURAL_WORDS = (
    "men boys lads fellows gentlemen fathers sons brothers husbands uncles nephews kings princes lords masters priests "
    "women girls ladies mothers daughters sisters wives aunts nieces queens princesses maids "
    "people children parents friends"
)
TITLES_AND_KIN: dict[str, str] = {
    **dict.fromkeys(_MASCULINE_WORDS.split(), MASCULINE),
    **dict.fromkeys(_FEMININE_WORDS.split(), FEMININE),
    **dict.fromkeys(_PLURAL_WORDS.split(), PLURAL),
}
"""Titles, kin and other nouns that name a man, a woman or several people, in lower case."""

_PREPOSITIONS = (
    "of in on at by for from with without to into upon over under among amongst between beyond behind before after "
    "about above across against along around beneath beside near through toward towards within like"
)
_RELATIVES = "who whom whose which that where"
_AFTER_HEAD = frozenset((",", *_PREPOSITIONS.split(), *_RELATIVES.split()))


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
