"""How is one behaviour told? Turns what was measured and tested of it into a line in short and a section."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from analyses.causal_tests import Effects
from analyses.corpora import Corpus
from analyses.figures import measure_name
from analyses.findings import FEW_DOCUMENTS, FEW_ITEMS, UNKNOWN, causes
from analyses.head_names import head_name
from analyses.head_tables import Collected, Heads, Measured
from analyses.measures import RANKED, UNITS, Behaviour
from analyses.numerals import counted, false_discovery_rate, interval, number, percent, whole
from analyses.report import behaviour_sentences as sentences
from analyses.report.behaviour_sentences import UNSURE, beside_rules
from analyses.rivals.rules import NO_RULE, OTHERS
from analyses.sections import (
    BREAK,
    Block,
    Bullets,
    Figure,
    Part,
    Piece,
    Section,
    Table,
    Text,
    bold,
    caveat,
    emphasis,
    joined,
    link,
    soft,
)

_ROWS = 10  # heads in a table
_CELL = ["stack", "attention", "layer", "head", "measure"]
_COLUMNS = [
    *("head", "measure", "value", "baseline", "which", "gain", "95% interval", "n", "q"),
    *("value without first position", "value by norm"),
]
_FOLLOWED = (
    "On the half of the documents that chose nothing, for the head of each relation that is best on the other. "
    "“Asked”: the share of the relation’s items of which the model sees both words from the one that asks. “Best "
    "rule”: the nearest word of a class that is right most often. “Where it errs”: how often the head chooses the "
    "other end of the relation, and how often the word that the rule chooses. “Own rule”: the one that this head "
    "follows best, and how much more often, where it errs, the head is right than with it. A head of the relation "
    "beats both, and is right in 0.05 more of all items than the best rule. “Follows”: the simplest rule that predicts "
    "its choices."
)
_TESTS = (
    "Denoising puts one head’s clean output into the corrupted run and asks whether it is enough: what does it "
    "restore? Noising puts its corrupted output into the clean run and asks whether it is needed: what does it remove? "
    "One half of the pairs chooses heads; shares, and how many answers change, are of the other."
)


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


def told(result: Result, *, several: bool, evidence: pd.DataFrame | None = None) -> Part:
    """A behaviour as the page shows it; `several` where a model has several kinds of attention.

    `evidence` are the rows of `tables/evidence`, where labels were asked for.
    """
    name = result.name(several)
    id = "-".join([result.behaviour.name, *([result.kind.stack, result.kind.attention] if several else [])])
    measured = result.behaviour.described
    caveats = [*map(caveat, _caveats(result, several=several))]
    if result.left_out:
        why = f"Not measured: {result.left_out}."
        where = f"{measured} It was to be measured on {result.corpus.title}." if result.readable else measured
        return Part([Section(name, [where, caveat(why), *caveats], id)], short=[(link(name, id), why)])
    documents = f", {counted(result.measured.documents, 'document')}" if result.measured.documents else ""
    section = Section(
        name,
        [
            f"{measured} Measured on {result.corpus.title}{documents}.",
            *caveats,
            Section(
                "Attention: which heads?",
                [
                    *strongest(result.measured.heads, result.behaviour.headline),
                    *_rules(result),
                    *_followed(result),
                    *result.drawn,
                ],
            ),
            Section("Cause: which heads does the answer need?", _causes(result)),
        ],
        id,
    )
    kind = {"stack": result.kind.stack, "attention": result.kind.attention, "behaviour": result.behaviour.name}
    known = None if evidence is None else evidence.loc[(evidence[[*kind]] == [*kind.values()]).all(axis=1)]
    bars = None if known is None or known.empty else dict(zip(known["measure"], known["bar"], strict=True))
    attention, cause = sentences.attention(result.behaviour, result.measured, bars), sentences.cause(result.tested)
    short = link(name, id), emphasis("Attention"), Bullets(attention), emphasis("Cause"), Bullets(cause)
    return Part([section], short=[short])


def _caveats(result: Result, *, several: bool) -> list[str]:
    """What makes this behaviour's numbers less than they look."""
    found = []
    if several and result.kind.stack == "decoder" and "targets" not in result.corpus.annotates:
        found.append("The texts have no targets: the decoder read each text as its own target.")
    if result.generated:
        found.append("No given corpus has the annotations that this needs, so it was measured on generated tales.")
    if result.left_out:
        return found
    if result.measured.documents is not None and result.measured.documents < FEW_DOCUMENTS:
        found.append("Fewer than 20 documents: intervals are rough, and a behaviour may be this text’s own.")
    tokens, unknown = result.counts.get("tokens", 0), result.counts.get("unknown tokens", 0)
    if unknown > UNKNOWN * tokens:
        share = f"{unknown / tokens:.0%}"
        found.append(f"{share} of the tokens of this text are unknown to the model: it read only the rest of it.")
    if absent := [measure_name(name) for name in result.behaviour.headline if name in result.measured.absent]:
        found.append(f"This text has no item of {', '.join(absent)}, so nothing is said of it.")
    items = result.measured.heads.loc[
        result.measured.heads["measure"].isin(list(result.behaviour.headline))
        & (result.measured.heads["sink"] == "kept")
    ]
    fewest = items.groupby("measure", sort=False)["n"].max()
    if few := [f"{measure_name(str(name))} {n}" for name, n in fewest.items() if n < FEW_ITEMS]:
        found.append(f"Few items could be scored ({', '.join(few)}): such shares are rough.")
    return found


# Attention.


def strongest(heads: pd.DataFrame, headline: Sequence[str]) -> list[Table]:
    """For each unit, the heads with the largest gains in the headline measures, findings or not."""
    ranked = heads.loc[heads["measure"].isin(list(headline)) & (heads["sink"] == "kept")]
    without = heads.loc[heads["sink"] == "removed", [*_CELL, "value"]]
    rows = ranked.merge(without.rename(columns={"value": "without"}), on=_CELL, how="left")
    tops = [(UNITS[each].title, rows.loc[rows["unit"] == each].nlargest(_ROWS, "gain")) for each in RANKED]
    return [
        Table(
            _COLUMNS,
            [_shown(row) for row in top.to_dict("records")],
            "llrrlrrrrrr",
            f"{title}. The {len(top)} largest gains, findings or not, on the text on which they were chosen.",
        )
        for title, top in tops
        if len(top)
    ]


def _shown(row: Mapping[str, Any]) -> list[Text]:
    """One row of the table of heads as text."""
    return [
        bold(_head(row)),
        measure_name(str(row["measure"])),
        number(row["value"]),
        number(row["baseline"]),
        measure_name(str(row["baseline_name"])),
        number(row["gain"], sign=True),
        interval(row["ci_low"], row["ci_high"], sign=True),
        number(row["n"]),
        false_discovery_rate(row["q"]),
        number(row["without"]),
        number(row["norm_value"]),
    ]


def _rules(result: Result) -> list[Table]:
    """Every rule's value on every headline measure."""
    rows = result.measured.baselines
    if rows.empty:
        return []
    rows = rows.loc[(rows["sink"] == "kept") & rows["measure"].isin(list(result.behaviour.headline))]
    measures = [measure for measure in result.behaviour.headline if measure in set(rows["measure"])]
    table = rows.pivot_table(index="baseline_name", columns="measure", values="value", sort=False)[measures]
    values = [[measure_name(str(name)), *map(number, row)] for name, row in table.iterrows()]
    caption = "What simple rules reach on the same items, through the same scorer."
    columns = ["rule", *map(measure_name, measures)]
    return [Table(columns, values, "l" + "r" * len(measures), caption)] if values else []


def _followed(result: Result) -> list[Table]:
    """The best head of each relation that beats its offsets, beside the nearest word of a class."""
    shown = beside_rules(result.measured)
    shown = shown.loc[shown["rival"] != OTHERS].drop_duplicates("measure")
    rows = [
        [
            _head(row),
            measure_name(row["measure"]),
            percent(row["asked"]) if pd.notna(row["asked"]) else "–",
            number(row["value"]),
            f"{measure_name(row['rival'])} {number(row['rival_value'])}",
            f"{number(row['target_share'])} / {number(row['rival_share'])} (n {whole(row['n_differ'])})",
            f"{measure_name(str(row['own_rival']))} {number(row['own_difference'], sign=True)} "
            f"(n {whole(row['own_n_differ'])})",
            row["verdict"],
            measure_name(row["rule"]) + (f" {number(row['predicts'])}" if row["rule"] != NO_RULE else ""),
        ]
        for row in shown.to_dict("records")
    ]
    columns = ["head", "relation", "asked", "right", "best rule", "where it errs", "own rule", "verdict", "follows"]
    return [Table(columns, rows, "llrrwwwww", _FOLLOWED)] if rows else []


def _head(row: Mapping[str, Any]) -> str:
    return head_name(row["layer"], row["head"])


# Cause.


def _causes(result: Result) -> list[Block]:
    """The causal tests: what the model does in each, whether it was refused, and which heads carry the answer."""
    if result.tested.left_out:
        return [result.tested.left_out]
    blocks: list[Block] = [_TESTS]
    for task in result.tested.tasks:
        facts = [
            f"{says} {number(task.get(key))}"
            for key, says in (
                ("accuracy", "share of clean prompts answered right"),
                ("difference", "whole difference"),
                ("n", "pairs"),
                ("clean", "logit difference, clean"),
                ("corrupt", "corrupted"),
                ("neutral", "neutral"),
            )
            if task.get("n") and number(task.get(key)) != "–"
        ]
        facts += [f"about this {task['fixed']} alone"] if task.get("fixed") else []
        shown = [BREAK, soft(" · ".join(facts))] if facts else []
        question = f": {task.get('question', '')}"
        blocks.append([bold(task["task"]), question, *shown, BREAK, "Found: ", *_outcome(task, result.tested.table)])
        if task["task"] in result.caused:
            blocks.append(result.caused[task["task"]])
    return blocks


def _outcome(task: Mapping[str, Any], effects: pd.DataFrame) -> list[Piece]:
    """Which heads carry the answer of a task, or why none was tested."""
    if refused := (task.get("refused") or "").rstrip("."):
        return [f"no head was tested: {refused}."]
    heads = [_effect(row) for row in causes(effects, task["task"]).to_dict("records")]
    found = joined(heads, "; ") if heads else ["no single head carries 0.05 of the difference beyond doubt"]
    if not task.get("accuracy", 1.0) < UNSURE:  # undefined: nothing is said
        return [*found, "."]
    right = number(task["accuracy"])
    rarely = f". The model answers only {right} of the clean prompts right, so what these heads carry often does not "
    return [*found, f"{rarely}decide its answer."]


def _effect(row: Mapping[str, Any]) -> list[Piece]:
    """What one head restores and removes."""
    does = [
        [
            f"{says} {number(row[way])} ",
            soft(
                f"(95% {interval(row[way + '_low'], row[way + '_high'])}; "
                f"{row[way + '_flips']:.0f} of {row['n']:.0f} answers change)"
            ),
        ]
        for way, says in (("denoise", "restores"), ("noise", "removes"))
        if way in row
    ]
    return [bold(_head(row)), " alone ", *joined(does, " and "), " of the difference"]
