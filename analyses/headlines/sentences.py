"""What is to be said of a model first? A headline, and a sentence for each behaviour, made from rows of the tables.

A sentence is made of clauses. Each is a head, a verb, an object, a percentage, what a rule gets, and what makes it less
than it looks; each keeps the rows that it was made from, and `again` makes it from these alone. Percentages have two
digits; intervals stand on the cards.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import pandas as pd

from analyses import plain_words
from analyses.findings import FEW_ITEMS, NOTABLE
from analyses.head_names import Place
from analyses.headlines import ranking
from analyses.headlines.facts import WHOEVER, Fact, Row, Tables, answers, flips, head_row, rule_row, titles
from analyses.measures import Behaviour, Measure
from analyses.numerals import percent
from analyses.position import REPEATS
from analyses.rivals.rules import called_beside

Verdict = Literal["found", "part", "attention", "effect", "rules", "none", "untested"]
_EITHER_WAY = Measure("", binary=True)  # its items are right or wrong: as many documents as it asks for tell such rows
_SURE = 0.8  # of the prompts: a model that is right in fewer is said to be
_SEEN = 0.5  # of a relation's items: a model that sees fewer is said to
_VERDICTS: dict[Verdict, tuple[str, str, str]] = {  # of one behaviour, of several, and without a verb
    "found": ("is found", "are found", "found"),
    "part": ("is found in part", "are found in part", "in part"),
    "attention": ("shows in attention only", "show in attention only", "in attention only"),
    "effect": ("shows in effects only", "show in effects only", "in effects only"),
    "rules": ("is no more than simple rules", "are no more than simple rules", "no more than simple rules"),
    "untested": (
        "shows in attention (effect untested)",
        "show in attention (effect untested)",
        "in attention (effect untested)",
    ),
    "none": ("is not found", "are not found", "not found"),
}


@dataclass(frozen=True)
class Clause:
    """A clause and the rows that it is made from; `made` is which of the ways to word rows makes it."""

    text: str
    made: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Sentence:
    """What is said of one behaviour: how it stands, in a word or two, and clauses."""

    behaviour: str
    title: str
    verdict: Verdict
    clauses: tuple[Clause, ...]

    @property
    def stands(self) -> str:
        """How it stands, beside its title."""
        return _VERDICTS[self.verdict][-1]

    @property
    def text(self) -> str:
        """The clauses, one after the other."""
        return " ".join(filter(None, [self.first, self.rest]))

    @property
    def first(self) -> str:
        """The first clause: where a head looks, and what a rule gets; what is needed, where effects alone show it."""
        return _joined(self.clauses[:1])

    @property
    def rest(self) -> str:
        """What the first leaves open: whether the head is right where its rule errs, what the model needs."""
        return _joined(self.clauses[1:])


def _joined(clauses: Sequence[Clause]) -> str:
    return " ".join(f"{clause.text}." for clause in clauses)


def sentences(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], behaviours: Mapping[str, Behaviour]
) -> list[Sentence]:
    """One for each behaviour that was measured, in their order.

    Args:
        tables: of a report, by name.
        facts: of every head (`analyses.headlines.facts.facts`).
        behaviours: by name.
    """
    measured = set(tables["heads"]["behaviour"])
    return [_sentence(tables, facts, each, behaviours) for name, each in behaviours.items() if name in measured]


def headline(said: Sequence[Sentence]) -> str:
    """How every behaviour stands, in one line: the first with a verb, the others without; neighbours alike share it."""
    alike = groupby(said, lambda each: _VERDICTS[each.verdict])
    stands = [(verdict, [each.title for each in them]) for verdict, them in alike]
    line = ", ".join(
        f"{plain_words.listed(names)} {without if at else plural if len(names) > 1 else singular}"
        for at, ((singular, plural, without), names) in enumerate(stands)
    )
    return line[:1].upper() + line[1:]


def attention(row: Mapping[str, Any], titled: Mapping[str, str]) -> str:
    """What a head does, from its row of `heads` alone: how much of it, and what the strictest baseline gets."""
    return _say_looks([row], titled, several=False)


def again(clause: Clause, tables: Tables, behaviours: Mapping[str, Behaviour]) -> str:
    """The clause's text, made from its rows alone.

    Raises:
        KeyError: a row is not in the tables.
    """
    several = len(tables["heads"][["stack", "attention"]].drop_duplicates()) > 1
    return _MADE[clause.made]([row.find(tables) for row in clause.rows], titles(behaviours), several)


def _sentence(
    tables: Tables, facts: Mapping[Place, Sequence[Fact]], behaviour: Behaviour, behaviours: Mapping[str, Behaviour]
) -> Sentence:
    own = [(place, fact) for place, found in facts.items() for fact in found if fact.behaviour == behaviour.name]
    verdict = _verdict([fact for _, fact in own], tested=_tested(tables, behaviour.name))
    attends = [(place, fact) for place, fact in own if fact.kind != "needed"]
    looks = _first([one for one in attends if _more(one[1])] or attends)
    needs = _first((place, fact) for place, fact in own if fact.kind == "needed" and fact.sizes[0].unit == "share")
    hidden = _first(
        (place, fact) for place, fact in own if fact.sizes[-1].unit == "nats" or fact.sizes[0].unit == "nats"
    )
    attention = _looks(tables, looks[1]) if looks else _closest(tables, behaviour)
    effect = [_carries(tables, needs[1])] if needs else [_hidden(hidden[1])] if hidden and hidden[1].needed else []
    made = [*effect, *attention] if verdict == "effect" else [*attention, *effect]
    clauses = [Clause("", how, rows) for how, rows in made]
    told = tuple(Clause(again(each, tables, behaviours), each.made, each.rows) for each in clauses)
    return Sentence(behaviour.name, (behaviour.noun or behaviour.title).lower(), verdict, told)


def _first(own: Iterable[tuple[Place, Fact]]) -> tuple[Place, Fact] | None:
    """The one that comes first of all heads' facts."""
    return min(own, key=lambda one: ranking.of_fact(one[1]), default=None)


def _verdict(own: Sequence[Fact], *, tested: bool) -> Verdict:
    """How a behaviour stands."""
    kinds = {fact.kind for fact in own if _more(fact)}
    if "looks there and needed" in kinds:
        return "found"
    if kinds >= {"looks there", "needed"}:
        return "part"
    if "looks there" in kinds:
        return "attention" if tested else "untested"
    if "needed" in kinds:
        return "effect"
    return "rules" if own else "none"


def _more(fact: Fact) -> bool:
    """Whether it says more than that a head follows a simple rule, which says something of position alone."""
    return fact.behaviour == "position" or fact.rung > 1


def _tested(tables: Tables, behaviour: str) -> bool:
    """Whether there was any causal test of a behaviour."""
    known = [tables[name] for name in ("effects", "evidence") if name in tables and len(tables[name])]
    return any(bool(rows.loc[rows["behaviour"] == behaviour, "effect"].notna().any()) for rows in known)


# Which rows a clause is made from.


def _looks(tables: Tables, fact: Fact) -> list[tuple[str, tuple[Row, ...]]]:
    """Where a head looks: from the rule's row where it has rules to beat, else from its row of heads. Of a relation or
    an antecedent also how often the head is right where the rule errs."""
    rule = fact.row_of("rules")
    if not rule or fact.name.startswith(WHOEVER):
        return [("looks", (*(fact.row_of("labels") or rule), *fact.row_of("heads")))]
    found = [("chooses", (*fact.row_of("labels"), *rule))]
    asked = not fact.name.startswith("rule:") and math.isfinite(rule[0].find(tables)["target_share"])
    return [*found, ("finds", rule)] if asked else found


def _carries(tables: Tables, fact: Fact) -> tuple[str, tuple[Row, ...]]:
    told = [Row("tasks", (("behaviour", fact.behaviour), ("task", fact.name)))] if fact.name in answers(tables) else []
    return "carries", (fact.rows[0], *told)


def _hidden(fact: Fact) -> tuple[str, tuple[Row, ...]]:
    return "hidden", fact.row_of("labels")


def _closest(tables: Tables, behaviour: Behaviour) -> list[tuple[str, tuple[Row, ...]]]:
    """Of a behaviour that no head's attention shows: the head that comes closest to what it must beat. Where rules are
    to be beaten, the half that does not report says which it is."""
    called = [each.name for each in behaviour.measures if each.called and each.unit == "share"]
    called = [name for name in called if name in behaviour.headline] or called
    rules = tables.get("rules", pd.DataFrame(columns=["behaviour", "measure", "choosing_margin", "n"]))
    beside = rules.loc[
        (rules["behaviour"] == behaviour.name) & rules["measure"].isin(called) & (rules["n"] >= FEW_ITEMS)
    ]
    beside = beside.sort_values("choosing_margin", ascending=False, kind="stable").dropna(subset=["choosing_margin"])
    if len(beside):
        return [("closest", (rule_row(beside.iloc[0].to_dict()),))]
    heads = tables["heads"]
    asked = heads.loc[
        (heads["behaviour"] == behaviour.name) & (heads["sink"] == "kept") & heads["measure"].isin(called)
    ]
    asked = asked.dropna(subset=["gain"])
    asked = asked.loc[asked["n"] >= FEW_ITEMS] if (asked["n"] >= FEW_ITEMS).any() else asked
    if asked.empty:
        return []
    best = head_row(asked.nlargest(1, "gain").iloc[0].to_dict())
    return [("closest", (best, *_with_bar(tables, best)))]


def _with_bar(tables: Tables, row: Row) -> list[Row]:
    """The row of `evidence` about the same as one of `heads`, where that says what heads gain that learnt nothing."""
    evidence, key = tables.get("evidence", pd.DataFrame()), dict(row.key[:-1])
    there = "bar" in evidence and bool((evidence[[*key]] == [*key.values()]).to_numpy().all(axis=1).any())
    return [Row("evidence", row.key[:-1])] if there else []


# How rows are worded.

Rows = Sequence[Mapping[str, Any]]


def _named(row: Mapping[str, Any], several: bool) -> str:
    return Place.of(row).named(several=several)


def _label(rows: Rows, titled: Mapping[str, str]) -> plain_words.Words:
    """The label of the first row, or its measure, in words."""
    name = _name(rows)
    return plain_words.label(name, titled.get(name, ""))


def _name(rows: Rows) -> str:
    """The label of the first row; of one of rules what a head is called beside these, else its measure."""
    first = rows[0]
    beside = called_beside(str(first["measure"]), first) if "verdict" in first else None
    return str(first.get("label") or beside or first["measure"])


def _say_looks(rows: Rows, titled: Mapping[str, str], several: bool) -> str:
    """From a row of labels, or of rules, where there is one, and one of heads."""
    words, cell = _label(rows, titled), rows[-1]
    head = f"{_named(rows[0], several)} {words.said}"
    if cell["unit"] == "lift":
        return f"{head} {cell['value']:.1f} times as much as distance explains"
    if cell["unit"] == "correlation":
        return f"{head}: rank correlation {cell['value']:.2f}"
    cases = cell["fewest"] == _EITHER_WAY.fewest
    rival = plain_words.rule(str(cell["baseline_name"]), "word" if cases else "token")
    share = (words.share or ("in {} of cases" if cases else "with {} of its attention")).format(percent(cell["value"]))
    where = f" on {cell['corpus']}" if cell["corpus"] == REPEATS else ""
    return f"{head} {share}{where}; {rival} gets {percent(cell['baseline'])}"


def _say_chooses(rows: Rows, titled: Mapping[str, str], several: bool) -> str:
    """From a row of labels and one of rules: how often the head is right, and how often the rule."""
    label, rule = rows[0], rows[-1]
    head = f"{_named(label, several)} {_label(rows, titled).said}"
    if _name(rows).startswith("rule:"):
        return f"{head} in {percent(rule['predicts'])} of {_cases(rule)}, as a simple rule does"
    own, rival, taking = percent(rule["value"]), percent(rule["rival_value"]), plain_words.taking(str(rule["rival"]))
    return f"{head} in {own} of {_cases(rule)}; {taking} gets {rival}"


def _cases(rule: Mapping[str, Any]) -> str:
    """Of which cases a row of rules is: a model that reads from left to right may see few of a relation."""
    return f"the {percent(rule['asked'])} of cases that it sees" if rule["asked"] < _SEEN else "cases"


def _say_finds(rows: Rows, titled: Mapping[str, str], several: bool) -> str:
    """From a row of rules: how often the head is right where the rule is not."""
    (rule,) = rows
    errs = f"Where {plain_words.taking(str(rule['rival']))} errs"
    return f"{errs}, {_named(rule, several)} is right in {percent(rule['target_share'])}"


def _say_carries(rows: Rows, titled: Mapping[str, str], several: bool) -> str:
    """From a row of effects, and one of tasks where there is one."""
    effect, task = rows[0], {"carried": "", "accuracy": 1.0, **rows[-1]}
    answer = plain_words.answer(task["carried"] or task["task"])
    said = f"Replacing {_named(effect, several)} removes {percent(effect['effect'])} of {answer}"
    said += f" and changes {flips(effect)}"
    if task["accuracy"] < _SURE:
        said += f"; the model is right in {percent(task['accuracy'])}"
    return said


def _say_hidden(rows: Rows, titled: Mapping[str, str], several: bool) -> str:
    """From a row of labels."""
    head, loss = _named(rows[0], several), f"{rows[0]['effect']:.2f} nats a token"
    return f"Without what {head} looks at there ({_label(rows, titled).short}) the model loses {loss}"


def _say_closest(rows: Rows, titled: Mapping[str, str], several: bool) -> str:
    """From a row of rules, which is of the half that heads were not chosen on, or of heads, that shows nothing."""
    row, *evidence = rows
    rule, share = (row["rival"], row["rival_value"]) if "rival" in row else (row["baseline_name"], row["baseline"])
    asked = plain_words.label(str(row["measure"]), titled.get(str(row["measure"]), ""))
    said = f"No head is shown to {plain_words.infinitive(asked.said.removesuffix(plain_words.NAMED))}"
    best = f"at best {_named(row, several)} gets {percent(row['value'])}"
    best += f" of only {row['n']:.0f}" if row["n"] < FEW_ITEMS else ""
    if "rival" in row:
        best += " (held-out)" if _cases(row) == "cases" else f" of {_cases(row)} (held-out)"
    said += f": {best}, {plain_words.taking(str(rule))} {percent(share)}"
    if evidence and evidence[0]["bar"] >= NOTABLE:
        said += f"; heads that have learnt nothing gain up to {percent(evidence[0]['bar'])}"
    return said


_MADE: dict[str, Callable[[Rows, Mapping[str, str], bool], str]] = {
    "looks": _say_looks,
    "chooses": _say_chooses,
    "finds": _say_finds,
    "carries": _say_carries,
    "hidden": _say_hidden,
    "closest": _say_closest,
}
