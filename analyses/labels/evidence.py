"""What do two halves of a text, and the model's own next word, say of every head? All that a label can rest on.

One half of the documents chooses, the other reports; on each, attention is scored beside its baselines and claimed keys
are hidden. Heads of three untrained models of the same shape set a bar that chance alone can reach.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analyses.behaviours import asked_of
from analyses.corpora.serving import sharing
from analyses.head_tables import Collected, Heads, gains
from analyses.labels import knockouts
from analyses.measures import Behaviour
from analyses.reading.collectors import collect
from analyses.reading.windows import Reading
from interp import AnnotatedText, InputError, Model, Transformer
from interp.initialisation import untrained
from interp.patterns import group_of

UNTRAINED = 3  # models of the same shape
_MORE_TRAINING = 10  # times the words that knock-outs read: what a probe's read-out is fitted on
_WORDS = (10, 60)  # of a document, that knock-outs read at least and at most
_DOCUMENTS = (24, 40)  # of each half, likewise
_BUDGET = 5e12  # multiply-adds that the knock-outs of one behaviour may take on each half, about
_BAR_DOCUMENTS, _BAR_WORDS = 64, 150  # what each of them reads
_WHOLE = "no causal evidence: another library runs this model as a whole, one pass for each head and claim"
_TWO_STACKS = "no causal evidence: keys are hidden in models of one stack, and this one has an encoder and a decoder"
HALVES: tuple[Literal[0], Literal[1]] = (0, 1)  # of the documents' groups: even ones choose, odd ones report
CELL = ["stack", "attention", "layer", "head", "behaviour", "measure"]
Say = Callable[[str, int], object]  # what is being done, and how often it was


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
            left = room.get(text.document, self.words)
            cut = _beginning(text, left)
            room[text.document] = left - len(cut.words) if len(cut.words) == len(text.words) else 0
            if cut.words:
                yield cut


def _beginning(text: AnnotatedText, most: int) -> AnnotatedText:
    """As many whole sentences as fit, or the first words where not even one does."""
    if len(text.words) <= most or text.target is not None:
        return text
    stops = [start for start in text.sentence_starts if 0 < start <= most]
    return text.excerpt(0, max(stops, default=most))


@dataclass(frozen=True)
class Half:
    """What one half of the documents says of every head: attention (`tables/heads`), and knock-outs."""

    heads: pd.DataFrame
    effects: pd.DataFrame


@dataclass(frozen=True)
class Evidence:
    """Both halves of one behaviour in one kind of attention.

    `bars` holds by measure the largest gain among heads of untrained models.
    """

    behaviour: Behaviour
    choosing: Half
    reporting: Half
    bars: Mapping[str, float]
    effects_left_out: str | None = None  # why nothing could be knocked out


def gather(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    collected: Sequence[Collected],
    behaviours: Mapping[str, Behaviour],
    *,
    documents: int | None = None,
    words: int | None = None,
    seed: int = 0,
    say: Say,
) -> list[Evidence]:
    """The evidence of each behaviour that was collected, a kind of attention at a time.

    Args:
        model: a transformer with a tokenizer.
        corpora: by behaviour, a text that can be read again and again.
        collected: what behaviours added up to.
        behaviours: by name, those that may be collected.
        documents: of each half, whose beginnings knock-outs read; by default as many as a budget of arithmetic allows,
            24 to 40.
        words: of each of them; likewise, 10 to 60.
        seed: of everything random.
        say: is told what is being done.
    """
    bars = _bars(model, corpora, collected, behaviours, seed, say)
    found = []
    for whole, bar in zip(collected, bars, strict=True):
        behaviour = asked_of(whole.heads, behaviours)[whole.behaviour]
        heads = [whole.half(half).table(seed=seed + half) for half in HALVES]
        reason = None
        try:
            if len(model.config.stacks) > 1:
                raise InputError(_TWO_STACKS)
            if not isinstance(model, Transformer):
                raise InputError(_WHOLE)
            most, each = affordable(model, behaviour)
            most, each = documents or most, words or each
            effects = [
                _effects(model, behaviour, corpora[whole.behaviour], half, most, each, seed + half, say)
                for half in HALVES
            ]
        except InputError as error:
            effects, reason = [pd.DataFrame(columns=knockouts.KNOCKOUT_COLUMNS)] * 2, str(error)
        choosing, reporting = map(Half, heads, effects)
        found.append(Evidence(behaviour, choosing, reporting, bar, reason))
    return found


def affordable(model: Transformer, behaviour: Behaviour) -> tuple[int, int]:
    """Documents of each half, and words of each, that knock-outs can read for their budget: fewer in a large model."""
    weights = sum(weight.numel() for name, weight in model.named_parameters() if ".blocks." in name)
    cells = model.config.n_layers * model.config.n_heads * behaviour.cost
    words = _BUDGET / (cells * max(weights, 1) / 2)  # a cell passes through half of the blocks, on average
    fewest, most = _WORDS
    documents = int(min(max(words / fewest, _DOCUMENTS[0]), _DOCUMENTS[1]))
    return documents, int(min(max(words / documents, fewest), most))


def _effects(
    model: Transformer,
    behaviour: Behaviour,
    corpus: Iterable[AnnotatedText],
    half: Literal[0, 1],
    documents: int,
    words: int,
    seed: int,
    say: Say,
) -> pd.DataFrame:
    say(f"{behaviour.name}: knocking out", 0)
    own = Sample(corpus, half, documents, words)
    other = Sample(corpus, 1 if half == 0 else 0, documents, words * _MORE_TRAINING)
    return knockouts.measure(
        model,
        own,
        behaviours=[behaviour],
        training=other,
        texts=documents * words,  # all of them
        seed=seed,
        progress=lambda texts: say(f"{behaviour.name}: knocking out", texts),
    ).table


def _bars(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    collected: Sequence[Collected],
    behaviours: Mapping[str, Behaviour],
    seed: int,
    say: Say,
) -> list[dict[str, float]]:
    """For each that was collected, by measure, the largest gain that any head of an untrained model has."""
    bars: dict[tuple[Heads, str], dict[str, float]] = {(each.heads, each.behaviour): {} for each in collected}
    for number in range(UNTRAINED):
        fresh = untrained(model, seed + number)
        for kind in dict.fromkeys(each.heads for each in collected):
            of_kind = asked_of(kind, behaviours)
            asked = {each.behaviour: corpora[each.behaviour] for each in collected if each.heads == kind}
            for corpus, names in sharing(asked):
                say("reading with untrained models", 0)
                measured = [of_kind[name] for name in names]
                bare = [each.collector(fresh, seed=seed, heads=kind, **each.bare) for each in measured]
                reading = Reading(fresh, Sample(corpus, 0, _BAR_DOCUMENTS, _BAR_WORDS), heads=kind)
                for name, found in zip(names, collect(reading, bare), strict=True):
                    if isinstance(found, Collected):
                        _raise(bars[kind, name], found)
    return list(bars.values())


def _raise(bars: dict[str, float], found: Collected) -> None:
    """Set each bar as high as the best head of one more model."""
    for scored in found.scored:
        if scored.sink == "kept":
            for measure, gained in zip(scored.measures, gains(scored, found.heads.count).T, strict=True):
                if not np.isnan(gained).all():
                    bars[measure.name] = max(bars.get(measure.name, -np.inf), float(np.nanmax(gained)))
