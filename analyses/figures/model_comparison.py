"""How do the heads of several models compare: their best heads in each measure, and where all of them sit?"""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from analyses.figures.attention_lines import literal
from analyses.figures.row_selection import select_rows
from analyses.figures.style import (
    INK,
    SOFT,
    Page,
    begin,
    caption,
    keys,
    leftmost,
    measure_name,
    panels,
    sized,
    styled,
)
from analyses.head_names import HEAD, head_name

_MARKERS = "oDs^vPX"  # of models; colour is for behaviours
_LINES = ("-", "--", ":", "-.", "-", "--", ":")
_SHADES = (INK, SOFT, "#8a929c")  # first the reference
_ROW, _GAP = 0.16, 0.14  # inches: of a model, and between measures
_DODGE = 0.025  # of the depth: models of equally many layers beside each other
_COLUMNS = 3  # of panels
_LIFT = "tag:"  # measures in lift have a scale of their own
Looks = dict[str, dict[str, Any]]  # by model, its colour and marker


@styled
def compared_gains(table: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """A dot and a whisker a model and measure: the best head's gain, and its difference from the reference's.

    Args:
        table: rows of `tables/compare`, in the order in which measures and models are drawn.
        page: how it stands on a page: `title`, `width`, `font_size` (`style.Page`).

    Raises:
        InputError: no row, or several runs or references.
    """
    table = select_rows(table, ["model", "behaviour", "measure"], single=("run", "seed", "reference"))
    looks, reference = _looks(table), str(table["reference"].iloc[0])
    in_lift = np.array([str(measure).startswith(_LIFT) for measure in table["measure"]])
    both = (table.loc[~in_lift], "share"), (table.loc[in_lift], "lift")
    blocks = [(some, unit) for some, unit in both if len(some)]
    heights = [(_GAP + len(looks) * _ROW) * len(set(some["measure"])) for some, _ in blocks]
    figure = begin("How do the best heads compare?", sum(heights) + 0.75 * len(blocks) + 0.7, options=page, least=5.0)
    axes = figure.subplots(len(blocks), 2, squeeze=False, sharey="row", height_ratios=heights, width_ratios=(1.25, 1))
    for (left, right), (some, unit) in zip(axes, blocks, strict=True):
        _block(left, some, looks, ("gain", "ci_low", "ci_high"), named=True)
        _block(right, some, looks, ("difference", "difference_low", "difference_high"), named=False)
        left.set_xlabel(f"gain over the baseline, in {unit}")
        right.set_xlabel(f"gain less {_short(reference, 20)}’s, in {unit}")
        right.tick_params("y", length=0, labelleft=False)
    _legend(figure, figure.axes, looks)
    said = f"The gain of each model's best head (left), and less {reference}'s (right)"
    caption(figure, f"{said}; lines are 95% intervals.")
    return figure


def _block(ax: Axes, table: pd.DataFrame, looks: Looks, columns: tuple[str, str, str], *, named: bool) -> None:
    """One side of the measures of one unit; `named` writes each head beside its whisker."""
    measures, models = list(dict.fromkeys(table["measure"])), list(looks)
    step = _ROW / (_GAP + len(models) * _ROW)
    value, low, high = columns
    for at in range(0, len(measures), 2):
        ax.axhspan(at - 0.5, at + 0.5, color="0.96", lw=0, zorder=0)
    for row in table.dropna(subset=[value]).to_dict("records"):
        look = looks[row["model"]]
        y = measures.index(row["measure"]) + step * (models.index(row["model"]) - (len(models) - 1) / 2)
        ax.hlines(y, row[low], row[high], colors=look["color"], linestyles=look["ls"], lw=1.5)
        ax.scatter(row[value], y, s=22, linewidths=0, zorder=3, color=look["color"], marker=look["marker"])
        if named:
            end = np.nanmax([row[value], row[high]])
            name = head_name(row["layer"], row["head"])
            offset: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points"}
            text = ax.annotate(name, (end, y), **offset, va="center", fontsize=sized(8), color="0.35")
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    ax.axvline(0, color="0.4", lw=1, zorder=1)
    ax.set_ylim(len(measures) - 0.5, -0.5)
    ax.set_yticks(range(len(measures)), [measure_name(measure) for measure in measures])
    if named:  # room for the names, which do not count as data
        left, right = ax.get_xlim()
        ax.set_xlim(left, right + 0.16 * (right - left))


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
    kept = select_rows(heads, ["model", "measure", *HEAD], single=("run", "seed"), measure=measures, sink="kept")
    looks = _looks(heads)
    question = "At which depth do the heads sit that show each measure?"
    figure, axes = panels(question, len(measures), height=1.8, columns=_COLUMNS, key=1.1, options=page)
    for ax, measure in zip(axes, measures, strict=True):
        rows = kept.loc[kept["measure"] == measure]
        for at, (model, look) in enumerate(looks.items()):
            own = rows.loc[rows["model"] == model]
            shown = own["shows"].to_numpy(dtype=bool)
            x = own["depth"].to_numpy(dtype=float) + _DODGE * (at - (len(looks) - 1) / 2)
            y = own["gain"].to_numpy(dtype=float)
            hollow = {"facecolors": "none", "edgecolors": look["color"], "marker": look["marker"]}
            ax.scatter(x[~shown], y[~shown], s=12, alpha=0.5, lw=0.8, **hollow)
            ax.scatter(x[shown], y[shown], s=22, lw=0, alpha=0.9, color=look["color"], marker=look["marker"])
        ax.axhline(0, color="0.4", lw=0.8, zorder=0)
        ax.set(xlim=(0, 1.08), title=measure_name(measure))
    for ax in axes:
        ax.set_xlabel("relative depth")
        if leftmost(figure, ax):
            ax.set_ylabel("gain")
    _legend(figure, axes, looks)
    caption(
        figure, "The gain of every head by the relative depth of its layer; filled are those that show the measure."
    )
    return figure


def _looks(table: pd.DataFrame) -> Looks:
    models = dict.fromkeys(map(str, table["model"]))
    n = len(_MARKERS)
    return {
        model: {"color": _SHADES[at % len(_SHADES)], "marker": _MARKERS[at % n], "ls": _LINES[at % n]}
        for at, model in enumerate(models)
    }


def _legend(figure: Figure, axes: Sequence[Axes], looks: Looks) -> None:
    entries = {_short(model, 36): Line2D([], [], ms=5, mew=0, lw=1.2, **look) for model, look in looks.items()}
    keys(figure, axes, entries)


def _short(name: str, longest: int) -> str:
    """A model's name, cut in the middle: checkpoints differ at their end."""
    kept = longest // 2
    return literal(name if len(name) <= longest else f"{name[:kept]}…{name[-kept:]}", longest + 1)
