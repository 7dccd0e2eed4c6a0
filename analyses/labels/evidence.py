"""What do two halves of a text, and the model's own next word, say of every head? All that a label can rest on.

One half of the documents chooses, the other reports; on each, attention is scored beside its baselines and claimed keys
are hidden. Heads that have learnt nothing, and those that read words in another order, set a bar (`null_bars`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses.behaviours import asked_of
from analyses.findings import DISCOVERY, notable
from analyses.head_tables import Collected
from analyses.labels import knockouts
from analyses.labels.costs import FEWEST
from analyses.labels.null_bars import Bars, Say, bars_of, shards_of
from analyses.labels.screen import Screen, Screened
from analyses.measures import Behaviour
from analyses.reading.samples import Sample
from analyses.shards import Shards
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
class Half:
    """What one half of the documents says of every head: attention (`tables/heads`), and knock-outs."""

    heads: pd.DataFrame
    effects: pd.DataFrame


@dataclass(frozen=True)
class Evidence:
    """Both halves of one behaviour in one kind of attention.

    `bars` says what heads that have learnt nothing reach.
    """

    behaviour: Behaviour
    choosing: Half
    reporting: Half
    bars: Bars
    effects_left_out: str | None = None  # why nothing could be knocked out
    size: tuple[int, int] = (0, 0)  # documents of each half, and words of each, in which keys were hidden
    screened: Screened | None = None  # on the choosing half; None where all effects were measured


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
    found = []
    for whole, bar in zip(collected, bars, strict=True):
        behaviour = asked_of(whole.heads, behaviours)[whole.behaviour]
        heads = [whole.half(half).table(seed=seed + half) for half in HALVES]
        reason, size, screened = None, (0, 0), None
        try:
            if len(model.config.stacks) > 1:
                raise InputError(_TWO_STACKS)
            if not isinstance(model, Transformer):
                raise InputError(_WHOLE)
            most, each = affordable(model, behaviour)
            size = documents or most, words or each
            choose = partial(candidates, behaviour, bar, heads[0])
            corpus = corpora[whole.behaviour]
            kept = shards_of(shards, corpus, whole.behaviour)
            knocked = _effects(model, behaviour, corpus, size, heads[0], choose, exact, seed, kept, say)
            effects, screened = [each.table for each in knocked], _with_missed(knocked[0])
        except InputError as error:
            effects, reason = [knockouts.NOTHING] * 2, str(error)
        choosing, reporting = map(Half, heads, effects)
        found.append(Evidence(behaviour, choosing, reporting, bar, reason, size, screened))
    return found


def affordable(model: Transformer, behaviour: Behaviour) -> tuple[int, int]:
    """Documents of each half, and words of each, that knock-outs can read for their budget: fewer in a large model."""
    weights = sum(weight.numel() for name, weight in model.named_parameters() if ".blocks." in name)
    cells = model.config.n_layers * model.config.n_heads * behaviour.cost
    words = _BUDGET / (cells * max(weights, 1) / 2)  # a cell passes through half of the blocks, on average
    documents = int(min(max(words / behaviour.words, _DOCUMENTS[0]), _DOCUMENTS[1]))
    return documents, int(min(max(words / documents, behaviour.words), _WORDS))


def _effects(
    model: Transformer,
    behaviour: Behaviour,
    corpus: Iterable[AnnotatedText],
    size: tuple[int, int],
    choosing: pd.DataFrame,
    choose: Callable[[pd.DataFrame | None], pd.DataFrame],
    exact: bool,
    seed: int,
    shards: Shards,
    say: Say,
) -> list[knockouts.Knockouts]:
    """The knock-outs of either half; on the second, keys of what a head may be labelled by are exchanged too.

    Unless all is measured, what may be chosen is measured on the first half, and what was chosen on the second.
    """
    found: list[knockouts.Knockouts] = []
    for half in HALVES:
        say(f"{behaviour.name}: knocking out", 0)
        armed = {*notable(choosing)["measure"], *moving(found[0].table)["measure"]} if found else set[str]()
        cells = choose(found[0].table if found else None)[["layer", "head", "measure"]]
        asked = {*cells.itertuples(index=False, name=None)}
        effects = knockouts.measure(
            model,
            **_read(behaviour, corpus, half, size, seed),
            armed=armed,
            screen=None if exact else Screen(asked, NOTABLE_EFFECT, choosing=not found),
            shards=shards.within(half, size, seed),
            progress=lambda texts: say(f"{behaviour.name}: knocking out", texts),
        )
        found.append(effects)
    return found


def _with_missed(choosing: knockouts.Knockouts) -> Screened | None:
    """What the screen of the choosing half left out, and how many candidates by effect a sample of it has."""
    if choosing.screened is None:
        return None
    return replace(choosing.screened, missed=int(moving(choosing.table)["sampled"].to_numpy(dtype=bool).sum()))


def candidates(
    behaviour: Behaviour, bars: Bars, heads: pd.DataFrame, effects: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Heads and measures that attention, or effect where it is known, chooses on the choosing half, and which does."""
    shown = notable(heads)
    bar = np.array([bars.get(name) for name in shown["measure"]], dtype=float)
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
