"""CoNLL-U: sentences with tags and dependencies, one text per sentence.

If its words spell a multiword token ("didn't": did, n't), the token becomes these words with no space inside. Else
("du": de, le) it becomes one word, with the annotation of its topmost syntactic word. Empty nodes (8.1) and DEPS are
dropped. A column without any value in a sentence is missing (None), except the features.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import PurePath
from sys import intern
from typing import Any, NamedTuple

import conllu
from conllu.exceptions import ParseException

from analyses.corpora.reader import MOST_ROWS, Lines
from interp.annotation import ROOT, AnnotatedText, Attributes
from interp.errors import InputError

_COLUMNS = 10
_ID = re.compile(r"[0-9]{1,9}([-.][0-9]{1,9})?")
_HEAD = re.compile(r"[0-9]{1,9}|_")
UNSAID = (None, "_", "")

_attributes = lru_cache(maxsize=4096)(Attributes)  # equal attributes are shared
Row = conllu.Token


class Sentence(NamedTuple):
    """A sentence as in the file, with words, multiword tokens and empty nodes."""

    rows: Sequence[Row]
    comments: Mapping[str, str | None]

    @property
    def begins_document(self) -> bool:
        """Whether a comment says that a document begins here."""
        return any(key.startswith("newdoc") for key in self.comments)


def sentences(lines: Lines) -> Iterator[Sentence]:
    """The sentences of a file; `lines.number` is each sentence's last line until the next one is read."""
    block: list[str] = []
    last = 0
    for line in chain(lines, [""]):
        if line.strip():
            _check_line(line.rstrip("\r\n"))
            if len(block) == MOST_ROWS:
                raise InputError(f"a sentence of more than {MOST_ROWS:,} lines; an empty line ends it")
            fields, tab, final = line.rpartition("\t")
            block.append(line if final.strip() or not tab else f"{fields}\t_\n")  # write an empty last column as _
            last = lines.number
        elif block:
            lines.number = last
            yield _sentence("".join(block), lines)
            block = []


def _check_line(line: str) -> None:
    if line.startswith("#"):
        return
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        raise InputError(f"expected {_COLUMNS} columns between tabs, got {len(columns)}")
    if "  " in line:
        raise InputError("expected no two spaces in a row inside a column, which may be read as its end")
    if not _ID.fullmatch(columns[0]):
        raise InputError(f'expected a word number (1, 1-2 or 1.1) in column 1, got "{columns[0]}"')
    if not _HEAD.fullmatch(columns[6]):
        raise InputError(f'expected the number of the head, or _, in column 7, got "{columns[6]}"')


def _sentence(block: str, lines: Lines) -> Sentence:
    parsers: dict[str, Any] = dict.fromkeys(("feats", "misc"), lambda columns, column: _attributes(columns[column]))
    try:
        (rows,) = conllu.parse(block, field_parsers=parsers)
    except (ParseException, ValueError) as error:  # even DEPS, which is not kept, must have valid numbers
        raise InputError(str(error)) from error
    _check_numbers(rows, lines)
    return Sentence(rows, rows.metadata)


def _check_numbers(rows: Sequence[Row], lines: Lines) -> None:
    """Check numbers: words count 1, 2, 3; a multiword token precedes its first word, an empty node follows its word."""
    words = 0
    for row in lines.last(rows):
        match row["id"]:
            case int(number):
                words += 1
                fits, expected = number == words, f"word {words}"
            case (first, "-", last):
                fits, expected = first == words + 1 <= last, f"a multiword token that begins with {words + 1}"
            case (after, *_):
                fits, expected = after == words, f"an empty node after word {words}"
            case _:
                fits, expected = False, f"word {words + 1}"
        if not fits:
            number = row["id"] if isinstance(row["id"], int) else "".join(map(str, row["id"] or ()))
            raise InputError(f"expected {expected}, got {number}: words are numbered from 1 on")


def annotate(sentence: Sentence, document: str) -> tuple[AnnotatedText, Mapping[int, int]] | None:
    """A sentence as a text, and each syntactic word's index by its number; None without words."""
    if not (words := [*_surface_words(sentence.rows)]):
        return None
    index = {number: i for i, word in enumerate(words) for number in word.numbers}
    rows = [word.row for word in words]
    heads = [row["head"] for row in rows]
    if unknown := [head for head in heads if head and head not in index]:
        raise InputError(f"the sentence that ends here has a head {unknown[0]} but no such word")
    parsed = None not in heads
    sentence_id = sentence.comments.get("sent_id")
    text = AnnotatedText(
        words=tuple(word.form for word in words),
        space_after=tuple(word.space_after for word in words),
        document=document,
        tags=_values(rows, "upos"),
        heads=tuple(index[head] if head else ROOT for head in heads) if parsed else None,
        relations=_values(rows, "deprel") if parsed else None,
        lemmas=_values(rows, "lemma"),
        xpos=_values(rows, "xpos"),
        feats=tuple(row["feats"] for row in rows),
        misc=tuple(row["misc"] for row in rows),
        sentence_ids=(sentence_id,) if sentence_id else None,
    )
    return text, index


class _SurfaceWord(NamedTuple):
    """A word of the text: its form, the numbers of its syntactic words, and the row that annotates it."""

    form: str
    numbers: Sequence[int]
    row: Row
    space_after: bool


def _surface_words(sentence: Sequence[Row]) -> Iterator[_SurfaceWord]:
    rows = {row["id"]: row for row in sentence if isinstance(row["id"], int)}
    spans = {row["id"][0]: row for row in sentence if isinstance(row["id"], tuple) and row["id"][1] == "-"}
    heads = {number: row["head"] for number, row in rows.items()}
    covered = 0  # the last word inside a multiword token
    for number, row in rows.items():
        if number <= covered:
            continue
        whole = spans.get(number, row)
        covered = whole["id"][2] if number in spans else number
        numbers, space_after = range(number, covered + 1), whole["misc"].get("SpaceAfter") != "No"
        if missing := next((word for word in numbers if word not in rows), None):
            raise InputError(f"the sentence that ends here has no word {missing}, part of {whole['form']}")
        if "".join(rows[word]["form"] for word in numbers) == whole["form"]:
            for word in numbers:
                yield _SurfaceWord(rows[word]["form"], (word,), rows[word], word == covered and space_after)
        else:
            top = min(numbers, key=lambda word: depth(word, heads))
            yield _SurfaceWord(whole["form"], numbers, rows[top], space_after)


def depth(word: int | None, heads: Mapping[int, int | None]) -> int:
    """The number of words from a word up to the root; large for a cycle of heads."""
    above = 0
    while word is not None and word in heads and above <= len(heads):
        word, above = heads[word], above + 1
    return above


def _values(rows: list[Row], column: str) -> tuple[str, ...] | None:
    """A column's values, interned; None if it has none."""
    values = [row[column] for row in rows]
    return None if all(value in UNSAID for value in values) else tuple(intern(value or "_") for value in values)


def recognises(line: str) -> bool:
    """Whether a file is in this format, by its first line after comments."""
    columns = line.rstrip("\r\n").split("\t")
    return len(columns) == _COLUMNS and bool(_ID.fullmatch(columns[0]))


def parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text per sentence.

    A text's document is the last `# newdoc id`; without one, the `sent_id` up to its last "-", or a number.
    """
    document: str | None = None
    for count, sentence in enumerate(sentences(lines), start=1):
        if sentence.begins_document:
            document = sentence.comments.get("newdoc id")
        sentence_id = sentence.comments.get("sent_id") or ""
        named = document or sentence_id.rpartition("-")[0] or sentence_id
        if result := annotate(sentence, named or f"{PurePath(lines.source).name}:{count}"):
            yield result[0]
