"""What do two halves of a text, and the model's own next word, say of every head? All that a label can rest on.

One half of the documents chooses, the other reports; on each, attention is scored beside its baselines and claimed keys
are hidden. Heads that have learnt nothing, and those that read words in another order, set a bar (`null_bars`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses.behaviours import asked_of
from analyses.execution.shards import Shards
from analyses.labels import knockouts
from analyses.labels.hiding import FEWEST
from analyses.labels.null_bars import Bars, Say, bars_of, shards_of
from analyses.labels.screen import Screen, Screened
from analyses.measures import Behaviour
from analyses.reading.samples import Sample
from analyses.tables.findings import DISCOVERY, notable
from analyses.tables.head_tables import Collected
from interp import AnnotatedText, InputError, Model, Transformer

_MORE_TRAINING = 10  # times the words that knock-outs read: what a probe's read-out is fitted on
_WORDS = 60  # of a document, that knock-outs read at most
_DOCUMENTS = (24, 40)  # of each half, likewise
_BUDGET = 5e12  # multiply-adds that the knock-outs of one behaviour may take on each half, about
_WHOLE = "no causal evidence: another library runs this model as a whole, one pass for each head and claim"
_TWO_STACKS = "no causal evidence: keys are hidden in models of one stack, and this one has an encoder and a decoder"
NOTABLE_EFFECT = 0.01  # nats a row: the least effect that makes a label
HALVES: tuple[Literal[0], Literal[1]] = (0, 1)  # of the documents' groups: even ones choose, odd ones report
CELL = ["stack", "attention", "layer", "head", "behaviour", "measure"]


@dataclass(frozen=True)
class Evidence:
    """Both halves of one behaviour in one kind of attention: what each says of every head.

    heads             rows of `tables/heads` of the half that chooses, and of the one that reports
    effects           knock-outs, likewise
    bars              what heads that have learnt nothing stay below
    effects_left_out  why nothing could be knocked out
    size              documents of each half, and words of each, in which keys were hidden
    screened          on the half that chooses; None where all effects were measured
    """

    behaviour: Behaviour
    heads: Sequence[pd.DataFrame]
    effects: Sequence[pd.DataFrame]
    bars: Bars
    effects_left_out: str | None = None
    size: tuple[int, int] = (0, 0)
    screened: Screened | None = None

    def candidates(self) -> pd.DataFrame:
        """Heads and measures that the half that chooses does choose."""
        return candidates(self.behaviour, self.bars, self.heads[0], self.effects[0])


def gather(
    model: Model,
    corpora: Mapping[str, Iterable[AnnotatedText]],
    collected: Sequence[Collected],
    behaviours: Mapping[str, Behaviour],
    *,
    documents: int | None = None,
    words: int | None = None,
    exact: bool = False,
    seed: int = 0,
    shards: Shards,
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
        exact: measure all effects; by default only those that can change a label (`analyses.labels.screen`).
        seed: of everything random.
        shards: where what was measured before is found, and what is measured is kept.
        say: is told what is being done.
    """
    bars = bars_of(model, corpora, collected, behaviours, seed, shards, say)
    gathered = []
    for whole, bar in zip(collected, bars, strict=True):
        behaviour = asked_of(whole.heads, behaviours)[whole.behaviour]
        evidence = Evidence(
            behaviour, [whole.half(half).table(seed=seed + half) for half in HALVES], [knockouts.NOTHING] * 2, bar
        )
        try:
            if len(model.config.stacks) > 1:
                raise InputError(_TWO_STACKS)
            if not isinstance(model, Transformer):
                raise InputError(_WHOLE)
            most = affordable(model, behaviour)
            evidence = replace(evidence, size=(documents or most[0], words or most[1]))
            evidence = _with_effects(model, evidence, corpora[whole.behaviour], exact, seed, shards, say)
        except InputError as error:
            evidence = replace(evidence, effects_left_out=str(error))
        gathered.append(evidence)
    return gathered


def affordable(model: Transformer, behaviour: Behaviour) -> tuple[int, int]:
    """Documents of each half, and words of each, that knock-outs can read for their budget: fewer in a large model."""
    weights = sum(weight.numel() for name, weight in model.named_parameters() if ".blocks." in name)
    cells = model.config.n_layers * model.config.n_heads * behaviour.cost
    words = _BUDGET / (cells * max(weights, 1) / 2)  # a cell passes through half of the blocks, on average
    documents = int(min(max(words / behaviour.words, _DOCUMENTS[0]), _DOCUMENTS[1]))
    return documents, int(min(max(words / documents, behaviour.words), _WORDS))


def _with_effects(
    model: Transformer,
    evidence: Evidence,
    corpus: Iterable[AnnotatedText],
    exact: bool,
    seed: int,
    shards: Shards,
    say: Say,
) -> Evidence:
    """The knock-outs of either half; on the second, keys of what a head may be labelled by are exchanged too.

    Unless all is measured, what may be chosen is measured on the first half, and what was chosen on the second.
    """
    behaviour, shown = evidence.behaviour, evidence.heads[0]
    kept = shards_of(shards, corpus, behaviour.name)
    stage = f"{behaviour.name}: knocking out"

    def half(number: Literal[0, 1], chosen: pd.DataFrame, armed: Collection[str]) -> knockouts.Knockouts:
        say(stage, 0)
        cells = {*chosen[["layer", "head", "measure"]].itertuples(index=False, name=None)}
        return knockouts.measure(
            model,
            **_read(behaviour, corpus, number, evidence.size, seed),
            armed=armed,
            screen=None if exact else Screen(cells, NOTABLE_EFFECT, choosing=number == 0),
            shards=kept.within(number, evidence.size, seed),
            progress=lambda texts: say(stage, texts),
        )

    first = half(0, candidates(behaviour, evidence.bars, shown), ())
    moved, screened = moving(first.table), first.screened
    chosen = candidates(behaviour, evidence.bars, shown, first.table)
    second = half(1, chosen, {*notable(shown)["measure"], *moved["measure"]})
    if screened is not None:
        screened = replace(screened, missed=int(moved["sampled"].to_numpy(dtype=bool).sum()))
    return replace(evidence, effects=[first.table, second.table], screened=screened)


def candidates(
    behaviour: Behaviour, bars: Bars, heads: pd.DataFrame, effects: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Heads and measures that attention, or effect where it is known, chooses on the choosing half, and which does."""
    shown = notable(heads)
    bar = np.array([bars.get(name, 0.0) for name in shown["measure"]], dtype=float)
    rows = shown.loc[shown["gain"].to_numpy(dtype=float) > bar, CELL].assign(attends=True, moves=False)
    if effects is not None:
        rows = pd.concat([rows, moving(effects)[CELL].assign(attends=False, moves=True)])
    fit = [behaviour[name].called is not None for name in rows["measure"]]
    return rows.loc[np.array(fit, dtype=bool)].groupby(CELL, sort=False, as_index=False).max()


def _read(
    behaviour: Behaviour, corpus: Iterable[AnnotatedText], half: Literal[0, 1], size: tuple[int, int], seed: int
) -> dict[str, Any]:
    """What knock-outs read of one half of the documents; probes are trained on the other."""
    documents, words = size
    return {
        "corpus": Sample(corpus, half, documents, words),
        "training": Sample(corpus, 1 if half == 0 else 0, documents, words * _MORE_TRAINING),
        "behaviours": [behaviour],
        "texts": documents * words,  # all of them
        "seed": seed + half,
    }


def together(
    model: Model,
    corpus: Iterable[AnnotatedText],
    evidence: Evidence,
    heads: Sequence[tuple[str, Sequence[tuple[int, int]]]],
    seed: int,
    shards: Shards,
    most: int | None = None,
) -> pd.DataFrame:
    """The least that changing a measure's keys in several heads at once costs (`knockouts.least`): a row for each of
    `heads`, on the reporting half, or on `most` of its documents.

    Missing where nothing could be knocked out.
    """
    if evidence.effects_left_out or not isinstance(model, Transformer) or not heads:
        return knockouts.least(pd.DataFrame(index=range(len(heads)), columns=knockouts.TOGETHER_COLUMNS, dtype=float))
    documents, words = evidence.size
    read = _read(evidence.behaviour, corpus, 1, evidence.size, seed)
    read["corpus"] = Sample(corpus, 1, min(documents, most or documents), words)  # probes are those of all documents
    kept = shards_of(shards, corpus, evidence.behaviour.name).within("together", evidence.size, most, seed)
    return knockouts.least(knockouts.measure_together(model, heads=heads, shards=kept, **read))


def moving(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of knock-outs in which hiding costs what the model says."""
    enough = effects["documents"] >= FEWEST
    return effects.loc[(effects["q"] < DISCOVERY) & (effects["effect"] >= NOTABLE_EFFECT) & enough]
