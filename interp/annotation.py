"""Annotated text: words, and perhaps their tags, lemmas, relations and coreference chains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from interp.errors import InputError

ROOT = -1  # the head of a word that depends on nothing
_BY_WORD = ("tags", "heads", "relations", "lemmas", "xpos", "feats", "misc")  # one value per word, or None


@dataclass(frozen=True)
class Mention:
    """Consecutive words that refer to something, and the chain of mentions of the same thing."""

    start: int  # index of the first word
    end: int  # index after the last word
    head: int  # index of the head word, start <= head < end
    chain: str  # the same for all mentions of a referent in the text

    def moved(self, by: int) -> "Mention":
        """The same mention, this many words later."""
        return replace(self, start=self.start + by, end=self.end + by, head=self.head + by)


class Attributes(Mapping[str, str]):
    """Names and values of one word: `text.feats[i].get("Polarity")`; a name without a value has "".

    They are kept as written, "Case=Nom|Number=Sing", because a dictionary for each word would be large.
    """

    __slots__ = ("written",)

    def __init__(self, written: str = ""):
        self.written = "" if written == "_" else written

    def _parsed(self) -> dict[str, str]:
        parts = (part.partition("=") for part in self.written.split("|"))
        return {name: value for name, _, value in parts if name not in ("", "_")}

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __hash__(self) -> int:
        return hash(frozenset(self._parsed().items()))

    def __repr__(self) -> str:
        return f'Attributes("{self.written}")'


@dataclass(frozen=True)
class AnnotatedText:
    """One text that a model reads in one piece: a sentence or a whole document.

    Annotations hold one value a word, or are None if the text has no such annotation (so are `mentions`, which are
    empty if an annotated text has none). `document` names the unit that is independent of others: intervals resample
    documents. Words are numbered by their index in `words`.
    """

    words: tuple[str, ...]
    space_after: tuple[bool, ...]
    document: str
    tags: tuple[str, ...] | None = None  # universal part-of-speech tags (UPOS)
    heads: tuple[int, ...] | None = None  # index of each word's syntactic head; ROOT for none
    relations: tuple[str, ...] | None = None  # universal dependency relation of each word to its head
    mentions: tuple[Mention, ...] | None = None
    sentence_starts: tuple[int, ...] = (0,)
    target: str | None = None  # what a decoder should write for it, if known
    # Digests of generated text read the representation, which leaves out the fields below.
    lemmas: tuple[str, ...] | None = field(default=None, repr=False)
    xpos: tuple[str, ...] | None = field(default=None, repr=False)  # the treebank's own part-of-speech tags
    feats: tuple[Attributes, ...] | None = field(default=None, repr=False)  # morphology: {"Polarity": "Neg"}
    misc: tuple[Attributes, ...] | None = field(default=None, repr=False)  # the file's other facts about a word
    sentence_ids: tuple[str, ...] | None = field(default=None, repr=False)  # one per sentence; "" if it has none
    conditions: tuple[str, ...] = field(default=(), repr=False)  # of a designed test: ("anti", "type 1")

    def __post_init__(self) -> None:
        n = len(self.words)
        for name in ("space_after", *_BY_WORD):
            values: Sequence[object] | None = getattr(self, name)
            if values is not None and len(values) != n:
                raise InputError(f"{self.document}: {n} words but {len(values)} values in {name}")
        if self.heads and not all(ROOT <= head < n for head in self.heads):
            raise InputError(f"{self.document}: a head outside 0-{n - 1} (or {ROOT} for the root): {self.heads}")
        if self.sentence_ids is not None and len(self.sentence_ids) != len(self.sentence_starts):
            raise InputError(f"{self.document}: {len(self.sentence_ids)} sentence_ids, but another number of sentences")
        for mention in self.mentions or ():
            if not 0 <= mention.start <= mention.head < mention.end <= n:
                raise InputError(f"{self.document}: {mention} lies outside its {n} words")

    @staticmethod
    def plain(text: str, document: str, target: str | None = None) -> "AnnotatedText":
        """A text without annotation; spaces separate its words."""
        words = tuple(text.split())
        return AnnotatedText(words, (True,) * len(words), document, target=target)

    @cached_property
    def word_spans(self) -> tuple[tuple[int, int], ...]:
        """The first character of each word in `text`, and the one after its last."""
        lengths = (len(word) + space for word, space in zip(self.words, self.space_after, strict=True))
        return tuple((start, start + len(word)) for start, word in zip(accumulate(lengths, initial=0), self.words))  # noqa: B905

    @cached_property
    def text(self) -> str:
        """The words with their spaces, as the tokenizer reads them."""
        pieces = (word + " " * space for word, space in zip(self.words, self.space_after, strict=True))
        return "".join(pieces).rstrip(" ")

    def excerpt(self, start: int, end: int) -> "AnnotatedText":
        """The words from `start` up to `end` with their annotations; heads and mentions outside are dropped.

        A sentence that begins before `start` has no start or id in the excerpt, unless it is the only one.
        """
        part = slice(start, end)
        columns = {name: values[part] for name in _BY_WORD if (values := getattr(self, name)) is not None}
        if self.heads is not None:
            columns["heads"] = tuple(head - start if start <= head < end else ROOT for head in self.heads[part])
        mentions = [mention for mention in self.mentions or () if start <= mention.start and mention.end <= end]
        candidates = [i for i, first in enumerate(self.sentence_starts) if first < end]
        sentences = [i for i in candidates if self.sentence_starts[i] >= start] or candidates[-1:]
        return AnnotatedText(
            words=self.words[part],
            space_after=self.space_after[part],
            document=self.document,
            conditions=self.conditions,
            mentions=None if self.mentions is None else tuple(mention.moved(-start) for mention in mentions),
            sentence_starts=tuple(max(0, self.sentence_starts[i] - start) for i in sentences) or (0,),
            sentence_ids=self.sentence_ids and (tuple(self.sentence_ids[i] for i in sentences) or None),
            **columns,
        )
