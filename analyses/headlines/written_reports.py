"""What does a report that was written say of heads, and what does it call those of a model that is at hand?"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from analyses import runs
from analyses.behaviours import ACROSS, OURS
from analyses.head_names import Place
from analyses.headlines import ranking
from analyses.headlines.facts import Fact, facts
from analyses.provenance import model_facts
from analyses.runs import RunFolder
from analyses.viewer.naming import Called, HeadName
from interp import InputError, Model


def facts_of(run: RunFolder, tables: Mapping[str, pd.DataFrame]) -> dict[Place, list[Fact]]:
    """Of every head of a report, unordered, also of those that have none; nothing of other runs.

    Raises:
        InputError: its tables are those of an earlier interp.
    """
    heads = tables.get("heads", pd.DataFrame())
    if heads.empty or "model" in heads or "tasks" not in tables:
        return {}
    try:
        return facts(tables, OURS | {f"cross {name}": each for name, each in ACROSS.items()})
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
    left = runs.read(report)
    measured, shown = left.facts.get("model") or {}, model_facts(model)
    key = "fingerprint" if "fingerprint" in measured else "sha256"  # early runs had that of the weight files alone
    if shown[key] is None or measured.get(key) != shown[key]:
        raise InputError(
            f"{report} is about {left.model or 'other models'}: it has no names for heads of this model, whose {key} "
            "is another (weights, settings, edits or the version of interp differ)"
        )
    found = facts_of(left, {each: left.table(each) for each in left.tables})
    if not found:
        raise InputError(f"{report} is no report of heads: expected a directory that `interp report` left")
    return ranking.called(found)
