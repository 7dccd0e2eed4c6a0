"""LitBank: novels with coreference chains, in CoNLL-2012 style columns with the chains in the last one.

One document is one text. Words come without their spacing, so `spacing` puts back what a tokenizer expects to read.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from analyses.corpora.limits import check_words
from analyses.corpora.mentions import head_word
from analyses.corpora.numbered_lines import numbered
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
    """What has been read of one document, and the brackets that wait for their end."""

    name: str
    words: list[str] = field(default_factory=list)
    sentence_starts: list[int] = field(default_factory=lambda: [0])
    spans: list[tuple[int, int, str]] = field(default_factory=list)
    opened: dict[str, list[int]] = field(default_factory=dict)

    def end_sentence(self) -> None:
        if self.sentence_starts[-1] != len(self.words):
            self.sentence_starts.append(len(self.words))

    def add(self, word: str, brackets: str) -> None:
        at = len(self.words)
        self.words.append(word)
        check_words(len(self.words), self.name)
        for bracket in brackets.split("|") if brackets not in ("", "_", "-") else ():
            match = _BRACKET.fullmatch(bracket)
            if not match or not (match[1] or match[3]):
                raise InputError(f'expected chains like "(3", "3)" or "(3)|(5", got "{brackets}"')
            starts = self.opened.setdefault(match[2], [])
            if match[1]:
                starts.append(at)
            if match[3] and not starts:
                raise InputError(f'"{bracket}" closes a mention of chain {match[2]} that no "({match[2]}" opened')
            if match[3]:
                self.spans.append((starts.pop(), at + 1, match[2]))

    def finish(self) -> AnnotatedText:
        if unclosed := [chain for chain, starts in self.opened.items() if starts]:
            raise InputError(f"{self.name} ends before the mentions of these chains do: {', '.join(unclosed)}")
        self.end_sentence()
        return AnnotatedText(
            words=tuple(self.words),
            space_after=spacing(self.words),
            document=self.name,
            mentions=tuple(
                Mention(start, end, head_word(self.words, start, end), chain)
                for start, end, chain in sorted(self.spans, key=lambda span: (span[0], -span[1]))
            ),
            sentence_starts=tuple(self.sentence_starts[:-1]),
        )


def recognises(line: str) -> bool:
    """Whether the first line of a file says that it is in this format."""
    return line.startswith("#begin document")


@numbered
def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each document; documents without words are passed over."""
    document: _Document | None = None
    for line in lines:
        text = line.rstrip("\r\n")
        if begins := _BEGIN.match(text):
            yield from _finished(document)
            document = _Document(begins[1])
        elif text.startswith("#end document"):
            yield from _finished(document)
            document = None
        else:
            _add_line(document, text)
    yield from _finished(document)


def _add_line(document: _Document | None, line: str) -> None:
    if not line.strip():
        if document:
            document.end_sentence()
        return
    if document is None:
        raise InputError(f'expected "#begin document (NAME); part 0" before the words, got "{line[:60]}"')
    columns = line.split("\t")
    if len(columns) < _MIN_COLUMNS or not columns[3]:
        raise InputError(f"expected {_MIN_COLUMNS} columns or more between tabs, the fourth a word, got {len(columns)}")
    document.add(columns[3], columns[-1].strip())


def _finished(document: _Document | None) -> Iterator[AnnotatedText]:
    if document and document.words:
        yield document.finish()


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
