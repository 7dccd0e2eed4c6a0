"""What do the tables of a report say of each head? Its facts, in plain words, each with the row that it comes from.

A fact is a label, or a share of the answer to minimal pairs that the head carries. What it rests on is its `kind`:

    looks there and needed   its attention stands out, and without what it looks at the model's output loses
    needed                   replacing the head costs the answer, or the output loses without what it looks at
    looks there              its attention stands out; an effect is not established

Labels of near tokens (fixed offsets, the token itself) are one fact of a head. Which fact comes first: `ranking`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses import plain_words
from analyses.behaviours import ACROSS
from analyses.findings import carriers, notable
from analyses.head_names import Place, places
from analyses.measures import RANKED, Behaviour, Measure
from analyses.plain_words import Words
from analyses.rivals.rules import ANY, called_beside

Kind = Literal["looks there and needed", "needed", "looks there"]
Unit = Literal["share", "lift", "correlation", "nats"]
Tables = Mapping[str, pd.DataFrame]
KINDS: dict[object, Kind] = {"both": "looks there and needed", "effect": "needed", "attention": "looks there"}
_LOCAL = ("previous-token", "next-token", "self", "offset:", "rule:offset")
_FIRST = "first-token"
MEASURES_APART = ", "  # between names of measures of which a head shows any
WHOEVER = f"rule:{ANY}"  # begins labels that say of a lift whom it is not about
MOST = 0.5  # of a head's attention, of its choices or of an answer: more is what it mainly does


@dataclass(frozen=True)
class Row:
    """One row of a table: its name, and the columns that tell the row from all others."""

    table: str
    key: tuple[tuple[str, Any], ...]

    def find(self, tables: Tables) -> dict[str, Any]:
        """The row's values.

        Raises:
            KeyError: the table is not there, or has no such row, or several.
        """
        rows = tables[self.table]
        for column, value in self.key:
            rows = rows.loc[rows[column] == value]
        if len(rows) != 1:
            raise KeyError(f"expected one row {self}, got {len(rows)}")
        return {str(name): value for name, value in rows.iloc[0].items()}

    def __str__(self) -> str:
        return f"{self.table}: " + ", ".join(f"{column} {value}" for column, value in self.key)


@dataclass(frozen=True)
class Size:
    """A number with its 95% interval: a gain or a share of an answer, a lift beyond 1, a correlation, or nats a row.

    `over` is the baseline that a gain is over, by its name in `heads`; of nats what they are read off from; of a share
    of an answer how many answers change. `q` is its own, where it has one beside that of its fact.
    """

    what: str
    value: float
    low: float
    high: float
    unit: Unit
    over: str = ""
    q: float = float("nan")


@dataclass(frozen=True)
class Fact:
    """One thing that is known of a head.

    words      how it is told
    behaviour  what it is about
    kind       what it rests on
    name       the label, or the task of the minimal pairs
    sizes      the first ranks it; others stand beside it
    q          of the evidence that holds
    q_effect   of the effect that is not established; NaN where there is none, or it was not asked for
    value      of the measure on the whole text, and what its baseline or rule gets: NaN where it has none
    strength   the lower end of the interval, of what the baseline leaves over: at most 1, but for `nats`; of a share
               of an answer that of the pairs that chose it
    rung       what simpler descriptions leave over: 3 what only the words' content tells, a relation, a reference or a
               copy; 2 a pair of tags; 1 a class of words, whoever asks; 0 a distance; -1 the first position
    rows       the row it comes from, and those of what stands beside it
    measures   the names of the measures that say which words it is about; none where none does
    """

    words: Words
    behaviour: str
    kind: Kind
    name: str
    sizes: tuple[Size, ...]
    q: float
    strength: float
    rung: int
    rows: tuple[Row, ...]
    q_effect: float = float("nan")
    value: float = float("nan")
    baseline: float = float("nan")
    baseline_name: str = ""
    measures: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether the model needs the head for it."""
        return self.kind != "looks there"

    @property
    def read_on(self) -> str:
        """Of what text its `value` is: of all, or where it stands beside rules of the half that chose nothing."""
        beside = self.row_of("rules") and not self.name.startswith(WHOEVER)
        return "the half that reports" if beside else "the whole text"

    def row_of(self, table: str) -> tuple[Row, ...]:
        """The first of its rows that is of a table; none where there is none."""
        return tuple(row for row in self.rows if row.table == table)[:1]

    @property
    def mainly(self) -> bool:
        """Whether it is most of what the head does, or most of what an answer rests on."""
        value = self.value if np.isfinite(self.value) else self.sizes[0].value
        return self.sizes[0].unit in {"share", "correlation"} and value >= MOST


def facts(tables: Tables, behaviours: Mapping[str, Behaviour]) -> dict[Place, list[Fact]]:
    """Every head's facts, unordered; a head of which nothing holds has none.

    Args:
        tables: of a report, by name: `heads` at least. Of a behaviour without labels the rows of `heads` count that
            show a measure (`analyses.findings.notable`).
        behaviours: by name, those that were measured, for the titles of their measures.
    """
    found: dict[Place, list[Fact]] = {place: [] for place in places(tables["heads"])}
    values = _indexed(tables["heads"].loc[tables["heads"]["sink"] == "kept"], "measure")
    rules = _indexed(tables.get("rules", pd.DataFrame()), "measure")
    for place, fact in [*_labelled(tables, behaviours, values, rules), *_measured(tables, behaviours, rules)]:
        found[place].append(fact)
    for place, fact in _carried(tables, _foretold(tables, behaviours)):
        found[place].append(fact)
    return {place: _with_one_local(own) for place, own in found.items()}


def _row(table: str, row: Mapping[str, Any], *columns: str) -> Row:
    return Row(table, (*Place.of(row)._asdict().items(), *((column, row[column]) for column in columns)))


def head_row(row: Mapping[str, Any]) -> Row:
    """The key of a row of `heads`."""
    return _row("heads", row, "behaviour", "measure", "sink")


def rule_row(row: Mapping[str, Any]) -> Row:
    """The key of a row of `rules`."""
    return _row("rules", row, "measure")


def _indexed(rows: pd.DataFrame, *more: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of a table by head and some more columns."""
    return {(*Place.of(row), *(row[name] for name in more)): row for row in rows.to_dict("records")}


def titles(behaviours: Mapping[str, Behaviour]) -> dict[str, str]:
    """By label, what its measure asks in plain words."""
    measures = _measures(behaviours)
    return {name: measure.title for measure in measures for name in (measure.name, measure.called or measure.name)}


def _measures(behaviours: Mapping[str, Behaviour]) -> list[Measure]:
    """Those of the behaviours, and what is asked instead in cross-attention."""
    asked = [*behaviours.values(), *(each for name, each in ACROSS.items() if name in behaviours)]
    return [measure for behaviour in asked for measure in behaviour.measures]


def rung(label: str) -> int:
    """What simpler descriptions leave over of a label."""
    if label == _FIRST:
        return -1
    if label.startswith(_LOCAL):
        return 0
    return {"rule": 1, "tag": 2}.get(label.partition(":")[0], 3)


# Labels.


def _labelled(
    tables: Tables, behaviours: Mapping[str, Behaviour], values: Mapping[Any, Any], rules: Mapping[Any, Any]
) -> Iterable[tuple[Place, Fact]]:
    titled = titles(behaviours)
    for row in tables.get("labels", pd.DataFrame()).to_dict("records"):
        place, label, kind = Place.of(row), str(row["label"]), KINDS[row["evidence"]]
        words = plain_words.label(label, titled.get(label, ""))
        cell, rule = values.get((*place, row["measure"]), {}), rules.get((*place, row["measure"]))
        rows = [_row("labels", row, "behaviour", "label")]
        rows += [head_row(cell)] if cell else []
        beside = _beside(label, cell, rule)
        rows += [rule_row(rule)] if rule is not None and _ruled(label) else []
        over = str(cell.get("baseline_name", ""))
        gain = Size("gain", row["gain"], row["gain_low"], row["gain_high"], _unit(cell), over)
        about = "nats", str(row["readout"])
        lost = [Size("without it the model loses", row["effect"], row["effect_low"], row["effect_high"], *about)]
        lost = [each for each in lost if np.isfinite(each.low)]
        yield (
            place,
            Fact(
                plain_words.needed_alone(words) if kind == "needed" else words,
                "position" if label.startswith(_LOCAL) else str(row["behaviour"]),
                kind,
                label,
                (*lost, gain) if kind == "needed" else (gain, *lost),
                float(row["q"]),
                float(row["effect_low"]) if kind == "needed" else _of_rest(gain, cell),
                rung(label),
                tuple(rows),
                float(row["q_effect"]) if kind == "looks there" and lost else float("nan"),
                *beside,
                (str(row["measure"]),),
            ),
        )


def _unit(cell: Mapping[str, Any]) -> Unit:
    units: dict[Any, Unit] = {"lift": "lift", "correlation": "correlation"}
    return units.get(cell.get("unit"), "share")


def _of_rest(gain: Size, cell: Mapping[str, Any]) -> float:
    """The lower end of a gain, of what the baseline leaves over: of a lift, of what does not go there by distance."""
    if gain.unit == "lift":
        return max(gain.low, 0.0) / (1 + max(gain.low, 0.0))
    baseline = cell.get("baseline", float("nan"))
    return gain.low / (1 - baseline) if baseline < 1 else gain.low


def _ruled(label: str) -> bool:
    """Whether the rules that a head must beat say more than its baseline in `heads` does."""
    return label.partition(":")[0] in {"relation", "rule", "antecedent", "antecedent-predicting"}


def _beside(label: str, cell: Mapping[str, Any], rule: Mapping[str, Any] | None) -> tuple[float, float, str]:
    """Value, and the strictest of what simpler rules get, with its name; of a label that is a rule, how often the
    head's choice is the rule's."""
    if rule is not None and label.startswith("rule:") and not label.startswith(WHOEVER):
        return float(rule["predicts"]), float("nan"), ""
    if rule is not None and _ruled(label) and not label.startswith("rule:"):
        return float(rule["value"]), float(rule["rival_value"]), str(rule["rival"])
    if not cell:
        return float("nan"), float("nan"), ""
    return float(cell["value"]), float(cell["baseline"]), str(cell["baseline_name"])


# Findings of behaviours that have no labels.


def _measured(
    tables: Tables, behaviours: Mapping[str, Behaviour], rules: Mapping[Any, Any]
) -> Iterable[tuple[Place, Fact]]:
    """Of what has rules to beat, what beats them; else the rule that the head follows, if it follows one."""
    labelled = [*tables["evidence"]["behaviour"].unique()] if "evidence" in tables else []
    heads = tables["heads"]
    rest = heads.loc[~heads["behaviour"].isin(labelled)]
    titled = titles(behaviours)
    called = {each.name: each.called for each in _measures(behaviours)}
    for row in notable(rest).to_dict("records") if len(rest) else []:
        label, place = called.get(str(row["measure"])), Place.of(row)
        rule = rules.get((*place, row["measure"]))
        if label is not None and rule is not None:
            label = called_beside(label, rule)
        if label is None or row["unit"] not in RANKED:
            continue
        value, baseline, baseline_name = _beside(label, row, rule)
        over = str(row["baseline_name"])
        gain = Size("gain", row["gain"], row["ci_low"], row["ci_high"], _unit(row), over)
        yield (
            place,
            Fact(
                plain_words.label(label, titled.get(label, "")),
                "position" if label.startswith(_LOCAL) else str(row["behaviour"]),
                "looks there",
                label,
                (gain,),
                float(row["q"]),
                _of_rest(gain, row),
                rung(label),
                (head_row(row), *([rule_row(rule)] if rule is not None and _ruled(label) else [])),
                value=value,
                baseline=baseline,
                baseline_name=baseline_name,
                measures=(str(row["measure"]),),
            ),
        )


# Minimal pairs.


def _foretold(tables: Tables, behaviours: Mapping[str, Behaviour]) -> dict[str, str]:
    """By task, the measure that asks about the same where the answer is predicted, where it was measured."""
    measured = set(tables["heads"]["measure"])
    asked = (each for each in _measures(behaviours) if each.foretells and each.name in measured)
    return {task: each.name for each in asked for task in each.tasks}


def _carried(tables: Tables, foretold: Mapping[str, str]) -> Iterable[tuple[Place, Fact]]:
    """What each head carries of the answer to minimal pairs: where it is needed, not only enough."""
    effects = tables.get("effects", pd.DataFrame())
    if effects.empty:
        return
    carried = answers(tables)
    ways = _indexed(effects, "behaviour", "task", "intervention")
    needed = carriers(effects.loc[(effects["intervention"] == "noise") & (effects["effect"] > 0)])
    for row in needed.to_dict("records"):
        place, task = Place.of(row), str(row["task"])
        both = [row, *(other for other in [ways.get((*place, row["behaviour"], task, "denoise"))] if other is not None)]
        answer = carried.get(task) or task
        yield (
            place,
            Fact(
                Words(answer, f"carries {plain_words.answer(answer)}"),
                str(row["behaviour"]),
                "needed",
                task,
                tuple(_effect(each) for each in both),
                float(row["q"]),
                float(row["choosing_bound"]),
                3,
                tuple(_row("effects", each, "behaviour", "task", "intervention") for each in both),
                measures=(foretold[task],) if task in foretold else (),
            ),
        )


def answers(tables: Tables) -> dict[str, str]:
    """By task, what its answer is called; without those of which the tables do not say it."""
    tasks = tables.get("tasks", pd.DataFrame())
    return dict(zip(tasks["task"], tasks["carried"], strict=True)) if "carried" in tasks else {}


def _effect(row: Mapping[str, Any]) -> Size:
    what = "removed by replacing it" if row["intervention"] == "noise" else "restored by it"
    sizes = float(row["effect"]), float(row["ci_low"]), float(row["ci_high"])
    return Size(what, *sizes, "share", flips(row), float(row["q"]))


def flips(row: Mapping[str, Any]) -> str:
    """How many answers change, from a row of `effects`."""
    return f"{row['flips']:.0f} of {row['n']:.0f} answers"


# Near tokens.


def _with_one_local(own: Sequence[Fact]) -> list[Fact]:
    """The facts of a head, those of near tokens as one: that with the strongest evidence, then the largest gain."""
    local = [fact for fact in own if fact.rung == 0]
    rest = [fact for fact in own if fact.rung != 0]
    if not local:
        return rest
    order = [*KINDS.values()]
    first, *others = sorted(local, key=lambda fact: (order.index(fact.kind), -fact.strength))
    rows = (*first.rows, *(row for fact in others for row in fact.rows))
    if first.mainly or not others:
        return [*rest, replace(first, rows=rows)]
    measures = tuple(name for fact in (first, *others) for name in fact.measures)
    return [*rest, replace(first, words=plain_words.NEARBY, rows=rows, measures=measures)]
