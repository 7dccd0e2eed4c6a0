"""What do the tables of a report say about each head, and which fact comes first?

A fact is a label, or a share of the answer to minimal pairs that the head carries. Its `kind` names its evidence:

    looks there and needed   its attention stands out, and hiding what it looks at harms the model's output
    needed                   replacing the head costs the answer, or hiding what it looks at harms the output
    looks there              its attention stands out; an effect is not established

A head's labels of near tokens (fixed offsets, the token itself) are one fact. `docs/headlines.md` has the order of a
head's facts (`rank`) and of heads (`strongest`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from analyses import runs
from analyses.behaviours import ACROSS, OURS, measures_of, vocabulary
from analyses.execution.provenance import model_facts
from analyses.measures.definitions import RANKED, Behaviour
from analyses.measures.findings import carriers, notable
from analyses.page.sections import SCHEMAS, Cells
from analyses.runs import RunFolder
from analyses.scoring.rules import called_beside
from analyses.viewer.passages import Called, HeadName
from analyses.wording import plain_words
from analyses.wording.head_names import Place, heads_in
from analyses.wording.plain_words import Label, Words, worded
from interp import InputError, Model

Kind = Literal["looks there and needed", "needed", "looks there"]
Unit = Literal["share", "lift", "correlation", "nats"]
Tables = Mapping[str, pd.DataFrame]
KINDS: dict[object, Kind] = {"both": "looks there and needed", "effect": "needed", "attention": "looks there"}
_UNITS: dict[Any, Unit] = {"lift": "lift", "correlation": "correlation"}  # units of gains; others are shares
SEPARATOR = ", "  # between the names of measures in a label that means any of them
MAIN_SHARE = 0.5  # of attention, choices or an answer: beyond, this is what a head mainly does
_RUNG = 0.15
_WAYS = {"noise": "removed by replacing it", "denoise": "restored by it"}
_NAN = float("nan")
WRITTEN = OURS | {f"cross {name}": each for name, each in ACROSS.items()}
"""The behaviours that a report's tables may describe, by name."""


@dataclass(frozen=True)
class Row:
    """One row of a table, with the table's name."""

    table: str
    cells: Cells

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]

    @property
    def key(self) -> tuple[tuple[str, Any], ...]:
        """The columns that identify the row in its table."""
        return tuple((column, self[column]) for column in SCHEMAS[self.table].key)

    def __str__(self) -> str:
        return f"{self.table}: " + ", ".join(f"{column} {value}" for column, value in self.key)


@dataclass(frozen=True)
class Size:
    """A number with its 95% interval: a gain or a share of an answer, a lift beyond 1, a correlation, or nats per row.

    `over` names the baseline of a gain or the read-out of nats; for a share of an answer, how many answers change.
    `q` is set if the number has one that differs from its fact's.
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
    """One finding about a head."""

    words: Words
    behaviour: str  # its topic
    kind: Kind  # the kind of evidence
    label: Label  # for minimal pairs, their task
    sizes: tuple[Size, ...]  # the first one ranks the fact
    q: float  # of the evidence that holds
    strength: float  # lower end of the interval, as a share of what the baseline leaves: at most 1, except for nats
    rows: tuple[Row, ...]  # the row that shows it, then rows that add to it
    q_effect: float = _NAN  # of an effect that was tested but not established
    value: float = _NAN  # of the measure
    measures: tuple[str, ...] = ()  # the measures that say which words it is about

    @property
    def name(self) -> str:
        """The label in the tables, or the task of the minimal pairs."""
        return str(self.label)

    @property
    def rung(self) -> int:
        """How far it is from a simple rule (`Label.rung`)."""
        return self.label.rung

    @property
    def is_needed(self) -> bool:
        """Whether the model needs the head for it."""
        return self.kind != "looks there"

    def row(self, table: str) -> Row | None:
        """Its first row of a table."""
        return next((row for row in self.rows if row.table == table), None)

    @property
    def mainly(self) -> bool:
        """Whether it is most of what the head does, or most of what an answer rests on."""
        value = self.value if np.isfinite(self.value) else self.sizes[0].value
        return self.sizes[0].unit in {"share", "correlation"} and value >= MAIN_SHARE


def facts(tables: Tables, behaviours: Mapping[str, Behaviour]) -> dict[Place, list[Fact]]:
    """Every head's facts, unordered; the list is empty if no finding holds."""
    head_facts: dict[Place, list[Fact]] = {place: [] for place in heads_in(tables["heads"])}
    for place, fact in [*_attention_facts(tables, behaviours), *_effect_facts(tables, behaviours)]:
        head_facts[place].append(fact)
    return {place: _with_one_local(each) for place, each in head_facts.items()}


def _by_head(rows: pd.DataFrame, *columns: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(*Place.from_row(row), *(row[name] for name in columns)): row for row in rows.to_dict("records")}


def _attention_facts(tables: Tables, behaviours: Mapping[str, Behaviour]) -> Iterator[tuple[Place, Fact]]:
    """Facts from labels or, for behaviours without labels, from measures that heads show. A measure with rules must
    beat them; otherwise the fact is the rule that the head follows, if it follows one."""
    heads, words = tables["heads"], vocabulary(behaviours)
    cells = _by_head(heads.loc[heads["sink"] == "kept"], "measure")
    rules = _by_head(tables.get("rules", pd.DataFrame()), "measure")
    together = tables.get("sets", pd.DataFrame()).to_dict("records")
    sets = {(each["measure"], each["label"]): [Row("sets", each)] for each in together}
    for row in tables.get("labels", pd.DataFrame()).to_dict("records"):
        key = (*Place.from_row(row), row["measure"])
        label = Label.parse(str(row["label"]))
        fact = _fact(Row("labels", row), label, cells.get(key, {}), rules.get(key), words)
        yield Place.from_row(row), replace(fact, rows=(*fact.rows, *sets.get((row["measure"], row["label"]), ())))
    labelled = [*tables["evidence"]["behaviour"].unique()] if "evidence" in tables else []
    labels = {each.name: each.called for each in measures_of(behaviours)}
    rest = heads.loc[~heads["behaviour"].isin(labelled)]
    for row in notable(rest).to_dict("records") if len(rest) else []:
        label, rule = labels.get(str(row["measure"])), rules.get((*Place.from_row(row), row["measure"]))
        if label is not None and rule is not None:
            label = called_beside(label, rule)
        if label is not None and row["unit"] in RANKED:
            yield Place.from_row(row), _fact(Row("heads", row), Label.parse(label), row, rule, words)


def _fact(row: Row, label: Label, cell: Cells, rule: Cells | None, vocabulary: Mapping[str, Words]) -> Fact:
    labelled, unit = row.table == "labels", _UNITS.get(cell.get("unit"), "share")
    low, high = ("gain_low", "gain_high") if labelled else ("ci_low", "ci_high")
    gain = Size("gain", row["gain"], row[low], row[high], unit, str(cell.get("baseline_name", "")))
    kind, loss = KINDS[row["evidence"] if labelled else "attention"], []
    if labelled and np.isfinite(row["effect_low"]):
        ends = row["effect"], row["effect_low"], row["effect_high"]
        which = "all of its set" if label.kind == "set" else "it"
        loss = [Size(f"without {which} the model loses", *ends, "nats", str(row["readout"]))]
    rows = [row, *[Row("heads", cell)] * bool(cell and labelled)]
    rows += [Row("rules", rule)] if rule is not None and label.has_rules else []
    words, by_effect = worded(str(label), vocabulary), kind == "needed"
    return Fact(
        words=plain_words.needed_alone(words) if by_effect and label.kind != "set" else words,
        behaviour="position" if label.rung == 0 else str(row["behaviour"]),
        kind=kind,
        label=label,
        sizes=(*loss, gain) if by_effect else (gain, *loss),
        q=float(row["q"]),
        strength=float(row["effect_low"]) if by_effect else _share_of_rest(gain, cell),
        rows=tuple(rows),
        q_effect=float(row["q_effect"]) if kind == "looks there" and loss else _NAN,
        value=_value(label, cell, rule),
        measures=(str(row["measure"]),),
    )


def _share_of_rest(gain: Size, cell: Cells) -> float:
    """The lower end of a gain, as a share of what the baseline leaves; of a lift, of what distance leaves."""
    if gain.unit == "lift":
        return max(gain.low, 0.0) / (1 + max(gain.low, 0.0))
    baseline = cell.get("baseline", _NAN)
    return gain.low / (1 - baseline) if baseline < 1 else gain.low


def _value(label: Label, cell: Cells, rule: Cells | None) -> float:
    """The measure's value; for a label that is a rule, how often the rule predicts the head's choice."""
    if rule is not None and label.kind == "rule":
        return float(rule["predicts"])
    if rule is not None and label.has_rules and label.kind != "any":
        return float(rule["value"])
    return float(cell.get("value", _NAN))


def _effect_facts(tables: Tables, behaviours: Mapping[str, Behaviour]) -> Iterator[tuple[Place, Fact]]:
    effects = tables.get("effects", pd.DataFrame())
    if effects.empty:
        return
    measured = set(tables["heads"]["measure"])  # measures of a task's behaviour where the answer is predicted
    measures = [each for each in measures_of(behaviours) if (each.foretells or each.corpus) and each.name in measured]
    predicting = {task: (each.name,) for each in measures for task in each.tasks}
    tasks = {row["task"]: row for row in tables.get("tasks", pd.DataFrame()).to_dict("records") if row.get("carried")}
    restored = _by_head(effects.loc[effects["intervention"] == "denoise"], "behaviour", "task")
    for row in carriers(effects.loc[(effects["intervention"] == "noise") & (effects["effect"] > 0)]).to_dict("records"):
        place, task = Place.from_row(row), str(row["task"])
        ways = row, restored.get((*place, row["behaviour"], task))
        rows = [Row("effects", each) for each in ways if each is not None]
        answer = tasks.get(task, {"carried": task})["carried"]
        fact = Fact(
            words=Words(answer, f"carries {plain_words.answer(answer)}"),
            behaviour=str(row["behaviour"]),
            kind="needed",
            label=Label(task),
            sizes=tuple(map(_effect_size, rows)),
            q=float(row["q"]),
            strength=float(row["choosing_bound"]),
            rows=(*rows, *([Row("tasks", tasks[task])] if task in tasks else [])),
            measures=predicting.get(task, ()),
        )
        yield place, fact


def answers(tables: Tables) -> dict[str, str]:
    """What each task's answer is called, for tasks that have a name for it."""
    tasks = tables.get("tasks", pd.DataFrame())
    return dict(zip(tasks["task"], tasks["carried"], strict=True)) if "carried" in tasks else {}


def _effect_size(row: Row) -> Size:
    ends = row["effect"], row["ci_low"], row["ci_high"]
    return Size(_WAYS[row["intervention"]], *ends, "share", flips(row), row["q"])


def flips(row: Cells | Row) -> str:
    """How many answers change, from a row of `effects`."""
    return f"{row['flips']:.0f} of {row['n']:.0f} answers"


def _with_one_local(facts: Sequence[Fact]) -> list[Fact]:
    """A head's facts, with those of near tokens merged into the one with the strongest evidence, then largest gain."""
    order, rest = [*KINDS.values()], [fact for fact in facts if fact.rung != 0 or fact.label.kind == "set"]
    near = [fact for fact in facts if fact not in rest]
    near.sort(key=lambda fact: (order.index(fact.kind), -fact.strength))
    if not near:
        return rest
    first = replace(near[0], rows=tuple(row for fact in near for row in fact.rows))
    if not first.mainly and len(near) > 1:
        measures = tuple(name for fact in near for name in fact.measures)
        first = replace(first, words=plain_words.NEARBY, measures=measures)
    return [*rest, first]


Rank = tuple[bool, bool, bool, float]


def rank(fact: Fact) -> Rank:
    """A fact's sort key, smallest first: needed before not, then by strength, to which each rung adds `_RUNG`."""
    nats = fact.sizes[0].unit == "nats"  # not comparable with shares, so they come after them
    return fact.rung < 0, not fact.is_needed, nats, -fact.strength - _RUNG * fact.rung


def ranked(facts: Sequence[Fact]) -> list[Fact]:
    """The facts of one head, the first to show first."""
    return sorted(facts, key=rank)


def strongest(facts: Mapping[Place, Sequence[Fact]]) -> list[Place]:
    """The heads that have facts, in the order in which to show them; ties go to the lower layer."""

    def head_rank(place: Place) -> tuple[float, float, Rank]:
        effects = [fact for fact in facts[place] if fact.is_needed and fact.rung >= 0]
        shares = [fact.strength for fact in effects if fact.kind == "needed" and fact.sizes[0].unit == "share"]
        costs = [size.low for fact in effects for size in fact.sizes if size.unit == "nats"]
        return -max(shares, default=0.0), -max(costs, default=0.0), min(map(rank, facts[place]))

    return sorted((place for place in facts if facts[place]), key=head_rank)


def called(facts: Mapping[Place, Sequence[Fact]]) -> dict[HeadName, Called]:
    """What heads are called by their first facts, the strongest head first."""
    first = {place: min(facts[place], key=rank) for place in strongest(facts)}
    return {
        place: Called(fact.words.short, fact.behaviour, ", ".join(fact.measures[:1]), fact.is_needed)
        for place, fact in first.items()
    }


def facts_of(run: RunFolder, tables: Tables) -> dict[Place, list[Fact]]:
    """The facts of every head of a report; empty for other runs."""
    heads = tables.get("heads", pd.DataFrame())
    if heads.empty or "model" in heads or "tasks" not in tables:
        return {}
    try:
        return facts(tables, WRITTEN)
    except KeyError as error:
        command = run.facts.get("command") or "by the same command"
        raise InputError(
            f"{run.folder} is from an earlier interp, whose tables lack {error}: make it again, {command}"
        ) from error


def called_by(report: str | Path, model: Model) -> dict[HeadName, Called]:
    """What the report in a directory calls the heads of a model; refused if the report is about another model."""
    run = runs.read(report)
    of_report, of_model = run.facts.get("model") or {}, model_facts(model)
    key = "fingerprint" if "fingerprint" in of_report else "sha256"  # early runs had only the hash of the weight files
    if of_model[key] is None or of_report.get(key) != of_model[key]:
        raise InputError(
            f"{report} is about {run.model or 'other models'}: it has no names for heads of this model, whose {key} "
            "differs (other weights, settings, edits or version of interp)"
        )
    heads = facts_of(run, {name: run.table(name) for name in run.tables})
    if not heads:
        raise InputError(f"{report} is not a report of heads: expected a directory from `interp report`")
    return called(heads)
