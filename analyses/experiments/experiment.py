"""What is an experiment? A question, prompts that the model can use, a measure, a sentence and a plot."""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import isnan
from string import Formatter
from typing import Any, TypeVar

import pandas as pd

from analyses.figures.kinds import Plot, rounded
from analyses.wording.head_names import head_name
from interp import InputError, Model, TokenBatch, Tokenizer
from interp.statistics import Estimate, Shares

ARTICLES, STORIES = "articles", "stories"  # sources of prompts: the source articles, or our stories' words
SUBJECT = "(subject)"  # stands for the token where prompts differ
_ON = {ARTICLES: "on the articles’ own prompts", STORIES: "on prompts in the stories’ words"}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What an experiment measured: its table, and the prompts behind it."""

    table: pd.DataFrame
    used: Mapping[str, int] = field(default_factory=dict)  # prompts or texts used, by source
    left_out: Mapping[str, int] = field(default_factory=Counter)  # how many were not, by reason
    refused: Mapping[str, str] = field(default_factory=dict)  # why a source has no results
    contrast: Mapping[str, float] | None = None  # distances only: last layer minus first, with its interval

    def __post_init__(self):
        if self.table.empty:
            reasons = [f"{count} {reason}" for reason, count in self.left_out.items()]
            reasons += [f"{source}: {why}" for source, why in self.refused.items()]
            why = "; ".join(reasons) or "none fit"
            raise InputError(f"no prompt of this experiment can be used with this model: {why}")

    @property
    def remark(self) -> str:
        """What was left out and refused, as sentences; empty if nothing was."""
        counts = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items() if count)
        return " ".join([f"Left out: {counts}."] * bool(counts) + refusals(self.refused))


def refusals(refused: Mapping[str, str]) -> list[str]:
    """A sentence for each source that was refused."""
    return [f"No result {_ON[source]}: {why}." for source, why in refused.items()]


@dataclass(frozen=True)
class Experiment:
    """A question, and how to answer it. `name` names table and figure; `columns` explains the table's columns."""

    name: str
    title: str
    question: str
    command: str  # the command that runs it: `word-sense`, `next-word` or `position`
    caption: str
    measure: Callable[..., Any]  # `measure(model, seed=0)`; an `InputError` if the model does not fit
    sentence: Callable[[Any], str]  # states the result
    plot: Plot
    columns: str = ""


class RowText(dict[str, Any]):
    """A row to format by column: `{best:share±}` with its 95% interval, `{best:accuracy%}`, `{best:head}`."""

    def __format__(self, column: str) -> str:
        name = column.rstrip("±%")
        if column == "head":
            return head_name(self["layer"], self["head"])
        if column.endswith("±"):
            bounds = [f"{name}_low", f"{name}_high"] if f"{name}_low" in self else ["ci_low", "ci_high"]
            return with_interval(self, name, *bounds)
        value = self[name]
        if value == SUBJECT:
            return "the subject"
        return f"{value:.0%}" if column.endswith("%") else rounded(value) if isinstance(value, float) else str(value)


def sentence_from(texts: Sequence[str], rows: Mapping[str, Mapping[str, str]]) -> Callable[[Outcome], str]:
    """Make a sentence per source of prompts from `texts`, without those that need a missing row.

    `rows` names rows: `where` is a query (`first` is the table's first row), `largest` an expression to maximise.
    Without `largest`, it is the first row.
    """
    names = [{name for _, name, *_ in Formatter().parse(text) if name} - {"where"} for text in texts]

    def say(place: str, table: pd.DataFrame) -> str:
        first, values = table.iloc[0], {}
        for name, row in rows.items():
            part = table.query(row["where"], local_dict={"first": first}, engine="python") if "where" in row else table
            if len(part):
                best = part.eval(row["largest"], engine="python").idxmax() if "largest" in row else part.index[0]
                values[name] = RowText(part.loc[[best]].to_dict("records")[0])
        parts = (text for text, each in zip(texts, names, strict=True) if each <= {*values})
        return "".join(text.format(where=place, **values) for text in parts)

    def sentence(outcome: Outcome) -> str:
        table = outcome.table if "source" in outcome.table else outcome.table.assign(source="")
        said = [say(_ON.get(str(source), ""), rows) for source, rows in table.groupby("source", sort=False)]
        return " ".join(f"{text[:1].upper()}{text[1:]}." for text in said)

    return sentence


def bounded(
    result: Estimate | Shares, value: str = "share", low: str = "ci_low", high: str = "ci_high"
) -> dict[str, Any]:
    """Columns of an estimate: its value and the interval's bounds."""
    return {value: result.value, low: result.low, high: result.high}


def with_interval(row: Row, value: str = "share", low: str = "ci_low", high: str = "ci_high") -> str:
    """A number of a row and its 95% interval as text."""
    if isnan(row[low]):
        return rounded(row[value])
    return f"{rounded(row[value])} (95% {rounded(row[low])} to {rounded(row[high])})"


# Most tokens per word, on average: beyond, the model reads letters. Stories' words may have more, because a small
# vocabulary splits even the words that its model knows best.
_MOST_PIECES = {ARTICLES: 2.0, STORIES: 3.0}
Item = TypeVar("Item")


@cache
def experiment_data(name: str) -> Any:
    """An experiment's texts, plot and prompts in `prompts.toml`."""
    return tomllib.loads(files("analyses.experiments").joinpath("prompts.toml").read_text(encoding="utf-8"))[name]


def tokenizer_of(model: Model, *, unfinished: bool = True) -> Tokenizer:
    """The tokenizer of a model that an experiment can use; `unfinished` texts need a causal model."""
    if len(model.config.stacks) > 1:
        raise InputError("this experiment reads one text: expected a model of one stack, got an encoder and a decoder")
    if unfinished and not model.config.last.causal:
        raise InputError("this experiment reads unfinished texts: expected a causal model, got an encoder")
    if model.tokenizer is None:
        raise InputError("this experiment reads words: expected a model with a tokenizer, got one without")
    return model.tokenizer


def _unreadable(model: Model, text: str, source: str) -> str | None:
    tokenizer = tokenizer_of(model)
    ids = tokenizer.pieces(text).ids
    if tokenizer.unknown_id is not None and tokenizer.unknown_id in ids:
        return "words outside the vocabulary"
    if len(ids) > _MOST_PIECES[source] * len(text.split()):
        return f"words that come apart (over {_MOST_PIECES[source]:g} pieces each on average)"
    if len(tokenizer.prefix) + len(ids) > model.config.n_ctx:
        return "more tokens than the context"
    return None


def readable(
    model: Model,
    items: Iterable[Item],
    source: str,
    left_out: Counter[str],
    texts: Callable[[Item], Iterable[str]],
    unit: str = "prompts",
) -> list[Item]:
    """The items of one source whose texts the model can read; others are counted in `left_out`, by reason."""
    usable = []
    for item in items:
        reasons = (_unreadable(model, text, source) for text in texts(item))
        if reason := next(filter(None, reasons), None):
            left_out[f"{unit} with {reason}"] += 1
        else:
            usable.append(item)
    return usable


def batch_of(model: Model, texts: Sequence[str]) -> TokenBatch:
    """Unfinished texts, with the special tokens before them but none after."""
    tokenizer = tokenizer_of(model)
    return TokenBatch.from_rows([[*tokenizer.prefix, *tokenizer.pieces(text).ids] for text in texts]).to(model.device)
