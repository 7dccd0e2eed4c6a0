"""How is the page about a training run read? Sentences and rows from its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyses.figures import head_name
from analyses.over_training.phase_changes import CHANGING, FEWEST, LEAST, best_curve
from analyses.over_training.training_runs import HELD_OUT, LOSS, Run
from analyses.report.renderer import number, render

_TITLE = "How did the heads form?"
NAMES = {"previous-token": "previous token", "antecedent": "antecedent selection", "tag": "tag lift, noun → adjective"}


@dataclass(frozen=True)
class Told:
    """What the page says of one run."""

    name: str
    sentences: Sequence[str]
    rows: Sequence[Mapping[str, str]]  # the head with most of each measure
    losses: Sequence[Mapping[str, str]]  # at the first and the last look
    source: str
    boundaries: str


def page(
    facts: Mapping[str, Any], runs: Sequence[Run], formed: pd.DataFrame, images: Sequence[Mapping[str, str]]
) -> str:
    """The page as one HTML file; every value is escaped."""
    told = [_told(run, formed.loc[formed["run"] == run.name]) for run in runs]
    left_out = {name: why for run in runs for name, why in run.left_out.items()}
    return render("forming.html.jinja", title=_TITLE, facts=facts, runs=told, images=images, left_out=left_out)


def _told(run: Run, formed: pd.DataFrame) -> Told:
    boundaries = ", ".join(number(step) for step in run.boundaries)
    return Told(
        name=run.name,
        sentences=sentences(run, formed),
        rows=[_row(row) for row in formed.to_dict("records")],
        losses=_ends(run),
        source=run.source,
        boundaries=f"a phase of training ended after step {boundaries}" if boundaries else "",
    )


def sentences(run: Run, formed: pd.DataFrame) -> list[str]:
    """Whether there was a phase change, and what else went with it."""
    rows = formed.loc[formed["measure"] == CHANGING].to_dict("records")
    if not rows:
        return [
            f"Heads: {run.source}." if run.heads.empty else "Induction was not measured, so no phase change is told."
        ]
    said = [sentence for row in rows for sentence in _change(run, row, several=len(rows) > 1)]
    return [*said, *_others(formed)]


def _change(run: Run, row: Mapping[str, Any], *, several: bool) -> list[str]:
    """What became of the best induction head, and of the losses meanwhile."""
    where = f" of {row['stack']}" if several else ""
    best = best_curve(_own(run, row))
    if len(best) < FEWEST:
        return [f"{len(best)} looks{where} are too few to tell a phase change: expected at least {FEWEST}."]
    if pd.isna(row["rise_from"]):
        first, top = best.iloc[0], best.loc[best["value"].idxmax()]
        return [
            f"No phase change{where}: the best head’s induction never rose abruptly by {LEAST} or more. It was "
            f"{number(first['value'])} at step {number(int(first['step']))} and {number(top['value'])} at its highest, "
            f"at step {number(int(top['step']))}."
        ]
    start, end = int(row["rise_from"]), int(row["rise_to"])
    leading = best.loc[best["step"] == end].to_dict("records")[0]
    said = (
        f"Phase change{where} between steps {number(start)} and {number(end)}: the best head’s induction goes from "
        f"{number(row['value_from'])} to {number(row['value_to'])} ({head_name(leading['layer'], leading['head'])}), "
        f"{row['times']:.0f} times as fast as over the whole run."
    )
    meanwhile = [change for name in _followed(run) if (change := _meanwhile(run, name, start, end))]
    return [said, *([f"Over these steps {', '.join(meanwhile)}."] if meanwhile else [])]


def _own(run: Run, row: Mapping[str, Any]) -> pd.DataFrame:
    heads = run.heads.loc[run.heads["measure"] == row["measure"]]
    for name in ("stack", "attention"):
        heads = heads.loc[heads[name].isna() if pd.isna(row[name]) else heads[name] == row[name]]
    return heads


def _followed(run: Run) -> list[str]:
    whole = run.table.loc[run.table["layer"].isna(), "measure"].unique()
    return [name for name in whole if name.startswith(HELD_OUT)] + [
        name for name in ("copying", "in-context") if name in whole
    ]


def _meanwhile(run: Run, measure: str, start: int, end: int) -> str:
    """From what to what one number of the whole model went, at the looks around."""
    rows = run.table.loc[(run.table["measure"] == measure) & run.table["layer"].isna()]
    before, after = rows.loc[rows["step"] <= start], rows.loc[rows["step"] >= end]
    if before.empty or after.empty:
        return ""
    return f"{_called(measure)} went from {number(before['value'].iloc[-1])} to {number(after['value'].iloc[0])}"


def _called(measure: str) -> str:
    if measure.startswith(HELD_OUT):
        return f"the loss on held-out {measure.removeprefix(HELD_OUT)}"
    names = {LOSS: "the loss in training", "in-context": "the in-context score", "copying": "the share copied rightly"}
    return names.get(measure, measure)


def _others(formed: pd.DataFrame) -> list[str]:
    """What else rose abruptly."""
    rows = formed.loc[(formed["measure"] != CHANGING) & formed["rise_from"].notna()]
    return [
        f"{_name(row).capitalize()} rose abruptly between steps "
        f"{number(int(row['rise_from']))} and {number(int(row['rise_to']))}: from {number(row['value_from'])} to "
        f"{number(row['value_to'])}."
        for row in rows.to_dict("records")
    ]


def _name(row: Mapping[str, Any]) -> str:
    measure = str(row["measure"])
    return NAMES.get(measure, measure)


def _row(row: Mapping[str, Any]) -> dict[str, str]:
    where = "" if pd.isna(row["stack"]) else "cross " if row["attention"] == "cross" else f"{row['stack']} "
    whole = {name: None if pd.isna(row[name]) else int(row[name]) for name in ("half_way", "rise_from", "rise_to")}
    rise = f"{number(whole['rise_from'])} to {number(whole['rise_to'])}" if whole["rise_from"] is not None else "–"
    return {
        "measure": _name(row),
        "head": where + head_name(row["layer"], row["head"]),
        "value": number(row["value"]),
        "baseline": number(row["baseline"]),
        "gain": number(row["gain"], sign=True),
        "half_way": number(whole["half_way"]),
        "rise": rise,
    }


def _ends(run: Run) -> list[dict[str, str]]:
    """Losses and numbers of the whole model, first and last."""
    whole = run.table.loc[run.table["layer"].isna()]
    return [
        {
            "name": _called(str(measure)),
            **{
                f"{which}_{name}": number(int(row[name]) if name == "step" else row[name])
                for which, row in (("first", rows.iloc[0]), ("last", rows.iloc[-1]))
                for name in ("step", "value")
            },
        }
        for measure, rows in whole.groupby("measure", sort=False)
    ]


def alt(runs: Sequence[Run], formed: pd.DataFrame) -> str:
    """What the figure shows, for one who cannot see it."""
    said = [f"{run.name}: {' '.join(sentences(run, formed.loc[formed['run'] == run.name]))}" for run in runs]
    return " ".join(["Losses and every head’s measures by step of training.", *said])
