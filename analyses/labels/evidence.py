"""What can a label rest on? Attention and knock-outs on two halves of a text, and a bar from heads that learnt nothing.

One half of the documents chooses, the other reports. On each, we score attention with its baselines, and hide claimed
keys. Three kinds of heads set the bar. Shuffled heads have the numbers of W_Q and W_K in another order and read the
trained streams, as sharply as trained ones (`interp.patterns.shuffled`). Trained heads read a text's words in another
order, under the old annotation. Models with weights N(0, 0.02²) set a low bar that nearly everything passes.
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from analyses.behaviours import behaviours_for
from analyses.corpora.corpus import sharing
from analyses.execution import lots
from analyses.execution.progress import Stages
from analyses.labels import knockouts
from analyses.labels.hiding import FEWEST, HeadSet, Work
from analyses.labels.screen import Screen, Screened
from analyses.measures.definitions import Behaviour
from analyses.measures.findings import DISCOVERY, notable
from analyses.measures.head_tables import Collected, Heads, values
from analyses.reading.inputs import Sample
from analyses.reading.windows import Reading
from analyses.scoring.collectors import Scoring, collect
from analyses.wording.plain_words import STRATUM
from interp import AnnotatedText, InputError, Model, Transformer
from interp.patterns.shuffled import Shuffled, Streams
from models.initialisation import untrained

_CHOOSING = 0.6  # share of its documents that the choosing half reads, because choosing takes fewer than measuring
_MORE_TRAINING = 10  # probes train on this many times the words that knock-outs read
_WORDS = 60  # per document that knock-outs read, at most
_DOCUMENTS = (24, 31)  # least and most per half, likewise
_SMALL, _MOST_OF_SMALL = 1e8, 45  # models with fewer heads times weights afford more documents, up to this many
_BUDGET = 5e12  # multiply-adds for the knock-outs of one behaviour on each half, roughly
_WHOLE = "no causal evidence: another library runs this model as a whole, one pass for each head and claim"
_TWO_STACKS = "no causal evidence: keys are hidden in models of one stack, and this one has an encoder and a decoder"
NOTABLE_EFFECT = 0.01  # nats per row: the least effect for a label
HALVES: tuple[Literal[0], Literal[1]] = (0, 1)  # even groups of documents choose, odd ones report
CELL = ["stack", "attention", "layer", "head", "behaviour", "measure"]
COPIES, WORDS, SMALL = "shuffled heads", "shuffled words", "weights of N(0, 0.02²)"
N_COPIES = 40
UNTRAINED = 3  # untrained models of the same shape
_END_AT_ONE = ("share", "correlation")  # units of measures whose largest value is 1
_LEAST_LEFT = 0.01  # values nearer to 1 than this count as this near
LEVEL = 0.05  # share of models without learnt heads that may have a head above any bar
_HEADS_AT_ONCE = 64  # heads of copies per pass, so that patterns stay in a CPU's cache
_SEPARATOR = ": "  # between behaviour and measure, in names of results
_BAR_DOCUMENTS, _BAR_WORDS = 16, 120  # read for each bar; more documents if these hold few items
_FEWEST_ITEMS = 20  # items of a measure in shuffled words: with fewer, some head is right by luck
_ITEMS, _MOST_DOCUMENTS = 100, 128  # of a behaviour's commonest measure: with fewer, the best head is luck
Bars = dict[str, float]
"""By measure, the gain that heads without learnt attention stay below; at least 0."""


@dataclass(frozen=True)
class Study:
    """The arguments of `analyses.labels.label`; `corpora` and `behaviours` are keyed by behaviour."""

    model: Model
    corpora: Mapping[str, Iterable[AnnotatedText]]
    behaviours: Mapping[str, Behaviour]
    seed: int = 0
    say: Stages = field(default_factory=Stages)
    documents: int | None = None
    words: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class Evidence:
    """One behaviour in one kind of attention: tables of the choosing half, then of the reporting half."""

    behaviour: Behaviour
    heads: Sequence[pd.DataFrame]
    effects: Sequence[pd.DataFrame]
    bars: Bars
    effects_left_out: str | None = None  # why there are no knock-outs
    size: tuple[int, int] = (0, 0)  # documents per half, and words per document, that knock-outs read
    screened: Screened | None = None  # on the choosing half; None if all effects were measured


def gather(study: Study, collected: Sequence[Collected]) -> list[Evidence]:
    """The evidence for each behaviour, one kind of attention at a time."""
    model, seed = study.model, study.seed
    gathered = []
    for whole, bar in zip(collected, bars_of(study, collected), strict=True):
        behaviour = behaviours_for(whole.heads, study.behaviours)[whole.behaviour]
        heads = [whole.half(half).table(seed=seed + half) for half in HALVES]
        evidence = Evidence(behaviour, heads, [knockouts.NOTHING] * 2, bar)
        try:
            if len(model.config.stacks) > 1:
                raise InputError(_TWO_STACKS)
            if not isinstance(model, Transformer):
                raise InputError(_WHOLE)
            documents, words = affordable(model, behaviour)
            evidence = replace(evidence, size=(study.documents or documents, study.words or words))
            evidence = _with_effects(model, study, evidence)
        except InputError as error:
            evidence = replace(evidence, effects_left_out=str(error))
        gathered.append(evidence)
    return gathered


def affordable(model: Transformer, behaviour: Behaviour) -> tuple[int, int]:
    """Documents per half, and words per document, that knock-outs can afford: fewer in a large model."""
    cells = model.config.n_layers * model.config.n_heads * behaviour.cost
    words = _BUDGET / (cells * block_weights(model) / 2)  # on average, a cell's knock-out runs half of the blocks
    small = _SMALL / (model.config.n_layers * model.config.n_heads * block_weights(model))
    largest = int(min(max(small, 1.0) * _DOCUMENTS[1], _MOST_OF_SMALL))
    documents = int(min(max(words / behaviour.words, _DOCUMENTS[0]), largest))
    return documents, int(min(max(words / documents, behaviour.words), _WORDS))


def block_weights(model: Transformer) -> int:
    """The number of weights in the blocks; at least 1."""
    return max(1, sum(weight.numel() for name, weight in model.named_parameters() if ".blocks." in name))


def _with_effects(model: Transformer, study: Study, evidence: Evidence) -> Evidence:
    """Knock-outs of possible candidates on the first half, and of candidates on the second; of all heads if `exact`.

    On the second half, the keys of possible labels are also exchanged and removed.
    """
    behaviour, heads, stage = evidence.behaviour, evidence.heads[0], f"{evidence.behaviour.name}: knocking out"

    def half(number: Literal[0, 1], possible: pd.DataFrame, armed: Collection[str]) -> knockouts.Knockouts:
        study.say(stage, 0)
        narrow = replace(evidence, behaviour=_without_idle_strata(behaviour, possible))
        cells = {*possible[["layer", "head", "measure"]].itertuples(index=False, name=None)}
        return knockouts.measure(
            model,
            **_texts(study, narrow, number, math.ceil(_CHOOSING * evidence.size[0]) if number == 0 else None),
            armed=armed,
            screen=None if study.exact else Screen(cells, NOTABLE_EFFECT, choosing=number == 0),
            progress=partial(study.say, stage),
        )

    first = half(0, candidates(behaviour, evidence.bars, heads), ())
    moved, screened = moving(first.table), first.screened
    possible = candidates(behaviour, evidence.bars, heads, first.table)
    second = half(1, possible, {*notable(heads)["measure"], *moved["measure"]})
    if screened is not None:
        screened = replace(screened, missed=int(moved["sampled"].to_numpy(dtype=bool).sum()))
    return replace(evidence, effects=[first.table, _completed(second.table, first.table)], screened=screened)


def _completed(measured: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The measured rows of one half; unmeasured cells, on which no label rests, get the other half's numbers."""
    rest = measured.loc[~measured["measured"], CELL].merge(other, on=CELL)
    return pd.concat([measured.loc[measured["measured"]], rest.assign(measured=False, q=1.0)], ignore_index=True)


def _without_idle_strata(behaviour: Behaviour, possible: pd.DataFrame) -> Behaviour:
    """Drop strata in which no head stands out: what a head needs there, it also needs on all items."""
    names = {*possible["measure"]}
    measures = [each for each in behaviour.measures if STRATUM not in each.name or each.name in names]
    return replace(behaviour, measures=tuple(measures))


def candidates(
    behaviour: Behaviour, bars: Bars, heads: pd.DataFrame, effects: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Heads and measures that the choosing half proposes, by attention (`attends`) or a known effect (`moves`)."""
    findings = notable(heads)
    bar = np.array([bars.get(name, 0.0) for name in findings["measure"]], dtype=float)
    rows = findings.loc[findings["gain"].to_numpy(dtype=float) > bar, CELL].assign(attends=True, moves=False)
    if effects is not None:
        rows = pd.concat([rows, moving(effects)[CELL].assign(attends=False, moves=True)])
    fit = [behaviour[name].called is not None for name in rows["measure"]]
    return rows.loc[np.array(fit, dtype=bool)].groupby(CELL, sort=False, as_index=False).max()


def _texts(study: Study, evidence: Evidence, half: Literal[0, 1], limit: int | None = None) -> dict[str, Any]:
    """What knock-outs read in one half of the documents, or in `limit` of them; probes train on the other half."""
    corpus, (documents, words) = study.corpora[evidence.behaviour.name], evidence.size
    return {
        "corpus": Sample(corpus, half, min(documents, limit or documents), words),
        "training": Sample(corpus, 1 if half == 0 else 0, documents, words * _MORE_TRAINING),
        "behaviours": [evidence.behaviour],
        "texts": documents * words,  # all of them
        "repeats": min(knockouts.REPEATS, limit or knockouts.REPEATS),
        "seed": study.seed + half,
    }


def joint_claims(
    study: Study, evidence: Evidence, names: Sequence[str], half: Literal[0, 1], limit: int | None = None
) -> Work | None:
    """Claims of some measures on one half (of `limit` documents), for `knockouts.joint_costs`; None without any."""
    if evidence.effects_left_out or not isinstance(study.model, Transformer) or not names:
        return None
    with suppress(InputError):
        return knockouts.claims_on(study.model, names=names, **_texts(study, evidence, half, limit))
    return None


def joint_effects(
    study: Study,
    evidence: Evidence,
    heads: Sequence[tuple[str, HeadSet]],
    half: Literal[0, 1],
    limit: int | None = None,
) -> pd.DataFrame:
    """The least cost of changing a measure's keys in several heads at once (`knockouts.least`), one row per set.

    It reads one half, or `limit` of its documents. Values are missing for empty sets, and without knock-outs.
    """
    sets = {number: (name, members) for number, (name, members) in enumerate(heads) if members}
    names = [*dict.fromkeys(name for name, _ in sets.values())]
    work = joint_claims(study, evidence, names, half, limit) if sets else None
    if work is None:
        return knockouts.least(pd.DataFrame(index=range(len(heads)), columns=knockouts.TOGETHER_COLUMNS, dtype=float))
    costs = knockouts.least(knockouts.joint_costs(work, [*sets.values()]).table(study.seed + half))
    return costs.set_axis([*sets]).reindex(range(len(heads)))


def moving(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of knock-outs in which hiding the keys clearly has an effect."""
    enough = effects["documents"] >= FEWEST
    return effects.loc[(effects["q"] < DISCOVERY) & (effects["effect"] >= NOTABLE_EFFECT) & enough]


@dataclass(frozen=True)
class _Null:
    """Heads that learnt nothing, or read shuffled words; `model` makes their model."""

    name: str
    model: Callable[[], Model]
    heads: Heads
    copies: int = 1  # of the model, side by side in `heads`


@lru_cache(maxsize=1)  # copies share the streams they read
def _nulls(model: Model, kind: Heads, seed: int) -> list[_Null]:
    """Heads that set the bar; a model that another library runs has no parts to shuffle."""
    nulls = [_Null(SMALL, partial(untrained, model, seed + number), kind) for number in range(UNTRAINED)]
    nulls.append(_Null(WORDS, lambda: model, kind))
    trained = model.model if isinstance(model, Shuffled) else model  # copies are judged against other copies
    if not isinstance(trained, Transformer):
        return nulls
    kind = replace(kind, n_layers=trained.config.stacks[kind.stack].n_layers)
    streams = Streams(trained, kind.stack, kind.attention)
    at_once = max(1, min(N_COPIES, _HEADS_AT_ONCE // kind.count))
    for first in range(0, N_COPIES, at_once):
        copies = min(at_once, N_COPIES - first)
        model_of = partial(Shuffled, trained, copies, seed + first, kind.stack, kind.attention, streams=streams)
        nulls.append(_Null(COPIES, model_of, replace(kind, n_layers=kind.n_layers * copies), copies))
    return nulls


def scrambled(text: AnnotatedText, seed: int) -> AnnotatedText:
    """The text's words in another order under the same annotation, which then says nothing about them."""
    words = [*text.words]
    random.Random(f"{seed}-{text.document}").shuffle(words)
    return replace(text, words=tuple(words))


def bars_of(study: Study, collected: Sequence[Collected]) -> list[Bars]:
    """The bars of each collected behaviour.

    A bar is the largest gain of any head that learnt nothing or, if larger, the gain that the best head of a copy
    exceeds with a probability of `LEVEL` over the number of measures (Bonferroni). That gain comes from a Gumbel
    distribution, the limit of maxima, with the mean and variance of the copies' best heads (Gumbel 1958, Statistics of
    Extremes). For shares and correlations, which end at 1, we fit it to the logarithm of the distance to 1.
    """
    reached: dict[tuple[Heads, str, str], dict[str, list[Tensor]]] = {}
    by_kind = {
        heads: behaviours_for(heads, study.behaviours) for heads in dict.fromkeys(each.heads for each in collected)
    }
    for kind, measured in by_kind.items():
        of_kind = [each for each in collected if each.heads == kind]
        for corpus, names in sharing({each.behaviour: study.corpora[each.behaviour] for each in of_kind}):
            documents = documents_of([each for each in of_kind if each.behaviour in names])
            sample, seed = [*Sample(corpus, 0, documents, _BAR_WORDS)], study.seed
            makers = {
                name: (measured[name].collector, {**measured[name].bare, **measured[name].null}) for name in names
            }
            progress = partial(study.say, "reading with untrained heads")
            progress(0)
            nulls = _nulls(study.model, kind, seed)
            reach = partial(_reached, study.model, kind, makers, sample, seed)
            results = lots.do(reach, [(number,) for number in range(len(nulls))], progress)
            _nulls.cache_clear()
            for null, best in zip(nulls, results, strict=True):
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
    """The gain that the best head of another copy exceeds with this probability; 0 without copies."""
    gained, baseline = torch.cat([*lots], 1) if lots else torch.empty(2, 0)
    gained, baseline = gained[gained.isfinite()], float(baseline.mean())
    if len(gained) < 2:
        return 0.0
    values = -(1 - baseline - gained).clamp(min=_LEAST_LEFT).log() if ends else gained
    scale = float(values.std()) * math.sqrt(6) / math.pi
    bar = float(values.mean()) - scale * (np.euler_gamma + math.log(-math.log1p(-probability)))
    return 1 - baseline - math.exp(-bar) if ends else bar


def documents_of(collected: Sequence[Collected]) -> int:
    """How many documents hold enough items of every behaviour, if items are spread evenly."""
    documents = _BAR_DOCUMENTS
    for behaviour in collected:
        items = max(float(scored.totals.rows[:, 0].sum(0).max()) for scored in behaviour.scored)
        tokens = behaviour.counts.get("tokens", 0) / max(behaviour.documents, 1)
        share = _BAR_WORDS / max(_BAR_WORDS, tokens)  # of each document, that is read
        documents = max(documents, math.ceil(_ITEMS * behaviour.documents / max(items * share, 1)))
    return min(documents, _MOST_DOCUMENTS)


def _reached(
    trained: Model,
    kind: Heads,
    makers: Mapping[str, tuple[Callable[..., Scoring], Mapping[str, Any]]],
    sample: Sequence[AnnotatedText],
    seed: int,
    number: int,
) -> dict[str, Tensor]:
    """By behaviour and measure, the largest gain of any head of each copy, with its baseline (`2 copy`)."""
    null = _nulls(trained, kind, seed)[number]
    texts = [scrambled(text, seed) for text in sample] if null.name == WORDS else sample
    model, reached = null.model(), dict[str, Tensor]()
    collectors = [make(model, seed=seed, heads=null.heads, **options) for make, options in makers.values()]
    results = zip(makers, collect(Reading(model, texts, heads=null.heads), collectors), strict=True)
    tables = [(name, table) for name, result in results for table in getattr(result, "scored", ())]
    for name, scored in ((name, table) for name, table in tables if table.sink == "kept"):
        of_heads, baselines = values(scored, null.heads.count)
        items = scored.totals.rows[:, 0, : len(scored.measures)].sum(0).tolist()
        for measure, gained, baseline, n in zip(
            scored.measures, (of_heads - baselines).T, baselines, items, strict=True
        ):
            # shuffling words keeps positions, and few pronouns land where one was
            counts = null.name != WORDS or (measure.of_words and n >= _FEWEST_ITEMS)
            if counts and not np.isnan(gained).all():
                by_copy = gained.reshape(-1, null.copies, null.heads.n_heads)  # copies of a layer are side by side
                best = np.nan_to_num(by_copy, nan=-np.inf).max((0, 2))
                columns = torch.tensor(np.stack([best, np.full_like(best, baseline)]))
                reached[f"{name}{_SEPARATOR}{measure.name}"] = columns
    return reached
