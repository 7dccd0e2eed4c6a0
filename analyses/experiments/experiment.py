"""What is an experiment? A question to a model, how it is measured, said and drawn; and what came of it."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from operator import itemgetter
from typing import Any, Generic, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from interp import InputError
from interp.statistics import Estimate, Shares

ARTICLES, STORIES = "articles", "stories"  # where prompts come from: the source articles, or the words of our stories
_SAYS = {ARTICLES: "on the articles’ own prompts", STORIES: "on prompts in the stories’ words"}
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
        said = [f"{count} {reason}" for reason, count in left_out.items() if count]
        parts = [f"Left out: {', '.join(said)}."] if said else []
        parts += [f"Nothing is said {_SAYS[source]}: {why}." for source, why in refused.items()]
        return " ".join(parts)


Found = TypeVar("Found", bound=Outcome)


@dataclass(frozen=True)
class Experiment(Generic[Found]):
    """A question, and all that answers it.

    Args:
        name: of its table and its figure.
        title: in plain words.
        question: that its figure asks.
        command: that runs it: `word-sense`, `next-word` or `position`.
        caption: how to read its figure.
        measure: runs a model (`measure(model, seed=0)`); refuses one that it cannot be asked of with an `InputError`.
        sentence: what was found.
        draw: the table's figure (`draw(table, title)`).
    """

    name: str
    title: str
    question: str
    command: str
    caption: str
    measure: Callable[..., Found]
    sentence: Callable[[Found], str]
    draw: Callable[[pd.DataFrame, str], Figure]


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows, of none none."""
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def each_source(say: Callable[[str, pd.DataFrame], str]) -> Callable[[Outcome], str]:
    """A sentence from what `say` makes of where prompts come from, in words, and the rows of those prompts."""

    def sentence(outcome: Outcome) -> str:
        source = outcome.table["source"]
        text = "; ".join(say(_SAYS[each], outcome.table.loc[source == each]) for each in source.unique())
        return f"{text[:1].upper()}{text[1:]}."

    sentence.__doc__ = say.__doc__
    return sentence


def bounded(
    found: Estimate | Shares, value: str = "share", low: str = "ci_low", high: str = "ci_high"
) -> dict[str, Any]:
    """Columns of an estimate: its value and the interval's bounds."""
    return {value: found.value, low: found.low, high: found.high}


def largest(table: pd.DataFrame, column: str) -> dict[str, Any]:
    """The row that has the largest value in a column."""
    return table.loc[[table[column].idxmax()]].to_dict("records")[0]


def said(row: Row, value: str = "share", low: str = "ci_low", high: str = "ci_high") -> str:
    """A number of a row and its 95% interval as text."""
    return with_interval(*itemgetter(value, low, high)(row))


def with_interval(value: float, low: float, high: float) -> str:
    """A number and its 95% interval as text."""
    return rounded(value) if isnan(low) else f"{rounded(value)} (95% {rounded(low)} to {rounded(high)})"


def briefly(sentence: str) -> str:
    """A sentence without its intervals and examples; what else stands in brackets with them stays."""
    bare = re.sub(r" \(95% [^;()]*\)| such as “[^”]*”", "", sentence)
    return re.sub(r"\(95% [^;()]*; ", "(", bare)


def rounded(value: float) -> str:
    """A number to two digits; nothing has no sign."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
