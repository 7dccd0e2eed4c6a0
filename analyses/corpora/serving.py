"""Which corpus serves which question, so that each is read once for all that it serves?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analyses.corpora.corpus import GENERATED, Corpus, read

Text = TypeVar("Text")


@dataclass(frozen=True)
class Serving:
    """A corpus, and the questions that one reading of it answers."""

    corpus: Corpus
    asked: Sequence[str]
    stands_in: bool  # generated tales, since no given corpus has the annotations


def serving(needs: Mapping[str, frozenset[str]], corpora: Sequence[Corpus]) -> list[Serving]:
    """Every question with the first corpus that annotates what it needs, or with generated tales where none does.

    Args:
        needs: by question, some of what `Corpus.annotates` may hold.
        corpora: in the order of preference.
    """
    first = {asked: next((each for each in corpora if need <= each.annotates), None) for asked, need in needs.items()}
    return [Serving(corpus or read(GENERATED), asked, corpus is None) for corpus, asked in sharing(first)]


def sharing(texts: Mapping[str, Text]) -> list[tuple[Text, list[str]]]:
    """Each text once, with all questions that are asked of it; `texts` has the text of each question."""
    found: dict[int, tuple[Text, list[str]]] = {}
    for asked, text in texts.items():
        found.setdefault(id(text), (text, []))[1].append(asked)
    return list(found.values())
