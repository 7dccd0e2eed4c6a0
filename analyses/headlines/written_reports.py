"""What does a report that was written say of heads, and what does it call those of a model that is at hand?"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analyses import runs
from analyses.behaviours import ACROSS, OURS
from analyses.execution.provenance import model_facts
from analyses.headlines import ranking
from analyses.headlines.facts import Fact, facts
from analyses.runs import RunFolder
from analyses.viewer.naming import Called, HeadName
from analyses.wording.head_names import Place
from interp import InputError, Model

WRITTEN = OURS | {f"cross {name}": each for name, each in ACROSS.items()}
"""By name, the behaviours that a report's tables may be of."""


def facts_of(run: RunFolder, tables: Mapping[str, pd.DataFrame]) -> dict[Place, list[Fact]]:
    """Of every head of a report, unordered, also of those that have none; nothing of other runs.

    Raises:
        InputError: its tables are those of an earlier interp.
    """
    heads = tables.get("heads", pd.DataFrame())
    if heads.empty or "model" in heads or "tasks" not in tables:
        return {}
    try:
        return facts(tables, WRITTEN)
    except KeyError as error:
        again = run.facts.get("command") or "by the same command"
        raise InputError(
            f"{run.folder} is of an earlier interp, whose tables lack {error}: make it again, {again}"
        ) from error


def called_by(report: str | Path, model: Model) -> dict[HeadName, Called]:
    """What the report in a directory calls heads, as its atlas does.

    Raises:
        InputError: there is no report, or it is about another model.
    """
    run = runs.read(report)
    measured, shown = run.facts.get("model") or {}, model_facts(model)
    key = "fingerprint" if "fingerprint" in measured else "sha256"  # early runs had that of the weight files alone
    if shown[key] is None or measured.get(key) != shown[key]:
        raise InputError(
            f"{report} is about {run.model or 'other models'}: it has no names for heads of this model, whose {key} "
            "is another (weights, settings, edits or the version of interp differ)"
        )
    heads = facts_of(run, {name: run.table(name) for name in run.tables})
    if not heads:
        raise InputError(f"{report} is no report of heads: expected a directory that `interp report` left")
    return ranking.called(heads)
