"""What is an experiment? A question to a model, how it is measured, said and drawn; and what came of it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        seen: what is to be seen in that figure, to one who cannot see it.
    """

    name: str
    title: str
    question: str
    command: str
    caption: str
    measure: Callable[..., Found]
    sentence: Callable[[Found], str]
    draw: Callable[[pd.DataFrame, str], Figure]
    seen: Callable[[pd.DataFrame], str]


def ends(rows: pd.DataFrame, column: str, along: str = "layer") -> str:
    """How a line goes: where it begins, where it ends, and its highest point where that is neither."""
    own = rows.dropna(subset=[column]).sort_values(along)
    if own.empty:
        return "undefined"
    (first, last), top = own.iloc[[0, -1]].to_dict("records"), largest(own, column)
    text = f"from {rounded(first[column])} at {along} {first[along]} to {rounded(last[column])} at {last[along]}"
    return (
        text if top[along] in (first[along], last[along]) else f"{text}, highest {rounded(top[column])} at {top[along]}"
    )


def strongest(rows: pd.DataFrame, column: str, called: Callable[[Row], str]) -> str:
    """The cells of a map with the largest values, and the smallest where it is below zero by as much as a tenth."""
    known = rows.dropna(subset=[column])
    if known.empty:
        return "nothing"
    named = [f"{called(row)} {rounded(row[column])}" for row in known.nlargest(3, column).to_dict("records")]
    low = known.nsmallest(1, column).to_dict("records")[0]
    below = f"; lowest {called(low)} {rounded(low[column])}" if low[column] <= -0.1 else ""
    return f"strongest {', '.join(named)}{below}"


def panelled(told: Iterable[tuple[str, str]]) -> str:
    """What each panel shows, one after the other."""
    return f"{'; '.join(f'{name}: {said}' for name, said in told)}."


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
