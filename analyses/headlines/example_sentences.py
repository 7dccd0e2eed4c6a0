"""Where does each head look in sentences? Words that its label is about: the surest five, and five drawn at random.

A head that goes from verbs to nouns is shown at verbs. The best are those whose strongest attention is on a noun; those
at random are drawn among all verbs that were read, so they show how often it is not. Of a head without a label, or of
which no label speaks of words of this text, any word may ask.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.asked_words import Question, any_of, asks, questions
from analyses.head_names import Place
from analyses.head_tables import Heads
from analyses.headlines.facts import MEASURES_APART, Fact
from analyses.measures import Behaviour, Measure
from analyses.reading import examples
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Reading, Window, windows
from interp import AnnotatedText, InputError, Model
from interp.patterns import membership, pool

COLUMNS = [
    *("stack", "attention", "layer", "head", "corpus", "label", "measure", "choice"),
    *("sentence", "asks", "seen", "weight", "right", "asked", "read"),
]
_READ = 40  # passages, each of another text
_LEAST = 6  # words of a passage
_SHOWN = 5  # of each choice, for each head


@dataclass(frozen=True)
class _About:
    """What a head is shown at: the words that a measure asks, as a label has it; of none, any word."""

    behaviour: str = ""
    measure: Measure | None = None
    label: str = ""


@dataclass(frozen=True)
class _Asked:
    """One question, and what every head gives the words of its passage."""

    passage: int
    words: Sequence[str]
    question: Question
    weights: Float[NDArray[np.floating], "head word"]

    def seen(self, head: int) -> int:
        """The word with most of a head's attention, among those it may choose."""
        among = sorted(self.question.among)
        return among[int(self.weights[head, among].argmax())]

    def weight(self, head: int) -> float:
        """The attention on that word."""
        return float(self.weights[head, self.seen(head)])

    def right(self, head: int) -> bool:
        """Whether it is one that is sought."""
        return self.weight(head) > 0 and self.seen(head) in self.question.sought


def example_sentences(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    found: Mapping[Place, Sequence[Fact]],
    behaviours: Mapping[str, Behaviour],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """For every head, five words that its label is about where it is surest, and five drawn at random.

    One row a head and word. `label` and `measure` say which words ask: those of the first of the head's facts that is
    about words of the text; missing where none is, and any word asks. `choice` is best or random; `asks` and `seen` are
    places of words of `sentence`, told apart by spaces; `weight` is the attention from one to the other, the largest
    of the word that asks to any among which it chooses. `right` is whether that word is one that the label speaks of,
    missing without a label. The best are right, with the largest weights, each of another passage. At random words are
    drawn among all `asked` words of the `read` passages: the same for all heads of a label. Attention to special tokens
    is not shown, so weights of a head that rests there are small.

    Of a model of two stacks the encoder's heads; nothing of a model that reads no words.

    Args:
        model: with a tokenizer.
        corpora: by behaviour, the text that it was measured on; the first is read for heads without a label.
        found: the facts of every head, the first to be told first.
        behaviours: by name, those that were measured.
        seed: draws the words.
    """
    kind = Heads.every(model)[0]
    if model.tokenizer is None or not corpora:
        return pd.DataFrame(columns=COLUMNS)
    reader, named = _Reader(model, kind, corpora, seed), _named(behaviours)
    about: dict[_About, list[Place]] = {}
    for place in (each for each in found if each[:2] == (kind.stack, kind.attention)):
        known = (named(fact) for fact in found[place] if fact.measures)
        about.setdefault(next(filter(reader.passages, known), _About()), []).append(place)
    try:
        rows = [row for each, own in about.items() for row in reader.rows(each, own)]
    except InputError:  # a library that does not show these patterns
        return pd.DataFrame(columns=COLUMNS)
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(["layer", "head"], kind="stable", ignore_index=True)


def _named(behaviours: Mapping[str, Behaviour]) -> Callable[[Fact], _About]:
    """What facts are about; equal of facts of the same label and measures."""
    known = {each.name: (name, each) for name, behaviour in behaviours.items() for each in behaviour.measures}
    made: dict[tuple[str, ...], _About] = {}

    def about(fact: Fact) -> _About:
        own = [known[name] for name in fact.measures if name in known]
        if not own:
            return _About()
        label = MEASURES_APART.join(fact.measures) if len(own) > 1 else fact.name
        return made.setdefault((label, *fact.measures), _About(own[0][0], any_of([each for _, each in own]), label))

    return about


class _Reader:
    """Reads passages of texts, those in which a measure asks, each once for all heads."""

    def __init__(self, model: Model, kind: Heads, corpora: Mapping[str, Iterable[AnnotatedText]], seed: int):
        self.model, self.kind, self.corpora, self.seed = model, kind, corpora, seed
        self.tokenizer = tokenizer_of(model, kind)
        self._passages: dict[tuple[str, str], list[AnnotatedText]] = {}
        self._texts: dict[int, tuple[list[AnnotatedText], Iterator[AnnotatedText]]] = {}

    def corpus(self, about: _About) -> Iterable[AnnotatedText]:
        """The text that the behaviour was measured on."""
        return self.corpora.get(about.behaviour, next(iter(self.corpora.values())))

    def passages(self, about: _About) -> list[AnnotatedText]:
        """Passages of a text in which the measure asks a word, one of each of the first texts that have such."""
        key = about.behaviour, about.measure.name if about.measure else ""
        if key not in self._passages:
            cut = examples.sentence
            if about.measure is not None:
                holds = partial(self._holds, about.measure) if about.measure.points else lambda text: False
                cut = partial(examples.passage, holds=holds)
            self._passages[key] = examples.find(self.model, self.texts(self.corpus(about)), cut, _READ)
        return self._passages[key]

    def texts(self, corpus: Iterable[AnnotatedText]) -> Iterator[AnnotatedText]:
        """Its texts, each read from it once and as far as anybody asks."""
        known, rest = self._texts.setdefault(id(corpus), ([], iter(corpus)))
        yield from known
        for text in rest:
            known.append(text)
            yield text

    def _holds(self, measure: Measure, text: AnnotatedText) -> bool:
        n_ctx = self.model.config.stacks[self.kind.stack].n_ctx
        shown = windows(text, self.tokenizer, n_ctx, Counter()) if len(text.words) >= _LEAST else ()
        return any(asks(measure, window, causal=self.kind.causal) for window in shown)

    def rows(self, about: _About, own: Sequence[Place]) -> Iterator[dict[str, Any]]:
        """The rows of heads that are shown at the same words."""
        asked = self._asked(about)
        if not asked and about.measure is not None:
            yield from self.rows(_About(), own)
            return
        beside = {"corpus": getattr(self.corpus(about), "name", ""), "label": about.label or None}
        beside |= {"measure": about.measure.name if about.measure else None, "asked": len(asked)}
        beside |= {"read": len(self.passages(about))}
        drawn = random.Random(self.seed).sample(asked, min(_SHOWN, len(asked)))
        for place in own:
            head = place.layer * self.kind.n_heads + place.head
            for choice, several in (("best", _surest(asked, head)), ("random", drawn)):
                for one in several:
                    yield {
                        **place._asdict(),
                        **beside,
                        "choice": choice,
                        "sentence": " ".join(word.replace(" ", "\u00a0") for word in one.words),
                        "asks": one.question.asks,
                        "seen": one.seen(head),
                        "weight": one.weight(head),
                        "right": one.right(head) if about.measure else None,
                    }

    def _asked(self, about: _About) -> list[_Asked]:
        """Every question of the passages."""
        found: list[_Asked] = []
        read = 0
        for batch in Reading(self.model, self.passages(about), heads=self.kind) if self.passages(about) else ():
            weights = _between_words(batch)
            if about.measure is None:
                asked = [_any_word(window, causal=self.kind.causal) for window in batch.windows]
            else:
                asked = questions(about.measure, about.label, batch, causal=self.kind.causal)
            for prompt, (window, own) in enumerate(zip(batch.windows, asked, strict=True)):
                words = window.text.words
                found += [_Asked(read + prompt, words, each, weights[prompt, :, each.asks]) for each in own]
            read += len(batch.windows)
        return found


def _any_word(window: Window, *, causal: bool) -> list[Question]:
    """Every word but the first asks, and any word that it sees will do."""
    seen = {word: frozenset(each for each in window.columns if each <= word or not causal) for word in window.columns}
    return [Question(word, own, own) for word, own in seen.items() if word > min(window.columns)]


def _surest(asked: Sequence[_Asked], head: int) -> list[_Asked]:
    """Those that are right with the largest weights, each of another passage."""
    found: dict[int, _Asked] = {}
    for each in sorted((one for one in asked if one.right(head)), key=lambda one: -one.weight(head)):
        found.setdefault(each.passage, each)
    return [*found.values()][:_SHOWN]


def _between_words(batch: Batch) -> Float[NDArray[np.floating], "prompt head word word2"]:
    """Attention between words: to a word it adds up over its pieces, from a word it is averaged (Clark 2019)."""
    n_words = max(len(window.text.words) for window in batch.windows)
    belongs = membership([window.word_of for window in batch.windows], n_words, batch.pattern.shape[-1])
    belongs = belongs.to(batch.pattern)
    return pool(batch.pattern, belongs, belongs).float().cpu().numpy()
