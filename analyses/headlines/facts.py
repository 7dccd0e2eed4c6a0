"""What do the tables of a report say of each head? Its facts, in plain words, each with the rows that it comes from.

A fact is a label, or a share of the answer to minimal pairs that the head carries. What it rests on is its `kind`:

    looks there and needed   its attention stands out, and without what it looks at the model's output loses
    needed                   replacing the head costs the answer, or the output loses without what it looks at
    looks there              its attention stands out; an effect is not established

Labels of near tokens (fixed offsets, the token itself) are one fact of a head. Which fact comes first: `ranking`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses.behaviours import measures_of, vocabulary
from analyses.measures.definitions import RANKED, Behaviour
from analyses.measures.findings import carriers, notable
from analyses.page.schema import SCHEMAS
from analyses.scoring.rules import called_beside
from analyses.wording import plain_words
from analyses.wording.head_names import Place, places
from analyses.wording.plain_words import Label, Words, worded

Kind = Literal["looks there and needed", "needed", "looks there"]
Unit = Literal["share", "lift", "correlation", "nats"]
Tables = Mapping[str, pd.DataFrame]
Cells = Mapping[str, Any]
KINDS: dict[object, Kind] = {"both": "looks there and needed", "effect": "needed", "attention": "looks there"}
_UNITS: dict[Any, Unit] = {"lift": "lift", "correlation": "correlation"}  # of gains; others are shares
MEASURES_APART = ", "  # between names of measures of which a head shows any
MOST = 0.5  # of a head's attention, of its choices or of an answer: more is what it mainly does
_NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """One row of a table: the table's name, and all that the row has."""

    table: str
    cells: Cells

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """The columns that tell the row from all others of its table."""
        return tuple((column, self[column]) for column in SCHEMAS[self.table].key)

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
    q: float = _NAN


@dataclass(frozen=True)
class Fact:
    """One thing that is known of a head."""

    words: Words
    behaviour: str  # what it is about
    kind: Kind  # what it rests on
    label: Label  # of minimal pairs their task
    sizes: tuple[Size, ...]  # the first ranks it; others stand beside it
    q: float  # of the evidence that holds
    strength: float  # the lower end of the interval, of what the baseline leaves over: at most 1, but for nats
    rows: tuple[Row, ...]  # the row it comes from, and those of what stands beside it
    q_effect: float = _NAN  # of the effect that is not established, where it was asked for
    value: float = _NAN  # of the measure, and what its baseline or rule gets, where it has one
    baseline: float = _NAN
    baseline_name: str = ""
    measures: tuple[str, ...] = ()  # the measures that say which words it is about

    @property
    def name(self) -> str:
        """The label as tables have it, or the task of the minimal pairs."""
        return str(self.label)

    @property
    def rung(self) -> int:
        """What simpler descriptions leave over of it (`Label.rung`)."""
        return self.label.rung

    @property
    def needed(self) -> bool:
        """Whether the model needs the head for it."""
        return self.kind != "looks there"

    def row(self, table: str) -> Row | None:
        """The first of its rows that is of a table."""
        return next((row for row in self.rows if row.table == table), None)

    @property
    def mainly(self) -> bool:
        """Whether it is most of what the head does, or most of what an answer rests on."""
        value = self.value if np.isfinite(self.value) else self.sizes[0].value
        return self.sizes[0].unit in {"share", "correlation"} and value >= MOST


def facts(tables: Tables, behaviours: Mapping[str, Behaviour]) -> dict[Place, list[Fact]]:
    """Every head's facts, unordered; a head of which nothing holds has none.

    Args:
        tables: of a report, by name: `heads` at least. Of a behaviour without labels the rows of `heads` count that
            show a measure (`analyses.measures.findings.notable`).
        behaviours: by name, those that were measured, for the words of their measures.
    """
    head_facts: dict[Place, list[Fact]] = {place: [] for place in places(tables["heads"])}
    for place, fact in [*_attended(tables, behaviours), *_carried(tables, behaviours)]:
        head_facts[place].append(fact)
    return {place: _with_one_local(several) for place, several in head_facts.items()}


def by_head(rows: pd.DataFrame, *more: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of a table by head and some more columns."""
    return {(*Place.of(row), *(row[name] for name in more)): row for row in rows.to_dict("records")}


# Attention.


def _attended(tables: Tables, behaviours: Mapping[str, Behaviour]) -> Iterator[tuple[Place, Fact]]:
    """Labels; of behaviours without, what heads show. There of what has rules to beat, what beats them; else the rule
    that the head follows, if it follows one."""
    heads, words = tables["heads"], vocabulary(behaviours)
    cells = by_head(heads.loc[heads["sink"] == "kept"], "measure")
    rules = by_head(tables.get("rules", pd.DataFrame()), "measure")
    for row in tables.get("labels", pd.DataFrame()).to_dict("records"):
        key = (*Place.of(row), row["measure"])
        label = Label.parse(str(row["label"]))
        yield Place.of(row), _fact(Row("labels", row), label, cells.get(key, {}), rules.get(key), words)
    labelled = [*tables["evidence"]["behaviour"].unique()] if "evidence" in tables else []
    called = {each.name: each.called for each in measures_of(behaviours)}
    rest = heads.loc[~heads["behaviour"].isin(labelled)]
    for row in notable(rest).to_dict("records") if len(rest) else []:
        label, rule = called.get(str(row["measure"])), rules.get((*Place.of(row), row["measure"]))
        if label is not None and rule is not None:
            label = called_beside(label, rule)
        if label is not None and row["unit"] in RANKED:
            yield Place.of(row), _fact(Row("heads", row), Label.parse(label), row, rule, words)


def _fact(row: Row, label: Label, cell: Cells, rule: Cells | None, vocabulary: Mapping[str, Words]) -> Fact:
    """A fact of attention, from a row of `labels`, or of `heads` where there is no label; beside it the rows of its
    measure in `heads` and `rules`, where they are known."""
    labelled, unit = row.table == "labels", _UNITS.get(cell.get("unit"), "share")
    low, high = ("gain_low", "gain_high") if labelled else ("ci_low", "ci_high")
    gain = Size("gain", row["gain"], row[low], row[high], unit, str(cell.get("baseline_name", "")))
    kind, lost = KINDS[row["evidence"] if labelled else "attention"], []
    if labelled and np.isfinite(row["effect_low"]):
        ends = row["effect"], row["effect_low"], row["effect_high"]
        lost = [Size("without it the model loses", *ends, "nats", str(row["readout"]))]
    beside = [Row("heads", cell)] * bool(cell and labelled)
    beside += [Row("rules", rule)] if rule is not None and label.has_rules else []
    words, needed = worded(str(label), vocabulary), kind == "needed"
    return Fact(
        plain_words.needed_alone(words) if needed else words,
        "position" if label.rung == 0 else str(row["behaviour"]),
        kind,
        label,
        (*lost, gain) if needed else (gain, *lost),
        float(row["q"]),
        float(row["effect_low"]) if needed else _of_rest(gain, cell),
        (row, *beside),
        float(row["q_effect"]) if kind == "looks there" and lost else _NAN,
        *_beside(label, cell, rule),
        (str(row["measure"]),),
    )


def _of_rest(gain: Size, cell: Cells) -> float:
    """The lower end of a gain, of what the baseline leaves over: of a lift, of what does not go there by distance."""
    if gain.unit == "lift":
        return max(gain.low, 0.0) / (1 + max(gain.low, 0.0))
    baseline = cell.get("baseline", _NAN)
    return gain.low / (1 - baseline) if baseline < 1 else gain.low


def _beside(label: Label, cell: Cells, rule: Cells | None) -> tuple[float, float, str]:
    """Value, and the strictest of what simpler rules get, with its name; of a label that is a rule, how often the
    head's choice is the rule's."""
    if rule is not None and label.kind == "rule":
        return float(rule["predicts"]), _NAN, ""
    if rule is not None and label.has_rules and label.kind != "any":
        return float(rule["value"]), float(rule["rival_value"]), str(rule["rival"])
    return (float(cell["value"]), float(cell["baseline"]), str(cell["baseline_name"])) if cell else (_NAN, _NAN, "")


# Minimal pairs.


def _carried(tables: Tables, behaviours: Mapping[str, Behaviour]) -> Iterator[tuple[Place, Fact]]:
    """What each head carries of the answer to minimal pairs: where it is needed, not only enough."""
    effects = tables.get("effects", pd.DataFrame())
    if effects.empty:
        return
    measured = set(tables["heads"]["measure"])  # those of the same task where the answer is predicted
    measures = [each for each in measures_of(behaviours) if each.foretells and each.name in measured]
    foretold = {task: (each.name,) for each in measures for task in each.tasks}
    tasks = {row["task"]: row for row in tables.get("tasks", pd.DataFrame()).to_dict("records") if row.get("carried")}
    restored = by_head(effects.loc[effects["intervention"] == "denoise"], "behaviour", "task")
    for row in carriers(effects.loc[(effects["intervention"] == "noise") & (effects["effect"] > 0)]).to_dict("records"):
        place, task = Place.of(row), str(row["task"])
        other = restored.get((*place, row["behaviour"], task))
        both = [Row("effects", each) for each in (row, other) if each is not None]
        answer = tasks.get(task, {"carried": task})["carried"]
        yield (
            place,
            Fact(
                Words(answer, f"carries {plain_words.answer(answer)}"),
                str(row["behaviour"]),
                "needed",
                Label(task),
                tuple(map(_effect, both)),
                float(row["q"]),
                float(row["choosing_bound"]),
                (*both, *([Row("tasks", tasks[task])] if task in tasks else [])),
                measures=foretold.get(task, ()),
            ),
        )


def answers(tables: Tables) -> dict[str, str]:
    """By task, what its answer is called; without those of which the tables do not say it."""
    tasks = tables.get("tasks", pd.DataFrame())
    return dict(zip(tasks["task"], tasks["carried"], strict=True)) if "carried" in tasks else {}


def _effect(row: Row) -> Size:
    what = "removed by replacing it" if row["intervention"] == "noise" else "restored by it"
    sizes = float(row["effect"]), float(row["ci_low"]), float(row["ci_high"])
    return Size(what, *sizes, "share", flips(row), float(row["q"]))


def flips(row: Cells | Row) -> str:
    """How many answers change, from a row of `effects`."""
    return f"{row['flips']:.0f} of {row['n']:.0f} answers"


# Near tokens.


def _with_one_local(several: Sequence[Fact]) -> list[Fact]:
    """The facts of a head, those of near tokens as one: that with the strongest evidence, then the largest gain."""
    order, rest = [*KINDS.values()], [fact for fact in several if fact.rung != 0]
    near = [fact for fact in several if fact.rung == 0]
    near.sort(key=lambda fact: (order.index(fact.kind), -fact.strength))
    if not near:
        return rest
    first = replace(near[0], rows=tuple(row for fact in near for row in fact.rows))
    if not first.mainly and len(near) > 1:
        measures = tuple(name for fact in near for name in fact.measures)
        first = replace(first, words=plain_words.NEARBY, measures=measures)
    return [*rest, first]
