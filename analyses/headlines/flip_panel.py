"""Prompts whose answers a reader flips by giving heads what they computed for the other prompt.

Everything was measured: each of the first heads alone, every pair of them, and the first few together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analyses.measures.definitions import DECLARED
from analyses.tasks.flips import are_readable

_COUNTS = {"flips": "flips", "low": "flips_low", "high": "flips_high"}  # columns, and their names in the page's script


def has_two_people(task: str) -> bool:
    """Whether its prompts have two people; with one, a head need only remember the last name."""
    return DECLARED["tasks"].get(task, {}).get("people") == 2


@dataclass(frozen=True)
class FlipPanel:
    """One task: the heads that can be changed, and the data for the page's script."""

    task: str
    title: str  # what the answer is
    source: str  # what the other prompt has
    heads: Sequence[str]  # the one with the largest effect first
    data: Mapping[str, Any]


def flip_panels(tables: Mapping[str, pd.DataFrame]) -> list[FlipPanel]:
    """A panel for each task with readable prompts in which some head or set flips an answer."""
    flips = tables.get("flips", pd.DataFrame({"task": []}))
    tasks = dict.fromkeys(flips.loc[flips["flips"] > 0, "task"]) if len(flips) else []
    panels = (_panel(tables, task) for task in sorted(tasks, key=lambda task: not has_two_people(task)))
    return [panel for panel in panels if panel]


def _panel(tables: Mapping[str, pd.DataFrame], task: str) -> FlipPanel | None:
    prompts, flips, answers = (
        tables[name].loc[tables[name]["task"] == task] for name in ("prompts", "flips", "answers")
    )
    prompts = prompts.loc[prompts["half"] == "reports"]
    if not are_readable(prompts["clean"]):
        return None
    by_set = {str(heads): rows for heads, rows in answers.groupby("heads", sort=False)}
    heads = [str(heads) for heads in flips["heads"] if "+" not in str(heads)]
    texts, columns = ["clean", "corrupted", "right", "wrong"], ["clean_right", "clean_wrong"]
    rows = zip(prompts[texts].to_numpy(), prompts[columns].to_numpy(), strict=True)
    pairs = [[*words[:2], *map(str.strip, words[2:]), *_rounded(shares)] for words, shares in rows]
    sets = {}
    for row in flips.to_dict("records"):
        counts = {name: round(row[column]) for name, column in _COUNTS.items()}
        both = by_set[row["heads"]][["right", "wrong"]].to_numpy()
        sets[row["heads"]] = counts | {"answers": [*map(_rounded, both)]}
    declared = DECLARED["tasks"].get(task, {})
    title, source = declared.get("carried", task), declared.get("source", "for the other prompt")
    return FlipPanel(task, title, source, heads, {"pairs": pairs, "sets": sets})


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 3) for value in values]
