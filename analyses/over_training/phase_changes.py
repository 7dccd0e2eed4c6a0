"""When did heads form? The phase change of a curve, and for each measure the head that has most of it in the end."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from analyses.measures.findings import NOTABLE
from analyses.over_training.observe import DRAWN
from analyses.over_training.training_runs import Run
from analyses.wording.head_names import HEAD

CHANGING = "induction"  # the measure whose rise is the phase change (Olsson 2022)
LEAST = 0.1  # a smaller rise is none
PART = 1 / 3  # of the whole rise, at least
TIMES = 3  # as fast as over the whole run, at least
STRETCH = 1 / 20  # of the run, at most; or one interval between looks, where they are farther apart
NEARLY = 0.9  # of the largest rise: the shortest stretch that holds as much is the change
FEWEST = 4  # looks: with fewer, none can be three times as fast as all
SHARES = ("previous-token", "induction", "antecedent")  # measures whose rises 0.1 is a measure of
KIND = ["stack", "attention"]
_WHOLE = ("layer", "head", "step", "half_way", "rise_from", "rise_to", "formed_at", "before")
_NUMBERS = ("value", "baseline", "gain", "value_from", "value_to", "times")


class Rise(NamedTuple):
    """From where to where a curve rises abruptly, and how many times as fast as over the whole run."""

    rise_from: int
    rise_to: int
    value_from: float
    value_to: float
    times: float


FORMED_COLUMNS = [
    *("run", "measure", "stack", "attention", "layer", "head", "step", "value", "baseline", "gain", "half_way"),
    *Rise._fields,
]
COLUMNS = [*HEAD, "measure", "run", "step", "value", "baseline", "gain", "formed_at", "before"]  # of `when_formed`


def phase_change(steps: Sequence[int], values: Sequence[float]) -> Rise | None:
    """Where a curve rises abruptly, if it does.

    Of all stretches from one look to a later one that are at most a twentieth of the run long (or one interval), the
    shortest that holds nine tenths of the largest rise in any. It is a phase change if the curve rises there by at
    least 0.1 and by at least a third of what lies between its lowest and its highest value, and at least three times as
    fast, per step, as if it rose from one to the other evenly over the whole run. With fewer than four looks there is
    none.

    Args:
        steps: of the looks, rising.
        values: what was seen there.
    """
    at, seen = np.asarray(steps, dtype=float), np.asarray(values, dtype=float)
    if len(at) < FEWEST:
        return None
    length, rise = at[None] - at[:, None], seen[None] - seen[:, None]
    next_look = np.eye(len(at), k=1, dtype=bool)
    allowed = next_look | ((length > 0) & (length <= STRETCH * (at[-1] - at[0])))
    largest, whole = float(rise[allowed].max()), float(seen.max() - seen.min())
    if largest < LEAST:
        return None
    enough = allowed & (rise >= max(LEAST, NEARLY * largest))
    length = np.where(enough, length, np.inf)
    first, last = np.unravel_index(np.where(length == length.min(), rise, -np.inf).argmax(), length.shape)
    times = float(rise[first, last] / length[first, last] / (whole / (at[-1] - at[0])))
    if rise[first, last] < PART * whole or times < TIMES:
        return None
    return Rise(int(at[first]), int(at[last]), float(seen[first]), float(seen[last]), times)


def formed_at(steps: Sequence[int], values: Sequence[float], baseline: float) -> int | None:
    """The look from which on a curve keeps half of its last gain over a baseline; None where that is under 0.05.

    Half of it at one look, and less of it later, is no beginning: what counts is that it stays.

    Args:
        steps: of the looks, rising.
        values: what was seen there.
        baseline: what has no gain.
    """
    gains = np.asarray(values, dtype=float) - baseline
    if not len(gains) or gains[-1] < NOTABLE:
        return None
    short = np.flatnonzero(gains < gains[-1] / 2)
    return int(steps[short[-1] + 1 if len(short) else 0])


def last_look(curve: pd.DataFrame) -> dict[str, Any]:
    """Of one head's looks, in order: the last one's `step`, `value`, `baseline` and `gain`, and `formed_at`."""
    end: dict[str, Any] = curve.iloc[-1].to_dict()
    baseline = 0.0 if pd.isna(end["baseline"]) else float(end["baseline"])
    row = {"step": int(end["step"]), "value": float(end["value"]), "baseline": float(end["baseline"])}
    formed = formed_at(curve["step"].tolist(), curve["value"].tolist(), baseline)
    return row | {"gain": row["value"] - baseline, "formed_at": formed}


def best_curve(heads: pd.DataFrame) -> pd.DataFrame:
    """Of every look the row of the head that has most; `heads` are rows of one run, kind and measure."""
    return heads.loc[heads.groupby("step")["value"].idxmax()].sort_values("step")


def formed(run: Run) -> pd.DataFrame:
    """For each measure and kind of attention, the head that has most at the last look, and when it had half of that.

    `half_way` is the look from which on that head keeps half of its final gain over the baseline (`formed_at`); missing
    where the gain is under 0.05. `rise_from` to `times` are the phase change of whichever head is best at each look, of
    shares whose gain is that much: what stays with its baseline has not formed, however it jumps. Relations, and tags
    but one, are left out (`observe.DRAWN`).
    """
    rows = []
    drawn = run.heads.loc[run.heads["measure"].isin(DRAWN)]
    for key, heads in drawn.groupby(["measure", *KIND], sort=False, dropna=False):
        best = best_curve(heads)
        layer, head = best[["layer", "head"]].iloc[-1]
        row = last_look(heads.loc[(heads["layer"] == layer) & (heads["head"] == head)].sort_values("step"))
        row |= dict(zip(("measure", *KIND), cast(tuple[Any, ...], key), strict=True))
        row |= {"run": run.name, "layer": layer, "head": head, "half_way": row["formed_at"]}
        has_formed = row["measure"] in SHARES and row["gain"] >= NOTABLE
        change = phase_change(best["step"].tolist(), best["value"].tolist()) if has_formed else None
        rows.append(row | (change._asdict() if change else {}))
    return _table(rows, FORMED_COLUMNS)


def when_formed(curves: pd.DataFrame) -> pd.DataFrame:
    """When each head had formed: a row a head and measure that was looked at at least twice.

    `value`, `baseline` and `gain` are those of the last look, at `step`. `formed_at` is the look from which on the head
    keeps half of that gain (`formed_at`), `before` the look before it: missing where the head had it from the first
    look on, and so did not form while anybody looked.

    Args:
        curves: rows of `training_runs.forming`.
    """
    rows = []
    for key, curve in curves.sort_values("step").groupby([*HEAD, "measure", "run"], sort=False):
        row, steps = last_look(curve), [int(step) for step in curve["step"]]
        if len(steps) > 1:
            place = dict(zip((*HEAD, "measure", "run"), cast(tuple[Any, ...], key), strict=True))
            before = {later: sooner for sooner, later in pairwise(steps)}
            rows.append(place | row | {"before": before.get(row["formed_at"])})
    return _table(rows, COLUMNS)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    kinds = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_NUMBERS, float)}
    return pd.DataFrame(rows, columns=columns).astype({name: kinds[name] for name in columns if name in kinds})
