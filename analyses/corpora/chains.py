"""GUM and LitBank: documents in which brackets open and close the mentions of coreference chains.

GUM is CoNLL-U with an attribute `Entity` in the last column (CorefUD has it too). "(12-person-1" opens a mention of
entity 12, "12)" closes the last open one, "(12-person-1)" is a single word, and brackets may be joined:
"(3-place-1)12)". `# global.Entity` gives the order of the values between hyphens. A mention in parts,
"(12[1/2]-person-1 ... 12[1/2])", becomes the stretch from its first word to its last. A mention of empty nodes alone is
dropped.

LitBank has columns like CoNLL-2012, with chains in the last. Its words have no spacing, so `spacing` restores what a
tokenizer expects.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import PurePath
from typing import Any, TypeVar

from analyses.corpora.conllu import UNSAID, Row, Sentence, annotate, depth, sentences
from analyses.corpora.mentions import head_word
from analyses.corpora.reader import Lines, check_words
from interp.annotation import ROOT, AnnotatedText, Mention
from interp.errors import InputError

ORDER = "global.Entity"
_ENTITIES = re.compile(r"(\()?([^()]+)(\))?")
_ENTITY = re.compile(r"([^\[\]]+)(?:\[([0-9]{1,6})/([0-9]{1,6})\])?")
_IDENTITY = ("GRP", "eid")  # in GUM, in CorefUD
_HEADS = ("minspan", "MIN", "head")  # in GUM, in CorefUD
_AS_THEY_ARE = ("words", "space_after", "tags", "relations", "lemmas", "xpos", "feats", "misc")
_T = TypeVar("_T")
_Order = tuple[int, int | None]  # indices of the entity and of its head words among a bracket's values
_BEGIN = re.compile(r"#begin document \((.*)\)")
_BRACKET = re.compile(r"(\()?([^()|]+)(\))?")  # "(7" opens chain 7, "7)" closes it, "(7)" does both
_CLITIC = re.compile(r"n['’]t|['’](s|ll|ve|m|d|re)", re.IGNORECASE)
_CLOSING = frozenset((".", ",", ";", ":", "!", "?", "...", ")", "]", "}", "”", "’"))
_OPENING = frozenset(("(", "[", "{", "“", "‘"))
_DASHES = frozenset(("--", "—", "----"))
_MIN_COLUMNS = 12  # of CoNLL-2012; LitBank writes 13


@dataclass
class _OpenMention:
    """A mention that may still be open, perhaps in parts; words are indices in its document."""

    chain: str
    line: int  # line where it opens
    starts: list[int]
    ends: list[int] = field(default_factory=list)
    parts: int = 1
    heads: str | None = None  # the annotated head words

    @property
    def words(self) -> list[int]:
        return [word for start, end in zip(self.starts, self.ends, strict=True) for word in range(start, end)]


class _Brackets(list[_OpenMention]):
    """The mentions of a document, in the order of their opening brackets."""

    def open(self, mention: _OpenMention, part: int = 1) -> None:
        if part == 1:
            self.append(mention)
            return
        waiting = self._last(mention.chain, mention.parts, part - 1, part - 1)
        if not waiting:
            raise InputError(f"part {part} of a mention of entity {mention.chain} has no part {part - 1} before it")
        waiting.starts += mention.starts

    def close(self, chain: str, end: int, part: int = 1, parts: int = 1) -> None:
        """End a chain's last open mention, or a part of it, before the word `end`."""
        mention = self._last(chain, parts, part, part - 1)
        if not mention:
            raise InputError(f'"{chain})" closes a mention of entity {chain} that no "({chain}" opened')
        mention.ends.append(end)

    def check_closed(self, document: str, lines: Lines) -> None:
        """Refuse a mention that is never closed, at the line where it opens."""
        for mention in self:
            if len(mention.ends) < mention.parts:
                lines.number = mention.line
                problem = f"the mention of entity {mention.chain} that opens here"
                raise InputError(f"{problem} is not closed before {document} ends")

    def _last(self, *state: object) -> _OpenMention | None:
        """The last mention with this chain, number of parts, number of parts begun, and number ended."""
        states = (((each.chain, each.parts, len(each.starts), len(each.ends)), each) for each in reversed(self))
        return next((mention for mention_state, mention in states if mention_state == state), None)


def _sorted(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Mentions by start, the longest first."""
    return tuple(sorted(mentions, key=lambda mention: (mention.start, -mention.end)))


@dataclass
class _GumDocument:
    """The part of a document read so far. Its brackets count syntactic words."""

    name: str
    texts: list[AnnotatedText] = field(default_factory=list)
    surface: list[int] = field(default_factory=list)  # syntactic word: its index in the text's words
    brackets: _Brackets = field(default_factory=_Brackets)
    length: int = 0  # words so far

    def add(self, sentence: Sentence, order: _Order, lines: Lines) -> None:
        result = annotate(sentence, self.name)
        if result is None:
            return
        text, index = result
        for row in lines.last(sentence.rows):
            if isinstance(row["id"], int):
                self.surface.append(self.length + index[row["id"]])
            if (value := row["misc"].get("Entity", "")) not in UNSAID:
                self._open_and_close(value, row, order, lines)
        self.texts.append(text)
        self.length += len(text.words)
        check_words(self.length, self.name)

    def _open_and_close(self, value: str, row: Row, order: _Order, lines: Lines) -> None:
        if isinstance(row["id"], tuple) and row["id"][1] == "-":
            raise InputError(f"expected Entity at words, got it at the multiword token {row['form']}")
        brackets = _ENTITIES.findall(value)
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
                start = end - isinstance(row["id"], int)  # an empty node is not a word
                heads = values[order[1]] if order[1] is not None and order[1] < len(values) else None
                self.brackets.open(_OpenMention(match[1], lines.number, [start], parts=parts, heads=heads), part)
            if closes:
                self.brackets.close(match[1], end, part, parts)

    def text(self, lines: Lines) -> AnnotatedText:
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
            mentions=_sorted(mentions),
            sentence_starts=tuple(starts[:-1]),
            sentence_ids=ids if any(ids) else None,
            **columns,
        )

    def _mention(self, mention: _OpenMention, tree: Mapping[int, int], lines: Lines) -> Mention:
        """The mention; its head is the word highest in the tree, of those annotated as heads, else of all."""
        words = [self.surface[word] for word in mention.words]
        numbers = [] if mention.heads in UNSAID else str(mention.heads).split(",")
        if not all(number.isdecimal() and len(number) < 10 and 1 <= int(number) <= len(words) for number in numbers):
            lines.number = mention.line
            problem = f"in the mention of entity {mention.chain} that opens here"
            raise InputError(f'expected head words from 1 to {len(words)} {problem}, got "{mention.heads}"')
        candidates = [words[int(number) - 1] for number in numbers] or words
        head = min(candidates, key=lambda word: depth(word, tree)) if tree else candidates[-1]
        return Mention(words[0], words[-1] + 1, head, mention.chain)


def gum(lines: Lines) -> Iterator[AnnotatedText]:
    """One text per document; a file without `# newdoc` is one document.

    The head word of a mention is the highest in the tree among the annotated head words (`minspan`, `head`), else among
    all its words; without a tree, it is the last of these.
    """
    document: _GumDocument | None = None
    order: _Order | None = None
    count = 0
    for sentence in sentences(lines):
        if document is None or sentence.begins_document:
            if document and document.texts:
                yield document.text(lines)
            count += 1
            document = _GumDocument(sentence.comments.get("newdoc id") or f"{PurePath(lines.source).name}:{count}")
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
    """All columns joined; None if one of them is None."""
    columns = list(values)
    return None if None in columns else tuple(chain.from_iterable(column for column in columns if column is not None))


@dataclass
class _Novel:
    """The part of a document read so far."""

    name: str
    words: list[str] = field(default_factory=list)
    sentence_starts: list[int] = field(default_factory=lambda: [0])
    brackets: _Brackets = field(default_factory=_Brackets)

    def add(self, line: str, number: int) -> None:
        if not line.strip():
            if self.sentence_starts[-1] != len(self.words):
                self.sentence_starts.append(len(self.words))
            return
        columns = line.split("\t")
        if len(columns) < _MIN_COLUMNS or not columns[3]:
            expected = f"expected {_MIN_COLUMNS} columns or more between tabs, the fourth a word"
            raise InputError(f"{expected}, got {len(columns)}")
        self.words.append(columns[3])
        check_words(len(self.words), self.name)
        chains, end = columns[-1].strip(), len(self.words)
        for bracket in chains.split("|") if chains not in ("", "_", "-") else ():
            match = _BRACKET.fullmatch(bracket)
            if not match or not (match[1] or match[3]):
                raise InputError(f'expected chains like "(3", "3)" or "(3)|(5", got "{chains}"')
            if match[1]:
                self.brackets.open(_OpenMention(match[2], number, [end - 1]))
            if match[3]:
                self.brackets.close(match[2], end)

    def text(self, lines: Lines) -> AnnotatedText:
        self.brackets.check_closed(self.name, lines)
        mentions = [
            Mention(start, end, head_word(self.words, start, end), mention.chain)
            for mention in self.brackets
            for start, end in zip(mention.starts, mention.ends, strict=True)
        ]
        return AnnotatedText(
            words=tuple(self.words),
            space_after=spacing(self.words),
            document=self.name,
            mentions=_sorted(mentions),
            sentence_starts=tuple(start for start in self.sentence_starts if start < len(self.words)),
        )


def litbank(lines: Lines) -> Iterator[AnnotatedText]:
    """One text per document with words."""
    document: _Novel | None = None
    for line in chain(lines, ["#end document"]):
        text = line.rstrip("\r\n")
        begins = _BEGIN.match(text)
        if begins or text.startswith("#end document"):
            if document and document.words:
                yield document.text(lines)
            document = _Novel(begins[1]) if begins else None
        elif document:
            document.add(text, lines.number)
        elif text.strip():
            raise InputError(f'expected "#begin document (NAME); part 0" before the words, got "{text[:60]}"')


def spacing(words: Sequence[str]) -> tuple[bool, ...]:
    """Whether a space follows each word: not before closing marks and clitics, after opening marks, or around dashes.

    Straight quotes alternate between opening and closing.
    """
    glued_left, glued_right = [], []  # to the previous word, to the next word
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
