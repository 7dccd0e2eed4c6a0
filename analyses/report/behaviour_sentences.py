"""What is said of one behaviour in short? Plain sentences, made from rows of its tables, shares with two digits.

Intervals and numbers as they are stand in the section's tables, beside its figures and on the cards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analyses import plain_words
from analyses.causal_tests import Effects
from analyses.findings import NOTABLE, best, causes, notable
from analyses.head_names import HEAD, Place
from analyses.head_tables import Measured
from analyses.headlines import sentences
from analyses.headlines.facts import titles
from analyses.measures import Behaviour
from analyses.numerals import number, percent
from analyses.rivals.rules import ANTECEDENT, BEATS, FAILS, NO_RULE, OTHERS, RELATION, RULE_COLUMNS, UNTESTED
from analyses.sections import Piece, Text, bold, emphasis, joined

UNSURE = 0.8  # a model that answers fewer clean prompts right than this is said to
_CELL = [*HEAD, "measure"]
_AGAINST = {
    False: (
        "measure above the baseline",
        "Beside simple rules such as “the last verb” or “the nearest name”, on all items and where these are wrong",
        ", where those rules hardly err",
    ),
    True: ("two tags with a lift above 1", "Beside the same head’s lift from words of other tags", ""),
}
_BESIDE_RULES = {
    BEATS: "the head is right more often, and where rules are wrong more often than it follows them",
    FAILS: "it is not shown that the head does more",
    UNTESTED: "this text cannot tell the head from a rule",
}
_BESIDE_OTHERS = {
    BEATS: "{these} look at {those} more than other words do.",
    FAILS: "It is not shown that {these} look at {those} more than other words do.",
    UNTESTED: "Whether {these} look at {those} more than other words do cannot be told from this text.",
}

_NO_BARS = "Without labels nothing says what heads gain that have learnt nothing."
_CARRIES = {  # by the ways in which heads were patched
    ("noise", "denoise"): ("Replacing ", " removes {} of {answer}, and alone it restores {}"),
    ("noise",): ("Replacing ", " removes {} of {answer}"),
    ("denoise",): ("Alone ", " restores {} of {answer}"),
}


# Attention.


def attention(behaviour: Behaviour, measured: Measured, bars: Mapping[str, float] | None = None) -> list[Text]:
    """For each headline measure that any head shows, the best head and how many others.

    `bars` are by measure the largest gains of heads that have learnt nothing; None where there are no labels.
    """
    heads, rows = measured.heads, notable(measured.heads)
    n_heads, titled = len(heads[HEAD].drop_duplicates()), titles({behaviour.name: behaviour})
    beside = {tuple(row[column] for column in _CELL): row for row in beside_rules(measured).to_dict("records")}
    said: list[Text] = []
    for measure in behaviour.headline:
        if top := best(rows, [measure], len(rows)).to_dict("records"):
            others = _others(top, n_heads, (bars or {}).get(measure, 0.0))
            rule = beside.get(tuple(top[0][column] for column in _CELL))
            said.append(
                [
                    *_finding(top[0], titled),
                    f".{others}",
                    *([] if rule is None else [" ", emphasis(said_of_rule(rule))]),
                ]
            )
    if said:
        return [*said, *_against_rules(measured), *([_NO_BARS] if bars is None else [])]
    closest = best(heads.loc[heads["unit"] == "share"], behaviour.headline, 1).to_dict("records")
    none = "No head stands out."
    return [[f"{none} The closest: ", *_finding(closest[0], titled), "."] if closest else none]


def _others(top: Sequence[Mapping[str, Any]], n_heads: int, bar: float) -> str:
    """How many heads are above the baseline as the best one is, and what heads gain that have learnt nothing."""
    next_ones = ", ".join(map(_head, top[1:4]))
    said = f" {len(top)} of {n_heads} heads are above it, next {next_ones}." if next_ones else ""
    gain = percent(bar) if top[0]["unit"] == "share" else number(bar)
    return said + f" Heads that have learnt nothing gain up to {gain}." * bool(bar >= NOTABLE)


def _finding(row: Mapping[str, Any], titled: Mapping[str, str]) -> list[Piece]:
    """What one head does, and what its strictest baseline gets."""
    head = _head(row)
    return [bold(head), sentences.attention(row, titled).removeprefix(head)]


def _head(row: Mapping[str, Any]) -> str:
    return Place.of(row).named(several=False)


def beside_rules(measured: Measured) -> pd.DataFrame:
    """Rows of `tables/rules` of the heads that beat every fixed offset, the best on the half that chooses first."""
    rules = measured.rules
    if rules.empty:
        return rules.reindex(columns=RULE_COLUMNS)
    shown = rules.merge(notable(measured.heads)[_CELL], on=_CELL)
    return shown.sort_values("choosing_margin", ascending=False, kind="stable")


def _against_rules(measured: Measured) -> list[Text]:
    """How many relations of heads stand where the nearest word of a class is wrong."""
    shown, said = beside_rules(measured), []
    for of_tags, rows in shown.groupby(shown["rival"] == OTHERS):
        count = rows["verdict"].value_counts().reindex([BEATS, FAILS, UNTESTED], fill_value=0)
        found, beside, ends = _AGAINST[bool(of_tags)]
        holds, fails, untested = (number(count[verdict]) for verdict in (BEATS, FAILS, UNTESTED))
        said.append(
            f"Pairs of head and {found}: {number(len(rows))}. {beside}, it still holds in {holds}, does not in {fails} "
            f"and cannot be tested on this text in {untested}{ends}."
        )
    return said


def said_of_rule(row: Mapping[str, Any]) -> str:
    """Which simple rule a head goes by, how often that is right, and whether the head does more, in a sentence."""
    if row["rival"] == OTHERS:
        tags = map(plain_words.tag, row["measure"].removeprefix("tag:").split("->"))
        these, those = map(plain_words.plural, tags)
        said = _BESIDE_OTHERS[row["verdict"]].format(these=these, those=those)
        return f"{said[:1].upper()}{said[1:]}"
    right = percent(row["rival_value"])
    strictest = f"; {plain_words.taking(str(row['rival']))} is right in {right}"
    match row["rule"]:
        case rule if rule == NO_RULE:
            goes = f"it goes by no simple rule{strictest}"
        case rule if rule in (RELATION, ANTECEDENT):
            goes = f"nothing simpler predicts its choices than {rule}{strictest}"
        case rule:
            goes = f"it goes to {plain_words.rule(str(rule))} ({percent(row['predicts'])} of its choices)"
            goes += f", which is right in {right}" if rule == row["rival"] else strictest
    return f"On the half that reports {goes}: {_BESIDE_RULES[row['verdict']]}."


# Cause.


def cause(tested: Effects) -> list[Text]:
    """What the causal tests found, a sentence or two each."""
    if tested.left_out:
        return [tested.left_out]
    return [_outcome(task, tested.table) for task in tested.tasks] or ["No task was run."]


def _outcome(task: Mapping[str, Any], effects: pd.DataFrame) -> Text:
    """Which heads carry the answer of a task, or why none was tested."""
    answer = plain_words.answer(task.get("carried") or task["task"])
    if refused := (task.get("refused") or "").rstrip("."):
        return f"Of {answer} no head was tested: {refused}."
    rows = causes(effects, task["task"]).to_dict("records")
    none = f"No single head surely carries {percent(NOTABLE)} of {answer}"
    found = [joined(_effects(rows, answer), "; ") if rows else none]
    if task.get("accuracy", 1.0) < UNSURE:  # undefined: nothing is said
        decides = "; what these heads carry often does not decide its answer" if rows else ""
        found.append(f"The model is right in only {percent(task['accuracy'])} of the prompts{decides}")
    return [*joined(found, ". "), "."]


def _effects(rows: Sequence[Mapping[str, Any]], answer: str) -> list[Text]:
    """What replacing a head removes of an answer, and what it restores by itself; of others the numbers alone."""
    ways = tuple(way for way in ("noise", "denoise") if way in rows[0])
    does, says = _CARRIES[ways]
    heads = [bold(_head(row)) for row in rows]
    flips = [" and ".join(f"{row[way + '_flips']:.0f}" for way in ways) + f" of {row['n']:.0f}" for row in rows]
    shares = [[percent(row[way]) for way in ways] for row in rows]
    more = zip(heads[1:], shares[1:], flips[1:], strict=True)
    first = [does, heads[0], says.format(*shares[0], answer=answer), f" ({flips[0]} answers change)"]
    return [first, *([head, f" {' and '.join(own)} ({flips})"] for head, own, flips in more)]
