"""WinoBias: two occupations and a pronoun: which of the two does the pronoun stand for?

A sentence brackets one occupation and its pronouns: "[The clerk] met the cook because [she] was early." What the other
occupation is stands in no bracket of it, but sentences come in pairs about the same two, and the other one of the pair
brackets the other occupation. So lines are read two by two.

A document is such a pair. In the pro-stereotyped and the anti-stereotyped file its sentences differ in their pronouns
alone, so both are one document, named by the file without that part of its name: "type1.txt.dev:7". The file's name
also tells a text's conditions, ("pro", "type 1"); it has none where the file is called otherwise.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from analyses.corpora.marked import Mark, annotated, find
from analyses.corpora.mentions import PRONOUNS
from analyses.corpora.reader import Lines
from interp.annotation import AnnotatedText
from interp.errors import InputError

_NUMBER = re.compile(r"^\d+\s+")
_BRACKETED = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"(the|an?) ", re.IGNORECASE)
_SIDE = re.compile(r"^(pro|anti)_stereotyped_|\.gz$")
_CONDITIONS = re.compile(r"(pro|anti)_stereotyped_type([12])\.")


class _Sentence(NamedTuple):
    text: str  # without number and brackets
    occupation: tuple[int, int]  # where the bracketed occupation stands in the text
    pronouns: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """The bracketed occupation without its article."""
        return _ARTICLE.sub("", self.text[slice(*self.occupation)], count=1)


def recognises(line: str) -> bool:
    """Whether a line is a sentence with an occupation and a pronoun in brackets."""
    bracketed = _BRACKETED.findall(line)
    has_pronoun = any(words.strip().lower() in PRONOUNS for words in bracketed)
    return not line.startswith("#") and "\t" not in line and len(bracketed) > 1 and has_pronoun


def parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each sentence."""
    file = PurePath(lines.source).name
    name, match = _SIDE.sub("", file), _CONDITIONS.match(file)
    conditions = (match[1], f"type {match[2]}") if match else ()
    filled = filter(str.strip, lines)
    for number, line in enumerate(filled, start=1):
        first, partner_line = _sentence(line.strip()), next(filled, None)
        if partner_line is None:
            raise InputError(f'expected sentences two by two, got none beside "{first.text}"')
        second = _sentence(partner_line.strip())
        for sentence, partner in ((first, second), (second, first)):
            yield replace(_text(sentence, partner, f"{name}:{number}"), conditions=conditions)


def _sentence(line: str) -> _Sentence:
    """A line with its number and brackets taken off."""
    marked = _NUMBER.sub("", line)
    text, spans, end = "", [], 0
    for match in _BRACKETED.finditer(marked):
        text += marked[end : match.start()]
        inside = match[1].strip()
        spans.append((len(text), len(text) + len(inside)))
        text, end = text + inside, match.end()
    text += marked[end:]
    if "[" in text or "]" in text:
        raise InputError(f'expected every "[" to have its "]", with words inside, got "{line}"')
    pronouns = tuple(span for span in spans if text[slice(*span)].lower() in PRONOUNS)
    others = [span for span in spans if span not in pronouns and span[0] < span[1]]
    if len(others) != 1 or not pronouns or len(others) + len(pronouns) != len(spans):
        raise InputError(f'expected one occupation and its pronouns in brackets, got "{line}"')
    return _Sentence(text, others[0], pronouns)


def _text(sentence: _Sentence, partner: _Sentence, document: str) -> AnnotatedText:
    """A sentence with both occupations, the second of which its partner brackets."""
    start, end = sentence.occupation
    spans = [span for span in find(partner.name, sentence.text) if span[1] <= start or end <= span[0]]
    if not spans:
        raise InputError(
            f'expected two sentences that bracket one each of the same two occupations, but "{partner.name}" is not '
            f'beside "{sentence.name}" in "{sentence.text}"'
        )
    marks = [Mark(*span, "bracketed") for span in (sentence.occupation, *sentence.pronouns)]
    return annotated(sentence.text, [*marks, Mark(*spans[0], "other")], document)
