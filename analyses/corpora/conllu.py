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

from analyses.corpora.reader import MOST_ROWS, Format, Lines
from interp.annotation import ROOT, AnnotatedText, Attributes
from interp.errors import InputError
from models.columns import columns

_COLUMNS = 10
_ID = re.compile(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?")
_HEAD = re.compile(r"[0-9]{1,9}|_")

_attributes = lru_cache(maxsize=4096)(Attributes)  # words with the same annotation share it


class Row(NamedTuple):
    """A line of a sentence: a word, a multiword token ("2-3") or an empty node ("8.1")."""

    line: int
    number: int  # of the word; the first of a multiword token; the word before an empty node
    kind: str  # "" of a word, "-" of a multiword token, "." of an empty node
    last: int  # word of a multiword token
    form: str
    lemma: str
    tag: str
    xpos: str
    feats: Attributes
    head: int | None
    relation: str
    misc: Attributes


class Sentence(NamedTuple):
    """A sentence as the file has it: words, multiword tokens and empty nodes."""

    rows: Sequence[Row]
    comments: Mapping[str, str]

    @property
    def begins_document(self) -> bool:
        """Whether a comment says that a document begins here."""
        return any(key.startswith("newdoc") for key in self.comments)


def sentences(lines: Lines) -> Iterator[Sentence]:
    """The sentences of a file; until the next is read, `lines.number` is that of the last line of this one."""
    rows: list[Row] = []
    comments: dict[str, str] = {}
    last = n_words = 0
    for line in chain(lines, [""]):
        if not line.strip():
            if rows:
                lines.number = last
                yield Sentence(rows, comments)
            rows, comments, n_words = [], {}, 0
        elif line.startswith("#"):
            key, _, value = line[1:].partition("=")
            comments[key.strip()] = value.strip()
        else:
            row = _row(columns(line), lines.number, n_words)
            n_words += not row.kind
            rows.append(row)
            last = lines.number
        if len(rows) > MOST_ROWS:
            raise InputError(f"a sentence of more than {MOST_ROWS:,} lines; an empty line ends it")


def _row(values: Sequence[str], line: int, n_words: int) -> Row:
    """Words are numbered 1, 2, 3; a multiword token stands before its first word, an empty node after its word."""
    if len(values) != _COLUMNS:
        raise InputError(f"expected {_COLUMNS} columns between tabs, got {len(values)}")
    match = _ID.fullmatch(values[0])
    if not match:
        raise InputError(f'expected a word number (1, 1-2 or 1.1) in column 1, got "{values[0]}"')
    if not _HEAD.fullmatch(values[6]):
        raise InputError(f'expected the number of the head, or _, in column 7, got "{values[6]}"')
    number, kind, last = int(match[1]), match[2] or "", int(match[3] or match[1])
    fits, expected = {
        "": (number == n_words + 1, f"word {n_words + 1}"),
        "-": (number == n_words + 1 <= last, f"a multiword token that begins with {n_words + 1}"),
        ".": (number == n_words, f"an empty node after word {n_words}"),
    }[kind]
    if not fits:
        raise InputError(f"expected {expected}, got {values[0]}: words are numbered from 1 on")
    _, form, lemma, tag, xpos, feats, head, relation, _, misc = (value if value.strip() else "_" for value in values)
    above = None if head == "_" else int(head)
    return Row(line, number, kind, last, form, lemma, tag, xpos, _attributes(feats), above, relation, _attributes(misc))


def annotate(sentence: Sentence, document: str) -> tuple[AnnotatedText, Mapping[int, int]] | None:
    """A sentence as a text, and by the numbers of its syntactic words their places in it; None where it has none."""
    words = list(_surface_words(sentence.rows))
    if not words:
        return None
    places = {number: i for i, (_, numbers, _) in enumerate(words) for number in numbers}
    rows = [row for row, _, _ in words]
    heads = [row.head for row in rows]
    if unknown := [head for head in heads if head and head not in places]:
        raise InputError(f"the sentence that ends here has a head {unknown[0]} but no such word")
    parsed = None not in heads
    sentence_id = sentence.comments.get("sent_id")
    text = AnnotatedText(
        words=tuple(row.form for row in rows),
        space_after=tuple(space for _, _, space in words),
        document=document,
        tags=_values([row.tag for row in rows]),
        heads=tuple(places[head] if head else ROOT for head in heads) if parsed else None,
        relations=_values([row.relation for row in rows]) if parsed else None,
        lemmas=_values([row.lemma for row in rows]),
        xpos=_values([row.xpos for row in rows]),
        feats=tuple(row.feats for row in rows),
        misc=tuple(row.misc for row in rows),
        sentence_ids=(sentence_id,) if sentence_id else None,
    )
    return text, places


def _surface_words(sentence: Sequence[Row]) -> Iterator[tuple[Row, Sequence[int], bool]]:
    """The words as the text shows them: of a multiword token its words where they spell it out, else one word.

    Each has its annotation, the numbers of the syntactic words it stands for, and whether a space follows.
    """
    rows = {row.number: row for row in sentence if not row.kind}
    spans = {row.number: row for row in sentence if row.kind == "-"}
    heads = {number: row.head for number, row in rows.items()}
    end = 0  # the last word of a multiword token
    for number, row in rows.items():
        if number <= end:
            continue
        whole = spans.get(number, row)
        end = whole.last
        numbers, space_after = range(number, end + 1), whole.misc.get("SpaceAfter") != "No"
        if missing := next((word for word in numbers if word not in rows), None):
            raise InputError(f"the sentence that ends here has no word {missing}, part of {whole.form}")
        if "".join(rows[word].form for word in numbers) == whole.form:
            yield from ((rows[word], (word,), word == end and space_after) for word in numbers)
        else:
            top = min(numbers, key=lambda word: depth(word, heads))
            yield rows[top]._replace(form=whole.form), numbers, space_after


def depth(word: int | None, heads: Mapping[int, int | None]) -> int:
    """How many words lie above a word, itself included; a circle of heads counts as deep."""
    above = 0
    while word is not None and word in heads and above <= len(heads):
        word, above = heads[word], above + 1
    return above


def _values(values: Sequence[str]) -> tuple[str, ...] | None:
    """What a column says, each value held once however many words have it; None where it says nothing."""
    return None if {*values} == {"_"} else tuple(map(intern, values))


def _recognises(line: str) -> bool:
    """Whether a file's first line that is no comment says that it is in this format."""
    return len(columns(line)) == _COLUMNS and bool(_ID.fullmatch(columns(line)[0]))


def _parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each sentence.

    Its document is the last `# newdoc id`; without one the `sent_id` up to its last "-", or a number.
    """
    document: str | None = None
    for count, sentence in enumerate(sentences(lines), start=1):
        if sentence.begins_document:
            document = sentence.comments.get("newdoc id")
        sentence_id = sentence.comments.get("sent_id", "")
        name = document or sentence_id.rpartition("-")[0] or sentence_id
        if result := annotate(sentence, name or f"{PurePath(lines.source).name}:{count}"):
            yield result[0]


CONLLU = Format("conllu", "CoNLL-U", ("*.conllu",), _recognises, _parse)
