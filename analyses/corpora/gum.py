"""GUM: CoNLL-U with coreference in the `Entity` attribute of the last column (CorefUD writes the same).

One document is one text: its sentences joined, with tags, relations and chains. `Entity` holds brackets. "(12-person-1"
opens a mention of entity 12, "12)" closes the one opened last, "(12-person-1)" is a single word, and several follow
each other without a space: "(3-place-1)12)". A mention in parts has "(12[1/2]-person-1 ... 12[1/2])" for the first of
two. The comment `# global.Entity` gives the order of the values between hyphens.

What does not fit a text of words: a mention in parts becomes the stretch from its first word to its last, and one of
empty nodes alone is dropped. Bridging (`Bridge`) and split antecedents (`SplitAnte`) are no identity and not read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import PurePath
from typing import Any, TypeVar

from analyses.corpora.chains import Brackets, OpenMention, in_order
from analyses.corpora.conllu import Row, Sentence, annotate, depth, sentences
from analyses.corpora.reader import Lines, check_words
from interp.annotation import ROOT, AnnotatedText, Mention
from interp.errors import InputError

ORDER = "global.Entity"
_BRACKET = re.compile(r"(\()?([^()]+)(\))?")
_ENTITY = re.compile(r"([^\[\]]+)(?:\[([0-9]{1,6})/([0-9]{1,6})\])?")
_IDENTITY = ("GRP", "eid")  # GUM's name and CorefUD's
_HEADS = ("minspan", "MIN", "head")  # GUM's names and CorefUD's
_UNSAID = ("_", "", None)
_AS_THEY_ARE = ("words", "space_after", "tags", "relations", "lemmas", "xpos", "feats", "misc")

_T = TypeVar("_T")
_Order = tuple[int, int | None]  # where among the values of a bracket the entity stands, and its head words


@dataclass
class _Document:
    """What has been read of one document. Its brackets count syntactic words."""

    name: str
    texts: list[AnnotatedText] = field(default_factory=list)
    surface: list[int] = field(default_factory=list)  # of each syntactic word, its place among the text's words
    brackets: Brackets = field(default_factory=Brackets)
    length: int = 0  # words of the text so far

    def add(self, sentence: Sentence, order: _Order, lines: Lines) -> None:
        """Take in one sentence; what is wrong is at the line of its word."""
        result = annotate(sentence, self.name)
        if result is None:
            return
        text, places = result
        for row in lines.last(sentence.rows):
            if isinstance(row["id"], int):
                self.surface.append(self.length + places[row["id"]])
            if (value := row["misc"].get("Entity", "")) not in _UNSAID:
                self._read(value, row, order, lines)
        self.texts.append(text)
        self.length += len(text.words)
        check_words(self.length, self.name)

    def _read(self, value: str, row: Row, order: _Order, lines: Lines) -> None:
        if isinstance(row["id"], tuple) and row["id"][1] == "-":
            raise InputError(f"expected Entity at words, got it at the multiword token {row['form']}")
        brackets = _BRACKET.findall(value)
        if "".join(map("".join, brackets)) != value or not all(opens or closes for opens, _, closes in brackets):
            raise InputError(f'expected Entity like "(3-person-1", "3)" or "(3-person-1)5)", got "{value}"')
        end = len(self.surface)
        for opens, inside, closes in brackets:
            values = inside.split("-")
            place = order[0] if opens or len(values) > 1 else 0
            match = _ENTITY.fullmatch(values[place]) if place < len(values) else None
            if not match:
                raise InputError(f'expected the number of an entity, alone or as 3[1/2], in "{inside}"')
            part, parts = int(match[2] or 1), int(match[3] or 1)
            if not 1 <= part <= parts:
                raise InputError(f'expected a part like 1/2 or 2/2 of entity {match[1]}, got "{match[2]}/{match[3]}"')
            if opens:
                start = end - isinstance(row["id"], int)  # an empty node is no word
                heads = values[order[1]] if order[1] is not None and order[1] < len(values) else None
                self.brackets.open(OpenMention(match[1], lines.number, [start], parts=parts, heads=heads), part)
            if closes:
                self.brackets.close(match[1], end, part, parts)

    def text(self, lines: Lines) -> AnnotatedText:
        """The sentences as one text."""
        self.brackets.check_closed(self.name, lines)
        starts = list(accumulate((len(text.words) for text in self.texts), initial=0))
        heads = _joined(
            text.heads and tuple(head if head == ROOT else head + start for head in text.heads)
            for text, start in zip(self.texts, starts, strict=False)
        )
        tree = dict(enumerate(heads or ()))
        mentions = [self._mention(mention, tree, lines) for mention in self.brackets if mention.words]
        ids = tuple(chain.from_iterable(text.sentence_ids or ("",) for text in self.texts))
        columns: dict[str, Any] = {name: _joined(getattr(text, name) for text in self.texts) for name in _AS_THEY_ARE}
        return AnnotatedText(
            document=self.name,
            heads=heads,
            mentions=in_order(mentions),
            sentence_starts=tuple(starts[:-1]),
            sentence_ids=ids if any(ids) else None,
            **columns,
        )

    def _mention(self, mention: OpenMention, tree: Mapping[int, int], lines: Lines) -> Mention:
        """The head is the highest in the tree of the words that the annotation names, else of all."""
        words = [self.surface[word] for word in mention.words]
        numbers = [] if mention.heads in _UNSAID else str(mention.heads).split(",")
        if not all(number.isdecimal() and len(number) < 10 and 1 <= int(number) <= len(words) for number in numbers):
            lines.number = mention.line
            what = (
                f"expected head words from 1 to {len(words)} in the mention of entity {mention.chain} that opens here"
            )
            raise InputError(f'{what}, got "{mention.heads}"')
        candidates = [words[int(number) - 1] for number in numbers] or words
        head = min(candidates, key=lambda word: depth(word, tree)) if tree else candidates[-1]
        return Mention(words[0], words[-1] + 1, head, mention.chain)


def parse(lines: Lines) -> Iterator[AnnotatedText]:
    """One text for each document; a file without `# newdoc` is one document.

    The head word of a mention is the one highest in the tree among the words that the annotation gives (`minspan`,
    `head`), else among all its words; where there is no tree, the last of these.
    """
    document: _Document | None = None
    order: _Order | None = None
    count = 0
    for sentence in sentences(lines):
        if document is None or sentence.begins_document:
            if document and document.texts:
                yield document.text(lines)
            count += 1
            document = _Document(sentence.comments.get("newdoc id") or f"{PurePath(lines.source).name}:{count}")
        if ORDER in sentence.comments:
            order = _order(sentence.comments[ORDER] or "")
        if order is None:
            missing = f'expected a comment "# {ORDER} = ..." above the first sentence, got none'
            raise InputError(f"{missing}; conllu:PATH reads files without chains")
        document.add(sentence, order, lines)
    if document and document.texts:
        yield document.text(lines)


def _order(written: str) -> _Order:
    names = written.split("-")
    entity = next((names.index(name) for name in _IDENTITY if name in names), None)
    if entity is None:
        raise InputError(f'expected {" or ".join(_IDENTITY)} in "# {ORDER} = {written}", above this sentence')
    return entity, next((names.index(name) for name in _HEADS if name in names), None)


def _joined(values: Iterable[tuple[_T, ...] | None]) -> tuple[_T, ...] | None:
    """One after another; None where one of them is."""
    columns = list(values)
    return None if None in columns else tuple(chain.from_iterable(column for column in columns if column is not None))
