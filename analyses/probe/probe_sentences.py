"""How is what probes found said? Plain sentences, each number with its interval and what it is compared with."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analyses.probe.probe_runs import Probed
from analyses.probe.probe_tables import AMBIGUOUS, CONTROL, EXPECTED, GRAVITY, RULE, UNTRAINED, Beside
from analyses.probe.probe_tasks import TASKS, Task
from analyses.wording.formats import counted, interval, number, percent
from analyses.wording.head_names import head_name

_MEASURES = (EXPECTED, GRAVITY)
_BESIDE = {
    RULE: "the rule that reads no sentence",
    UNTRAINED: "the same probe of the untrained model",
    CONTROL: "the control task, which only knowing types by heart solves",
}
UNSURE = "it cannot be told"
Row = Mapping[Any, Any]


def best_stream(rows: pd.DataFrame) -> Row:
    """The row of one task's streams that is read best; of equals the first."""
    streams = rows.loc[rows["head"].isna()]
    return streams.loc[streams["accuracy"].idxmax()].to_dict()


def in_short(probed: Probed, task: Task) -> str:
    """One task in one breath: where it is read best, how well, and what the simplest rivals get."""
    rows, deepest = probed.layers.loc[probed.layers["task"] == task.name], probed.config.n_layers
    best = best_stream(rows)
    rivals = " and ".join(f"{_BESIDE[each]} gets {_right(best, each)}" for each in (RULE, UNTRAINED))
    return (
        f"Read best {_where(best, deepest)}: {percent(best['accuracy'])} of {number(best['n'])} {task.items} right; "
        f"{rivals}."
    )


def _right(best: Row, rival: Beside) -> str:
    """What a rival gets, and whether a probe may be no better."""
    nothing = "" if direction(best[rival.low], best[rival.high]) == "more" else " (the probe is not surely better)"
    return percent(best[rival.beside]) + nothing


def read_best(rows: pd.DataFrame, deepest: int) -> str:
    """Where one task is read best, and how well."""
    best = best_stream(rows)
    items = TASKS[best["task"]].items
    return f"Read best {_where(best, deepest)}, {number(best['accuracy'])} of {number(best['n'])} {items} right"


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
        known = rows.dropna(subset=["value"]).to_dict("records")
        each = [f"{row['measure']} {number(row['value'])}" for row in known]
        said.append(f"{task}: {', '.join(each) or 'neither measured'}")
    return f"{'; '.join(said)}."


def direction(low: float, high: float) -> str | None:
    """What an interval says of a difference: `more`, `less`, or nothing, where it includes 0 or is undefined."""
    return "more" if low > 0 else "less" if high < 0 else None


def compared(rows: pd.DataFrame) -> list[str]:
    """What the best layer's probe has over each thing that stands beside it."""
    best = best_stream(rows)
    lines = []
    for beside, what in _BESIDE.items():
        which = f"{best['baseline_name']}: " if beside is RULE else ""
        lines.append(f"Over {what} ({which}{number(best[beside.beside])}): {_difference(best, beside)}.")
    if best["ambiguous_n"] > 0:
        lines.append(
            f"Words seen both as noun and as verb in training ({number(int(best['ambiguous_n']))}): "
            f"{number(best[AMBIGUOUS.value])} right, against {number(best[AMBIGUOUS.beside])} for their most "
            f"frequent tag, {_difference(best, AMBIGUOUS)}."
        )
    return lines


def _difference(row: Row, beside: Beside) -> str:
    low, high = row[beside.low], row[beside.high]
    says = f"{number(row[beside.difference], sign=True)} (95% {interval(low, high, sign=True)}"
    return says + (")" if direction(low, high) else "; that may be nothing)")


def of_heads(rows: pd.DataFrame) -> str:
    """Which head's output alone is read best."""
    heads = rows.loc[rows["head"].notna()]
    best = heads.loc[heads["accuracy"].idxmax()].to_dict()
    return (
        f"Of single heads’ outputs, that of {head_name(best['layer'], best['head'])} is read best: "
        f"{number(best['accuracy'])}, selectivity {number(best['selectivity'], sign=True)} "
        f"(95% {interval(best['ci_low'], best['ci_high'], sign=True)})."
    )


def depth(depths: pd.DataFrame, task: str, deepest: int) -> str:
    """Both measures of how deep one task is read."""
    rows = depths.loc[depths["task"] == task].set_index("measure").to_dict("index")
    expected, gravity = rows[EXPECTED], rows[GRAVITY]
    first = (
        f"Expected layer {_value(expected)}"
        if pd.notna(expected["value"])
        else "No expected layer: all layers together read it no better, surely, than the embedding alone"
    )
    return f"{first}; centre of gravity {_value(gravity)} of {deepest}."


def _value(row: Row, *, sign: bool = False) -> str:
    bounds = interval(row["ci_low"], row["ci_high"], sign=sign)
    return f"{number(row['value'], sign=sign)} (95% {bounds})"


def differences(depths: pd.DataFrame) -> list[str]:
    """For each two tasks, whether one is read higher than the other, by both measures."""
    lines = []
    for pair in dict.fromkeys(task for task in depths["task"] if " - " in task):
        one, other = pair.split(" - ")
        rows = depths.loc[depths["task"] == pair].set_index("measure").to_dict("index")
        says = " ".join(f"By the {name}, {_higher(rows[name])}." for name in _MEASURES)
        lines.append(
            f"Is {TASKS[one].subject} read higher than {TASKS[other].subject}? {says}".replace("Is dep", "Are dep")
        )
    return lines


def _higher(row: Row) -> str:
    if pd.isna(row["value"]):
        return f"{UNSURE}: one of them has none"
    says = {"more": "yes", "less": "no, lower", None: UNSURE}[direction(row["ci_low"], row["ci_high"])]
    return f"{says}: {_value(row, sign=True)} blocks"


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
    says = {}
    for name in _MEASURES:
        rows = depths.loc[depths["task"].isin(pairs) & (depths["measure"] == name)]
        each = [direction(low, high) for low, high in zip(rows["ci_low"], rows["ci_high"], strict=True)]
        says[name] = "no" if "less" in each else UNSURE if None in each else "yes"
    first, second = says.values()
    if first == second:
        return {"yes": "Yes, by both measures.", "no": "No, by both measures.", UNSURE: "It cannot be told."}[first]
    return f"By the {EXPECTED}: {first}. By the {GRAVITY}: {second}."
