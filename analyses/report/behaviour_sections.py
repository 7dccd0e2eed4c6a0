"""What does a page say of one behaviour? Turns what was measured and tested into a line in short and a section."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analyses.behaviours import vocabulary
from analyses.corpora import Corpus
from analyses.figures import measure_name
from analyses.headlines import say
from analyses.measures.definitions import RANKED, UNITS, Behaviour
from analyses.measures.findings import FEW_DOCUMENTS, FEW_ITEMS, NOTABLE, UNKNOWN, best, causes, notable
from analyses.measures.head_tables import Collected, Heads, Measured
from analyses.page.schema import SCHEMAS, WAYS
from analyses.page.sections import (
    BREAK,
    Block,
    Bullets,
    Figure,
    Part,
    Section,
    Table,
    Text,
    bold,
    caveat,
    emphasis,
    link,
    soft,
)
from analyses.scoring.rules import BEATS, FAILS, OTHERS, RULE_COLUMNS, UNTESTED
from analyses.tasks.causal_tests import Effects
from analyses.wording.formats import counted, number, percent
from analyses.wording.head_names import HEAD, head_name
from analyses.wording.plain_words import TEXTS, WORDS, worded

_ROWS = 10  # heads in a table
_CELL = [*HEAD, "measure"]
_COLUMNS = "head measure value baseline baseline_name gain interval n q without norm_value"


@dataclass(frozen=True)
class Result:
    """One behaviour in one kind of attention, measured, tested and drawn.

    `left_out` says why where this model could not be measured on its corpus.
    """

    behaviour: Behaviour
    kind: Heads
    corpus: Corpus
    generated: bool  # no given corpus annotates it, so it was measured on generated tales
    measured: Measured
    tested: Effects
    left_out: str | None = None
    collected: Collected | None = None
    drawn: Sequence[Figure] = ()
    caused: Mapping[str, Figure] = field(default_factory=dict)  # by task

    @property
    def counts(self) -> dict[str, int]:
        """What was read and what was left out, in measuring and in the causal test."""
        left_out = {f"pairs left out of {task['task']}": task.get("left_out") for task in self.tested.tasks}
        return {**self.measured.counts, **{name: count for name, count in left_out.items() if count}}

    @property
    def readable(self) -> bool:
        """Whether its corpus annotates what it needs."""
        return self.behaviour.needs <= self.corpus.annotates

    def name(self, several: bool) -> str:
        """The heading; it says in which attention where a model has several kinds."""
        return self.behaviour.title + (f" in {self.kind.title}" if several else "")


def section(result: Result, several: bool, evidence: pd.DataFrame | None = None) -> Part:
    """A behaviour as the page shows it; `several` where a model has several kinds of attention.

    `evidence` are the rows of `tables/evidence`, where labels were asked for.
    """
    name, described, measured = result.name(several), result.behaviour.described, result.measured
    id = "-".join([result.behaviour.name, *([result.kind.stack, result.kind.attention] if several else [])])
    caveats = [*map(caveat, _caveats(result, several=several))]
    if result.left_out:
        why = f"Not measured: {result.left_out}."
        where = f"{described} It was to be measured on {result.corpus.title}." if result.readable else described
        return Part([Section(name, [where, caveat(why), *caveats], id)], short=[(link(name, id), why)])
    documents = f", {counted(measured.documents, 'document')}" if measured.documents else ""
    tables = [*strongest(measured.heads, result.behaviour.headline), *_rules(result), *_followed(measured)]
    blocks = [
        f"{described} Measured on {result.corpus.title}{documents}.",
        *caveats,
        Section("Attention: which heads?", [*tables, *result.drawn]),
        Section("Cause: which heads does the answer need?", _causes(result)),
    ]
    kind = {"stack": result.kind.stack, "attention": result.kind.attention, "behaviour": result.behaviour.name}
    known = pd.DataFrame() if evidence is None else evidence.loc[(evidence[[*kind]] == [*kind.values()]).all(axis=1)]
    bars = dict(zip(known["measure"], known["bar"], strict=True)) if len(known) else None
    told = Bullets(attention(result.behaviour, measured, bars)), emphasis("Cause"), Bullets(cause(result.tested))
    return Part([Section(name, blocks, id)], short=[(link(name, id), emphasis("Attention"), *told)])


def _caveats(result: Result, *, several: bool) -> list[str]:
    """What makes this behaviour's numbers less than they look."""
    heads, headline = result.measured.heads, result.behaviour.headline
    tokens, unknown = result.counts.get("tokens", 0), result.counts.get("unknown tokens", 0)
    absent = ", ".join(measure_name(name) for name in headline if name in result.measured.absent)
    rows = _headline(heads, headline).to_dict("records") if len(heads) else []
    fewest = {
        name: max(row["n"] for row in rows if row["measure"] == name) for name in (row["measure"] for row in rows)
    }
    few = ", ".join(f"{measure_name(str(name))} {n}" for name, n in fewest.items() if n < FEW_ITEMS)
    untold = several and result.kind.stack == "decoder" and "targets" not in result.corpus.annotates
    known: dict[str, object] = {"no targets": untold, "on generated": result.generated}
    if not result.left_out:
        known["few documents"] = (result.measured.documents or FEW_DOCUMENTS) < FEW_DOCUMENTS
        known |= {"unknown tokens": unknown > UNKNOWN * tokens, "no item": absent, "few items": few}
    share = f"{unknown / tokens:.0%}" if tokens else ""
    return [TEXTS[name].format(share=share, absent=absent, few=few) for name, holds in known.items() if holds]


def _headline(rows: pd.DataFrame, headline: Sequence[str]) -> pd.DataFrame:
    """Rows of the headline measures, read with the first position."""
    return rows.loc[rows["measure"].isin(list(headline)) & (rows["sink"] == "kept")]


# Attention.


def attention(behaviour: Behaviour, measured: Measured, bars: Mapping[str, float] | None = None) -> list[Text]:
    """For each headline measure that any head shows, the best head and how many others.

    `bars` are by measure what heads that have learnt nothing do not gain; None where there are no labels.
    """
    heads, rows, words = measured.heads, notable(measured.heads), vocabulary({behaviour.name: behaviour})
    n_heads = len(heads[HEAD].drop_duplicates())
    beside = {tuple(row[column] for column in _CELL): row for row in beside_rules(measured).to_dict("records")}

    def looks(row: Mapping[str, Any]) -> str:
        return say.looks(row, head_name(row["layer"], row["head"]), worded(str(row["measure"]), words))

    said: list[Text] = []
    for measure in behaviour.headline:
        for first, *others in filter(None, [best(rows, [measure], len(rows)).to_dict("records")]):
            names = ", ".join(head_name(row["layer"], row["head"]) for row in others[:3])
            line = f"{looks(first)}."
            line += f" {len(others) + 1} of {n_heads} heads are above it, next {names}." if names else ""
            if (bar := (bars or {}).get(measure, 0.0)) >= NOTABLE:
                gain = percent(bar) if first["unit"] == "share" else number(bar)
                line += f" Heads that have learnt nothing stay below {gain}."
            rule = beside.get(tuple(first[column] for column in _CELL))
            said.append([line, *([" ", emphasis(say.beside_rules(rule))] if rule else [])])
    if said:
        return [*said, *_against_rules(measured), *([TEXTS["no bars"]] if bars is None else [])]
    closest = best(heads.loc[heads["unit"] == "share"], behaviour.headline, 1).to_dict("records")
    return [" The closest: ".join(["No head stands out.", *(f"{looks(row)}." for row in closest)])]


def beside_rules(measured: Measured) -> pd.DataFrame:
    """Rows of `tables/rules` of the heads that beat every fixed offset, the best on the half that chooses first."""
    rules = measured.rules
    if rules.empty:
        return rules.reindex(columns=RULE_COLUMNS)
    shown = rules.merge(notable(measured.heads)[_CELL], on=_CELL)
    return shown.sort_values("choosing_margin", ascending=False, kind="stable")


def _against_rules(measured: Measured) -> list[Text]:
    """How many relations of heads stand where the nearest word of a class is wrong."""
    shown = beside_rules(measured)
    said: list[Text] = []
    for of_tags, rows in shown.groupby(shown["rival"] == OTHERS):
        numbers = [number([*rows["verdict"]].count(verdict)) for verdict in (BEATS, FAILS, UNTESTED)]
        said.append(TEXTS["against tags" if of_tags else "against rules"].format(number(len(rows)), *numbers))
    return said


def strongest(heads: pd.DataFrame, headline: Sequence[str]) -> list[Table]:
    """For each unit, the heads with the largest gains in the headline measures, findings or not."""
    without = heads.loc[heads["sink"] == "removed", [*_CELL, "value"]]
    rows = _headline(heads, headline).merge(without.rename(columns={"value": "without"}), on=_CELL, how="left")
    tops = [(UNITS[each].title, rows.loc[rows["unit"] == each].nlargest(_ROWS, "gain")) for each in RANKED]
    caption = "{}. The {} largest gains, findings or not, on the text on which they were chosen."
    return [
        SCHEMAS["heads"].page(top.to_dict("records"), _COLUMNS, caption.format(title, len(top)))
        for title, top in tops
        if len(top)
    ]


def _rules(result: Result) -> list[Table]:
    """Every rule's value on every headline measure."""
    rows = result.measured.baselines
    rows = rows if rows.empty else _headline(rows, result.behaviour.headline)
    if rows.empty:
        return []
    measures = [measure for measure in result.behaviour.headline if measure in set(rows["measure"])]
    table = rows.pivot_table(index="baseline_name", columns="measure", values="value", sort=False)[measures]
    values = [[measure_name(str(name)), *map(number, row)] for name, row in table.iterrows()]
    caption = "What simple rules reach on the same items, through the same scorer."
    return [Table(["rule", *map(measure_name, measures)], values, "l" + "r" * len(measures), caption)]


def _followed(measured: Measured) -> list[Table]:
    """The best head of each relation that beats its offsets, beside the nearest word of a class."""
    shown = beside_rules(measured)
    rows = shown.loc[shown["rival"] != OTHERS].drop_duplicates("measure").to_dict("records")
    columns = "head measure asked value best errs own verdict follows"
    return [SCHEMAS["rules"].page(rows, columns, TEXTS["followed"])] if rows else []


# Cause.


def cause(tested: Effects) -> list[Text]:
    """What the causal tests showed, a sentence or two each."""
    if tested.left_out:
        return [tested.left_out]
    return [say.task(task, _carriers(task, tested)) for task in tested.tasks] or ["No task was run."]


def _carriers(task: Mapping[str, Any], tested: Effects) -> list[dict[Any, Any]]:
    return [] if task.get("refused") else causes(tested.table, task["task"]).to_dict("records")


def _causes(result: Result) -> list[Block]:
    """The causal tests: what the model does in each, whether it was refused, and which heads carry the answer."""
    if result.tested.left_out:
        return [result.tested.left_out]
    blocks: list[Block] = [TEXTS["tests"]]
    for task in result.tested.tasks:
        known = {says: number(task.get(key)) for key, says in WORDS["task_facts"].items()} if task.get("n") else {}
        facts = [f"{says} {value}" for says, value in known.items() if value != "–"]
        facts += [f"about this {task['fixed']} alone"] if task.get("fixed") else []
        shown, rows = [BREAK, soft(" · ".join(facts))] if facts else [], _carriers(task, result.tested)
        blocks.append([bold(task["task"]), f": {task.get('question', '')}", *shown, BREAK, say.task(task, rows)])
        blocks += [SCHEMAS["both ways"].page(rows, f"head {WAYS}")] if rows else []
        blocks += [result.caused[task["task"]]] if task["task"] in result.caused else []
    return blocks
