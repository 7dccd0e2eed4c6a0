"""How large may a text be? What is beyond is refused before it costs the memory and hours that it would."""

from pathlib import Path

from interp.annotation import AnnotatedText
from interp.errors import InputError

MOST_WORDS = 1_000_000  # of a text; the longest novels have 600,000
MOST_ROWS = 20_000  # of a sentence
LONGEST_WORD = 10_000  # characters


def check_words(n_words: int, document: str) -> None:
    """Refuse a text of more words than `MOST_WORDS`."""
    if n_words > MOST_WORDS:
        raise InputError(f"{document} has more than {MOST_WORDS:,} words, the most of one text: divide it")


def checked(text: AnnotatedText, file: Path) -> AnnotatedText:
    """The text, if it is within limits.

    Raises:
        InputError: it is not.
    """
    try:
        check_words(len(text.words), f"the text {text.document!r}")
        if (longest := max(map(len, text.words), default=0)) > LONGEST_WORD:
            raise InputError(
                f"the text {text.document!r} has a word of {longest:,} characters, at most {LONGEST_WORD:,}"
            )
    except InputError as error:
        raise InputError(f"{file}: {error}") from error
    return text
