"""What do heads reach that have learnt nothing? The bar that the gain of a label must pass.

Heads whose W_Q and W_K keep their numbers in another order read the trained streams, as sharp as the trained ones
(`interp.patterns.shuffled`); the trained heads read the words of a text in another order under its annotation. Models
of weights N(0, 0.02²), whose heads attend to everything alike, are a third bar, which hardly anything fails.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyses.behaviours import asked_of
from analyses.corpora.serving import sharing
from analyses.head_tables import Collected, Heads, gains
from analyses.measures import Behaviour
from analyses.reading.collectors import collect
from analyses.reading.samples import Sample
from analyses.reading.windows import Reading
from interp import AnnotatedText, Model, Transformer
from interp.initialisation import untrained
from interp.patterns.shuffled import Shuffled

COPIES, WORDS, SMALL = "shuffled heads", "shuffled words", "weights of N(0, 0.02²)"
N_COPIES = 40
UNTRAINED = 3  # models of the same shape
_HEADS_AT_ONCE = 64  # of copies: few, so that their patterns stay in a processor's cache
_DOCUMENTS, _WORDS = 32, 120  # what each of them reads
Say = Callable[[str, int], object]  # what is being done, and how often it was


class Bars:
    """By kind of heads that have learnt nothing and measure, the largest gain of any of them.

    Of a measure of few items the best of a thousand heads is luck too: a finding of few items must be all the larger.
    """

    def __init__(self) -> None:
        self.by: dict[str, dict[str, float]] = {COPIES: {}, WORDS: {}, SMALL: {}}

    def add(self, null: str, found: Collected, behaviour: Behaviour) -> None:
        """Set each bar as high as the best head of one more reading."""
        own = self.by[null]
        for scored in (each for each in found.scored if each.sink == "kept"):
            for measure, gained in zip(scored.measures, gains(scored, found.heads.count).T, strict=True):
                as_it_was = null == WORDS and not behaviour[measure.name].of_words  # where a word stands
                if not as_it_was and not np.isnan(gained).all():
                    own[measure.name] = max(own.get(measure.name, -np.inf), float(np.nanmax(gained)))

    def get(self, measure: str) -> float:
        """What a gain must exceed: what shuffled heads and shuffled words reach, and at least nothing."""
        return max(0.0, *(own.get(measure, 0.0) for own in self.by.values()))


@dataclass(frozen=True)
class _Null:
    """Heads that have learnt nothing, or that read nothing."""

    name: str
    model: Model
    heads: Heads


def _nulls(model: Model, kind: Heads, seed: int) -> Iterator[_Null]:
    """All of them; a model that another library runs has no parts to shuffle."""
    for number in range(UNTRAINED):
        yield _Null(SMALL, untrained(model, seed + number), kind)
    yield _Null(WORDS, model, kind)
    model = model.model if isinstance(model, Shuffled) else model  # copies are judged by other copies
    if not isinstance(model, Transformer):
        return
    kind = replace(kind, n_layers=model.config.stacks[kind.stack].n_layers)
    at_once = max(1, min(N_COPIES, _HEADS_AT_ONCE // kind.count))
    for first in range(0, N_COPIES, at_once):
        copies = min(at_once, N_COPIES - first)
        shuffled = Shuffled(model, copies, seed + first, kind.stack, kind.attention)
        yield _Null(COPIES, shuffled, replace(kind, n_layers=kind.n_layers * copies))


def scrambled(text: AnnotatedText, seed: int) -> AnnotatedText:
    """The text's words in another order, its annotation left where it stands: what is left says nothing of words."""
    words = [*text.words]
    random.Random(f"{seed}-{text.document}").shuffle(words)
    return replace(text, words=tuple(words))


def bars_of(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    collected: Sequence[Collected],
    behaviours: Mapping[str, Behaviour],
    seed: int,
    say: Say,
) -> list[Bars]:
    """For each that was collected, what heads reach that have learnt nothing."""
    bars: dict[tuple[Heads, str], Bars] = {(each.heads, each.behaviour): Bars() for each in collected}
    for kind in dict.fromkeys(each.heads for each in collected):
        of_kind = asked_of(kind, behaviours)
        asked = {each.behaviour: corpora[each.behaviour] for each in collected if each.heads == kind}
        for corpus, names in sharing(asked):
            sample = list(Sample(corpus, 0, _DOCUMENTS, _WORDS))
            for null in _nulls(model, kind, seed):
                say(f"reading with {null.name}", 0)
                texts = [scrambled(text, seed) for text in sample] if null.name == WORDS else sample
                measured = [of_kind[name] for name in names]
                bare = [each.collector(null.model, seed=seed, heads=null.heads, **each.bare) for each in measured]
                for name, found in zip(names, collect(Reading(null.model, texts, heads=null.heads), bare), strict=True):
                    if isinstance(found, Collected):
                        bars[kind, name].add(null.name, found, of_kind[name])
    return list(bars.values())
