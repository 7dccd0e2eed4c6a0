"""GAP, Winogender and WinoBias: which of two mentions does a pronoun refer to?

All three give running text, with a pronoun and two mentions as character offsets. Words are stretches of that text, so
they spell it exactly. The right mention and the pronoun form one chain; the other mention is its own chain.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import NamedTuple

from analyses.corpora.mentions import PRONOUNS, head_word
from analyses.corpora.reader import Lines
from interp.annotation import AnnotatedText, Mention
from interp.bounded_files import lines
from interp.errors import InputError, inside, one_of
from models.pair_tasks import columns

GAP = (*("ID", "Text", "Pronoun", "Pronoun-offset"), *("A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"))
WINOGENDER = ("sentid", "sentence")
STATISTICS = "occupations-stats.tsv"
_STATISTICS = ("occupation", "bergsma_pct_female", "bls_pct_female", "bls_year")
_ID = re.compile(r"([^.]+)\.([^.]+)\.([^.]+)\.([^.]+)\.txt")
_ANSWERS = {"0": "occupation", "1": "participant"}
_FORMS = {"male": ("he", "his", "him"), "female": ("she", "her", "her"), "neutral": ("they", "their", "them")}
_NUMBER = re.compile(r"^\d+\s+")
_BRACKETED = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"(the|an?) ", re.IGNORECASE)
_SIDE = re.compile(r"^(pro|anti)_stereotyped_|\.(gz|zst)$")
_CONDITIONS = re.compile(r"(pro|anti)_stereotyped_type([12])\.")
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
Span = tuple[int, int]  # first character, and one after the last


class Mark(NamedTuple):
    """A mention in running text."""

    start: int  # its first character
    end: int  # after its last character
    chain: str


def gap(source: Lines) -> Iterator[AnnotatedText]:
    """One text per row. A name that the pronoun does not refer to is in chain "A" or "B".

    A document is a Wikipedia page, because a page's passages are not independent.
    """
    for row in _rows(source, GAP):
        marks = [_named(row, name) for name in ("Pronoun", "A", "B")]
        yield annotated(row["Text"], marks, row["URL"].rpartition("/wiki/")[2] or row["ID"])


def _named(row: dict[str, str], column: str) -> Mark:
    """The mention in a column, checked against the text."""
    name, offset, text, flag = row[column], row[f"{column}-offset"], row["Text"], row.get(f"{column}-coref", "TRUE")
    if flag not in ("TRUE", "FALSE"):
        raise InputError(f'expected TRUE or FALSE in {column}-coref, got "{flag}"')
    if not name.strip():
        raise InputError(f"expected a word in {column}, got none")
    if not (offset.isascii() and offset.isdigit() and len(offset) < 10):
        raise InputError(f'expected a number of characters in {column}-offset, got "{offset}"')
    start, end = int(offset), int(offset) + len(name)
    if text[start:end] != name:
        actual = f"the text has {len(text)} characters" if end > len(text) else f'it has "{text[start:end]}"'
        raise InputError(f'{column}-offset {offset}: expected "{name}" there, but {actual}')
    return Mark(start, end, "pronoun" if flag == "TRUE" else column)


def winogender(source: Lines) -> Iterator[AnnotatedText]:
    """One text per sentence, with the chains "occupation" and "participant"; the pronoun is in the answer's chain.

    A document is an occupation, because its twelve sentences come from two templates and differ in one or two words.
    """
    for row in _rows(source, WINOGENDER):
        parts, sentence = _ID.fullmatch(row["sentid"]), row["sentence"]
        if not parts:
            raise InputError(f'expected occupation.participant.answer.gender.txt in column 1, got "{row["sentid"]}"')
        occupation, participant, answer, gender = parts.groups()
        if answer not in _ANSWERS:
            raise InputError(f'expected 0 (the occupation) or 1 (the participant) as the answer, got "{answer}"')
        forms = dict.fromkeys(_FORMS[one_of("gender", gender, _FORMS)])
        pronouns = [match.span() for match in re.finditer(rf"\b(?:{'|'.join(forms)})\b", sentence, re.IGNORECASE)]
        marks = [
            Mark(*_only(_find(occupation, sentence), f'"{occupation}"', sentence), "occupation"),
            Mark(*_only(_find(participant, sentence), f'"{participant}"', sentence), "participant"),
            Mark(*_only(pronouns, f"one of {', '.join(forms)}", sentence), _ANSWERS[answer]),
        ]
        yield annotated(sentence, marks, occupation)


def _only(spans: Sequence[Span], name: str, sentence: str) -> Span:
    if len(spans) != 1:
        raise InputError(f'expected {name} once in the sentence, got it {len(spans)} times: "{sentence}"')
    return spans[0]


def share_of_women(file: Path) -> dict[str, float]:
    """The percentage of women in each Winogender occupation, from the US Bureau of Labor Statistics."""
    with inside(str(file)):
        shares = {row["occupation"]: row["bls_pct_female"] for row in _rows(Lines(lines(file), str(file)), _STATISTICS)}
        try:
            return {occupation: float(share) for occupation, share in shares.items()}
        except ValueError as error:
            raise InputError(f"expected a number in bls_pct_female for every occupation ({error})") from error


class _Sentence(NamedTuple):
    """A WinoBias sentence without number and brackets; the bracketed occupation and pronouns."""

    text: str
    occupation: Span
    pronouns: tuple[Span, ...]

    @property
    def name(self) -> str:
        """The bracketed occupation without its article."""
        return _ARTICLE.sub("", self.text[slice(*self.occupation)], count=1)


def is_winobias(line: str) -> bool:
    """Whether a line is a sentence with an occupation and a pronoun in brackets."""
    bracketed = _BRACKETED.findall(line)
    has_pronoun = any(words.strip().lower() in PRONOUNS for words in bracketed)
    return not line.startswith("#") and "\t" not in line and len(bracketed) > 1 and has_pronoun


def winobias(source: Lines) -> Iterator[AnnotatedText]:
    """One text per sentence. Sentences come in pairs about the same two occupations; each brackets a different one.

    A document is such a pair ("type1.txt.dev:7"). The pro- and anti-stereotyped files share documents, because they
    differ only in pronouns. The file's name gives the conditions ("pro", "type 1").
    """
    file, filled = PurePath(source.source).name, filter(str.strip, source)
    name, match = _SIDE.sub("", file), _CONDITIONS.match(file)
    conditions = (match[1], f"type {match[2]}") if match else ()
    for number, line in enumerate(filled, start=1):
        first, partner_line = _sentence(line.strip()), next(filled, None)
        if partner_line is None:
            raise InputError(f'expected sentences two by two, got none beside "{first.text}"')
        second = _sentence(partner_line.strip())
        for sentence, partner in ((first, second), (second, first)):
            text = annotated(sentence.text, _occupations(sentence, partner), f"{name}:{number}")
            yield replace(text, conditions=conditions)


def _sentence(line: str) -> _Sentence:
    marked = _NUMBER.sub("", line)
    text, spans, end = "", [], 0
    for match in _BRACKETED.finditer(marked):
        text += marked[end : match.start()]
        words = match[1].strip()
        spans.append((len(text), len(text) + len(words)))
        text, end = text + words, match.end()
    text += marked[end:]
    if "[" in text or "]" in text:
        raise InputError(f'expected every "[" to have its "]", with words inside, got "{line}"')
    pronouns = tuple(span for span in spans if text[slice(*span)].lower() in PRONOUNS)
    occupations = [span for span in spans if span not in pronouns and span[0] < span[1]]
    if len(occupations) != 1 or not pronouns or 1 + len(pronouns) != len(spans):
        raise InputError(f'expected one occupation and its pronouns in brackets, got "{line}"')
    return _Sentence(text, occupations[0], pronouns)


def _occupations(sentence: _Sentence, partner: _Sentence) -> list[Mark]:
    """The bracketed mentions, and the occupation that the partner brackets."""
    start, end = sentence.occupation
    spans = [span for span in _find(partner.name, sentence.text) if span[1] <= start or end <= span[0]]
    if not spans:
        problem = f'"{partner.name}" is not beside "{sentence.name}" in "{sentence.text}"'
        raise InputError(f"expected two sentences that bracket one each of the same two occupations, but {problem}")
    bracketed = [Mark(*span, "bracketed") for span in (sentence.occupation, *sentence.pronouns)]
    return [*bracketed, Mark(*spans[0], "other")]


def _rows(source: Lines, names: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The rows below a header with these columns, without empty lines."""
    header = tuple(columns(next(source, "")))
    if header != names:
        raise InputError(f'expected the columns {", ".join(names)} between tabs, got "{", ".join(header)[:60]}"')
    for line in filter(str.strip, source):
        values = columns(line)
        if len(values) != len(header):
            raise InputError(f"expected {len(header)} columns between tabs, got {len(values)}")
        yield dict(zip(header, values, strict=True))


def annotated(text: str, marks: Sequence[Mark], document: str) -> AnnotatedText:
    """Running text as words, with the marked stretches as mentions.

    Words are runs of letters and digits, clitics ("n't", "'s"), and single other characters, cut where mentions begin
    and end. They spell the text exactly, except spaces at its end.
    """
    text = text.rstrip(" ")
    cuts = sorted({offset for mark in marks for offset in (mark.start, mark.end)})
    pieces = list(_pieces(text, cuts))
    starts = [start for start, _, _ in pieces]
    words = tuple(text[start:end] for start, end, _ in pieces)
    mentions = []
    for mark in sorted(marks, key=lambda mark: mark[:2]):
        start, end = (bisect_left(starts, offset) for offset in mark[:2])
        head = head_word(words, start, end)  # skip what follows a name: punctuation, a numeral, Jr and Sr
        head = next((i for i in range(head, start - 1, -1) if not _AFTER_NAME.fullmatch(words[i])), head)
        mentions.append(Mention(start, end, head, mark.chain))
    spaces = tuple(space for _, _, space in pieces)
    return AnnotatedText(words=words, space_after=spaces, document=document, mentions=tuple(mentions))


def _find(phrase: str, text: str) -> list[Span]:
    """The spans where whole words spell a phrase, in any case, including an article before it."""
    pattern = rf"\b(?:(?:the|an?) )?{re.escape(phrase)}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


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
