"""What does a report that was written call the heads of this model?"""

from pathlib import Path

from analyses import runs
from analyses.provenance import model_facts
from analyses.viewer.naming import Called, HeadName, labelled
from interp import InputError, Model


def labelled_by(report: str | Path, model: Model) -> dict[HeadName, Called]:
    """What heads are called by the labels in the directory of a report.

    Raises:
        InputError: there is no report, it has no labels, or it is about another model.
    """
    left = runs.read(report)
    measured = left.facts.get("model") or {}
    if measured.get("sha256") != model_facts(model)["sha256"]:
        raise InputError(f"{report} is about {left.model or 'other models'}: its labels are not those of this model")
    return labelled(left.table("labels"))
