"""How do we read a corpus once for several questions? Each behaviour's collector sees every batch of patterns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analyses.execution import lots
from analyses.measures.definitions import Measure
from analyses.measures.head_tables import Collected, Heads, Measured, Scored
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Progress, Reading
from analyses.scoring.rules import Records, followed
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number
from interp.patterns import Null, Totals
from interp.patterns.claimed import Sums
from interp.patterns.one_attention import NormWeighted
from interp.patterns.rows import SINKS

Sinks = Literal["kept", "removed"]
LOT_WORDS = 3_000  # words per lot of texts, at least
UNREADABLE = 0.9  # if more of a text's tokens are unknown, the model cannot read it


class Summed:
    """Adds up `parts`, which return a `state` of plain values and `merge` states from other texts."""

    parts: Sequence[Any] = ()

    def state(self) -> Any:
        """The sums, as plain values."""
        return [part.state() for part in self.parts]

    def merge(self, state: Any) -> None:
        """Add the state of another that read other texts."""
        for part, sums in zip(self.parts, state, strict=True):
            part.merge(sums)


class Readings(Summed):
    """Sums of measures with the same rivals, in some readings: heads, then rivals; and the heads' null."""

    def __init__(self, heads: Heads, measures: Sequence[Measure], sinks: Sequence[Sinks] = SINKS):
        self.measures, self.sinks, self.rivals = measures, sinks, measures[0].rivals
        shape = heads.count + len(self.rivals), len(measures)
        self.totals = {sink: Totals.empty(*shape) for sink in sinks}
        self.nulls = {sink: Null.empty(heads.count, len(measures)) for sink in sinks}
        self.parts = [*self.totals.values(), *self.nulls.values()]

    def add_prompts(
        self, groups: Int[Tensor, " prompt"], heads: Mapping[str, Sums], rivals: Mapping[str, Sums]
    ) -> None:
        """Add each prompt's scores."""
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
        """Add prompts: scores of heads and rivals, and the mean and variance of the heads' null."""
        self.totals[sink].add(groups, scores, weights)
        self.nulls[sink].add(groups, *null)

    def scored(self) -> list[Scored]:
        """The sums of all readings."""
        return [Scored(self.totals[sink], self.measures, sink, null=self.nulls[sink]) for sink in self.sinks]


class Scoring(Summed):
    """Adds up one behaviour's measures with its `parts`, which `add` batches and return what they `scored`.

    `nothing` is the error if no measure had an item. A collector with `few_rows` reads few rows of a text
    (`Batch.attention.rows`), and never a whole pattern.
    """

    few_rows = False

    def __init__(self, model: Model, behaviour: str, heads: Heads | None = None, *, nothing: str = ""):
        self.heads, self.behaviour, self.nothing = heads or Heads.from_model(model), behaviour, nothing
        self.counts: Counter[str] = Counter()
        self.records: list[Records] = []  # choices; `lifted`: the last arguments of `rules_table`
        self.lifted: Sequence[Any] = ()

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        for part in self.parts:
            part.add(batch)

    def state(self) -> Any:
        """The counts and sums, as plain values."""
        return [self.counts, super().state()]

    def merge(self, state: Any) -> None:
        """Add the state of another that read other texts."""
        counts, sums = state
        self.counts.update(counts)
        super().merge(sums)

    def scored(self) -> list[Scored]:
        """The sums of all parts."""
        return [scored for part in self.parts for scored in part.scored()]

    def collected(self, reading: Reading) -> Collected | InputError:
        """The sums after all is read, or why there are none."""
        try:
            scored = self.scored()
            heads, tokenizer = reading.read, reading.model.tokenizer
            tokenizer = tokenizer if heads.attention == "cross" else tokenizer_of(reading.model, heads)
        except InputError as error:
            return error
        if self.nothing and not any(bool(part.totals.rows.any()) for part in scored):
            return InputError(self.nothing)
        corpus, start = getattr(reading.corpus, "name", "texts"), bool(tokenizer and tokenizer.prefix)
        counts, documents = {**reading.counts, **self.counts}, len(reading.documents)
        rules = followed(self.records, self.behaviour, corpus, *self.lifted)
        return Collected(self.heads, self.behaviour, corpus, scored, counts, documents, start, rules)


def collect(reading: Reading, collectors: Sequence[Scoring]) -> list[Collected | InputError]:
    """The sums of each collector over one reading of a corpus, or why there are none."""
    read(reading, collectors)
    return [collector.collected(reading) for collector in collectors]


def read(reading: Reading, collectors: Sequence[Scoring], by_norm: Sequence[Scoring] = ()) -> None:
    """Show every batch to all collectors; those `by_norm` see attention weighted by `reading.weighted`."""
    reading.few_rows = all(collector.few_rows for collector in (*collectors, *by_norm))
    for batch in reading:
        for collector in collectors:
            collector.add(batch)
        weighed = batch.by_norm if by_norm else batch
        for collector in by_norm:
            collector.add(weighed)


Maker = Callable[[Model], Scoring]


def collect_in_lots(
    reading: Reading, makers: Sequence[Maker], by_norm: Sequence[Maker] = ()
) -> list[Collected | InputError]:
    """The sums of collectors over a corpus, read in lots of texts, or why there are none.

    `makers` make collectors from the model, anew for each lot. Those `by_norm` get a `NormWeighted` model, and their
    results follow the others'.
    """
    model, heads = reading.model, reading.read
    _, collectors, weighing = _made(model, heads, makers, by_norm)
    collectors += weighing

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
    return [collector.collected(reading) for collector in collectors]


def _made(
    model: Model, heads: Heads, makers: Sequence[Maker], by_norm: Sequence[Maker]
) -> tuple[NormWeighted | None, list[Scoring], list[Scoring]]:
    weighted: Any = NormWeighted(model, heads.stack, heads.attention) if by_norm else None  # pyright: ignore
    return weighted, [make(model) for make in makers], [make(weighted) for make in by_norm]


def lots_of(corpus: Iterable[AnnotatedText]) -> Iterator[list[AnnotatedText]]:
    """The texts in lots of at least `LOT_WORDS` words."""
    lot, words = list[AnnotatedText](), 0
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
    weighted, collectors, weighing = _made(model, heads, makers, by_norm)
    reading = Reading(model, texts, heads=heads, weighted=weighted)
    read(reading, collectors, weighing)
    return [reading.counts, reading.documents, [each.state() for each in (*collectors, *weighing)]]


def measured(
    maker: Maker, model: Model, corpus: Iterable[AnnotatedText], *, seed: int = 0, progress: Progress | None = None
) -> Measured:
    """Measure one behaviour alone: the rows of `tables/heads`, rivals' values, and what was read and left out."""
    whole_number("seed", seed)
    (collected,) = collect_in_lots(Reading(model, corpus, progress), [maker])
    if isinstance(collected, InputError):
        raise collected
    return collected.measured(seed=seed)


def refuse_unread(counts: Mapping[str, int], name: str) -> None:
    """Refuse a text that the model's tokenizer hardly knows."""
    unknown, tokens = counts.get("unknown tokens", 0), counts.get("tokens", 0)
    if tokens and unknown > UNREADABLE * tokens:
        raise InputError(
            f"{unknown:,} of the {tokens:,} tokens of {name} are unknown to this model's tokenizer: "
            "give a text that it was made for"
        )
