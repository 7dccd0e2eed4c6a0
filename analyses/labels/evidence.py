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

    `heads` and `effects` are tables of the half that chooses, and of the one that reports.
    """

    behaviour: Behaviour
    heads: Sequence[pd.DataFrame]
    effects: Sequence[pd.DataFrame]
    bars: Bars
    effects_left_out: str | None = None  # why nothing could be knocked out
    size: tuple[int, int] = (0, 0)  # documents of each half, and words of each, in which keys were hidden
    screened: Screened | None = None  # on the half that chooses; None where all effects were measured

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
            documents, words = affordable(model, behaviour)
            evidence = replace(evidence, size=(study.documents or documents, study.words or words))
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
    behaviour, heads = evidence.behaviour, evidence.heads[0]
    stage = f"{behaviour.name}: knocking out"

    def half(number: Literal[0, 1], candidates: pd.DataFrame, armed: Collection[str]) -> knockouts.Knockouts:
        study.say(stage, 0)
        cells = {*candidates[["layer", "head", "measure"]].itertuples(index=False, name=None)}
        return knockouts.measure(
            model,
            **_texts(study, evidence, number),
            armed=armed,
            screen=None if study.exact else Screen(cells, NOTABLE_EFFECT, choosing=number == 0),
            shards=study.shards_of(behaviour.name).narrow(number, evidence.size, study.seed),
            progress=lambda texts: study.say(stage, texts),
        )

    first = half(0, candidates(behaviour, evidence.bars, heads), ())
    moved, screened = moving(first.table), first.screened
    second = half(
        1,
        candidates(behaviour, evidence.bars, heads, first.table),
        {*notable(heads)["measure"], *moved["measure"]},
    )
    if screened is not None:
        screened = replace(screened, missed=int(moved["sampled"].to_numpy(dtype=bool).sum()))
    return replace(evidence, effects=[first.table, second.table], screened=screened)


def candidates(
    behaviour: Behaviour, bars: Bars, heads: pd.DataFrame, effects: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Heads and measures that attention, or effect where it is known, chooses on the choosing half, and which does."""
    findings = notable(heads)
    bar = np.array([bars.get(name, 0.0) for name in findings["measure"]], dtype=float)
    rows = findings.loc[findings["gain"].to_numpy(dtype=float) > bar, CELL].assign(attends=True, moves=False)
    if effects is not None:
        rows = pd.concat([rows, moving(effects)[CELL].assign(attends=False, moves=True)])
    fit = [behaviour[name].called is not None for name in rows["measure"]]
    return rows.loc[np.array(fit, dtype=bool)].groupby(CELL, sort=False, as_index=False).max()


def _texts(study: Study, evidence: Evidence, half: Literal[0, 1], limit: int | None = None) -> dict[str, Any]:
    """What knock-outs read of one half of the documents, or of `limit` of these; probes are trained on the other."""
    corpus, (documents, words) = study.corpora[evidence.behaviour.name], evidence.size
    return {
        "corpus": Sample(corpus, half, min(documents, limit or documents), words),
        "training": Sample(corpus, 1 if half == 0 else 0, documents, words * _MORE_TRAINING),
        "behaviours": [evidence.behaviour],
        "texts": documents * words,  # all of them
        "seed": study.seed + half,
    }


def joint_effects(
    study: Study, evidence: Evidence, heads: Sequence[tuple[str, Sequence[tuple[int, int]]]], limit: int | None = None
) -> pd.DataFrame:
    """The least that changing a measure's keys in several heads at once costs (`knockouts.least`), by set of heads.

    On the reporting half, or on `limit` of its documents; missing where nothing could be knocked out.
    """
    if evidence.effects_left_out or not isinstance(study.model, Transformer) or not heads:
        return knockouts.least(pd.DataFrame(index=range(len(heads)), columns=knockouts.TOGETHER_COLUMNS, dtype=float))
    shards = study.shards_of(evidence.behaviour.name).narrow("together", evidence.size, limit, study.seed)
    texts = _texts(study, evidence, 1, limit)  # probes are those of all documents
    return knockouts.least(knockouts.measure_together(study.model, heads=heads, shards=shards, **texts))


def moving(effects: pd.DataFrame) -> pd.DataFrame:
    """The rows of knock-outs in which hiding costs what the model says."""
    enough = effects["documents"] >= FEWEST
    return effects.loc[(effects["q"] < DISCOVERY) & (effects["effect"] >= NOTABLE_EFFECT) & enough]
