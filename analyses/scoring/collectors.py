"""How is a corpus read once for several questions? Each behaviour's collector sees every batch of patterns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.execution import lots
from analyses.measures.definitions import Measure
from analyses.measures.head_tables import Collected, Heads, Measured, Scored
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Progress, Reading
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number
from interp.patterns import Null, Totals
from interp.patterns.claimed import Sums
from interp.patterns.one_attention import NormWeighted
from interp.patterns.rows import SINKS

Sinks = Literal["kept", "removed"]
LOT_WORDS = 3_000  # of texts that are read in one lot, at least
UNREADABLE = 0.9  # a model to whose tokenizer more of a text is unknown has not read it


class Readings:
    """Sums of measures that have the same rivals, in some readings: heads, then rivals, and the heads' null."""

    def __init__(self, heads: Heads, measures: Sequence[Measure], sinks: Sequence[Sinks] = SINKS):
        self.measures, self.sinks, self.rivals = measures, sinks, measures[0].rivals
        shape = heads.count + len(self.rivals), len(measures)
        self.totals = {sink: Totals.empty(*shape) for sink in sinks}
        self.nulls = {sink: Null.empty(heads.count, len(measures)) for sink in sinks}

    def add_prompts(
        self, groups: Int[Tensor, " prompt"], heads: Mapping[str, Sums], rivals: Mapping[str, Sums]
    ) -> None:
        """Add what each prompt scored."""
        for sink in self.sinks:
            parts = heads[sink], rivals[sink]
            scores, counts = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("scores", "counts"))
            self.add_sums(sink, groups, scores, counts, (heads[sink].null_mean, heads[sink].null_variance))

    def add_sums(
        self,
        sink: str,
        groups: Int[Tensor, " prompt"],
        scores: Float[Tensor, "prompt scorer measure"],
        weights: Float[Tensor, "prompt scorer measure"],
        null: Sequence[Float[Tensor, "prompt head measure"]],
    ) -> None:
        """Add prompts: scores are those of heads and rivals, the null's mean and variance those of heads."""
        self.totals[sink].add(groups, scores, weights)
        self.nulls[sink].add(groups, *null)

    def state(self) -> Any:
        """What was added up, in plain values."""
        return [{sink: each.state() for sink, each in sums.items()} for sums in (self.totals, self.nulls)]

    def merge(self, state: Any) -> None:
        """Add what another added up of other texts."""
        for sums, others in zip((self.totals, self.nulls), state, strict=True):
            for sink in self.sinks:
                sums[sink].merge(others[sink])

    def scored(self) -> list[Scored]:
        """The sums of all readings."""
        return [Scored(self.totals[sink], self.measures, sink, null=self.nulls[sink]) for sink in self.sinks]


class Scoring:
    """What adds up one behaviour's measures, by `scorers` that `add` batches and say what they `scored`.

    `nothing` says what was expected where no measure had an item. A collector of `few_rows` asks for few of a text's
    rows (`Batch.attention.rows`), and never for a pattern.
    """

    few_rows = False

    def __init__(self, model: Model, behaviour: str, heads: Heads | None = None, *, nothing: str = ""):
        self.heads, self.behaviour, self.nothing = heads or Heads.from_model(model), behaviour, nothing
        self.counts: Counter[str] = Counter()
        self.scorers: Sequence[Any] = ()

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        for scorer in self.scorers:
            scorer.add(batch)

    def state(self) -> Any:
        """What was added up, in plain values."""
        return [self.counts, [scorer.state() for scorer in self.scorers]]

    def merge(self, state: Any) -> None:
        """Add what another collector of the same kind added up of other texts."""
        counts, states = state
        self.counts.update(counts)
        for scorer, part in zip(self.scorers, states, strict=True):
            scorer.merge(part)

    def scored(self) -> list[Scored]:
        """What was added up, in each reading."""
        return [part for scorer in self.scorers for part in scorer.scored()]

    def rules(self, corpus: str) -> Callable[..., pd.DataFrame] | None:
        """What gives the rows of `tables/rules`; None where heads are not compared with rules."""
        return None

    def collected(self, reading: Reading) -> Collected | InputError:
        """What was added up in the end, or why there was nothing for it."""
        try:
            scored, text_facts = self.scored(), summary(reading)
        except InputError as error:
            return error
        if self.nothing and not any(bool(part.totals.rows.any()) for part in scored):
            return InputError(self.nothing)
        counts, rules = {**reading.counts, **self.counts}, self.rules(text_facts["corpus"])
        return Collected(self.heads, self.behaviour, scored=scored, counts=counts, rules=rules, **text_facts)


def collect(reading: Reading, collectors: Sequence[Scoring]) -> list[Collected | InputError]:
    """What each collector adds up over one reading of a corpus, or why there was nothing for it."""
    read(reading, collectors)
    return collected(reading, collectors)


def read(reading: Reading, collectors: Sequence[Scoring], by_norm: Sequence[Scoring] = ()) -> None:
    """Show every batch to all collectors; to those `by_norm` as the reading's `weighted` weighs it."""
    reading.few_rows = all(collector.few_rows for collector in (*collectors, *by_norm))
    for batch in reading:
        for collector in collectors:
            collector.add(batch)
        weighed = batch.by_norm if by_norm else batch
        for collector in by_norm:
            collector.add(weighed)


def collected(reading: Reading, collectors: Sequence[Scoring]) -> list[Collected | InputError]:
    """What each collector added up in the end, or why there was nothing for it."""
    return [collector.collected(reading) for collector in collectors]


Maker = Callable[[Model], Scoring]


def collect_in_lots(
    reading: Reading, makers: Sequence[Maker], by_norm: Sequence[Maker] = ()
) -> list[Collected | InputError]:
    """What collectors add up over a corpus that is read in lots of texts, or why there was nothing for it.

    `makers` make each collector of the model, anew for each lot; those `by_norm` are of the model as `NormWeighted`
    has it, and their results follow the others'.
    """
    model, heads = reading.model, reading.read
    weighted = [NormWeighted(model, heads.stack, heads.attention)] if by_norm else []  # pyright: ignore
    collectors = [*(make(model) for make in makers), *(make(each) for each in weighted for make in by_norm)]

    def receive(result: Any) -> None:
        counts, documents, states = result
        reading.counts.update(counts)
        reading.documents |= documents
        for collector, state in zip(collectors, states, strict=True):
            collector.merge(state)

    def report(n: int, total: int | None) -> None:
        if reading.progress is not None:
            reading.progress(reading.counts["texts"])

    function = partial(_read_lot, model, heads, tuple(makers), tuple(by_norm))
    lots.do(function, ([texts] for texts in lots_of(reading.corpus)), report, receive=receive)
    if not reading.counts["texts"]:
        raise InputError("the corpus holds no text: expected at least one")
    return collected(reading, collectors)


def lots_of(corpus: Iterable[AnnotatedText]) -> Iterator[list[AnnotatedText]]:
    """The texts, as many at a time as have `LOT_WORDS` words together."""
    lot: list[AnnotatedText] = []
    words = 0
    for text in corpus:
        lot.append(text)
        words += len(text.words)
        if words >= LOT_WORDS:
            yield lot
            lot, words = [], 0
    if lot:
        yield lot


def _read_lot(
    model: Model, heads: Heads, makers: Sequence[Maker], by_norm: Sequence[Maker], texts: Sequence[AnnotatedText]
) -> list[Any]:
    weighted = NormWeighted(model, heads.stack, heads.attention) if by_norm else None  # pyright: ignore
    collectors, weighing = [make(model) for make in makers], [make(weighted) for make in by_norm]  # pyright: ignore
    reading = Reading(model, texts, heads=heads, weighted=weighted)
    read(reading, collectors, weighing)
    return [reading.counts, reading.documents, [each.state() for each in (*collectors, *weighing)]]


def measured(
    maker: Maker, model: Model, corpus: Iterable[AnnotatedText], *, seed: int = 0, progress: Progress | None = None
) -> Measured:
    """What one behaviour alone says: rows of `tables/heads`, every rival's value, and what was read and left out."""
    whole_number("seed", seed)
    (collected_sums,) = collect_in_lots(Reading(model, corpus, progress), [maker])
    if isinstance(collected_sums, InputError):
        raise collected_sums
    return collected_sums.measured(seed=seed)


def summary(reading: Reading) -> dict[str, Any]:
    """What every collector says of the text: its name, how many documents it holds, and what stands before it."""
    model, heads = reading.model, reading.read
    tokenizer = model.tokenizer if heads.attention == "cross" else tokenizer_of(model, heads)
    start = bool(tokenizer and tokenizer.prefix)
    name = getattr(reading.corpus, "name", "texts")
    return {"corpus": name, "documents": len(reading.documents), "start_token": start}


def refuse_unread(counts: Mapping[str, int], name: str) -> None:
    """A text of which the model's tokenizer knows hardly anything was not read."""
    unknown, tokens = counts.get("unknown tokens", 0), counts.get("tokens", 0)
    if tokens and unknown > UNREADABLE * tokens:
        raise InputError(
            f"{unknown:,} of the {tokens:,} tokens of {name} are unknown to this model's tokenizer: "
            "give a text that it was made for"
        )
