"""What is to be said of a model first? A headline, and a sentence for each behaviour, made from rows of the tables.

A sentence is made of clauses, which `analyses.headlines.say` words from facts and rows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import pandas as pd

from analyses.behaviours import vocabulary
from analyses.headlines import ranking, say
from analyses.headlines.facts import Fact, Tables
from analyses.measures.definitions import Behaviour
from analyses.measures.findings import FEW_ITEMS
from analyses.wording import plain_words
from analyses.wording.head_names import HEAD, Place, kinds
from analyses.wording.plain_words import Words, worded

Verdict = Literal["found", "part", "attention", "effect", "rules", "none", "untested"]


@dataclass(frozen=True)
class Sentence:
    """What is said of one behaviour: how it stands, in a word or two, and in clauses, each with its stop.

    `first` is where a head looks, and what a rule gets; what is needed, where effects alone show it. `rest` is what
    that leaves open: whether the head is right where its rule errs, what the model needs.
    """

    behaviour: str
    title: str
    verdict: Verdict
    first: str
    rest: str

    @property
    def text(self) -> str:
        """All clauses, one after the other."""
        return " ".join(filter(None, [self.first, self.rest]))


def sentences(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], behaviours: Mapping[str, Behaviour]
) -> list[Sentence]:
    """One for each behaviour that was measured, in their order.

    Args:
        tables: of a report, by name.
        facts: of every head (`analyses.headlines.facts.facts`).
        behaviours: by name.
    """
    measured, words = set(tables["heads"]["behaviour"]), vocabulary(behaviours)
    return [_sentence(tables, facts, each, words) for name, each in behaviours.items() if name in measured]


def headline(said: Sequence[Sentence]) -> str:
    """How every behaviour stands, in one line: the first with a verb, the others without; neighbours alike share it."""
    alike = groupby(said, lambda each: plain_words.WORDS["verdicts"][each.verdict])
    stands = [(verdict, [each.title for each in them]) for verdict, them in alike]
    line = ", ".join(
        f"{plain_words.listed(names)} {without if at else plural if len(names) > 1 else singular}"
        for at, ((singular, plural, without), names) in enumerate(stands)
    )
    return line[:1].upper() + line[1:]


def _sentence(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], behaviour: Behaviour, words: Mapping[str, Words]
) -> Sentence:
    several = kinds(tables["heads"]) > 1
    pairs = [(place, fact) for place, own in facts.items() for fact in own if fact.behaviour == behaviour.name]
    verdict = _verdict([fact for _, fact in pairs], tested=_tested(tables, behaviour.name))
    attends = [(place, fact) for place, fact in pairs if fact.kind != "needed"]
    looking = _first([one for one in attends if _says_more(one[1])] or attends)
    needed = _first(one for one in pairs if one[1].row("effects"))
    hidden = _first(one for one in pairs if any(size.unit == "nats" for size in one[1].sizes))
    attention = [] if looking else _closest(tables, behaviour, words, several=several)
    if looking:
        fact, head = looking[1], looking[0].named(several=several)
        attention.append(say.fact(fact, head, words))
        rules = fact.row("rules")
        if rules and fact.label.kind not in {"rule", "any"} and math.isfinite(rules["target_share"]):
            attention.append(say.finds(rules.cells, head))
    effect = [say.fact(needed[1], needed[0].named(several=several), words)] if needed else []
    if not needed and hidden and hidden[1].needed and (row := hidden[1].row("labels")):
        effect = [say.hidden(row.cells, hidden[0].named(several=several), worded(hidden[1].name, words))]
    clauses = [f"{each}." for each in ([*effect, *attention] if verdict == "effect" else [*attention, *effect])]
    title = (behaviour.noun or behaviour.title).lower()
    return Sentence(behaviour.name, title, verdict, " ".join(clauses[:1]), " ".join(clauses[1:]))


def _first(pairs: Iterable[tuple[Place, Fact]]) -> tuple[Place, Fact] | None:
    return min(pairs, key=lambda one: ranking.of_fact(one[1]), default=None)


def _verdict(facts: Sequence[Fact], *, tested: bool) -> Verdict:
    kinds = {fact.kind for fact in facts if _says_more(fact)}
    if "looks there and needed" in kinds:
        return "found"
    if "looks there" in kinds:
        return "part" if "needed" in kinds else "attention" if tested else "untested"
    return "effect" if "needed" in kinds else "rules" if facts else "none"


def _says_more(fact: Fact) -> bool:
    """Whether it says more than that a head follows a simple rule, which says something of position alone."""
    return fact.behaviour == "position" or fact.rung > 1


def _tested(tables: Tables, behaviour: str) -> bool:
    known = [tables[name] for name in ("effects", "evidence") if name in tables and len(tables[name])]
    return any(bool(rows.loc[rows["behaviour"] == behaviour, "effect"].notna().any()) for rows in known)


def _closest(tables: Tables, behaviour: Behaviour, words: Mapping[str, Words], *, several: bool) -> list[str]:
    """Of a behaviour that no head's attention shows: the head that comes closest to what it must beat. Where rules are
    to be beaten, the half that does not report says which it is."""
    called = [each.name for each in behaviour.measures if each.called and each.unit == "share"]
    called = [name for name in called if name in behaviour.headline] or called
    for table, column in (("rules", "choosing_margin"), ("heads", "gain")):
        rows = tables.get(table, pd.DataFrame(columns=["behaviour", "measure", column, "n"]))
        rows = rows.loc[(rows["behaviour"] == behaviour.name) & rows["measure"].isin(called)].dropna(subset=[column])
        rows = rows.loc[rows["sink"] == "kept"] if table == "heads" else rows
        many = rows["n"] >= FEW_ITEMS
        rows = rows.loc[many] if table == "rules" or many.any() else rows
        if len(rows):
            break
    else:
        return []
    row, bar = rows.sort_values(column, ascending=False, kind="stable").iloc[0].to_dict(), 0.0
    if table == "heads" and "bar" in (evidence := tables.get("evidence", pd.DataFrame())):
        key = [*HEAD, "behaviour", "measure"]
        bar = next(iter(evidence.loc[(evidence[key] == [row[name] for name in key]).all(axis=1), "bar"]), 0.0)
    name = Place.of(row).named(several=several)
    return [say.closest(row, name, worded(str(row["measure"]), words), bar)]
