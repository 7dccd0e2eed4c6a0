"""How is the page about training runs read? Sections from what the runs left."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analyses import figures
from analyses.over_training.observe import DRAWN
from analyses.over_training.phase_changes import CHANGING, FEWEST, LEAST, best_curve, formed
from analyses.over_training.training_runs import COLUMNS, HELD_OUT, LOSS, Run
from analyses.page.sections import Block, Definitions, Figure, Page, Section, Table, Text, bold, caveat, code
from analyses.wording.formats import counted, number
from analyses.wording.head_names import Place, head_name

NAMES = {"previous-token": "previous token", "antecedent": "antecedent selection", "tag": "tag lift, noun → adjective"}
_OF_THE_MODEL = {
    LOSS: "the loss in training",
    "in-context": "the in-context score",
    "copying": "the share copied rightly",
}
_BESIDE = 3  # runs side by side in one figure
_CAPTION = (
    "On top the losses, that of training over whatever mix is learnt from. Below, the whole model’s in-context "
    "score and the share of random repeats that it copies, then a line a head for each measure: in its behaviour’s "
    "colour the three that have most of it at the last look, where they are at least 0.05 above the strictest baseline "
    "(thick and grey). The band is the phase change of induction, a dotted line the end of a phase of training. All "
    "columns have the same axes."
)
_BEST = (
    "The head that has most of each measure at the last look. Half-way is the look from which on it keeps half of "
    "this gain; the phase change is that of whichever head is best."
)
_WHOLE = "The whole model, at the first and at the last look; losses in nats a token."
DEFINITIONS: dict[str, Text] = {
    "previous token, induction, antecedent selection, tag lift": (
        "As docs/measures has them, on 48 generated stories and, for induction, on 40 random repeats; without "
        "intervals, since a curve is looked at and not cited. The lift is that of nouns to adjectives."
    ),
    "baseline": (
        "The strictest rule through the same scorer: uniform attention for the first two, the best of its rules for "
        "antecedents, 1 (no preference) for the lift."
    ),
    "in-context score": (
        "The loss of tokens 100 to 125 of a row less that of tokens 10 to 25, in nats (after Olsson 2022); below 0 "
        "where what was read helps."
    ),
    "copying": "Of random tokens that come twice, the share of the second copy that is foretold rightly.",
    "phase change": (
        "The shortest stretch, of at most a twentieth of the run or one interval between looks, that holds nine tenths "
        "of the largest rise of the best head’s induction. It counts if the score rises there by at least 0.1 and by "
        "at least a third of its whole range, and at least three times as fast, per step, as if it rose evenly over "
        "the whole run."
    ),
}


def page(runs: Sequence[Run]) -> Page:
    """What some runs show, side by side."""
    best = {run.name: formed(run) for run in runs}
    left_out = [caveat(f"{name} was left out: {why}") for run in runs for name, why in run.left_out.items()]
    return Page(
        title="How did the heads form?",
        summary=[Definitions([(run.name, *sentences(run, best[run.name])) for run in runs])],
        sections=[
            Section("Step by step", [*_figures(runs, best), *left_out], "figure"),
            *(_run(run, best[run.name]) for run in runs),
        ],
        made=[
            ("run", (f"{run.name}, in ", code(run.folder), f": {counted(run.looks, 'look')} at heads")) for run in runs
        ],
        definitions=[*DEFINITIONS.items()],
        tables={
            "forming": pd.concat([run.table for run in runs]).reindex(columns=COLUMNS),
            "formed": pd.concat([*best.values()]),
        },
        facts={
            "sentences": one_by_one({run.name: sentences(run, best[run.name]) for run in runs}),
            "runs": [
                {
                    "name": run.name,
                    "directory": str(run.folder),
                    "sha256": run.digest,
                    "heads": run.source,
                    "looks": run.looks,
                    "phases_end": list(run.boundaries),
                    "left_out": dict(run.left_out),
                }
                for run in runs
            ],
        },
    )


def one_by_one(said: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Each sentence by itself, since a terminal says the first ones: every run's first before any run's second."""
    numbered = [(place, name, text) for name, texts in said.items() for place, text in enumerate(texts, 1)]
    in_turn = sorted(numbered, key=lambda each: each[0])
    return {name if place == 1 else f"{name}, {place}": f"{name}: {text}" for place, name, text in in_turn}


def _figures(runs: Sequence[Run], best: Mapping[str, pd.DataFrame]) -> Iterator[Figure]:
    """The runs three by three, all with the axes of all."""
    parts = [runs[start : start + _BESIDE] for start in range(0, len(runs), _BESIDE)]
    for place, part in enumerate(parts, 1):
        figure = figures.forming(
            pd.concat([_drawn(run.table) for run in part]),
            {run.name: change_steps(best[run.name]) for run in part},
            {run.name: run.boundaries for run in part},
        )
        name = "forming" if len(parts) == 1 else f"forming-{place}"
        yield Figure(name, figure, _CAPTION, alt(part, best))


def _drawn(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a curve: those of the whole model, and of the measures that are drawn."""
    return table.loc[table["layer"].isna() | table["measure"].isin(DRAWN)]


def change_steps(best: pd.DataFrame) -> tuple[int, int] | None:
    """From where to where the phase change is, by rows of `tables/formed` of one run."""
    rows = best.loc[(best["measure"] == CHANGING) & best["rise_from"].notna()]
    return None if rows.empty else (int(rows["rise_from"].iloc[0]), int(rows["rise_to"].iloc[0]))


def _run(run: Run, best: pd.DataFrame) -> Section:
    """One run: the head with most of each measure, and the losses at the first and the last look."""
    ended = ", ".join(number(step) for step in run.boundaries)
    phases = f"; a phase of training ended after step {ended}" if ended else ""
    blocks: list[Block] = [f"Measures of heads: {run.source}{phases}."]
    if len(best):
        columns = ["measure", "head", "value", "baseline", "gain", "half-way at step", "phase change, steps"]
        blocks.append(Table(columns, [_row(row) for row in best.to_dict("records")], "llrrrrl", _BEST))
    if losses := _ends(run):
        blocks.append(Table(["", "step", "first", "step", "last"], losses, "wrrrr", _WHOLE))
    return Section(run.name, blocks)


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
    best = best_curve(_kind(run, row))
    if len(best) < FEWEST:
        few = f"{counted(len(best), 'look')}{where} {'is' if len(best) == 1 else 'are'} too few"
        return [f"{few} to tell a phase change: expected at least {FEWEST}."]
    if pd.isna(row["rise_from"]):
        first, top = best.iloc[0], best.loc[best["value"].idxmax()]
        return [
            f"No phase change{where}: the best head’s induction never rose abruptly by {LEAST} or more; it was "
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


def _kind(run: Run, row: Mapping[str, Any]) -> pd.DataFrame:
    heads = run.heads.loc[run.heads["measure"] == row["measure"]]
    for name in ("stack", "attention"):
        heads = heads.loc[heads[name].isna() if pd.isna(row[name]) else heads[name] == row[name]]
    return heads


def _followed(run: Run) -> list[str]:
    whole = run.table.loc[run.table["layer"].isna(), "measure"].unique()
    return [
        *(name for name in whole if name.startswith(HELD_OUT)),
        *(n for n in ("copying", "in-context") if n in whole),
    ]


def _meanwhile(run: Run, measure: str, start: int, end: int) -> str:
    """From what to what one number of the whole model went, at the looks around."""
    rows = run.table.loc[(run.table["measure"] == measure) & run.table["layer"].isna()]
    before, after = rows.loc[rows["step"] <= start], rows.loc[rows["step"] >= end]
    if before.empty or after.empty:
        return ""
    return f"{_name(measure)} went from {number(before['value'].iloc[-1])} to {number(after['value'].iloc[0])}"


def _name(measure: str) -> str:
    """A measure of the whole model in words."""
    if measure.startswith(HELD_OUT):
        return f"the loss on held-out {measure.removeprefix(HELD_OUT)}"
    return _OF_THE_MODEL.get(measure, measure)


def _others(formed: pd.DataFrame) -> list[str]:
    """What else rose abruptly."""
    rows = formed.loc[(formed["measure"] != CHANGING) & formed["rise_from"].notna()]
    return [
        f"{_measure_name(row).capitalize()} rose abruptly between steps "
        f"{number(int(row['rise_from']))} and {number(int(row['rise_to']))}: from {number(row['value_from'])} to "
        f"{number(row['value_to'])}."
        for row in rows.to_dict("records")
    ]


def _measure_name(row: Mapping[Any, Any]) -> str:
    """What a row's measure is called."""
    return NAMES.get(str(row["measure"]), str(row["measure"]))


def _row(row: Mapping[str, Any]) -> list[Text]:
    several = not pd.isna(row["stack"])  # else the run has heads of one kind
    steps = (row[name] for name in ("half_way", "rise_from", "rise_to"))
    half_way, start, end = (None if pd.isna(step) else int(step) for step in steps)
    return [
        _measure_name(row),
        bold(Place.of(row).named(several=several)),
        number(row["value"]),
        number(row["baseline"]),
        number(row["gain"], sign=True),
        number(half_way),
        "–" if start is None else f"{number(start)} to {number(end)}",
    ]


def _ends(run: Run) -> list[list[Text]]:
    """Losses and numbers of the whole model, first and last."""
    whole = run.table.loc[run.table["layer"].isna()]
    ends = {str(measure): rows.iloc[[0, -1]] for measure, rows in whole.groupby("measure", sort=False)}
    return [
        [
            _name(measure),
            *(
                number(value)
                for row in zip(rows["step"].tolist(), rows["value"].tolist(), strict=True)
                for value in row
            ),
        ]
        for measure, rows in ends.items()
    ]


def alt(runs: Sequence[Run], best: Mapping[str, pd.DataFrame]) -> str:
    """What the figure shows, for one who cannot see it."""
    said = [f"{run.name}: {' '.join(sentences(run, best[run.name]))}" for run in runs]
    return " ".join(["Losses and every head’s measures by step of training.", *said])
