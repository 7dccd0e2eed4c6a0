"""Plain text with mentions marked by character offsets: what are its words, and which of them is each mention?

For formats that give running text, mostly in columns. Every word is a stretch of that text, so the words spell it out
again.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from analyses.corpora.mentions import head_word
from analyses.corpora.reader import Lines
from interp.annotation import AnnotatedText, Mention
from interp.errors import InputError
from models.pair_tasks import columns

_WORD = re.compile(
    r"""
    \w+(?=n['’]t\b) | n['’]t\b                       # did + n't
    | (?<=\w)['’](?:s|ll|ve|re|m|d)\b                # Ann + 's
    | (?:\w|\*{1,99}(?=\w))[\w*]*                     # GAP writes * for letters beyond ASCII
    | [^\w\s]
    | \s+                                            # what is not one space between words stands as a word
    """,
    re.IGNORECASE | re.VERBOSE,
)
_AFTER_NAME = re.compile(r"\W+|[IVX]+|[JS]r")


class Mark(NamedTuple):
    """A mention in running text."""

    start: int  # its first character
    end: int  # after its last character
    chain: str


def rows(lines: Lines, expected: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The rows below the first line, by its columns, which are as `expected`; empty lines are left out.

    Raises:
        InputError: other columns, or a row of more or fewer than there are.
    """
    header = tuple(columns(next(lines, "")))
    if header != expected:
        raise InputError(f'expected the columns {", ".join(expected)} between tabs, got "{", ".join(header)[:60]}"')
    for line in filter(str.strip, lines):
        values = columns(line)
        if len(values) != len(header):
            raise InputError(f"expected {len(header)} columns between tabs, got {len(values)}")
        yield dict(zip(header, values, strict=True))


def annotated(text: str, marks: Sequence[Mark], document: str) -> AnnotatedText:
    """Running text as words, with the marked stretches as mentions.

    Words are runs of letters and digits, with clitics ("n't", "'s") apart, and single other characters. A word is cut
    where a mention begins or ends inside it. The words spell the text exactly but for spaces at its very end.
    """
    text = text.rstrip(" ")
    cuts = sorted({offset for mark in marks for offset in (mark.start, mark.end)})
    pieces = list(_pieces(text, cuts))
    starts = [start for start, _, _ in pieces]
    words = tuple(text[start:end] for start, end, _ in pieces)
    return AnnotatedText(
        words=words,
        space_after=tuple(space for _, _, space in pieces),
        document=document,
        mentions=tuple(
            Mention(start, end, _head(words, start, end), mark.chain)
            for mark in sorted(marks, key=lambda mark: mark[:2])
            for start, end in [[bisect_left(starts, offset) for offset in mark[:2]]]
        ),
    )


def find(phrase: str, text: str) -> Iterator[tuple[int, int]]:
    """Where whole words of a text spell a phrase, in any case, taking in an article before it."""
    pattern = rf"\b(?:(?:the|an?) )?{re.escape(phrase)}(?!\w)"
    return (match.span() for match in re.finditer(pattern, text, re.IGNORECASE))


def find_words(forms: Iterable[str], text: str) -> Iterator[tuple[int, int]]:
    """Where a text has one of these words, in any case."""
    return (match.span() for match in re.finditer(rf"\b(?:{'|'.join(forms)})\b", text, re.IGNORECASE))


def _pieces(text: str, cuts: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Start and end of each word, and whether a space follows."""
    start = 0
    while start < len(text):
        cut = bisect_right(cuts, start)
        match = _WORD.match(text, start, cuts[cut] if cut < len(cuts) else len(text))
        end = match.end() if match else start + 1
        space = text[end : end + 1] == " "
        yield start, end, space
        start = end + space


def _head(words: Sequence[str], start: int, end: int) -> int:
    """As `head_word` has it, without what follows a name: punctuation, a numeral, Jr and Sr."""
    head = head_word(words, start, end)
    return next((i for i in range(head, start - 1, -1) if not _AFTER_NAME.fullmatch(words[i])), head)
