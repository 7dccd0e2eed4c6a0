"""How do the heads of several models compare: their best heads in each measure, and where all of them sit?"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.figures.kinds import LOOKS, draw
from analyses.figures.row_selection import select_rows
from analyses.figures.style import Page, literal, measure_name, styled
from analyses.wording.head_names import HEAD, head_name

_MARKERS = "oDs^vPX"  # of models; colour is for behaviours
_LINES = ("-", "--", ":", "-.", "-", "--", ":")
_GAP, _ROW = 0.14, 0.16  # inches: between measures, and of a model
_DODGE = 0.025  # of the depth: models of equally many layers beside each other
_HOLLOW = {"facecolors": "none", "linewidths": 0.8, "alpha": 0.5, "s": 12}  # heads that do not show the measure
_LIFT = "tag:"  # measures in lift have a scale of their own


@styled
def compared_gains(table: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """A dot and a whisker a model and measure: the best head's gain, and its difference from the reference's.

    Args:
        table: rows of `tables/compare`, in the order in which measures and models are drawn.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no row, or several runs or references.
    """
    rows = select_rows(table, ["model", "behaviour", "measure"], single=("run", "seed", "reference"))
    looks, reference = _looks(rows["model"]), str(rows["reference"].iloc[0])
    rows = rows.assign(
        unit=["lift" if str(measure).startswith(_LIFT) else "share" for measure in rows["measure"]],
        title=[measure_name(measure) for measure in rows["measure"]],
        model=[_short(model, 36) for model in rows["model"]],
        note=[head_name(row["layer"], row["head"]) for row in rows.to_dict("records")],
    )
    bounds = {"gain": ("ci_low", "ci_high"), "difference": ("difference_low", "difference_high")}
    columns = {
        side: {"value": rows[side], "low": rows[low], "high": rows[high]} for side, (low, high) in bounds.items()
    }
    left = rows.assign(side="gain over the baseline", **columns["gain"])
    right = rows.assign(side=f"gain less {_short(reference, 20)}’s", **columns["difference"], note="")
    rows = pd.concat([left, right]).sort_values("unit", ascending=False, kind="stable")  # shares first
    options: Any = {"looks": looks, "row": _GAP + len(looks) * _ROW, "step": _ROW / (_GAP + len(looks) * _ROW)}
    return draw("compared_gains", rows, page, {"reference": reference}, **options)


@styled
def gains_by_depth(heads: pd.DataFrame, measures: Sequence[str], **page: Unpack[Page]) -> Figure:
    """A panel a measure: the gain of every head of every model over the relative depth of its layer.

    Args:
        heads: rows of `tables/heads` of several models, with `model`, `depth` and `shows`.
        measures: which to draw.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no such row or measure, or several runs.
    """
    rows = select_rows(heads, ["model", "measure", *HEAD], single=("run", "seed"), measure=measures, sink="kept")
    models, looks = [*dict.fromkeys(heads["model"])], {}
    for name, look in _looks(heads.loc[:, "model"]).items():
        dot = {"color": look["color"], "marker": look["marker"]}
        looks |= {f"_{name}": {**dot, **_HOLLOW}, name: dot}
    shift = rows["model"].map({model: _DODGE * (place - (len(models) - 1) / 2) for place, model in enumerate(models)})
    label = ["_" * (not row["shows"]) + _short(row["model"], 36) for row in rows.to_dict("records")]
    rows = rows.assign(panel=rows["measure"].map(measure_name), label=label, depth=rows["depth"] + shift)
    names = rows.drop_duplicates("model")
    names = names.assign(gain=np.nan, label=[_short(model, 36) for model in names["model"]])
    rows = pd.concat([*(rows.loc[rows["measure"] == measure] for measure in measures), names])  # for the legend
    return draw("gains_by_depth", rows, page, looks=looks)


def _looks(models: pd.Series) -> dict[str, dict[str, Any]]:
    """Of each model the ink, the marker and the line; the first is the reference."""
    return {
        _short(str(model), 36): {
            "color": LOOKS[place % len(LOOKS)]["color"],
            "marker": _MARKERS[place % len(_MARKERS)],
            "ls": _LINES[place % len(_LINES)],
        }
        for place, model in enumerate(dict.fromkeys(models))
    }


def _short(name: str, longest: int) -> str:
    """A model's name, cut in the middle: checkpoints differ at their end."""
    kept = longest // 2
    return literal(name if len(name) <= longest else f"{name[:kept]}…{name[-kept:]}", longest + 1)
