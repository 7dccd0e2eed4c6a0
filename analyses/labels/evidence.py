"""What do two halves of a text, and the model's own next word, say of every head? All that a label can rest on.

One half of the documents chooses, the other reports; on each, attention is scored beside its baselines and claimed keys
are hidden. Heads that have learnt nothing, and those that read words in another order, set a bar (`null_bars`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses.behaviours import asked_of
from analyses.labels import knockouts
from analyses.labels.hiding import FEWEST
from analyses.labels.null_bars import Bars, bars_of
from analyses.labels.screen import Screen, Screened
from analyses.labels.study import Study
from analyses.measures.definitions import Behaviour
from analyses.measures.findings import DISCOVERY, notable
from analyses.measures.head_tables import Collected
from analyses.reading.samples import Sample
from interp import InputError, Transformer

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


def gather(study: Study, collected: Sequence[Collected]) -> list[Evidence]:
    """The evidence of each behaviour that was collected, a kind of attention at a time."""
    model, seed = study.model, study.seed
    gathered = []
    for whole, bar in zip(collected, bars_of(study, collected), strict=True):
        behaviour = asked_of(whole.heads, study.behaviours)[whole.behaviour]
        heads = [whole.half(half).table(seed=seed + half) for half in HALVES]
        evidence = Evidence(behaviour, heads, [knockouts.NOTHING] * 2, bar)
        try:
            if len(model.config.stacks) > 1:
                raise InputError(_TWO_STACKS)
            if not isinstance(model, Transformer):
                raise InputError(_WHOLE)
            most = affordable(model, behaviour)
            evidence = replace(evidence, size=(study.documents or most[0], study.words or most[1]))
            evidence = _with_effects(model, study, evidence)
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


def _with_effects(model: Transformer, study: Study, evidence: Evidence) -> Evidence:
    """The knock-outs of either half; on the second, keys of what a head may be labelled by are exchanged too.

    Unless all is measured, what may be chosen is measured on the first half, and what was chosen on the second.
    """
    behaviour, shown = evidence.behaviour, evidence.heads[0]
    stage = f"{behaviour.name}: knocking out"

    def half(number: Literal[0, 1], chosen: pd.DataFrame, armed: Collection[str]) -> knockouts.Knockouts:
        study.say(stage, 0)
        cells = {*chosen[["layer", "head", "measure"]].itertuples(index=False, name=None)}
        return knockouts.measure(
            model,
            **_read(study, evidence, number),
            armed=armed,
            screen=None if study.exact else Screen(cells, NOTABLE_EFFECT, choosing=number == 0),
            shards=study.kept(behaviour.name).within(number, evidence.size, study.seed),
            progress=lambda texts: study.say(stage, texts),
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


def _read(study: Study, evidence: Evidence, half: Literal[0, 1], most: int | None = None) -> dict[str, Any]:
    """What knock-outs read of one half of the documents, or of `most` of these; probes are trained on the other."""
    corpus, (documents, words) = study.corpora[evidence.behaviour.name], evidence.size
    return {
        "corpus": Sample(corpus, half, min(documents, most or documents), words),
        "training": Sample(corpus, 1 if half == 0 else 0, documents, words * _MORE_TRAINING),
        "behaviours": [evidence.behaviour],
        "texts": documents * words,  # all of them
        "seed": study.seed + half,
    }


def together(
    study: Study, evidence: Evidence, heads: Sequence[tuple[str, Sequence[tuple[int, int]]]], most: int | None = None
) -> pd.DataFrame:
    """The least that changing a measure's keys in several heads at once costs (`knockouts.least`): a row for each of
    `heads`, on the reporting half, or on `most` of its documents.

    Missing where nothing could be knocked out.
    """
    if evidence.effects_left_out or not isinstance(study.model, Transformer) or not heads:
        return knockouts.least(pd.DataFrame(index=range(len(heads)), columns=knockouts.TOGETHER_COLUMNS, dtype=float))
    kept = study.kept(evidence.behaviour.name).within("together", evidence.size, most, study.seed)
    read = _read(study, evidence, 1, most)  # probes are those of all documents
    return knockouts.least(knockouts.measure_together(study.model, heads=heads, shards=kept, **read))


def moving(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of knock-outs in which hiding costs what the model says."""
    enough = effects["documents"] >= FEWEST
    return effects.loc[(effects["q"] < DISCOVERY) & (effects["effect"] >= NOTABLE_EFFECT) & enough]
