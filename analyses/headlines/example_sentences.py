"""Where does each head look in sentences? Words that its label is about: the surest five, and five drawn at random.

A head that goes from verbs to nouns is shown at verbs. The best are those whose strongest attention is on a noun; those
at random are drawn among all verbs that were read, so they show how often it is not. For a head without a label about
words of this text, any word may ask.
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

from analyses.headlines.facts import SEPARATOR, Fact
from analyses.measures.definitions import Behaviour, Measure
from analyses.measures.head_tables import Heads
from analyses.reading import examples
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Reading, Window, windows
from analyses.scoring.asked_words import Question, any_of, askers, questions
from analyses.wording.head_names import Place
from interp import AnnotatedText, InputError, Model
from interp.patterns import membership, pool

COLUMNS = [
    *("stack", "attention", "layer", "head", "corpus", "label", "measure", "choice"),
    *("sentence", "asks", "seen", "weight", "right", "asked", "read"),
]
_PASSAGES = 40  # each of another text
_FEWEST_WORDS = 6  # of a passage
_EXAMPLES = 5  # of each choice, for each head


class _Topic(NamedTuple):
    """The words that a head is shown at: those that measures ask, as a label has it; without measures any word."""

    behaviour: str = ""
    label: str = ""
    measures: tuple[str, ...] = ()


class _Choice(NamedTuple):
    passage: int
    words: Sequence[str]
    question: Question
    weights: Float[NDArray[np.floating], "head word"]

    def of_head(self, head: int) -> tuple[int, float, bool]:
        """The word with most of a head's attention, among those it may choose; the attention; whether it is sought."""
        candidates = sorted(self.question.candidates)
        word = candidates[int(self.weights[head, candidates].argmax())]
        weight = float(self.weights[head, word])
        return word, weight, weight > 0 and word in self.question.sought


def example_sentences(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    facts: Mapping[Place, Sequence[Fact]],
    behaviours: Mapping[str, Behaviour],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """For every head, five words that its label is about where it is surest (`best`), and five at `random`.

    `label` and `measure` are those of the head's first fact about words of the text, and say which words ask; missing
    where any word asks. `asks` and `seen` are places among the words of `sentence`; `weight` is the attention from one
    to the other, the largest to any word that may be chosen. `right` says whether the label speaks of that word. The
    best are right, with the largest weights, each of another passage. The random words are drawn among all `asked`
    words of the `read` passages, the same for all heads of a label. Attention to special tokens is left out. A model of
    two stacks has the encoder's heads; one that reads no words has no rows.
    """
    kind = Heads.kinds_of(model)[0]
    if model.tokenizer is None or not corpora:
        return pd.DataFrame(columns=COLUMNS)
    reader = _Reader(model, kind, corpora, behaviours, seed)
    heads: dict[_Topic, list[Place]] = {}
    for place in (each for each in facts if each[:2] == (kind.stack, kind.attention)):
        topics = (reader.topic(fact) for fact in facts[place] if fact.measures)
        heads.setdefault(next(filter(reader.passages, topics), _Topic()), []).append(place)
    try:
        rows = [row for topic, places in heads.items() for row in reader.rows(topic, places)]
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
        self.measures = {each.name: (name, each) for name, group in self.behaviours.items() for each in group.measures}

    def topic(self, fact: Fact) -> _Topic:
        names = tuple(name for name in fact.measures if name in self.measures)
        label = SEPARATOR.join(fact.measures) if len(names) > 1 else fact.name
        return _Topic(self.measures[names[0]][0], label, names) if names else _Topic()

    def measure(self, topic: _Topic) -> Measure | None:
        return any_of([self.measures[name][1] for name in topic.measures]) if topic.measures else None

    def corpus(self, topic: _Topic) -> Iterable[AnnotatedText]:
        return self.corpora.get(topic.behaviour, next(iter(self.corpora.values())))

    def passages(self, topic: _Topic) -> list[AnnotatedText]:
        """Passages in which the measure asks a word, one of each of the first texts that have such."""
        key = (topic.behaviour, *topic.measures[:1])
        if key not in self._passages:
            corpus, measure = self.corpus(topic), self.measure(topic)
            cut = examples.sentence
            if measure:
                cut = partial(examples.passage, holds=partial(self._has_question, measure))
            self._texts[id(corpus)], texts = tee(self._texts.get(id(corpus)) or iter(corpus))
            self._passages[key] = examples.find(self.model, texts, cut, _PASSAGES)
        return self._passages[key]

    def _has_question(self, measure: Measure, text: AnnotatedText) -> bool:
        if not measure.points or len(text.words) < _FEWEST_WORDS:
            return False
        n_ctx = self.model.config.stacks[self.kind.stack].n_ctx
        text_windows = windows(text, tokenizer_of(self.model, self.kind), n_ctx, Counter())
        return any(askers(measure, window, causal=self.kind.causal) for window in text_windows)

    def rows(self, topic: _Topic, heads: Sequence[Place]) -> Iterator[dict[str, Any]]:
        """The rows of heads that are shown at the same words."""
        passages, measure = self.passages(topic), self.measure(topic)
        choices = [*self._choices(topic, passages, measure)]
        if not choices and measure is not None:
            yield from self.rows(_Topic(), heads)
            return
        columns = {"corpus": getattr(self.corpus(topic), "name", ""), "label": topic.label or None}
        columns |= {"measure": measure.name if measure else None, "asked": len(choices), "read": len(passages)}
        sample = random.Random(self.seed).sample(choices, min(_EXAMPLES, len(choices)))
        for place in heads:
            head = place.layer * self.kind.n_heads + place.head
            for name, group in (("best", _surest(choices, head)), ("random", sample)):
                for choice in group:
                    word, weight, right = choice.of_head(head)
                    yield {
                        **place._asdict(),
                        **columns,
                        "choice": name,
                        "sentence": " ".join(each.replace(" ", "\u00a0") for each in choice.words),
                        "asks": choice.question.asker,
                        "seen": word,
                        "weight": weight,
                        "right": right if measure else None,
                    }

    def _choices(self, topic: _Topic, passages: list[AnnotatedText], measure: Measure | None) -> Iterator[_Choice]:
        causal, count = self.kind.causal, 0
        for batch in Reading(self.model, passages, heads=self.kind) if passages else ():
            weights = _between_words(batch)
            if measure is None:
                by_window = [_any_word(window, causal=causal) for window in batch.windows]
            else:
                by_window = questions(measure, topic.label, batch, causal=causal)
            for prompt, (window, group) in enumerate(zip(batch.windows, by_window, strict=True)):
                for question in group:
                    yield _Choice(count + prompt, window.text.words, question, weights[prompt, :, question.asker])
            count += len(batch.windows)


def _any_word(window: Window, *, causal: bool) -> list[Question]:
    """Every word but the first asks, and any word that it sees will do."""
    visible = {word: frozenset(key for key in window.columns if key <= word or not causal) for word in window.columns}
    return [Question(word, keys, keys) for word, keys in visible.items() if word > min(window.columns)]


def _surest(choices: Sequence[_Choice], head: int) -> list[_Choice]:
    first: dict[int, _Choice] = {}
    weighed = [(weight, choice) for choice in choices for _, weight, right in [choice.of_head(head)] if right]
    for _, choice in sorted(weighed, key=lambda pair: -pair[0]):
        first.setdefault(choice.passage, choice)
    return [*first.values()][:_EXAMPLES]


def _between_words(batch: Batch) -> Float[NDArray[np.floating], "prompt head word word2"]:
    """Attention between words: to a word it adds up over its pieces, from a word it is averaged (Clark 2019)."""
    n_words = max(len(window.text.words) for window in batch.windows)
    belongs = membership([window.word_of for window in batch.windows], n_words, batch.pattern.shape[-1])
    belongs = belongs.to(batch.pattern)
    return pool(batch.pattern, belongs, belongs).float().cpu().numpy()
