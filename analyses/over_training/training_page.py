"""How is the page about training runs read? Sections from what the runs left."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analyses import figures
from analyses.over_training.observe import PAGE_MEASURES
from analyses.over_training.training_runs import CHANGING, COLUMNS, FEWEST, LEAST, Run, best_curve, formed
from analyses.page.sections import SCHEMAS, Block, Definitions, Figure, Page, Section, caveat, code
from analyses.wording import plain_words
from analyses.wording.formats import counted, number
from analyses.wording.head_names import Place, head_name

_COLUMNS = 3  # runs side by side in one figure
_WORDS: Mapping[str, Any] = plain_words.WORDS["over_training"]
_TEXTS: Mapping[str, str] = _WORDS["texts"]


def page(runs: Sequence[Run]) -> Page:
    """Several runs side by side, as a page."""
    best = {run.name: formed(run) for run in runs}
    texts = {run.name: sentences(run, best[run.name]) for run in runs}
    left_out = [caveat(f"{name} was left out: {why}") for run in runs for name, why in run.left_out.items()]
    return Page(
        title="How did the heads form?",
        summary=[Definitions([(name, *lines) for name, lines in texts.items()])],
        sections=[
            Section("Step by step", [*_figures(runs, best, texts), *left_out], "figure"),
            *(_run(run, best[run.name]) for run in runs),
        ],
        method=[
            ("run", (f"{run.name}, in ", code(run.folder), f": {counted(run.looks, 'look')} at heads")) for run in runs
        ],
        definitions=[*_WORDS["definitions"].items()],
        tables={
            "forming": pd.concat([run.table for run in runs]).reindex(columns=COLUMNS),
            "formed": pd.concat([*best.values()]),
        },
        facts={
            "sentences": {name: f"{name}: {' '.join(lines)}" for name, lines in texts.items()},
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


def _figures(
    runs: Sequence[Run], best: Mapping[str, pd.DataFrame], texts: Mapping[str, Sequence[str]]
) -> Iterator[Figure]:
    parts = [runs[start : start + _COLUMNS] for start in range(0, len(runs), _COLUMNS)]
    for place, part in enumerate(parts, 1):
        table = pd.concat([run.table for run in part])
        figure = figures.forming(
            table.loc[table["layer"].isna() | table["measure"].isin(PAGE_MEASURES)],
            {run.name: change_steps(best[run.name]) for run in part},
            {run.name: run.boundaries for run in part},
        )
        name = "forming" if len(parts) == 1 else f"forming-{place}"
        alt = [f"{run.name}: {' '.join(texts[run.name])}" for run in part]
        alt = " ".join(["Losses and every head’s measures by step of training.", *alt])
        yield Figure(name, figure, _TEXTS["figure"], alt)


def change_steps(best: pd.DataFrame) -> tuple[int, int] | None:
    """The steps where the phase change starts and ends, from one run's rows of `tables/formed`."""
    rows = best.loc[(best["measure"] == CHANGING) & best["rise_from"].notna()]
    return None if rows.empty else (int(rows["rise_from"].iloc[0]), int(rows["rise_to"].iloc[0]))


def _run(run: Run, best: pd.DataFrame) -> Section:
    ended = ", ".join(number(step) for step in run.boundaries)
    phases = f"; a phase of training ended after step {ended}" if ended else ""
    blocks: list[Block] = [f"Measures of heads: {run.source}{phases}."]
    if len(best):
        rows = [
            {**row, "called": _measure_name(row), "name": Place.from_row(row).named(prefix=pd.notna(row["stack"]))}
            for row in best.astype(object).where(best.notna(), None).to_dict("records")
        ]
        columns = "called head value baseline gain half_way_step change"
        blocks.append(SCHEMAS["formed"].page(rows, columns, _TEXTS["best"]))
    return Section(run.name, blocks)


def sentences(run: Run, formed: pd.DataFrame) -> list[str]:
    """Whether there was a phase change, and what else went with it."""
    rows = formed.loc[formed["measure"] == CHANGING].to_dict("records")
    if not rows:
        return [f"Heads: {run.source}." if run.heads.empty else _TEXTS["no induction"]]
    texts = [_change(run, row, by_stack=len(rows) > 1) for row in rows]
    rises = formed.loc[(formed["measure"] != CHANGING) & formed["rise_from"].notna()].to_dict("records")
    return texts + [_TEXTS["rose"].format(_measure_name(row).capitalize(), **_numbers(row)) for row in rises]


def _numbers(row: Mapping[Any, Any]) -> dict[str, str]:
    steps = {name: number(int(row[name])) for name in ("rise_from", "rise_to")}
    return steps | {name: number(row[name]) for name in ("value_from", "value_to")}


def _change(run: Run, row: Mapping[Any, Any], *, by_stack: bool) -> str:
    of_stack = f" of {row['stack']}" if by_stack else ""
    heads = run.heads.loc[run.heads["measure"] == row["measure"]]
    kind = ["" if pd.isna(row[name]) else row[name] for name in ("stack", "attention")]
    best = best_curve(heads.loc[heads[["stack", "attention"]].astype(object).fillna("").eq(kind).all(axis=1)])
    if len(best) < FEWEST:
        return _TEXTS["few"].format(counted(len(best), "look"), where=of_stack, fewest=FEWEST)
    if pd.isna(row["rise_from"]):
        ends = [best.iloc[0], best.loc[best["value"].idxmax()]]
        values = [text for end in ends for text in (number(end["value"]), number(int(end["step"])))]
        return _TEXTS["none"].format(*values, where=of_stack, least=LEAST)
    leading = best.loc[best["step"] == row["rise_to"]].to_dict("records")[0]
    head = head_name(leading["layer"], leading["head"])
    return _TEXTS["change"].format(where=of_stack, head=head, times=row["times"], **_numbers(row))


def _measure_name(row: Mapping[Any, Any]) -> str:
    return _WORDS["measures"].get(str(row["measure"]), str(row["measure"]))
