"""What is known of one head? Its facts and its rows in all tables of a finished run, in 80 columns or as data."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any, NamedTuple

import pandas as pd
from pandas.api.types import is_numeric_dtype

from analyses import plain_words
from analyses.behaviours import OURS
from analyses.experiments import EXPERIMENTS
from analyses.experiments.experiment import Outcome
from analyses.explanations import ALL
from analyses.head_names import Place, places
from analyses.headlines import ranking
from analyses.headlines.facts import Fact, Size, answers
from analyses.headlines.written_reports import facts_of
from analyses.measures import RANKED
from analyses.numerals import false_discovery_rate, interval, number
from analyses.report.output import jsonable
from analyses.runs import RunFolder
from interp.errors import InputError

COLUMNS = 80  # of a terminal
_SAID = 3  # sentences of a run
_NAME = re.compile(r"(?:(encoder|decoder|cross)\.)?L(\d{1,6})\.?H(\d{1,6})", re.IGNORECASE)
_KINDS = {"looks there and needed": "Looks there, and is needed", "needed": "Needed"}
_KINDS |= {"looks there": "Looks there; an effect is not established"}
_APART = ("model", "corpus", "position")  # columns that are shown where a head's rows differ in them
_CHOICE = "the choice of "
_WAYS = {"noise": "removed", "denoise": "restored"}  # of the answer, by patching this head alone
_LONGEST = 28  # letters of a name in a table
Row = Mapping[str, Any]


class Shown(NamedTuple):
    """How a table is shown: its title, the rows of a head that are, in order, and what each column says of a row."""

    title: str
    chosen: Callable[[pd.DataFrame], pd.DataFrame]
    columns: Mapping[str, Callable[[Row], str]]


@dataclass(frozen=True)
class Inspected:
    """A head of a run: its facts, the first to be told first, and its rows of each table that has some.

    `answers` says by task what its answer is called.
    """

    run: RunFolder
    name: str
    place: Place
    facts: Sequence[Fact]
    rows: Mapping[str, pd.DataFrame]
    answers: Mapping[str, str]

    def data(self) -> dict[str, Any]:
        """All of it, as JSON has it: what is undefined is null."""
        told = [{**asdict(fact), "needed": fact.needed} for fact in self.facts]
        about = {"run": str(self.run.folder), "model": self.run.model, "name": self.name, **self.place._asdict()}
        rows = {table: own.astype(object).where(own.notna(), None) for table, own in self.rows.items()}
        return jsonable(
            {**about, "facts": told, "tables": {table: own.to_dict("records") for table, own in rows.items()}}
        )

    def lines(self) -> Iterator[str]:
        """What a terminal shows."""
        of = self.run.model or ", ".join(each["name"] for each in self.run.facts.get("models", ()))
        yield from wrap(f"{self.name} of {of or 'the models'} in {self.run.folder}", COLUMNS)
        for kind, title in _KINDS.items():
            own = [fact for fact in self.facts if fact.kind == kind]
            if own:
                yield from ("", title)
            for fact in own:
                yield from _fact(fact)
        if not self.facts and "heads" in self.rows and "model" not in self.rows["heads"]:
            yield from ("", "Nothing that was asked of this head holds.")
        for table, shown in SHOWN.items():
            if table in self.rows and len(rows := shown.chosen(self.rows[table])):
                apart = {name: _text(name) for name in _APART if name in rows and len({*rows[name]}) > 1}
                columns = {**shown.columns, **apart}
                own = [{**row, **self._in_words(row)} for row in rows.to_dict("records")]
                yield from ("", f"{shown.title} (tables/{table})", *_table(columns, own))

    def _in_words(self, row: Row) -> Row:
        """What a table has of a causal task as names of its own, in words."""
        if "task" not in row or "intervention" not in row:
            return {}
        answer, way = self.answers.get(row["task"]) or row["task"], row["intervention"]
        return {"task": plain_words.answer(answer).removeprefix(_CHOICE), "intervention": _WAYS.get(way, way)}


def inspect(run: RunFolder, name: str) -> Inspected:
    """What a finished run says of the head called `name`: `L3.H4`, or of several kinds `cross.L3.H4`.

    Raises:
        InputError: no head is called so, the run has no table of heads, or the model several heads of this name.
    """
    tables = {each: run.table(each) for each in run.tables}
    by_head = {each: table for each, table in tables.items() if {"layer", "head"} <= {*table.columns}}
    having = _places(by_head.values())
    if not having:
        raise InputError(f"{run.folder} has no table of heads: it has {', '.join(tables) or 'none'}")
    place = _found(name, having)
    several = len({each.kind for each in having}) > 1
    rows = {each: own for each, table in by_head.items() if len(own := _rows(table, place))}
    own = ranking.ranked(facts_of(run, tables).get(place, []))
    return Inspected(run, place.named(several=several), place, own, rows, answers(tables))


def said(run: RunFolder) -> list[str]:
    """The headline of a run, its first sentences and those of a user's own measures, and what was left out.

    Nothing of runs that have none.
    """
    headline, sentences = run.facts.get("headline"), run.facts.get("sentences") or {}
    told = [*sentences][:_SAID]
    own = [name for name in sentences if headline and name not in told and name not in OURS]
    rest = len(sentences) - len(told) - len(own)
    return [
        *([f"{headline}."] if headline else []),
        *(sentences[name] for name in [*told, *own]),
        *([f"{rest} more on the page."] * (rest > 0)),
        *_left_out(run.facts),
    ]


def _left_out(record: Mapping[str, Any]) -> Iterator[str]:
    """What a run could not ask, or asked of other text than was given: a sentence each."""
    if generated := record.get("on_generated_text"):
        names = ", ".join(OURS[name].title.lower() if name in OURS else name for name in generated)
        yield f"Measured on generated tales, as the text that was given is not annotated for it: {names}."
    not_asked: Mapping[str, str] = record.get("not_asked") or {}
    for why in dict.fromkeys(not_asked.values()):
        titles = "; ".join(_experiment(name) for name, each in not_asked.items() if each == why)
        yield f"Experiments left out: {titles}: {why}."
    for name, made in (record.get("experiments") or {}).items():
        if remark := Outcome.remarked({}, made.get("refused") or {}):
            yield f"{_experiment(name)}: {remark[:1].lower()}{remark[1:]}"


def _experiment(name: str) -> str:
    return EXPERIMENTS[name].title if name in EXPERIMENTS else name


def _places(tables: Iterable[pd.DataFrame]) -> list[Place]:
    """Every head that a table has a row of that says of which stack and attention it is."""
    columns = [*Place._fields]
    told = (table for table in tables if {*columns} <= {*table.columns})  # others are of models of one kind
    having = [table.reindex(columns=columns).dropna(subset=["layer", "head"]) for table in told]
    rows = pd.concat(having) if having else pd.DataFrame(columns=columns)
    return places(rows.fillna({"stack": "", "attention": "self"}))


def _found(name: str, places: Sequence[Place]) -> Place:
    """The head that is called so.

    Raises:
        InputError: none, or several.
    """
    match = _NAME.fullmatch(name.strip())
    if not match:
        raise InputError(f"expected a head as L3.H4, or cross.L3.H4 where there are several kinds, got {name!r}")
    kind, layer, head = (match[1] or "").lower(), int(match[2]), int(match[3])
    found = [each for each in places if (each.layer, each.head) == (layer, head) and kind in {"", each.kind}]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.named(several=True) for each in found)
        raise InputError(f"several heads are called {name}: say which of {names}")
    having = [place for place in places if kind in {"", place.kind}]
    if not having:
        known = ", ".join(dict.fromkeys(place.kind for place in places))
        raise InputError(f"no {kind} heads here: there are those of {known}")
    layers, heads = (max(getattr(place, axis) for place in having) for axis in ("layer", "head"))
    raise InputError(f"no head {name}: layers are 0 to {layers}, heads 0 to {heads}")


def _rows(table: pd.DataFrame, place: Place) -> pd.DataFrame:
    """A table's rows of one head."""
    own = (table["layer"] == place.layer) & (table["head"] == place.head)
    for column in ("stack", "attention"):
        if column in table and not is_numeric_dtype(table[column]):  # an experiment's `attention` is how much
            own &= table[column].isna() | (table[column] == getattr(place, column))
    return table.loc[own.fillna(False).astype(bool)]


# A terminal.


def _fact(fact: Fact) -> Iterator[str]:
    """A fact in words, and below it its numbers."""
    yield from wrap(f"- {fact.words.said}", COLUMNS, subsequent_indent="  ")
    numbers = [_size(size) for size in fact.sizes]
    if fact.value == fact.value:
        beside = f", {fact.baseline_name} {number(fact.baseline)}" if fact.baseline_name else ""
        numbers.append(f"on {fact.read_on} {number(fact.value)}{beside}")
    if fact.sizes[0].q != fact.sizes[0].q:
        numbers.append(f"q {false_discovery_rate(fact.q)}")
    if fact.q_effect == fact.q_effect:
        numbers.append(f"q of the effect {false_discovery_rate(fact.q_effect)}")
    yield from wrap("; ".join(numbers), COLUMNS, initial_indent="    ", subsequent_indent="    ")


def _size(size: Size) -> str:
    unit = " nats a token" if size.unit == "nats" else ""
    of = f"over {size.over} " if size.what == "gain" and size.over else ""
    of = f"of {plain_words.readout(size.over)} " if size.unit == "nats" else of
    own = f", q {false_discovery_rate(size.q)}" if size.q == size.q else ""
    return f"{size.what} {number(size.value, sign=True)}{unit} {of}({interval(size.low, size.high, sign=True)}){own}"


def _table(columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row]) -> Iterator[str]:
    cells = [[*columns], *([tell(row) for tell in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield f"  {first:<{widths[0]}}{numbers}"


def _text(column: str) -> Callable[[Row], str]:
    def tell(row: Row) -> str:
        text = str(row[column])
        half = (_LONGEST - 1) // 2
        return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"

    return tell


def _number(column: str, *, sign: bool = False) -> Callable[[Row], str]:
    return lambda row: number(row.get(column), sign=sign)


def _interval(low: str, high: str) -> Callable[[Row], str]:
    return lambda row: interval(row.get(low), row.get(high), sign=True)


def _q(column: str = "q") -> Callable[[Row], str]:
    return lambda row: "–" if pd.isna(row[column]) else false_discovery_rate(row[column])


def _largest(column: str, top: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: rows.dropna(subset=[column]).nlargest(top, column)


def _kept(rows: pd.DataFrame) -> pd.DataFrame:
    """The largest gains in shares and lifts, the first position kept."""
    return _largest("gain", 8)(rows.loc[(rows["sink"] == "kept") & rows["unit"].isin([*RANKED])])


def _mixture(rows: pd.DataFrame) -> pd.DataFrame:
    return _largest("share", 4)(rows.loc[(rows["kind"] == "mixture") & (rows["part"] != ALL)])


_CI = _interval("ci_low", "ci_high")
SHOWN: Mapping[str, Shown] = {
    "heads": Shown(
        "Attention: the largest gains over the baseline",
        _kept,
        {
            "measure": _text("measure"),
            **{"value": _number("value"), "baseline": _number("baseline"), "gain": _number("gain", sign=True)},
            "q": _q(),
        },
    ),
    "rules": Shown(
        "Beside simple rules",
        _largest("value", 4),
        {
            "measure": _text("measure"),
            "value": _number("value"),
            "strictest rule": _text("rival"),
            "its value": _number("rival_value"),
        },
    ),
    "effects": Shown(
        "Minimal pairs: the share that this head alone carries",
        _largest("effect", 8),
        {
            "answer": lambda row: str(row["task"]),
            "is": _text("intervention"),
            **{"share": _number("effect", sign=True), "95% interval": _CI, "q": _q()},
        },
    ),
    "explained": Shown(
        "What its attention is made of",
        _mixture,
        {"rule": _text("part"), "kind": _text("group"), "share": _number("share"), "95% interval": _CI},
    ),
    "cells": Shown(
        "Patched",
        _largest("effect", 8),
        {
            "metric": _text("metric"),
            "patched": _text("direction"),
            "effect": _number("effect", sign=True),
            **{"95% interval": _CI, "share": _number("share"), "q": _q()},
        },
    ),
    "compare": Shown(
        "The best head of a model",
        _largest("gain", 8),
        {"model": _text("model"), "measure": _text("measure"), "gain": _number("gain", sign=True), "q": _q()},
    ),
    "when_formed": Shown(
        "When it formed, while the model was trained",
        lambda rows: _largest("gain", 4)(rows.dropna(subset=["formed_at"])),
        {
            "measure": _text("measure"),
            **{"at the end": _number("value"), "baseline": _number("baseline")},
            "by step": lambda row: number(int(row["formed_at"])),
            "not yet at": lambda row: "–" if pd.isna(row["before"]) else number(int(row["before"])),
            "of": lambda row: number(int(row["step"])),
        },
    ),
    "formed": Shown(
        "The head with most of a measure, at the last look",
        _largest("gain", 8),
        {
            "run": _text("run"),
            "measure": _text("measure"),
            "gain": _number("gain", sign=True),
            "half-way": lambda row: "–" if pd.isna(row["half_way"]) else number(int(row["half_way"])),
        },
    ),
}
