"""LitBank: novels with coreference chains, in CoNLL-2012 style columns with the chains in the last one.

One document is one text. Words come without their spacing, so `spacing` puts back what a tokenizer expects to read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from analyses.corpora.chains import Brackets, OpenMention, in_order
from analyses.corpora.mentions import head_word
from analyses.corpora.reader import Lines, check_words
from interp.annotation import AnnotatedText, Mention
from interp.errors import InputError

_BEGIN = re.compile(r"#begin document \((.*)\)")
_BRACKET = re.compile(r"(\()?([^()|]+)(\))?")  # "(7" opens chain 7, "7)" closes it, "(7)" does both
_CLITIC = re.compile(r"n['’]t|['’](s|ll|ve|m|d|re)", re.IGNORECASE)
_CLOSING = frozenset((".", ",", ";", ":", "!", "?", "...", ")", "]", "}", "”", "’"))
_OPENING = frozenset(("(", "[", "{", "“", "‘"))
_DASHES = frozenset(("--", "—", "----"))
_MIN_COLUMNS = 12  # CoNLL-2012 has at least 12 columns; LitBank writes 13


@dataclass
class _Document:
    """What has been read of one document."""

    name: str
    words: list[str] = field(default_factory=list)
    sentence_starts: list[int] = field(default_factory=lambda: [0])
    brackets: Brackets = field(default_factory=Brackets)

    def add(self, line: str, number: int) -> None:
        """Take in a word with its brackets, or the end of a sentence."""
        if not line.strip():
            if self.sentence_starts[-1] != len(self.words):
                self.sentence_starts.append(len(self.words))
            return
        columns = line.split("\t")
        if len(columns) < _MIN_COLUMNS or not columns[3]:
            raise InputError(
                f"expected {_MIN_COLUMNS} columns or more between tabs, the fourth a word, got {len(columns)}"
            )
        self.words.append(columns[3])
        check_words(len(self.words), self.name)
        chains, end = columns[-1].strip(), len(self.words)
        for bracket in chains.split("|") if chains not in ("", "_", "-") else ():
            match = _BRACKET.fullmatch(bracket)
            if not match or not (match[1] or match[3]):
                raise InputError(f'expected chains like "(3", "3)" or "(3)|(5", got "{chains}"')
            if match[1]:
                self.brackets.open(OpenMention(match[2], number, [end - 1]))
            if match[3]:
                self.brackets.close(match[2], end)

    def text(self, lines: Lines) -> AnnotatedText:
        """The sentences as one text."""
        self.brackets.check_closed(self.name, lines)
        spans = [(each.starts[0], each.ends[0], each.chain) for each in self.brackets]
        return AnnotatedText(
            words=tuple(self.words),
            space_after=spacing(self.words),
            document=self.name,
            mentions=in_order(
                Mention(start, end, head_word(self.words, start, end), chain) for start, end, chain in spans
            ),
            sentence_starts=tuple(start for start in self.sentence_starts if start < len(self.words)),
        )


def parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each document; documents without words are passed over."""
    document: _Document | None = None
    for line in chain(lines, ["#end document"]):
        text = line.rstrip("\r\n")
        begins = _BEGIN.match(text)
        if begins or text.startswith("#end document"):
            if document and document.words:
                yield document.text(lines)
            document = _Document(begins[1]) if begins else None
        elif document:
            document.add(text, lines.number)
        elif text.strip():
            raise InputError(f'expected "#begin document (NAME); part 0" before the words, got "{text[:60]}"')


def spacing(words: Sequence[str]) -> tuple[bool, ...]:
    """Whether a space follows each word in print: none before closing marks and clitics, after opening ones, at dashes.

    Straight quotes are taken to open and close in turn.
    """
    glued_left, glued_right = [], []  # to the word before, to the word after
    quoting = {'"': False, "'": False}
    for i, word in enumerate(words):
        closes, opens = word in _CLOSING or bool(_CLITIC.fullmatch(word)), word in _OPENING
        if word in quoting:
            possessive = word == "'" and not quoting[word] and i > 0 and words[i - 1].endswith("s")
            closes = quoting[word] or possessive
            opens = not closes
            quoting[word] = opens
        glued_left.append(closes or word in _DASHES)
        glued_right.append(opens or word in _DASHES)
    return tuple(not (right or left) for right, left in zip(glued_right, [*glued_left[1:], False], strict=True))
