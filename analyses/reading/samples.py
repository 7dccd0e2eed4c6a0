"""The first words of some documents of one half of a corpus."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from interp import AnnotatedText
from interp.patterns import group_of


@dataclass(frozen=True)
class Sample:
    """The beginnings of some documents of one half of a corpus, the same in every run.

    Documents, not rows, make intervals narrow: of each only the first words are read.
    """

    corpus: Iterable[AnnotatedText]
    half: Literal[0, 1]
    documents: int
    words: int  # of each document, at most; a longer text is cut after a sentence where one ends

    def __iter__(self) -> Iterator[AnnotatedText]:
        room: dict[str, int] = {}
        for text in self.corpus:
            if group_of(text.document) % 2 != self.half:
                continue
            if text.document not in room and len(room) == self.documents:
                return
            words_left = room.get(text.document, self.words)
            cut = _beginning(text, words_left)
            room[text.document] = words_left - len(cut.words) if len(cut.words) == len(text.words) else 0
            if cut.words:
                yield cut


def _beginning(text: AnnotatedText, most: int) -> AnnotatedText:
    """As many whole sentences as fit, or the first words where not even one does."""
    if len(text.words) <= most or text.target is not None:
        return text
    stops = [start for start in text.sentence_starts if 0 < start <= most]
    return text.excerpt(0, max(stops, default=most))
