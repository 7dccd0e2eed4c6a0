"""How is what probes found said? Plain sentences, each number with its interval and what it is compared with."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyses.probe.probe_tables import EXPECTED, GRAVITY, RULE, UNTRAINED
from analyses.probe.probe_tasks import TASKS, WORDS, Task
from analyses.wording.formats import counted, interval, number, percent
from analyses.wording.head_names import head_name

_MEASURES = (EXPECTED, GRAVITY)
UNSURE = "it cannot be told"
Row = Mapping[Any, Any]


def read_best(rows: pd.DataFrame, task: Task, deepest: int) -> str:
    """One task in one breath: where it is read best, how well, and what the simplest rivals get."""
    streams = rows.loc[rows["head"].isna()]
    best = streams.loc[streams["accuracy"].idxmax()].to_dict()  # of equals the first
    where = f"after {best['depth']} of {counted(deepest, 'block')}" if best["depth"] else "before the first block"
    rivals = []
    for rival, name in ((RULE, f"{WORDS['rule']} ({best['baseline_name']})"), (UNTRAINED, WORDS["untrained"])):
        doubt = "" if direction(best[rival.low], best[rival.high]) == "more" else " (the probe is not surely better)"
        rivals.append(f"{name} gets {percent(best[rival.beside])}{doubt}")
    right = f"{percent(best['accuracy'])} of {number(best['n'])} {task.items} right"
    return f"Read best {where}: {right}; {' and '.join(rivals)}."


def read_by_heads(rows: pd.DataFrame) -> str:
    """Which head's output alone is read best."""
    heads = rows.loc[rows["head"].notna()]
    best = heads.loc[heads["accuracy"].idxmax()].to_dict()
    name, selectivity = head_name(best["layer"], best["head"]), _signed({**best, "value": best["selectivity"]})
    right = number(best["accuracy"])
    return f"Of single heads’ outputs, that of {name} is read best: {right}, selectivity {selectivity}."


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
    return " ".join(f"{task}: {depth(rows)}" for task, rows in table.groupby("task", sort=False))


def depth(rows: pd.DataFrame) -> str:
    """Both measures of how deep one task is read."""
    said = [
        WORDS["no layer"]
        if pd.isna(row["value"])
        else f"{row['measure']} {number(row['value'])} (95% {interval(row['ci_low'], row['ci_high'])})"
        for row in rows.to_dict("records")
    ]
    return f"{'; '.join(said)}."


def direction(low: float, high: float) -> str | None:
    """What an interval says of a difference: `more`, `less`, or nothing, where it includes 0 or is undefined."""
    return "more" if low > 0 else "less" if high < 0 else None


def _signed(row: Row) -> str:
    return f"{number(row['value'], sign=True)} (95% {interval(row['ci_low'], row['ci_high'], sign=True)})"


def differences(depths: pd.DataFrame) -> list[str]:
    """For each two tasks, whether one is read higher than the other, by both measures."""
    lines = []
    for pair, rows in depths.loc[depths["task"].str.contains(" - ")].groupby("task", sort=False):
        one, other = str(pair).split(" - ")
        says = " ".join(f"By the {row['measure']}, {_higher(row)}." for row in rows.to_dict("records"))
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
    pairs = depths.loc[depths["task"].str.startswith("coreference - ")]
    if pairs.empty:
        return None
    says = []
    for name in _MEASURES:
        rows = pairs.loc[pairs["measure"] == name]
        ways = [direction(low, high) for low, high in zip(rows["ci_low"], rows["ci_high"], strict=True)]
        says.append("no" if "less" in ways else UNSURE if None in ways else "yes")
    if says[0] == says[1]:
        return "It cannot be told." if says[0] == UNSURE else f"{says[0].capitalize()}, by both measures."
    return f"By the {EXPECTED}: {says[0]}. By the {GRAVITY}: {says[1]}."
