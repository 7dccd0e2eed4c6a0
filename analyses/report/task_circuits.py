"""Which edges are enough for a report's tasks? A small circuit for each task that the model does."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analyses import circuit as finding
from analyses.page import sections as doc
from analyses.page.sections import Part
from analyses.report.behaviour_sections import Result
from analyses.report.scaffold import Run
from analyses.wording.plain_words import WORDS, carried
from interp import InputError, Model
from interp.circuits.size_curves import SHARES

CIRCUIT_STAGES = finding.STAGES
# a tenth of a report's time at most; its causal tests covered each answer already, on more pairs
_SMALL = finding.Settings(n_random=3, n_sizes=12, shares=SHARES[1::2], each_answer=False, tests=False)
_PAIRS = {"agreement": 100, "reference": 60, "name-gender": 60, "repeat": 24}  # minimal pairs; fewer of long prompts
_TERMS = "circuit", "faithfulness, share of the task", "random circuits"


def circuits(model: Model, results: Sequence[Result], run: Run) -> Part:
    """Circuits of the tasks that were run here and that the model does; an empty part if it does none."""
    rows = [task for each in results for task in each.tested.tasks if not task.get("refused")]
    tasks = {str(row["task"]): str(row["carried"]) for row in rows if row["task"] in _PAIRS}
    texts, refused, found = WORDS["circuit"]["texts"], dict[str, str](), dict[str, finding.Found]()
    for task in tasks:
        try:
            prompts = finding.task_prompts(model, task, count=_PAIRS[task], seed=run.seed)
            found[task] = finding.find(model, prompts, settings=_SMALL, seed=run.seed, progress=run.say)
        except InputError as error:
            refused[task] = str(error)
    if not found and not refused:
        return Part()
    titles = {task: carried(name)[:1].upper() + carried(name)[1:] for task, name in tasks.items()}
    lines = {task: f"{titles[task]}: {finding.sentence(each)}" for task, each in found.items()}
    blocks: list[doc.Block] = [texts["report"].format(pairs=max(_PAIRS.values())), doc.Bullets([*lines.values()])]
    blocks += [doc.caveat(texts["refused"].format(titles[task], why)) for task, why in refused.items()]
    for number, (task, each) in enumerate(found.items()):
        drawn = finding.blocks(each, f"circuit_curve_{number}", with_rows=False)
        short = [(name, text) for name, text in finding.short(each).items() if name not in {"Circuit", "Areas"}]
        blocks.append(doc.Details(titles[task], [doc.Definitions(short), *drawn]))
    tables: dict[str, Any] = {
        "circuit_edges": pd.concat([each.edges.loc[each.edges["in_circuit"]] for each in found.values()] or [_NONE]),
        "circuit_curve": pd.concat([each.curve for each in found.values()] or [_NONE]),
        "circuit_tests": pd.concat([each.tests for each in found.values()] or [_NONE]),
    }
    return Part(
        sections=[doc.Section("Circuits", [doc.Details("Which edges are enough for a task", blocks)], "circuits")],
        short=[(doc.link("Circuits", "circuits"), " ".join(lines.values()))] if lines else [],
        definitions=[(name, WORDS["circuit"]["definitions"][name]) for name in _TERMS],
        tables={name: table.reset_index(drop=True) for name, table in tables.items()},
        facts={"circuits": {task: each.facts for task, each in found.items()}, "circuits_refused": refused},
    )


_NONE = pd.DataFrame({"task": []})
