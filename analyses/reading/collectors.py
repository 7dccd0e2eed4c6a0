"""How is a corpus read once for several questions? Each behaviour's collector sees every batch of patterns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from analyses.head_tables import Collected, Heads, Measured
from analyses.reading.inputs import tokenizer_of
from analyses.reading.windows import Batch, Progress, Reading
from interp import AnnotatedText, InputError, Model
from interp.errors import whole_number

UNREADABLE = 0.9  # a model to whose tokenizer more of a text is unknown has not read it


@runtime_checkable
class Collector(Protocol):
    """Adds up one behaviour's measures, batch by batch."""

    def __init__(self, model: Model, *, seed: int = 0, heads: Heads | None = None) -> None: ...

    def add(self, batch: Batch) -> None:
        """Score one batch."""
        ...

    def collected(self, reading: Reading) -> Collected:
        """What was added up in the end.

        Raises:
            InputError: nothing that this behaviour measures was there.
        """
        ...


class ReadsFewRows:
    """A collector that asks for few of a text's rows (`Batch.attention.rows`), and never for a pattern."""


def collect(reading: Reading, collectors: Sequence[Collector]) -> list[Collected | InputError]:
    """What each collector adds up over one reading of a corpus, or why there was nothing for it.

    Raises:
        InputError: the corpus is empty, or of words where the model has no tokenizer.
    """
    read(reading, collectors)
    return collected(reading, collectors)


def read(reading: Reading, collectors: Sequence[Collector], by_norm: Sequence[Collector] = ()) -> None:
    """Show every batch to all collectors; to those `by_norm` as the reading's `weighted` weighs it.

    Raises:
        InputError: as `collect`.
    """
    reading.few_rows = all(isinstance(each, ReadsFewRows) for each in (*collectors, *by_norm))
    for batch in reading:
        for each in collectors:
            each.add(batch)
        if by_norm:
            weighed = batch.by_norm
            for each in by_norm:
                each.add(weighed)


def collected(reading: Reading, collectors: Sequence[Collector]) -> list[Collected | InputError]:
    """What each collector added up in the end, or why there was nothing for it."""
    return [_collected(each, reading) for each in collectors]


def _collected(collector: Collector, reading: Reading) -> Collected | InputError:
    try:
        return collector.collected(reading)
    except InputError as error:
        return error


def measured(
    collector: Collector,
    model: Model,
    corpus: Iterable[AnnotatedText],
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measured:
    """What one behaviour alone says: its rows of `tables/heads`, every rival's value, and what was read and left out.

    Raises:
        InputError: the corpus is empty or lacks what is measured, or is of words where the model has no tokenizer.
    """
    whole_number("seed", seed)
    (found,) = collect(Reading(model, corpus, progress), [collector])
    if isinstance(found, InputError):
        raise found
    return found.measured(seed=seed)


def summary(reading: Reading) -> dict[str, Any]:
    """What every collector says of the text: its name, how many documents it holds, and what stands before it."""
    model, heads = reading.model, reading.read
    tokenizer = model.tokenizer if heads.attention == "cross" else tokenizer_of(model, heads)
    start = bool(tokenizer and tokenizer.prefix)
    name = getattr(reading.corpus, "name", "texts")
    return {"corpus": name, "documents": len(reading.documents), "start_token": start}


def refuse_unread(counts: Mapping[str, int], name: str) -> None:
    """A text of which the model's tokenizer knows hardly anything was not read.

    Raises:
        InputError: more than nine tenths of the tokens counted are unknown.
    """
    unknown, tokens = counts.get("unknown tokens", 0), counts.get("tokens", 0)
    if tokens and unknown > UNREADABLE * tokens:
        raise InputError(
            f"{unknown:,} of the {tokens:,} tokens of {name} are unknown to this model's tokenizer: "
            "give a text that it was made for"
        )
