"""What is known about a text: its words, and for some texts their tags, relations and coreference chains.

Readers and generators produce `AnnotatedText`; analyses consume it. A word is addressed by its index in `words`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from interp.errors import InputError

ROOT = -1  # the head of a word that depends on nothing


@dataclass(frozen=True)
class Mention:
    """A stretch of words that refers to something, and the chain of mentions that refer to the same thing."""

    start: int  # index of the first word
    end: int  # index after the last word
    head: int  # index of the head word, start <= head < end
    chain: str  # the same for all mentions of one referent, within one text


@dataclass(frozen=True)
class AnnotatedText:
    """One text that a model reads in one piece: a sentence or a whole document.

    `tags`, `heads` and `relations` hold one value a word, or are None where the text is not annotated with them;
    `mentions` is None where coreference is not annotated, and empty where it is and there is none.
    `document` names the unit that is independent of others: intervals resample documents.

    Raises:
        InputError: lengths differ, or an index points outside the text.
    """

    words: tuple[str, ...]
    space_after: tuple[bool, ...]
    document: str
    tags: tuple[str, ...] | None = None  # universal part-of-speech tags (UPOS)
    heads: tuple[int, ...] | None = None  # index of each word's syntactic head; ROOT for none
    relations: tuple[str, ...] | None = None  # universal dependency relation of each word to its head
    mentions: tuple[Mention, ...] | None = None
    sentence_starts: tuple[int, ...] = (0,)
    target: str | None = None  # what a decoder should write of it, where that is known

    def __post_init__(self) -> None:
        n = len(self.words)
        for name in ("space_after", "tags", "heads", "relations"):
            values: Sequence[object] | None = getattr(self, name)
            if values is not None and len(values) != n:
                raise InputError(
                    f"{self.document}: {n} words but {len(values)} values in {name}; one a word is expected"
                )
        if self.heads and not all(ROOT <= head < n for head in self.heads):
            raise InputError(f"{self.document}: a head outside 0-{n - 1} (or {ROOT} for the root): {self.heads}")
        for mention in self.mentions or ():
            if not 0 <= mention.start <= mention.head < mention.end <= n:
                raise InputError(f"{self.document}: {mention} lies outside its {n} words")

    @staticmethod
    def plain(text: str, document: str, target: str | None = None) -> "AnnotatedText":
        """A text of which nothing is known but its words: what spaces separate."""
        words = tuple(text.split())
        return AnnotatedText(words, (True,) * len(words), document, target=target)

    @cached_property
    def word_spans(self) -> tuple[tuple[int, int], ...]:
        """Where each word starts and ends in `text`, in characters."""
        spans: list[tuple[int, int]] = []
        at = 0
        for word, space in zip(self.words, self.space_after, strict=True):
            spans.append((at, at + len(word)))
            at += len(word) + space
        return tuple(spans)

    @cached_property
    def text(self) -> str:
        """The words with their spaces: what the tokenizer reads."""
        pieces = (word + " " * space for word, space in zip(self.words, self.space_after, strict=True))
        return "".join(pieces).rstrip(" ")
