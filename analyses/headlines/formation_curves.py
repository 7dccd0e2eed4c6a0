"""When did a head form, by the tables of the run that trained it? In words, and as a line over the steps."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from analyses.headlines.facts import Fact, Row, Tables
from analyses.over_training.observe import RECORDED
from analyses.tables.findings import NOTABLE
from analyses.wording.formats import number
from analyses.wording.head_names import Place
from analyses.wording.plain_words import Words, worded


class Curve(NamedTuple):
    """How a score went while the model was trained: in words, and as a line."""

    text: str  # when the head formed
    note: str  # what is to be seen
    behaviour: str
    points: Sequence[tuple[float, float]]  # step and score, both as fractions of the way
    formed: float  # the step by which it had formed, and `baseline` the score that is none, as such fractions
    baseline: float | None


def formation(
    tables: Tables, place: Place, facts: Sequence[Fact], words: Mapping[str, Words]
) -> tuple[Curve, Row] | None:
    """Of a head's facts, the first to be told first, the first that was followed while the model was trained: when it
    formed, and the row that says.

    None where no run is known, where none of the facts was followed, and where the last look showed less than 0.05 of
    it over the baseline.
    """
    if "when_formed" not in tables:
        return None
    cells = ((fact, str(row["measure"])) for fact in facts for row in fact.rows if row.table == "heads")
    for fact, measure in ((fact, measure) for fact, measure in cells if measure in RECORDED):
        key = {**place._asdict(), "measure": RECORDED[measure]}
        both = (tables[name] for name in ("when_formed", "forming"))
        rows, points = (each.loc[(each[[*key]] == [*key.values()]).all(axis=1)] for each in both)
        if len(rows) and pd.notna(rows["formed_at"].iloc[0]):
            row = Row("when_formed", rows.iloc[0].to_dict())
            return _curve(worded(measure, words).said, fact.behaviour, row.cells, points), row
    return None


def said(row: Mapping[str, Any]) -> str:
    """From a row of `when_formed` with a `formed_at`: by which step the head had formed."""
    at, last = number(int(row["formed_at"])), number(int(row["step"]))
    if pd.isna(row["before"]):
        return f"there from the first look on, step {at} of {last}"
    return f"formed by step {at} of {last}, not yet at {number(int(row['before']))}"


def _curve(does: str, behaviour: str, row: Mapping[str, Any], points: pd.DataFrame) -> Curve:
    points = points.sort_values("step")
    steps, values = points["step"].astype(int).tolist(), points["value"].astype(float).tolist()
    low, high, highest = min(0.0, *values), max(1.0, *values), values.index(max(values))

    def height(value: float) -> float:
        return (value - low) / (high - low)

    looks = [0, highest, -1] if values[highest] - values[-1] >= NOTABLE else [0, -1]  # what was lost again is said
    note = ", ".join(f"{number(values[at])} at step {number(steps[at])}" for at in dict.fromkeys(looks))
    has_baseline = pd.notna(row["baseline"])
    note += f"; the strictest baseline (grey) has {number(row['baseline'])}" * has_baseline
    return Curve(
        f"{does[0].upper()}{does[1:]}: {said(row)}.",
        f"{note}.",
        behaviour,
        [(step / steps[-1], height(value)) for step, value in zip(steps, values, strict=True)],
        int(row["formed_at"]) / steps[-1],
        height(float(row["baseline"])) if has_baseline else None,
    )
