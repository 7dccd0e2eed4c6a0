"""What is an experiment? A question to a model, how it is measured, said and drawn; and what came of it."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Generic, TypeVar

import pandas as pd

from analyses.figures.kinds import Plot, rounded
from interp import InputError
from interp.statistics import Estimate, Shares

ARTICLES, STORIES = "articles", "stories"  # where prompts come from: the source articles, or the words of our stories
_ON = {ARTICLES: "on the articles’ own prompts", STORIES: "on prompts in the stories’ words"}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What an experiment measured: its table, and what that was made from.

    Args:
        table: of which it has at least one row.
        used: prompts or texts by where they come from.
        left_out: how many could not be used, by reason.
        refused: sources of which nothing is said, and why.

    Raises:
        InputError: nothing could be used.
    """

    table: pd.DataFrame
    used: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=Counter)
    refused: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        if self.table.empty:
            reasons = [f"{count} {reason}" for reason, count in self.left_out.items()]
            reasons += [f"{source}: {why}" for source, why in self.refused.items()]
            why = "; ".join(reasons) or "none fit"
            raise InputError(f"no prompt of this experiment can be used with this model: {why}")

    @property
    def remark(self) -> str:
        """What was left out and refused, as sentences; nothing where nothing was."""
        return self.remarked(self.left_out, self.refused)

    @staticmethod
    def remarked(left_out: Mapping[str, int], refused: Mapping[str, str]) -> str:
        """The same of what a record of a run has."""
        counts = [f"{count} {reason}" for reason, count in left_out.items() if count]
        parts = [f"Left out: {', '.join(counts)}."] if counts else []
        parts += [f"Nothing is said {_ON[source]}: {why}." for source, why in refused.items()]
        return " ".join(parts)


Result = TypeVar("Result", bound=Outcome)


@dataclass(frozen=True)
class Experiment(Generic[Result]):
    """A question, and all that answers it.

    Args:
        name: of its table and its figure.
        title: in plain words.
        question: that its figure asks.
        command: that runs it: `word-sense`, `next-word` or `position`.
        caption: how to read its figure.
        measure: runs a model (`measure(model, seed=0)`); refuses one that does not fit with an `InputError`.
        sentence: what came out.
        plot: draws the table, and describes the figure to a reader who cannot see it.
    """

    name: str
    title: str
    question: str
    command: str
    caption: str
    measure: Callable[..., Result]
    sentence: Callable[[Result], str]
    plot: Plot


def by_source(say: Callable[[str, pd.DataFrame], str]) -> Callable[[Outcome], str]:
    """A sentence from what `say` makes of where prompts come from, in words, and the rows of those prompts."""

    def sentence(outcome: Outcome) -> str:
        groups = outcome.table.groupby("source", sort=False)
        text = "; ".join(say(_ON[str(source)], rows) for source, rows in groups)
        return f"{text[:1].upper()}{text[1:]}."

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


def largest(table: pd.DataFrame, column: str) -> dict[str, Any]:
    """The row that has the largest value in a column."""
    return table.loc[[table[column].idxmax()]].to_dict("records")[0]


def briefly(sentence: str) -> str:
    """A sentence without its intervals and examples; what else stands in brackets with them stays."""
    bare = re.sub(r" \(95% [^;()]*\)| such as “[^”]*”", "", sentence)
    return re.sub(r"\(95% [^;()]*; ", "(", bare)
