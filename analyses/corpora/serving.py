"""Which corpus serves which question, so that each is read once for all that it serves?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analyses.corpora.corpus import GENERATED, Corpus, read
from interp.errors import InputError

Text = TypeVar("Text")
_CALLED = {"tags": "tags", "relations": "dependencies", "chains": "coreference chains", "targets": "targets"}


@dataclass(frozen=True)
class Serving:
    """A corpus, and the questions that one reading of it answers."""

    corpus: Corpus
    asked: Sequence[str]
    stands_in: bool  # generated tales, since no given corpus has the annotations


def serving(needs: Mapping[str, frozenset[str]], corpora: Sequence[Corpus]) -> list[Serving]:
    """Every question with the first corpus that annotates what it needs, or with generated tales where none does.

    What is `unserved` is not among them. `needs` has by question some of what `Corpus.annotates` may hold.

    Raises:
        InputError: different corpora have the same name, by which tables and pages tell them apart.
    """
    by_name: dict[str, Corpus] = {}
    for corpus in corpora:
        if by_name.setdefault(corpus.name, corpus).digest != corpus.digest:
            raise InputError(f"two corpora are called {corpus.name}: give them names that differ, as in take(name=...)")
    skipped = unserved(needs, corpora)
    first = {
        question: next((corpus for corpus in corpora if need <= corpus.annotates), None)
        for question, need in needs.items()
        if question not in skipped
    }
    return [Serving(corpus or read(GENERATED), names, corpus is None) for corpus, names in sharing(first)]


def unserved(needs: Mapping[str, frozenset[str]], corpora: Sequence[Corpus]) -> dict[str, str]:
    """The questions that are left out, with the reason: all texts given are plain, and these need annotation.

    Who gives plain text alone asks about that text; tales stand in only for one kind of annotation beside another.
    """
    if strange := [each for each in corpora if not isinstance(each, Corpus)]:
        raise InputError(f'expected a list of corpora, as corpora.read("tales") gives each; got {strange[0]!r}')
    if not corpora or any(each.annotates for each in corpora):
        return {}
    plain, have = ", ".join(each.name for each in corpora), "has" if len(corpora) == 1 else "have"
    return {
        name: f"it needs {' and '.join(_CALLED[each] for each in sorted(need))}, and {plain} {have} no annotation; "
        'add --corpus tales (in Python corpora.read("tales")) to measure it on generated text'
        for name, need in needs.items()
        if need
    }


def sharing(texts: Mapping[str, Text]) -> list[tuple[Text, list[str]]]:
    """Each text once, with all questions that are asked of it; `texts` has the text of each question."""
    served: dict[int, tuple[Text, list[str]]] = {}
    for name, text in texts.items():
        served.setdefault(id(text), (text, []))[1].append(name)
    return list(served.values())
