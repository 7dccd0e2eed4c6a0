"""How is what probes found said? Plain sentences, each number with its interval and what it is compared with."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analyses.probe.probe_tables import AMBIGUOUS, CONTROL, EXPECTED, GRAVITY, RULE, UNTRAINED, Beside
from analyses.probe.probe_tasks import TASKS, WORDS, Task
from analyses.wording.formats import counted, interval, number, percent
from analyses.wording.head_names import head_name

_MEASURES = (EXPECTED, GRAVITY)
_BESIDE = dict(zip((RULE, UNTRAINED, CONTROL), WORDS["beside"], strict=True))
UNSURE = "it cannot be told"
Row = Mapping[Any, Any]


def best_stream(rows: pd.DataFrame) -> Row:
    """The row of one task's streams that is read best; of equals the first."""
    streams = rows.loc[rows["head"].isna()]
    return streams.loc[streams["accuracy"].idxmax()].to_dict()


def in_short(rows: pd.DataFrame, task: Task, deepest: int) -> str:
    """One task in one breath: where it is read best, how well, and what the simplest rivals get."""
    best, rivals = best_stream(rows), []
    for rival in (RULE, UNTRAINED):
        doubt = "" if direction(best[rival.low], best[rival.high]) == "more" else " (the probe is not surely better)"
        rivals.append(f"{_BESIDE[rival]} gets {percent(best[rival.beside])}{doubt}")
    right = f"{percent(best['accuracy'])} of {number(best['n'])} {task.items} right"
    return f"Read best {_where(best, deepest)}: {right}; {' and '.join(rivals)}."


def read_best(rows: pd.DataFrame, deepest: int) -> str:
    """Where one task is read best, and how well."""
    best = best_stream(rows)
    items = TASKS[best["task"]].items
    return f"Read best {_where(best, deepest)}, {number(best['accuracy'])} of {number(best['n'])} {items} right."


def _where(best: Row, deepest: int) -> str:
    return f"after {best['depth']} of {counted(deepest, 'block')}" if best["depth"] else "before the first block"


def by_layer(layers: pd.DataFrame) -> str:
    """What the curves of all tasks show, for one who cannot see them: each layer's probe, and the best control."""
    said = []
    for task, rows in layers.loc[layers["head"].isna()].groupby("task", sort=False):
        ordered = rows.sort_values("depth")
        each = [f"{depth} {number(right)}" for depth, right in zip(ordered["depth"], ordered["accuracy"], strict=True)]
        said.append(f"{task}: {', '.join(each)}; its control at most {number(ordered['control_accuracy'].max())}")
    return f"Accuracy after each number of blocks. {'. '.join(said)}."


def depths(table: pd.DataFrame) -> str:
    """What the dots of all tasks show, for one who cannot see them."""
    said = []
    for task, rows in table.groupby("task", sort=False):
        measured = rows.dropna(subset=["value"]).to_dict("records")
        values = [f"{row['measure']} {number(row['value'])}" for row in measured]
        said.append(f"{task}: {', '.join(values) or 'neither measured'}")
    return f"{'; '.join(said)}."


def direction(low: float, high: float) -> str | None:
    """What an interval says of a difference: `more`, `less`, or nothing, where it includes 0 or is undefined."""
    return "more" if low > 0 else "less" if high < 0 else None


def compared(rows: pd.DataFrame) -> list[str]:
    """What the best layer's probe has over each thing that stands beside it."""
    best, lines = best_stream(rows), []
    for beside, what in _BESIDE.items():
        which = f"{best['baseline_name']}: " if beside is RULE else ""
        lines.append(f"Over {what} ({which}{number(best[beside.beside])}): {_difference(best, beside)}.")
    if best["ambiguous_n"] > 0:
        right, rule = number(best[AMBIGUOUS.value]), number(best[AMBIGUOUS.beside])
        said = WORDS["ambiguous"].format(number(int(best["ambiguous_n"])), right, rule, _difference(best, AMBIGUOUS))
        lines.append(said)
    return lines


def _difference(row: Row, beside: Beside) -> str:
    doubt = "" if direction(row[beside.low], row[beside.high]) else "; that may be nothing"
    return _signed(row, (beside.difference, beside.low, beside.high), doubt)


def _signed(row: Row, columns: Sequence[str] = ("value", "ci_low", "ci_high"), doubt: str = "") -> str:
    value, low, high = (row[name] for name in columns)
    return f"{number(value, sign=True)} (95% {interval(low, high, sign=True)}{doubt})"


def of_heads(rows: pd.DataFrame) -> str:
    """Which head's output alone is read best."""
    heads = rows.loc[rows["head"].notna()]
    best = heads.loc[heads["accuracy"].idxmax()].to_dict()
    name, selectivity = head_name(best["layer"], best["head"]), _signed(best, CONTROL[2:])
    right = number(best["accuracy"])
    return f"Of single heads’ outputs, that of {name} is read best: {right}, selectivity {selectivity}."


def depth(depths: pd.DataFrame, task: str, deepest: int) -> str:
    """Both measures of how deep one task is read."""
    rows = depths.loc[depths["task"] == task].set_index("measure").to_dict("index")
    values = {
        name: f"{number(row['value'])} (95% {interval(row['ci_low'], row['ci_high'])})" for name, row in rows.items()
    }
    expected = f"Expected layer {values[EXPECTED]}" if pd.notna(rows[EXPECTED]["value"]) else WORDS["no layer"]
    return f"{expected}; centre of gravity {values[GRAVITY]} of {deepest}."


def differences(depths: pd.DataFrame) -> list[str]:
    """For each two tasks, whether one is read higher than the other, by both measures."""
    lines = []
    for pair in dict.fromkeys(task for task in depths["task"] if " - " in task):
        one, other = pair.split(" - ")
        rows = depths.loc[depths["task"] == pair].set_index("measure").to_dict("index")
        says = " ".join(f"By the {name}, {_higher(rows[name])}." for name in _MEASURES)
        is_ = "Are" if one == "relation" else "Is"
        lines.append(f"{is_} {TASKS[one].subject} read higher than {TASKS[other].subject}? {says}")
    return lines


def _higher(row: Row) -> str:
    if pd.isna(row["value"]):
        return f"{UNSURE}: one of them has none"
    says = {"more": "yes", "less": "no, lower", None: UNSURE}[direction(row["ci_low"], row["ci_high"])]
    return f"{says}: {_signed(row)} blocks"


def question(depths: pd.DataFrame) -> str:
    """What the depths of the tasks that were probed can answer."""
    tasks = set(depths["task"])
    if any(str(task).startswith("coreference - ") for task in tasks):
        return "Is syntax read low in the model, and coreference high?"
    return "Which is read higher in the model?" if len(tasks) > 1 else "How deep in the model is it read?"


def verdict(depths: pd.DataFrame) -> str | None:
    """Is syntax read low and coreference high? None where coreference or syntax was not probed."""
    pairs = [task for task in depths["task"].unique() if str(task).startswith("coreference - ")]
    if not pairs:
        return None
    says = []
    for name in _MEASURES:
        rows = depths.loc[depths["task"].isin(pairs) & (depths["measure"] == name)]
        ways = [direction(low, high) for low, high in zip(rows["ci_low"], rows["ci_high"], strict=True)]
        says.append("no" if "less" in ways else UNSURE if None in ways else "yes")
    if says[0] == says[1]:
        return "It cannot be told." if says[0] == UNSURE else f"{says[0].capitalize()}, by both measures."
    return f"By the {EXPECTED}: {says[0]}. By the {GRAVITY}: {says[1]}."
