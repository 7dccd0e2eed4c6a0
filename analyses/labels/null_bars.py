"""What do heads reach that have learnt nothing? The bar that the gain of a label must pass.

Heads whose W_Q and W_K keep their numbers in another order read the trained streams, as sharp as the trained ones
(`interp.patterns.shuffled`); the trained heads read the words of a text in another order under its annotation. Models
of weights N(0, 0.02²), whose heads attend to everything alike, are a third bar, which hardly anything fails.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from analyses.behaviours import asked_of
from analyses.corpora.serving import sharing
from analyses.execution.provenance import hash_of
from analyses.execution.shards import Tensors
from analyses.labels.study import Study
from analyses.measures.definitions import Behaviour
from analyses.measures.head_tables import Collected, Heads, values
from analyses.reading.samples import Sample
from analyses.reading.windows import Reading
from analyses.scoring.collectors import collect
from interp import AnnotatedText, Model, Transformer
from interp.initialisation import untrained
from interp.patterns.shuffled import Shuffled, Streams

COPIES, WORDS, SMALL = "shuffled heads", "shuffled words", "weights of N(0, 0.02²)"
N_COPIES = 40
UNTRAINED = 3  # models of the same shape
_END_AT_ONE = ("share", "correlation")  # units of measures
_LEAST_LEFT = 0.01  # of what ends at 1: nearer values count as this near
LEVEL = 0.05  # of models whose heads have learnt nothing, how many may have one above any bar
_HEADS_AT_ONCE = 64  # of copies: few, so that their patterns stay in a processor's cache
_SEPARATOR = ": "  # between a behaviour and its measure, in the name of what is kept
_DOCUMENTS, _WORDS = 32, 120  # what each of them reads, of more documents where these hold few items
_ITEMS, _MOST_DOCUMENTS = 100, 128  # of a behaviour's commonest measure: the best of a thousand heads is luck in fewer


Bars = dict[str, float]
"""By measure, the gain that heads which have learnt nothing do not reach; at least 0.

Of a measure of few items the best of a thousand heads is luck too: a finding of few items must be all the larger.
"""


@dataclass(frozen=True)
class _Null:
    """Heads that have learnt nothing, or that read nothing; their model is made when it is documents."""

    name: str
    model: Callable[[], Model]
    heads: Heads
    copies: int = 1  # that `heads` are of


def _nulls(model: Model, kind: Heads, seed: int) -> Iterator[_Null]:
    """All of them; a model that another library runs has no parts to shuffle."""
    for number in range(UNTRAINED):
        yield _Null(SMALL, partial(untrained, model, seed + number), kind)
    yield _Null(WORDS, lambda: model, kind)
    trained = model.model if isinstance(model, Shuffled) else model  # copies are judged by other copies
    if not isinstance(trained, Transformer):
        return
    kind = replace(kind, n_layers=trained.config.stacks[kind.stack].n_layers)
    streams = Streams(trained, kind.stack, kind.attention)
    lot = max(1, min(N_COPIES, _HEADS_AT_ONCE // kind.count))
    for first in range(0, N_COPIES, lot):
        copies = min(lot, N_COPIES - first)
        model_of = partial(Shuffled, trained, copies, seed + first, kind.stack, kind.attention, streams=streams)
        yield _Null(COPIES, model_of, replace(kind, n_layers=kind.n_layers * copies), copies)


def scrambled(text: AnnotatedText, seed: int) -> AnnotatedText:
    """The text's words in another order, its annotation left where it stands: what is left says nothing of words."""
    words = [*text.words]
    random.Random(f"{seed}-{text.document}").shuffle(words)
    return replace(text, words=tuple(words))


def bars_of(study: Study, collected: Sequence[Collected]) -> list[Bars]:
    """For each that was collected, what heads that have learnt nothing do not reach.

    A bar is the largest gain of any of them, or the gain that the best head of a whole copy exceeds with a probability
    of `LEVEL` over the number of measures (Bonferroni), by a Gumbel distribution with the mean and variance of the
    copies' best: the limit of maxima (Gumbel 1958, Statistics of Extremes). Of shares and correlations, which end at 1,
    the logarithm of what is left to 1 is fitted.
    """
    reached: dict[tuple[Heads, str, str], dict[str, list[Tensor]]] = {}
    by_kind = {heads: asked_of(heads, study.behaviours) for heads in dict.fromkeys(each.heads for each in collected)}
    for kind, measured in by_kind.items():
        of_kind = [each for each in collected if each.heads == kind]
        for corpus, names in sharing({each.behaviour: study.corpora[each.behaviour] for each in of_kind}):
            sample = [*Sample(corpus, 0, documents_of([each for each in of_kind if each.behaviour in names]), _WORDS)]
            seed, nulls, texts = study.seed, [*_nulls(study.model, kind, study.seed)], hash_of(sample)
            lots = [
                (
                    [kind.called, number, null.name, null.heads.n_layers, N_COPIES, seed, texts],
                    partial(_reached, null, [measured[name] for name in names], sample, seed),
                )
                for number, null in enumerate(nulls)
            ]
            progress = partial(study.say, "reading with heads that have learnt nothing")
            progress(0)
            for null, best in zip(nulls, study.shards_of(*names).measure(lots, progress), strict=True):
                for key, gained in best.items():
                    name, measure = key.split(_SEPARATOR, 1)
                    reached.setdefault((kind, name, measure), {}).setdefault(null.name, []).append(gained)
    level = LEVEL / max(len(reached), 1)
    bars: dict[tuple[Heads, str], Bars] = {(each.heads, each.behaviour): {} for each in collected}
    for (kind, name, measure), best in reached.items():
        largest = max(float(gained[0].max()) for lots in best.values() for gained in lots)
        bar = _surpassed(best.get(COPIES, []), level, ends=by_kind[kind][name][measure].unit in _END_AT_ONE)
        bars[kind, name][measure] = max(0.0, largest, bar)
    return [*bars.values()]


def _surpassed(lots: Sequence[Tensor], probability: float, *, ends: bool) -> float:
    """The gain that the next copy's best head surpasses with this probability; 0 without copies to tell it from.

    Of what `ends` at 1 the logarithm of what is left to 1 is fitted.
    """
    gained, baseline = torch.cat([*lots], 1) if lots else torch.empty(2, 0)
    gained, baseline = gained[gained.isfinite()], float(baseline.mean())
    if len(gained) < 2:
        return 0.0
    if not ends:
        return _gumbel(gained, probability)
    rest = (1 - baseline - gained).clamp(min=_LEAST_LEFT)
    return 1 - baseline - math.exp(-_gumbel(-rest.log(), probability))


def _gumbel(values: Tensor, probability: float) -> float:
    """What the next value exceeds with this probability, by a Gumbel distribution with these values' moments."""
    scale = float(values.std()) * math.sqrt(6) / math.pi
    return float(values.mean()) - scale * (np.euler_gamma + math.log(-math.log1p(-probability)))


def documents_of(collected: Sequence[Collected]) -> int:
    """How many documents hold enough items of every behaviour, if items stand everywhere alike."""
    documents = _DOCUMENTS
    for behaviour in collected:
        items = max(float(scored.totals.finish().rows[:, 0].sum(0).max()) for scored in behaviour.scored)
        tokens = behaviour.counts.get("tokens", 0) / max(behaviour.documents, 1)
        share = _WORDS / max(_WORDS, tokens)  # of each document that is read
        documents = max(documents, math.ceil(_ITEMS * behaviour.documents / max(items * share, 1)))
    return min(documents, _MOST_DOCUMENTS)


def _reached(null: _Null, measured: Sequence[Behaviour], sample: Sequence[AnnotatedText], seed: int) -> Tensors:
    """The largest gain of any head of each copy, and the baseline (`2 copy`), by behaviour and measure."""
    texts = [scrambled(text, seed) for text in sample] if null.name == WORDS else sample
    model, reached = null.model(), dict[str, Tensor]()
    bare = [each.collector(model, seed=seed, heads=null.heads, **each.bare, **each.null) for each in measured]
    results = zip(measured, collect(Reading(model, texts, heads=null.heads), bare), strict=True)
    tables = [
        (each.name, scored) for each, result in results if isinstance(result, Collected) for scored in result.scored
    ]
    for name, scored in tables:
        of_heads, baselines = values(scored, null.heads.count)
        for measure, gained, baseline in zip(scored.measures, (of_heads - baselines).T, baselines, strict=True):
            counts = measure.of_words or null.name != WORDS  # in shuffled words, where a word stands is as it was
            if scored.sink == "kept" and counts and not np.isnan(gained).all():
                by_copy = gained.reshape(-1, null.copies, null.heads.n_heads)  # copies of one layer are side by side
                best = np.nan_to_num(by_copy, nan=-np.inf).max((0, 2))
                columns = torch.tensor(np.stack([best, np.full_like(best, baseline)]))
                reached[f"{name}{_SEPARATOR}{measure.name}"] = columns
    return reached
