"""CoNLL-U: sentences with tags and dependencies, one text a sentence.

A text's words are the syntactic words, and its text is the surface text. A multiword token whose surface its words
spell out ("didn't": did, n't) stands as those words with no space inside. One that they do not ("du": de, le) becomes
a single word of the surface form, annotated as its topmost syntactic word is. Empty nodes (8.1) are dropped.

What a file says in LEMMA, XPOS, FEATS and MISC is kept, DEPS is not. A word without features has none of them
(`feats[i]` is empty): that column is never missing, as the others are where no word of a sentence has a value.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import PurePath
from sys import intern
from typing import NamedTuple

from analyses.corpora.reader import MOST_ROWS, Lines
from interp.annotation import ROOT, AnnotatedText, Attributes
from interp.errors import InputError
from models.columns import columns

_COLUMNS = 10
_ID = re.compile(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?")
_HEAD = re.compile(r"[0-9]{1,9}|_")
_UNSAID = ("_", "")

_attributes = lru_cache(maxsize=4096)(Attributes)  # words that are alike share what is said of them


class Row(NamedTuple):
    """A line: a word, a multiword token from word `number` to word `last`, or an empty node after word `number`."""

    kind: str  # "" of a word, "-" of a multiword token, "." of an empty node
    number: int
    last: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: Attributes
    head: int | None
    deprel: str
    misc: Attributes


class Sentence(NamedTuple):
    """A sentence as the file has it: words, multiword tokens and empty nodes."""

    rows: list[Row]
    comments: dict[str, str]

    @property
    def begins_document(self) -> bool:
        """Whether a comment says that a document begins here."""
        return any(key.startswith("newdoc") for key in self.comments)


def sentences(lines: Lines) -> Iterator[Sentence]:
    """The sentences of a file; until the next is read, `lines.number` is that of the last line of this one."""
    sentence, n_lines, n_words, last = Sentence([], {}), 0, 0, 0
    for line in chain(lines, [""]):
        if line.strip():
            n_lines, last = n_lines + 1, lines.number
            if n_lines > MOST_ROWS:
                raise InputError(f"a sentence of more than {MOST_ROWS:,} lines; an empty line ends it")
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                sentence.comments[key.strip()] = value.strip()
            else:
                sentence.rows.append(_row(line, n_words))
                n_words += not sentence.rows[-1].kind
        elif n_lines:
            lines.number = last
            yield sentence
            sentence, n_lines, n_words = Sentence([], {}), 0, 0


def _row(line: str, n_words: int) -> Row:
    """A line after so many words: a multiword token stands before its first word, an empty node after its word."""
    values = columns(line)
    if len(values) != _COLUMNS:
        raise InputError(f"expected {_COLUMNS} columns between tabs, got {len(values)}")
    number, form, lemma, upos, xpos, feats, head, deprel, _, misc = values
    parts = _ID.fullmatch(number)
    if not parts:
        raise InputError(f'expected a word number (1, 1-2 or 1.1) in column 1, got "{number}"')
    if not _HEAD.fullmatch(head):
        raise InputError(f'expected the number of the head, or _, in column 7, got "{head}"')
    kind, first, last = parts[2] or "", int(parts[1]), int(parts[3] or parts[1])
    fits, expected = {
        "": (first == n_words + 1, f"word {n_words + 1}"),
        "-": (first == n_words + 1 <= last, f"a multiword token that begins with {n_words + 1}"),
        ".": (first == n_words, f"an empty node after word {n_words}"),
    }[kind]
    if not fits:
        raise InputError(f"expected {expected}, got {number}: words are numbered from 1 on")
    said = _attributes(feats), None if head == "_" else int(head), deprel, _attributes(misc.strip())
    return Row(kind, first, last, form, lemma, upos, xpos, *said)


def annotate(sentence: Sentence, document: str) -> tuple[AnnotatedText, Mapping[int, int]] | None:
    """A sentence as a text, and by the numbers of its syntactic words their places in it; None where it has none."""
    words = list(_surface_words(sentence.rows))
    if not words:
        return None
    forms, numbers, rows, space_after = zip(*words, strict=True)
    places = {number: i for i, together in enumerate(numbers) for number in together}
    heads = [row.head for row in rows]
    if unknown := [head for head in heads if head and head not in places]:
        raise InputError(f"the sentence that ends here has a head {unknown[0]} but no such word")
    parsed = None not in heads
    sentence_id = sentence.comments.get("sent_id")
    text = AnnotatedText(
        words=forms,
        space_after=space_after,
        document=document,
        tags=_values(rows, "upos"),
        heads=tuple(places[head] if head else ROOT for head in heads) if parsed else None,
        relations=_values(rows, "deprel") if parsed else None,
        lemmas=_values(rows, "lemma"),
        xpos=_values(rows, "xpos"),
        feats=tuple(row.feats for row in rows),
        misc=tuple(row.misc for row in rows),
        sentence_ids=(sentence_id,) if sentence_id else None,
    )
    return text, places


def _surface_words(sentence: Sequence[Row]) -> Iterator[tuple[str, Sequence[int], Row, bool]]:
    """The words as the text shows them: of a multiword token its words where they spell it out, else one word.

    Of each its form, the numbers of the words it stands for, the row that annotates it, and whether a space follows.
    """
    rows = {row.number: row for row in sentence if not row.kind}
    spans = {row.number: row for row in sentence if row.kind == "-"}
    heads = {number: row.head for number, row in rows.items()}
    done = 0  # the last word of a multiword token
    for number, row in rows.items():
        if number <= done:
            continue
        whole = spans.get(number, row)
        done = whole.last
        numbers, space_after = range(number, done + 1), whole.misc.get("SpaceAfter") != "No"
        if done not in rows:
            raise InputError(f"the sentence that ends here has no word {len(rows) + 1}, part of {whole.form}")
        if "".join(rows[word].form for word in numbers) == whole.form:
            for word in numbers:
                yield rows[word].form, (word,), rows[word], word == done and space_after
        else:
            top = min(numbers, key=lambda word: depth(word, heads))
            yield whole.form, numbers, rows[top], space_after


def depth(word: int | None, heads: Mapping[int, int | None]) -> int:
    """How many words lie above a word, itself included; a circle of heads counts as deep."""
    above = 0
    while word is not None and word in heads and above <= len(heads):
        word, above = heads[word], above + 1
    return above


def _values(rows: Sequence[Row], column: str) -> tuple[str, ...] | None:
    """What a column says, each value held once however many words have it; None where it says nothing."""
    values = [getattr(row, column) for row in rows]
    return None if all(value in _UNSAID for value in values) else tuple(intern(value or "_") for value in values)


def recognises(line: str) -> bool:
    """Whether a file's first line that is no comment says that it is in this format."""
    return len(columns(line)) == _COLUMNS and bool(_ID.fullmatch(columns(line)[0]))


def parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each sentence.

    Its document is the last `# newdoc id`; without one the `sent_id` up to its last "-", or a number.
    """
    document = ""
    for count, sentence in enumerate(sentences(lines), start=1):
        if sentence.begins_document:
            document = sentence.comments.get("newdoc id", "")
        sentence_id = sentence.comments.get("sent_id", "")
        named = document or sentence_id.rpartition("-")[0] or sentence_id
        if result := annotate(sentence, named or f"{PurePath(lines.source).name}:{count}"):
            yield result[0]
