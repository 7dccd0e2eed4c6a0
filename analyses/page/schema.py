"""What are the columns of our tables? `words.toml` declares each once: its title, how a cell is written, its meaning.

Pages, cards, terminals and definitions take them from there. Numbers stay numbers in tables; only a cell that is shown
is a text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from analyses.figures import measure_name
from analyses.page.sections import Table, Text, bold, plain, soft
from analyses.wording.formats import false_discovery_rate, interval, number, percent, whole
from analyses.wording.head_names import head_name
from analyses.wording.plain_words import WORDS, carried

Cells = Mapping[str, Any]
_LONGEST = 28  # letters of a text on a terminal
_signed = partial(number, sign=True)


def _estimate(value: float, low: float, high: float) -> Text:
    bounds = interval(low, high, sign=True)
    return [_signed(value), *([" ", soft(bounds)] if bounds != "–" else [])]


def _rule(name: str, value: float) -> str:
    return measure_name(name) + (f" {number(value)}" if name != "no rule" else "")


def _pairs(task: Any, effect: float, flips: float, n: float) -> str:
    """What a head carries of the minimal pairs that ask about the same as its label."""
    return f"{task} {number(effect)}, {flips:.0f} of {n:.0f} answers change" if isinstance(task, str) else ""


def _verdict(verdict: Any, rule: Any) -> str:
    """Whether a head beats the simplest rules, and which rule it follows."""
    follows = isinstance(rule, str) and rule not in {"no rule", "the relation itself"}
    said = f"; follows “{measure_name(rule)}”" if follows else ""
    return f"{verdict}{said}" if isinstance(verdict, str) else ""


FORMATS: dict[str, tuple[str, Callable[..., Text]]] = {
    "head": ("l", lambda layer, head, name: bold(name or head_name(int(layer), int(head)))),
    "bold": ("l", bold),
    "name": ("l", lambda name: measure_name(str(name))),
    "text": ("l", str),
    "wrapped": ("w", str),
    "number": ("r", number),
    "signed": ("r", _signed),
    "whole": ("r", whole),
    "share": ("r", percent),
    "shares": ("r", lambda low, high: f"{percent(low)} to {percent(high)}".replace("– to –", "–")),
    "answers": ("r", lambda flips, n: f"{whole(flips)} of {whole(n)} answers" if whole(flips) != "–" else "–"),
    "steps": ("r", lambda first, last: "–" if first is None else f"{whole(first)} to {whole(last)}"),
    "rate": ("r", false_discovery_rate),
    "between": ("r", partial(interval, sign=True)),
    "bounds": ("r", interval),
    "estimate": ("l", _estimate),
    "effect of": ("l", lambda effect, head: [f"{_signed(effect)} (", bold(head), ")"]),
    "answer": ("l", lambda answer, task: carried(answer or task)),
    "task": ("l", lambda answer, task: answer or task),
    "way": ("r", lambda way: {"noise": "removed", "denoise": "restored"}.get(str(way), str(way))),
    "rule": ("w", _rule),
    "two shares": ("w", lambda head, rule, n: f"{number(head)} / {number(rule)} (n {whole(n)})"),
    "difference": ("w", lambda rule, value, n: f"{measure_name(str(rule))} {_signed(value)} (n {whole(n)})"),
    "pairs": ("w", _pairs),
    "verdict": ("w", _verdict),
}
"""How cells are written, each with where it stands: `l`eft, `r`ight, or `w`here it may be wrapped."""


class Column(NamedTuple):
    """A column as it is shown: its title, which `FORMATS` writes a cell from which columns, and what it means."""

    title: str
    format: str
    cells: Sequence[str]
    meaning: str = ""

    def show(self, row: Cells) -> Text:
        """The cell of a row."""
        return FORMATS[self.format][1](*(row.get(name) for name in self.cells))


class Schema(NamedTuple):
    """A table: the columns that tell a row from all others, and those that are shown, by name."""

    key: Sequence[str]
    columns: Mapping[str, Column]

    def page(self, rows: Sequence[Cells], names: str, caption: str = "") -> Table:
        """Some rows as a page has them, in the columns of these names, apart by spaces."""
        shown = [self.columns[name] for name in names.split()]
        align = "".join(FORMATS[column.format][0] for column in shown)
        return Table(
            [each.title for each in shown], [[each.show(row) for each in shown] for row in rows], align, caption
        )

    def terminal(self, rows: Sequence[Cells], names: str, apart: Sequence[str] = ()) -> Iterator[str]:
        """Some rows as lines, in some columns and those by which the rows are told `apart`."""
        shown = [*(self.columns[name] for name in names.split()), *(Column(name, "text", [name]) for name in apart)]
        cells = [[each.title for each in shown], *([_cut(plain(each.show(row))) for each in shown] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for first, *rest in cells:
            numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
            yield f"  {first:<{widths[0]}}{numbers}"


def _cut(text: str) -> str:
    half = (_LONGEST - 1) // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def _schema(key: Sequence[str], **columns: Mapping[str, Any]) -> Schema:
    own = {**WORDS["columns"], **columns}
    shown = {
        name: Column(each.get("title", name), each["format"], each.get("from", [name]), each.get("meaning", ""))
        for name, each in own.items()
    }
    return Schema(key, shown)


WAYS = "noise noise_low noise_flips denoise denoise_low denoise_flips"  # columns of `both ways`
SCHEMAS = {name: _schema(**declared) for name, declared in WORDS["tables"].items()}
"""By table, its columns."""


def meanings(table: str) -> dict[str, str]:
    """By title, what the columns of a table mean that need a definition."""
    return {column.title: column.meaning for column in SCHEMAS[table].columns.values() if column.meaning}
