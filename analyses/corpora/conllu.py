"""CoNLL-U: sentences with tags and dependencies, one text a sentence.

A text's words are the syntactic words, and its text is the surface text. A multiword token whose surface its words
spell out ("didn't": did, n't) stands as those words with no space inside. One that they do not ("du": de, le) becomes
a single word of the surface form, annotated as its topmost syntactic word is. Empty nodes (8.1) are dropped.

What a file says in LEMMA, XPOS, FEATS and MISC is kept, DEPS is not. A word without features has none of them
(`feats[i]` is empty): that column is never missing, as the others are where no word of a sentence has a value.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from sys import intern
from typing import NamedTuple

import conllu
from conllu.exceptions import ParseException

from analyses.corpora.limits import MOST_ROWS
from interp.annotation import ROOT, AnnotatedText, Attributes
from interp.errors import InputError

_COLUMNS = 10
_ID = re.compile(r"[0-9]{1,9}([-.][0-9]{1,9})?")
_HEAD = re.compile(r"[0-9]{1,9}|_")
_UNSAID = (None, "_", "")

_attributes = lru_cache(maxsize=4096)(Attributes)  # words that are alike share what is said of them

Row = conllu.Token


def _check_line(line: str, where: str) -> None:
    if line.startswith("#"):
        return
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        raise InputError(f"{where}: expected {_COLUMNS} columns between tabs, got {len(columns)}")
    if "  " in line:
        raise InputError(f"{where}: expected no two spaces in a row inside a column, which may be read as its end")
    if not _ID.fullmatch(columns[0]):
        raise InputError(f'{where}: expected a word number (1, 1-2 or 1.1) in column 1, got "{columns[0]}"')
    if not _HEAD.fullmatch(columns[6]):
        raise InputError(f'{where}: expected the number of the head, or _, in column 7, got "{columns[6]}"')


def recognises(line: str) -> bool:
    """Whether a file's first line that is no comment says that it is in this format."""
    columns = line.rstrip("\r\n").split("\t")
    return len(columns) == _COLUMNS and bool(_ID.fullmatch(columns[0]))


def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each sentence.

    Its document is the last `# newdoc id`; without one the `sent_id` up to its last "-", or a number.
    """
    document: str | None = None
    for count, sentence in enumerate(sentences(lines, source), start=1):
        if sentence.begins_document:
            document = sentence.comments.get("newdoc id")
        name = document or _document_of(sentence.comments.get("sent_id")) or f"{PurePath(source).name}:{count}"
        try:
            text = annotate(surface_words(sentence.rows), name, sentence.comments.get("sent_id"))
        except InputError as error:
            raise InputError(f"{source}, line {sentence.last_line}: {error}") from error
        if text:
            yield text


class Sentence(NamedTuple):
    """A sentence as the file has it: words, multiword tokens and empty nodes."""

    rows: Sequence[Row]
    comments: Mapping[str, str | None]
    last_line: int  # its number in the file

    @property
    def begins_document(self) -> bool:
        """Whether a comment says that a document begins here."""
        return any(key.startswith("newdoc") for key in self.comments)


def sentences(lines: Iterable[str], source: str) -> Iterator[Sentence]:
    """The sentences of a file, one after another."""
    for line, block in _blocks(lines, source):
        try:
            (sentence,) = conllu.parse(block, field_parsers={"feats": _as_written, "misc": _as_written})
        except (ParseException, ValueError) as error:  # numbers in DEPS, which is not kept, are numbers all the same
            raise InputError(f"{source}, line {line}: {error}") from error
        _check_numbers(sentence, f"{source}, line {{}}", line - len(sentence) + 1)
        yield Sentence(sentence, sentence.metadata, line)


def _check_numbers(rows: Sequence[Row], where: str, first_line: int) -> None:
    """Words are numbered 1, 2, 3; a multiword token stands before its first word, an empty node after its word."""
    words = 0
    for line, row in enumerate(rows, start=first_line):
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
            got = row["id"] if isinstance(row["id"], int) else "".join(map(str, row["id"] or ()))
            raise InputError(f"{where.format(line)}: expected {expected}, got {got}: words are numbered from 1 on")


def _as_written(columns: Sequence[str], column: int) -> Attributes:
    return _attributes(columns[column])


def _blocks(lines: Iterable[str], source: str) -> Iterator[tuple[int, str]]:
    """The sentences as they stand, each with the number of its last line."""
    block: list[str] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            _check_line(line.rstrip("\r\n"), f"{source}, line {number}")
            if len(block) == MOST_ROWS:
                raise InputError(
                    f"{source}, line {number}: a sentence of more than {MOST_ROWS:,} lines; an empty line ends it"
                )
            block.append(_filled(line))
        elif block:
            yield number - 1, "".join(block)
            block = []
    if block:
        yield number, "".join(block)


def _filled(line: str) -> str:
    """A line whose last column says that it is empty, where it just is."""
    before, tab, last = line.rpartition("\t")
    return line if last.strip() or not tab else f"{before}\t_\n"


def _document_of(sentence_id: str | None) -> str | None:
    return sentence_id.rpartition("-")[0] or sentence_id if sentence_id else None


def annotate(words: Sequence["SurfaceWord"], document: str, sentence_id: str | None = None) -> AnnotatedText | None:
    """The words of one sentence as a text; None where there are none."""
    if not words:
        return None
    at = {number: i for i, each in enumerate(words) for number in each.numbers}
    heads = [each.row["head"] for each in words]
    if unknown := [head for head in heads if head and head not in at]:
        raise InputError(f"the sentence that ends here has a head {unknown[0]} but no such word")
    parsed = None not in heads
    rows = [each.row for each in words]
    return AnnotatedText(
        words=tuple(each.form for each in words),
        space_after=tuple(each.space_after for each in words),
        document=document,
        tags=_values(rows, "upos"),
        heads=tuple(at[head] if head else ROOT for head in heads) if parsed else None,
        relations=_values(rows, "deprel") if parsed else None,
        lemmas=_values(rows, "lemma"),
        xpos=_values(rows, "xpos"),
        feats=tuple(row["feats"] for row in rows),
        misc=tuple(row["misc"] for row in rows),
        sentence_ids=(sentence_id,) if sentence_id else None,
    )


class SurfaceWord(NamedTuple):
    """A word of the text: its form, the numbers of the syntactic words it stands for, and the row that annotates it."""

    form: str
    numbers: Sequence[int]
    row: Row
    space_after: bool


def surface_words(sentence: Sequence[Row]) -> list[SurfaceWord]:
    """The words of a sentence as its text shows them."""
    found: list[SurfaceWord] = []
    rows = {row["id"]: row for row in sentence if isinstance(row["id"], int)}
    spans = {row["id"][0]: row for row in sentence if isinstance(row["id"], tuple) and row["id"][1] == "-"}
    heads = {number: row["head"] for number, row in rows.items()}
    after = 0  # the last word that a multiword token has taken
    for number, row in rows.items():
        if number in spans:
            whole = spans[number]
            after = whole["id"][2]
            found += _multiword(whole, range(number, after + 1), rows, heads)
        elif number > after:
            found.append(SurfaceWord(row["form"], (number,), row, _space_after(row)))
    return found


def _multiword(
    whole: Row, numbers: range, rows: Mapping[int, Row], heads: Mapping[int, int | None]
) -> Iterator[SurfaceWord]:
    """Its words where they spell it out, else one word annotated as the one highest in the tree."""
    missing = next((number for number in numbers if number not in rows), None)
    if missing is not None:
        raise InputError(f"the sentence that ends here has no word {missing}, part of {whole['form']}")
    if "".join(rows[number]["form"] for number in numbers) == whole["form"]:
        for number in numbers:
            space_after = number == numbers[-1] and _space_after(whole)
            yield SurfaceWord(rows[number]["form"], (number,), rows[number], space_after)
    else:
        top = min(numbers, key=lambda number: depth(number, heads))
        yield SurfaceWord(whole["form"], numbers, rows[top], _space_after(whole))


def depth(word: int | None, heads: Mapping[int, int | None]) -> int:
    """How many words lie above a word, itself included; a circle of heads counts as deep."""
    found = 0
    while word is not None and word in heads and found <= len(heads):
        word, found = heads[word], found + 1
    return found


def _space_after(row: Row) -> bool:
    return row["misc"].get("SpaceAfter") != "No"


def _values(rows: list[Row], column: str) -> tuple[str, ...] | None:
    """What a column says, each value held once however many words have it; None where it says nothing."""
    values = [row[column] for row in rows]
    return None if all(value in _UNSAID for value in values) else tuple(intern(value or "_") for value in values)
