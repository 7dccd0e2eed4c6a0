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
from typing import Any, NamedTuple, TypeVar

from analyses.corpora.conllu import Row, Sentence, annotate, depth, sentences, surface_words
from analyses.corpora.limits import check_words
from interp.annotation import ROOT, AnnotatedText, Mention
from interp.errors import InputError

_ORDER = "global.Entity"
_BRACKET = re.compile(r"(\()?([^()]+)(\))?")
_ENTITY = re.compile(r"([^\[\]]+)(?:\[([0-9]{1,6})/([0-9]{1,6})\])?")
_IDENTITY = ("GRP", "eid")  # GUM's name and CorefUD's
_HEADS = ("minspan", "MIN", "head")  # GUM's names and CorefUD's
_UNSAID = ("_", "", None)
_AS_THEY_ARE = ("words", "space_after", "tags", "relations", "lemmas", "xpos", "feats", "misc")

_T = TypeVar("_T")


class _Order(NamedTuple):
    """Where among the values of a bracket the entity stands, and the numbers of its head words."""

    entity: int
    heads: int | None


@dataclass
class _Mention:
    """A mention whose end may still come. Words are counted in the document as the annotation counts them."""

    entity: str
    heads: str | None  # the annotation's word numbers within the mention, from 1
    parts: int
    line: int
    starts: list[int]
    ends: list[int] = field(default_factory=list)

    def words(self) -> list[int]:
        return [word for start, end in zip(self.starts, self.ends, strict=True) for word in range(start, end)]


@dataclass
class _Document:
    """What has been read of one document."""

    name: str
    source: str
    texts: list[AnnotatedText] = field(default_factory=list)
    surface: list[int] = field(default_factory=list)  # of each syntactic word, its place among the text's words
    length: int = 0  # words of the text so far
    mentions: list[_Mention] = field(default_factory=list)  # in the order in which they open

    def add(self, sentence: Sentence, order: _Order) -> None:
        """Take in one sentence; raises with the line of the word at fault."""
        try:
            words = surface_words(sentence.rows)
            text = annotate(words, self.name, sentence.comments.get("sent_id"))
        except InputError as error:
            raise self._error(sentence.last_line, error) from error
        if text is None:
            return
        at = {number: self.length + i for i, each in enumerate(words) for number in each.numbers}
        for line, row in enumerate(sentence.rows, start=sentence.last_line - len(sentence.rows) + 1):
            is_word = isinstance(row["id"], int)
            if is_word:
                self.surface.append(at[row["id"]])
            value = row["misc"].get("Entity")
            if value in _UNSAID:
                continue
            try:
                self._read(value, row, is_word, line, order)
            except InputError as error:
                raise self._error(line, error) from error
        self.texts.append(text)
        self.length += len(words)
        check_words(self.length, self.name)

    def _error(self, line: int, what: object) -> InputError:
        return InputError(f"{self.source}, line {line}: {what}")

    def _read(self, value: str, row: Row, is_word: bool, line: int, order: _Order) -> None:
        if isinstance(row["id"], tuple) and row["id"][1] == "-":
            raise InputError(f"expected Entity at words, got it at the multiword token {row['form']}")
        brackets = _BRACKET.findall(value)
        if "".join(map("".join, brackets)) != value or not all(opens or closes for opens, _, closes in brackets):
            raise InputError(f'expected Entity like "(3-person-1", "3)" or "(3-person-1)5)", got "{value}"')
        end = len(self.surface)
        for opens, inside, closes in brackets:
            values = inside.split("-")
            place = order.entity if opens or len(values) > 1 else 0
            match = _ENTITY.fullmatch(values[place]) if place < len(values) else None
            if not match:
                raise InputError(f'expected the number of an entity, alone or as 3[1/2], in "{inside}"')
            part, parts = int(match[2] or 1), int(match[3] or 1)
            if not 1 <= part <= parts:
                raise InputError(f'expected a part like 1/2 or 2/2 of entity {match[1]}, got "{match[2]}/{match[3]}"')
            if opens:
                heads = values[order.heads] if order.heads is not None and order.heads < len(values) else None
                self._open(_Mention(match[1], heads, parts, line, [end - is_word]), part)
            if closes:
                self._close(match[1], part, parts, end)

    def _open(self, mention: _Mention, part: int) -> None:
        if part == 1:
            self.mentions.append(mention)
            return
        waiting = self._last(mention.entity, mention.parts, begun=part - 1, ended=part - 1)
        if not waiting:
            raise InputError(f"part {part} of a mention of entity {mention.entity} has no part {part - 1} before it")
        waiting.starts += mention.starts

    def _close(self, entity: str, part: int, parts: int, end: int) -> None:
        mention = self._last(entity, parts, begun=part, ended=part - 1)
        if not mention:
            raise InputError(f'"{entity})" closes a mention of entity {entity} that no "({entity}" opened')
        mention.ends.append(end)

    def _last(self, entity: str, parts: int, *, begun: int, ended: int) -> _Mention | None:
        """The last mention of an entity of which that many parts have begun and ended."""
        state = (entity, parts, begun, ended)
        found = (m for m in reversed(self.mentions) if (m.entity, m.parts, len(m.starts), len(m.ends)) == state)
        return next(found, None)

    def finish(self) -> AnnotatedText:
        """The sentences as one text."""
        for mention in self.mentions:
            if len(mention.ends) < mention.parts:
                what = f"the mention of entity {mention.entity} that opens here"
                raise self._error(mention.line, f"{what} is not closed before {self.name} ends")
        starts = list(accumulate((len(text.words) for text in self.texts), initial=0))
        heads = _joined(
            text.heads and tuple(head if head == ROOT else head + start for head in text.heads)
            for text, start in zip(self.texts, starts, strict=False)
        )
        tree = dict(enumerate(heads or ()))
        mentions = [self._mention(mention, tree) for mention in self.mentions if mention.words()]
        ids = tuple(chain.from_iterable(text.sentence_ids or ("",) for text in self.texts))
        as_they_are: dict[str, Any] = {
            name: _joined(getattr(text, name) for text in self.texts) for name in _AS_THEY_ARE
        }
        return AnnotatedText(
            document=self.name,
            heads=heads,
            mentions=tuple(sorted(mentions, key=lambda mention: (mention.start, -mention.end))),
            sentence_starts=tuple(starts[:-1]),
            sentence_ids=ids if any(ids) else None,
            **as_they_are,
        )

    def _mention(self, mention: _Mention, tree: Mapping[int, int]) -> Mention:
        words = [self.surface[word] for word in mention.words()]
        try:
            chosen = [words[number - 1] for number in _numbers(mention, len(words))] or words
        except InputError as error:
            raise self._error(mention.line, error) from error
        top = min(chosen, key=lambda word: depth(word, tree)) if tree else chosen[-1]
        return Mention(words[0], words[-1] + 1, top, mention.entity)


def recognises(line: str) -> bool:
    """Whether a comment says that the file is in this format."""
    return line.startswith(f"# {_ORDER}")


def parse(lines: Iterable[str], source: str) -> Iterator[AnnotatedText]:
    """One text for each document; a file without `# newdoc` is one document.

    The head word of a mention is the one highest in the tree among the words that the annotation gives (`minspan`,
    `head`), else among all its words; where there is no tree, the last of these.
    """
    document: _Document | None = None
    order: _Order | None = None
    count = 0
    for sentence in sentences(lines, source):
        if document is None or sentence.begins_document:
            if document and document.texts:
                yield document.finish()
            count += 1
            document = _Document(sentence.comments.get("newdoc id") or f"{PurePath(source).name}:{count}", source)
        if _ORDER in sentence.comments:
            order = _order(sentence.comments[_ORDER] or "", f"{source}, line {sentence.last_line}")
        if order is None:
            missing = f'expected a comment "# {_ORDER} = ..." above the first sentence, got none'
            raise InputError(f"{source}, line {sentence.last_line}: {missing}; conllu:PATH reads files without chains")
        document.add(sentence, order)
    if document and document.texts:
        yield document.finish()


def _order(said: str, where: str) -> _Order:
    names = said.split("-")
    entity = next((names.index(name) for name in _IDENTITY if name in names), None)
    if entity is None:
        raise InputError(f'{where}: expected {" or ".join(_IDENTITY)} in "# {_ORDER} = {said}", above this sentence')
    return _Order(entity, next((names.index(name) for name in _HEADS if name in names), None))


def _numbers(mention: _Mention, n_words: int) -> list[int]:
    """The head words that the annotation gives, as numbers from 1 within the mention."""
    if mention.heads in _UNSAID:
        return []
    numbers = str(mention.heads).split(",")
    if not all(number.isdecimal() and len(number) < 10 and 1 <= int(number) <= n_words for number in numbers):
        what = f"expected head words from 1 to {n_words} in the mention of entity {mention.entity} that opens here"
        raise InputError(f'{what}, got "{mention.heads}"')
    return [int(number) for number in numbers]


def _joined(values: Iterable[tuple[_T, ...] | None]) -> tuple[_T, ...] | None:
    """One after another; None where one of them is."""
    known = list(values)
    return None if None in known else tuple(chain.from_iterable(each for each in known if each is not None))
