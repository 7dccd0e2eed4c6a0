"""How does a user ask a question of their own? A measure made in a line, scored beside its rivals as ours are.

    mine = Measure("verb->negation", "from a verb to its negation", pairs=negations, needs=("relations",))
    report.build(model, corpora, out, behaviours=["position", mine])

A measure of word pairs is scored as relations are (`analyses.rivals.relations`): the word that a head looks at hardest
is the one sought. A measure of claims is scored as positional ones are: the share of attention that falls on the
claimed keys.
"""

import runpy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from analyses.head_tables import Collected, Heads, Scored
from analyses.measures import Behaviour, Measure, Rival
from analyses.position import UNIFORM as EVERY_KEY
from analyses.reading.collectors import measured, summary
from analyses.reading.windows import Batch, Progress, Reading
from analyses.rivals.relations import OFFSETS, UNIFORM, Choices, ChoiceTotals, Items
from interp import AnnotatedText, InputError, Model
from interp.patterns import Null, Rows, Totals
from interp.patterns.nulls import on_set, spread
from interp.patterns.rows import REAL, SINKS

NAME = "own measures"
Pairs = Callable[[AnnotatedText], Iterable[tuple[int, int]]]


def _at(offset: int) -> Rival:
    """A pattern that looks at one offset, in tokens; a row that has no such key looks nowhere."""

    def looks(rows: Rows) -> Tensor:
        shifted = torch.eye(rows.visible.shape[-1], dtype=REAL, device=rows.visible.device).roll(offset, -1)
        inside = shifted.tril(-1) if offset < 0 else shifted.triu(1)
        return (inside * rows.visible)[:, None]

    return Rival(f"offset {offset:+d}", looks)


OF_WORDS = (UNIFORM, *OFFSETS)
OF_TOKENS = (EVERY_KEY, *map(_at, (-5, -4, -3, -2, -1, 1, 2, 3)))
"""The rivals of measures that name none."""


def own_behaviour(measures: Sequence[Measure], name: str = NAME, *, title: str = "") -> Behaviour:
    """A behaviour of a user's measures.

    Args:
        measures: of word pairs or of claims, in shares.
        name: the column `behaviour`.
        title: the heading.

    Raises:
        InputError: a measure that neither pairs words nor claims keys, or that does not count in shares.
    """
    for measure in measures:
        if not measure.points or measure.unit != "share":
            raise InputError(f"measure {measure.name}: expected `pairs` or `claims`, and the unit share")
    complete = [_with_rivals(measure) for measure in measures]
    names = [measure.name for measure in complete]
    titles = "; ".join(measure.title or measure.name for measure in complete)
    return Behaviour(
        name,
        title or name.capitalize(),
        complete,
        partial(Collector, measures=complete, behaviour=name),
        headline=names,
        needs=frozenset(need for measure in complete for need in measure.needs),
        described=f"How often, or how much, do heads look where these measures say: {titles}?",
        grids={"share": f"Which heads show {' or '.join(names[:3])}{' or others' * (len(names) > 3)}?"},
        cost=3 * len(complete),
    )


def _with_rivals(measure: Measure) -> Measure:
    null = "same distance" if measure.pairs else "any key"
    rivals = measure.rivals or (OF_WORDS if measure.pairs else OF_TOKENS)
    return replace(measure, rivals=rivals, null=null)


def as_behaviours(asked: Iterable[str | Behaviour | Measure]) -> list[str | Behaviour]:
    """What is asked for, a user's lone measures gathered into one behaviour."""
    asked = list(asked)
    alone = [each for each in asked if isinstance(each, Measure)]
    return [each for each in asked if not isinstance(each, Measure)] + ([own_behaviour(alone)] if alone else [])


def measure_pairs(
    model: Model,
    corpus: Iterable[AnnotatedText],
    pairs: Pairs,
    *,
    name: str,
    title: str = "",
    seed: int = 0,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """How often every head's most attended word, from the first of each pair, is the second: rows of `tables/heads`.

    Args:
        model: a transformer of one stack with a tokenizer.
        corpus: the texts.
        pairs: of a text, the words that ask with the words that are sought, by their places among its words.
        name: what the measure is called.
        title: the same in plain words.
        seed: of intervals.
        progress: called with the number of texts read.

    Raises:
        InputError: the corpus is empty, no text has such a pair, or the model has no tokenizer.
    """
    asked = [_with_rivals(Measure(name, title, pairs=pairs))]
    return measured(Collector(model, measures=asked), model, corpus, seed=seed, progress=progress).heads


def read_file(path: Path) -> list[str | Behaviour]:
    """The behaviours that a user's Python file makes: every `Behaviour` and `Measure` at its top level, or in the lists
    `BEHAVIOURS` and `MEASURES` where it has them.

    Raises:
        InputError: no such file, an error in it, or nothing of the kind.
    """
    if not path.is_file():
        raise InputError(f"no file {path}: expected a Python file that makes measures")
    try:
        names = runpy.run_path(str(path), run_name="measures")
    except (Exception, SystemExit) as error:  # whatever the user's own file does
        raise InputError(f"{path}: {type(error).__name__}: {error}") from error
    listed = [names[name] for name in ("BEHAVIOURS", "MEASURES") if name in names]
    made = [each for values in listed for each in values] if listed else list(names.values())
    found = [each for each in {id(each): each for each in made}.values() if isinstance(each, Behaviour | Measure)]
    if not found:
        raise InputError(f"{path}: expected a Measure or a Behaviour at the top level, found none")
    return as_behaviours(found)


class Collector:
    """Adds up measures of word pairs and of claims."""

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        heads: Heads | None = None,
        measures: Sequence[Measure] = (),
        behaviour: str = NAME,
    ):
        self.heads, self.behaviour = heads or Heads.of(model), behaviour
        self.measures = [measure for measure in measures if not (measure.later and self.heads.causal)]
        self.totals = [{sink: self._empty(measure) for sink in SINKS} for measure in self.measures]
        # a long text comes in many windows, and each asks for its pairs
        self.pairs = [lru_cache(512)(partial(_pairs, measure)) for measure in self.measures]
        self.counts: Counter[str] = Counter()

    def _empty(self, measure: Measure) -> "ChoiceTotals | _Mass":
        if measure.pairs is None:
            return _Mass(self.heads.count, measure.rivals)
        return ChoiceTotals(self.heads.count, 1, measure.rivals)

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        for measure, pairs, totals in zip(self.measures, self.pairs, self.totals, strict=True):
            if measure.pairs is None:
                read = claimed_keys(batch, measure)
            else:
                items = Items.of_pairs(batch, [replace(measure, pairs=pairs)], self.heads.causal, self.counts)
                read = Choices(batch, items) if len(items) else None
            for sink, own in totals.items():
                if isinstance(own, _Mass) and isinstance(read, Tensor):
                    own.add(batch, read, removed=sink == "removed")
                elif isinstance(own, ChoiceTotals) and isinstance(read, Choices):
                    own.read(read, sink)

    def collected(self, reading: Reading) -> Collected:
        """What was added up.

        Raises:
            InputError: no text had anything to ask.
        """
        scored = []
        for measure, by_sink in zip(self.measures, self.totals, strict=True):
            names = [rival.name for rival in measure.rivals]
            for sink in SINKS:
                totals, null = by_sink[sink].finish()
                scored.append(Scored(totals, [measure], sink, names, null=null))
        if not any(bool(part.totals.rows.any()) for part in scored):
            names = ", ".join(measure.name for measure in self.measures)
            raise InputError(f"the corpus has no item of {names} that this model shows")
        counts = {**reading.counts, **self.counts}
        return Collected(self.heads, self.behaviour, scored=scored, counts=counts, **summary(reading))


def _pairs(measure: Measure, text: AnnotatedText) -> list[tuple[int, int]]:
    assert measure.pairs is not None
    found, n = sorted({*measure.pairs(text)}), len(text.words)
    if outside := [pair for pair in found if not all(0 <= word < n for word in pair)]:
        raise InputError(
            f"measure {measure.name}: expected pairs of words 0-{n - 1} of {text.document}, got {outside[0]}"
        )
    return found


def claimed_keys(batch: Batch, measure: Measure) -> Bool[Tensor, "prompt query key"]:
    """True where a row of the batch sees a key that satisfies the measure."""
    claimed = torch.zeros_like(batch.rows.visible)
    for prompt, window in enumerate(batch.windows):
        for row, keys in measure.looks(window).items():
            claimed[prompt, row, [key for key in keys if 0 <= key < claimed.shape[-1]]] = True
    return claimed & batch.rows.visible


class _Mass:
    """Attention on claimed keys, over the rows that see any: heads, then rivals; and what permuted keys give."""

    def __init__(self, n_heads: int, rivals: Sequence[Rival]):
        self.totals, self.null, self.rivals = Totals.empty(n_heads + len(rivals), 1), Null.empty(n_heads, 1), rivals

    def finish(self) -> tuple[Totals, Null]:
        """Totals over heads and rivals, and the heads' null."""
        return self.totals, self.null

    def add(self, batch: Batch, claimed: Bool[Tensor, "prompt query key"], *, removed: bool) -> None:
        """Add a batch."""
        rows, sink, pattern = batch.rows, batch.sink, batch.pattern
        seen = rows.visible.clone()
        scale = sink.scale if removed else torch.ones_like(sink.scale)
        if removed:
            claimed, seen = claimed.clone(), seen.clone()
            claimed[..., 0], seen[..., 0] = False, False
        asks = (claimed.any(-1) & rows.scored)[:, None]
        counted = asks & (scale > 0)
        own = (pattern * claimed[:, None]).sum(-1) * scale * counted
        rules = torch.cat([rule(rows).expand(len(own), 1, -1, -1) for rule in self.rivals], 1)
        if removed:
            rules = rules * seen[:, None]
            rules = rules / rules.sum(-1, keepdim=True).clamp(min=1e-30)
        theirs = (rules * claimed[:, None]).sum(-1) * asks
        scores = torch.cat([own.sum(-1), theirs.to(own).sum(-1)], 1)[..., None]
        n_rows = torch.cat([counted.sum(-1), asks.sum(-1).expand(theirs.shape[:2])], 1)[..., None].to(scores)
        self.totals.add(batch.groups, scores, n_rows)
        mean, variance = on_set(claimed.sum(-1)[:, None].to(own), seen.sum(-1)[:, None].to(own))
        attention = pattern * seen[:, None]
        mass, squares = attention.sum(-1) * scale, attention.square().sum(-1) * scale.square()
        moved = spread(mass, squares, seen.sum(-1)[:, None].to(own))
        parts = ((mass * mean * counted).sum(-1), (moved * variance * counted).sum(-1))
        self.null.add(batch.groups, *(part[..., None] for part in parts))
