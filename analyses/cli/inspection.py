"""What is known about one head? Its facts and its rows in all tables of a finished run, in 80 columns or as data."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from textwrap import wrap
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from analyses.behaviours import OURS, vocabulary
from analyses.cli import COLUMNS
from analyses.execution.output import jsonable
from analyses.experiments import EXPERIMENTS
from analyses.experiments.experiment import refusals
from analyses.explanations import ALL_GROUPS
from analyses.headlines.facts import WRITTEN, Fact, answers, facts_of, ranked
from analyses.headlines.head_cards import FactCard, overview
from analyses.headlines.sentences import fact_clause, numbers
from analyses.measures.definitions import RANKED
from analyses.page.sections import SCHEMAS
from analyses.runs import RunFolder
from analyses.wording.head_names import HEAD, Place, heads_in
from analyses.wording.plain_words import WORDS
from interp.errors import InputError

_SENTENCES = 3  # from a run's page
_NAME = re.compile(r"(?:(encoder|decoder|cross)\.)?L(\d{1,6})\.?H(\d{1,6})", re.IGNORECASE)
_KINDS = {"looks there and needed": "Looks there, and is needed", "needed": "Needed"}
_KINDS |= {"looks there": "Looks there; an effect is not established"}
_DIFFERING = ("model", "corpus", "position")  # columns that are shown if a head's rows differ in them
_TABLES = WORDS["terminal"]  # by table: its title, which rows are shown, and in which columns


@dataclass(frozen=True)
class Inspected:
    """A head of a run: its facts, most important first, and its rows in each table that has some."""

    run: RunFolder
    name: str
    place: Place
    facts: Sequence[Fact]
    rows: Mapping[str, pd.DataFrame]
    answers: Mapping[str, str]  # what each task's answer is called

    def data(self) -> dict[str, Any]:
        """Everything as JSON-ready values, with null for undefined ones."""
        head = {"run": str(self.run.folder), "model": self.run.model, "name": self.name, **self.place._asdict()}
        tables = {
            name: rows.astype(object).where(rows.notna(), None).to_dict("records") for name, rows in self.rows.items()
        }
        return jsonable({**head, "facts": [*map(_plain, self.facts)], "tables": tables})

    def lines(self) -> Iterator[str]:
        """The lines for a terminal."""
        words = vocabulary(WRITTEN)
        model = self.run.model or ", ".join(each["name"] for each in self.run.facts.get("models", ()))
        yield from wrap(f"{self.name} of {model or 'the models'} in {self.run.folder}", COLUMNS)
        for kind, title in _KINDS.items():
            facts = [fact for fact in self.facts if fact.kind == kind]
            yield from ("", title) if facts else ()
            for fact in facts:
                sentence, line = fact_clause(fact, self.name, words), "; ".join(numbers(fact))
                yield from wrap(f"- {sentence}.", COLUMNS, subsequent_indent="  ")
                yield from wrap(line, COLUMNS, initial_indent="    ", subsequent_indent="    ")
        if not self.facts and "heads" in self.rows and "model" not in self.rows["heads"]:
            yield from ("", "No test of this head found anything.")
        for name, shows in _TABLES.items():
            rows = _leading(name, self.rows.get(name, pd.DataFrame()), shows["largest"], shows["rows"])
            if len(rows):
                differing = [each for each in _DIFFERING if each in rows and len({*rows[each]}) > 1]
                records = [row | {"carried": self.answers.get(row.get("task", ""))} for row in rows.to_dict("records")]
                yield from ("", f"{shows['title']} (tables/{name})")
                yield from SCHEMAS[name].terminal(records, shows["columns"], differing)


def _plain(fact: Fact) -> dict[str, Any]:
    """A fact as JSON-ready values."""
    values = {field.name: getattr(fact, field.name) for field in fields(fact)}
    values |= {"words": fact.words._asdict(), "sizes": [asdict(size) for size in fact.sizes], "needed": fact.is_needed}
    values["rows"] = [{"table": row.table, "key": row.key} for row in fact.rows]
    return values | {"label": fact.name, "name": fact.name, "rung": fact.rung}


def _leading(name: str, rows: pd.DataFrame, column: str, top: int) -> pd.DataFrame:
    """The rows of a table that a terminal shows: the largest."""
    if rows.empty:
        return rows
    if name == "heads" and "unit" in rows:
        rows = rows.loc[(rows["sink"] == "kept") & rows["unit"].isin([*RANKED])]
    if name == "explained":
        rows = rows.loc[(rows["kind"] == "mixture") & (rows["part"] != ALL_GROUPS)]
    if name == "when_formed":
        rows = rows.dropna(subset=["formed_at"])
    return rows.dropna(subset=[column]).nlargest(top, column)


def inspect(run: RunFolder, name: str) -> Inspected:
    """What a finished run says about the head `name`: `L3.H4`, or `cross.L3.H4` if there are several kinds."""
    tables = {each: run.table(each) for each in run.tables}
    place, title = _head(run, tables, name)
    head_rows = {each: rows for each, table in _by_head(tables).items() if len(rows := _rows(table, place))}
    return Inspected(run, title, place, ranked(facts_of(run, tables).get(place, [])), head_rows, answers(tables))


def _by_head(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {each: table for each, table in tables.items() if {"layer", "head"} <= {*table.columns}}


def _head(run: RunFolder, tables: Mapping[str, pd.DataFrame], name: str) -> tuple[Place, str]:
    """The head with this name, and its name on the run's page."""
    whole = [table.loc[:, HEAD] for table in _by_head(tables).values() if {*HEAD} <= {*table}]  # others: one kind
    rows = pd.concat(whole).dropna(subset=["layer", "head"]) if whole else pd.DataFrame(columns=HEAD)
    heads = heads_in(rows.fillna({"stack": "", "attention": "self"}))
    if not heads:
        raise InputError(f"{run.folder} has no table of heads: it has {', '.join(tables) or 'none'}")
    place = _place(name, heads)
    return place, place.named(prefix=len({each.kind for each in heads}) > 1)


def claim(run: RunFolder, address: str) -> FactCard:
    """The claim with this address on a report's page (`L3.H4/induction`); by default a head's first."""
    name, _, fact = address.partition("/")
    tables = {each: run.table(each) for each in run.tables}
    place, title = _head(run, tables, name)
    facts = {head: ranked(head_facts) for head, head_facts in facts_of(run, tables).items()}
    if not facts.get(place):
        raise InputError(f"{run.folder} has no claim about {title}")
    cards = next(card for card in overview(tables, WRITTEN, ranked=facts)[1].cards if card.id == title).facts
    found = {each.id.lower(): each for each in cards}.get(f"{title}/{fact}".lower())
    if found is None and "/" in address:
        raise InputError(f"no claim {address!r}: {run.folder} has {', '.join(each.id for each in cards)}")
    return found or cards[0]


def summary(run: RunFolder) -> list[str]:
    """A run's headline, its first sentences and those of the user's own measures, and what was left out."""
    headline, sentences = run.facts.get("headline"), run.facts.get("sentences") or {}
    first = [*sentences][:_SENTENCES]
    of_user = [name for name in sentences if headline and name not in first and name not in OURS]
    rest = len(sentences) - len(first) - len(of_user)
    texts = [sentences[name] for name in [*first, *of_user]] + [f"{rest} more on the page."] * (rest > 0)
    return [*([f"{headline}."] if headline else []), *texts, *_left_out(run.facts)]


def _left_out(record: Mapping[str, Any]) -> Iterator[str]:
    """What a run did not measure, or measured on other text than the given one, one sentence each."""
    if generated := record.get("on_generated_text"):
        names = ", ".join(OURS[name].title.lower() if name in OURS else name for name in generated)
        yield f"Measured on generated tales, because the given text lacks the annotation: {names}."
    not_asked: Mapping[str, str] = record.get("not_asked") or {}
    for why in dict.fromkeys(not_asked.values()):
        titles = "; ".join(_title(name) for name, each in not_asked.items() if each == why)
        yield f"Experiments not run: {titles} ({why})."
    for name, outcome in (record.get("experiments") or {}).items():
        if remark := " ".join(refusals(outcome.get("refused") or {})):
            yield f"{_title(name)}: {remark[:1].lower()}{remark[1:]}"


def _title(name: str) -> str:
    return EXPERIMENTS[name].title if name in EXPERIMENTS else name


def _place(name: str, heads: Sequence[Place]) -> Place:
    match = _NAME.fullmatch(name.strip())
    if not match:
        raise InputError(f"expected a head as L3.H4, or cross.L3.H4 if there are several kinds, got {name!r}")
    kind, layer, head = (match[1] or "").lower(), int(match[2]), int(match[3])
    matches = [each for each in heads if kind in {"", each.kind} and (each.layer, each.head) == (layer, head)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(each.named(prefix=True) for each in matches)
        raise InputError(f"several heads are called {name}: say which of {names}")
    last = {each.kind: each.named(prefix=True) for each in sorted(heads)}
    raise InputError(f"no head {name}: the last is {' or '.join(last.values())}, counted from 0")


def _rows(table: pd.DataFrame, place: Place) -> pd.DataFrame:
    """A table's rows for one head."""
    is_head = (table["layer"] == place.layer) & (table["head"] == place.head)
    for column in ("stack", "attention"):
        if column in table and not is_numeric_dtype(table[column]):  # in experiments, `attention` is an amount
            is_head &= table[column].isna() | (table[column] == getattr(place, column))
    return table.loc[is_head.fillna(False).astype(bool)]
