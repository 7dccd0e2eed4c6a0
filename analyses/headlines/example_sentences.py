"""Where does each head look in sentences? Words that its label is about: the surest five, and five drawn at random.

A head that goes from verbs to nouns is shown at verbs. The best are those whose strongest attention is on a noun; those
at random are drawn among all verbs that were read, so they show how often it is not. Of a head without a label, or of
which no label speaks of words of this text, any word may ask.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import tee
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray

from analyses.headlines.facts import MEASURES_APART, Fact
from analyses.measures.definitions import Behaviour, Measure
from analyses.measures.head_tables import Heads
from analyses.reading import examples
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Reading, Window, windows
from analyses.scoring.asked_words import Question, any_of, asks, questions
from analyses.wording.head_names import Place
from interp import AnnotatedText, InputError, Model
from interp.patterns import membership, pool

COLUMNS = [
    *("stack", "attention", "layer", "head", "corpus", "label", "measure", "choice"),
    *("sentence", "asks", "seen", "weight", "right", "asked", "read"),
]
_READ = 40  # passages, each of another text
_LEAST = 6  # words of a passage
_SHOWN = 5  # of each choice, for each head


class _About(NamedTuple):
    """What a head is shown at: the words that a measure asks, as a label has it; of none, any word."""

    behaviour: str = ""
    label: str = ""
    measures: tuple[str, ...] = ()


class _Choice(NamedTuple):
    """One question, and what every head gives the words of its passage."""

    passage: int
    words: Sequence[str]
    question: Question
    weights: Float[NDArray[np.floating], "head word"]

    def of_head(self, head: int) -> tuple[int, float, bool]:
        """The word with most of a head's attention, among those it may choose; the attention; whether it is sought."""
        among = sorted(self.question.among)
        seen = among[int(self.weights[head, among].argmax())]
        weight = float(self.weights[head, seen])
        return seen, weight, weight > 0 and seen in self.question.sought


def example_sentences(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    facts: Mapping[Place, Sequence[Fact]],
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
        facts: of every head, the first to be told first.
        behaviours: by name, those that were measured.
        seed: draws the words.
    """
    kind = Heads.every(model)[0]
    if model.tokenizer is None or not corpora:
        return pd.DataFrame(columns=COLUMNS)
    reader = _Reader(model, kind, corpora, behaviours, seed)
    heads: dict[_About, list[Place]] = {}
    for place in (each for each in facts if each[:2] == (kind.stack, kind.attention)):
        known = (reader.about(fact) for fact in facts[place] if fact.measures)
        heads.setdefault(next(filter(reader.passages, known), _About()), []).append(place)
    try:
        rows = [row for about, places in heads.items() for row in reader.rows(about, places)]
    except InputError:  # a library that does not show these patterns
        return pd.DataFrame(columns=COLUMNS)
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(["layer", "head"], kind="stable", ignore_index=True)


@dataclass
class _Reader:
    """Reads passages of texts, those in which a measure asks, each once for all heads."""

    model: Model
    kind: Heads
    corpora: Mapping[str, Iterable[AnnotatedText]]
    behaviours: Mapping[str, Behaviour]
    seed: int
    _passages: dict[tuple[str, ...], list[AnnotatedText]] = field(default_factory=dict)
    _texts: dict[int, Iterator[AnnotatedText]] = field(default_factory=dict)  # each corpus is read once

    def __post_init__(self):
        self.measures = {each.name: (name, each) for name, own in self.behaviours.items() for each in own.measures}

    def about(self, fact: Fact) -> _About:
        """What a fact is about; nothing of one without measures."""
        names = tuple(name for name in fact.measures if name in self.measures)
        label = MEASURES_APART.join(fact.measures) if len(names) > 1 else fact.name
        return _About(self.measures[names[0]][0], label, names) if names else _About()

    def measure(self, about: _About) -> Measure | None:
        """What asks: any of the measures."""
        return any_of([self.measures[name][1] for name in about.measures]) if about.measures else None

    def corpus(self, about: _About) -> Iterable[AnnotatedText]:
        """The text that the behaviour was measured on."""
        return self.corpora.get(about.behaviour, next(iter(self.corpora.values())))

    def passages(self, about: _About) -> list[AnnotatedText]:
        """Passages of a text in which the measure asks a word, one of each of the first texts that have such."""
        key = (about.behaviour, *about.measures[:1])
        if key not in self._passages:
            corpus, measure = self.corpus(about), self.measure(about)
            cut = partial(examples.passage, holds=partial(self._holds, measure)) if measure else examples.sentence
            self._texts[id(corpus)], texts = tee(self._texts.get(id(corpus)) or iter(corpus))
            self._passages[key] = examples.find(self.model, texts, cut, _READ)
        return self._passages[key]

    def _holds(self, measure: Measure, text: AnnotatedText) -> bool:
        if not measure.points or len(text.words) < _LEAST:
            return False
        n_ctx = self.model.config.stacks[self.kind.stack].n_ctx
        shown = windows(text, tokenizer_of(self.model, self.kind), n_ctx, Counter())
        return any(asks(measure, window, causal=self.kind.causal) for window in shown)

    def rows(self, about: _About, places: Sequence[Place]) -> Iterator[dict[str, Any]]:
        """The rows of heads that are shown at the same words."""
        passages, measure = self.passages(about), self.measure(about)
        choices = [*self._choices(about, passages, measure)]
        if not choices and measure is not None:
            yield from self.rows(_About(), places)
            return
        beside = {"corpus": getattr(self.corpus(about), "name", ""), "label": about.label or None}
        beside |= {"measure": measure.name if measure else None, "asked": len(choices), "read": len(passages)}
        drawn = random.Random(self.seed).sample(choices, min(_SHOWN, len(choices)))
        for place in places:
            head = place.layer * self.kind.n_heads + place.head
            for choice, several in (("best", _surest(choices, head)), ("random", drawn)):
                for each in several:
                    seen, weight, right = each.of_head(head)
                    sentence = " ".join(word.replace(" ", "\u00a0") for word in each.words)
                    shown = {"choice": choice, "sentence": sentence, "asks": each.question.asks, "seen": seen}
                    shown |= {"weight": weight, "right": right if measure else None}
                    yield {**place._asdict(), **beside, **shown}

    def _choices(self, about: _About, passages: list[AnnotatedText], measure: Measure | None) -> Iterator[_Choice]:
        """Every question of the passages."""
        causal, read = self.kind.causal, 0
        for batch in Reading(self.model, passages, heads=self.kind) if passages else ():
            weights = _between_words(batch)
            if measure is None:
                by_window = [_any_word(window, causal=causal) for window in batch.windows]
            else:
                by_window = questions(measure, about.label, batch, causal=causal)
            for prompt, (window, several) in enumerate(zip(batch.windows, by_window, strict=True)):
                for each in several:
                    yield _Choice(read + prompt, window.text.words, each, weights[prompt, :, each.asks])
            read += len(batch.windows)


def _any_word(window: Window, *, causal: bool) -> list[Question]:
    """Every word but the first asks, and any word that it sees will do."""
    seen = {word: frozenset(each for each in window.columns if each <= word or not causal) for word in window.columns}
    return [Question(word, own, own) for word, own in seen.items() if word > min(window.columns)]


def _surest(choices: Sequence[_Choice], head: int) -> list[_Choice]:
    """Those that are right with the largest weights, each of another passage."""
    first: dict[int, _Choice] = {}
    weights = [(each.of_head(head), each) for each in choices]
    for _, each in sorted((one for one in weights if one[0][2]), key=lambda one: -one[0][1]):
        first.setdefault(each.passage, each)
    return [*first.values()][:_SHOWN]


def _between_words(batch: Batch) -> Float[NDArray[np.floating], "prompt head word word2"]:
    """Attention between words: to a word it adds up over its pieces, from a word it is averaged (Clark 2019)."""
    n_words = max(len(window.text.words) for window in batch.windows)
    belongs = membership([window.word_of for window in batch.windows], n_words, batch.pattern.shape[-1])
    belongs = belongs.to(batch.pattern)
    return pool(batch.pattern, belongs, belongs).float().cpu().numpy()
