"""How much better than its baseline is a head, how sure is that, and how does it change with depth?"""

from typing import Any, Literal, Unpack

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import (
    GREY,
    INK,
    Page,
    broken,
    caption,
    colour_of,
    is_ours,
    legend,
    measure_name,
    single,
    styled,
)
from analyses.head_names import HEAD, head_name

Sink = Literal["kept", "removed"]
_ONE_KIND = (*SOURCES, "stack", "attention")  # heads of several have the same names
_NAMES = 0.5  # inches that the heads' names take
_ABOVE, _NOT_ABOVE = "interval above 0", "interval not above 0"


@styled
def gain_intervals(
    heads: pd.DataFrame, measure: str, *, sink: Sink = "kept", top: int = 12, **page: Unpack[Page]
) -> Figure:
    """The heads with the largest gains in one measure, with their 95% intervals; the baseline is the line at 0.

    Args:
        heads: rows of `tables/heads`.
        measure: which to draw.
        sink: whether the first position counts.
        top: how many heads.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no such row, measure or reading; several models, runs or kinds of attention.
    """
    rows = select_rows(heads, HEAD, single=_ONE_KIND, measure=measure, sink=sink).dropna(subset=["gain"])
    rows = rows.nlargest(top, "gain").iloc[::-1]
    name = measure_name(measure)
    question = f"Which heads beat the baseline of {name}, and how surely?"
    figure, ax = single(question, 1.1 + 0.2 * max(len(rows), 3), options=page)
    y = np.arange(len(rows))
    sure = np.where(rows["ci_low"] > 0, _ABOVE, _NOT_ABOVE)
    palette = {_ABOVE: colour_of(rows), _NOT_ABOVE: GREY}
    ax.hlines(y, rows["ci_low"], rows["ci_high"], colors=[palette[each] for each in sure], lw=1.5)
    order = [says for says in palette if says in sure]
    sns.scatterplot(x=rows["gain"], y=y, hue=sure, hue_order=order, palette=palette, s=36, linewidth=0, ax=ax)
    ax.axvline(0, color=GREY, ls="--", lw=1, label=_baseline(rows))
    ax.set_yticks(y, [head_name(layer, head) for layer, head in zip(rows["layer"], rows["head"], strict=True)])
    xlabel = f"gain in {name} over the baseline"
    ax.set(xlabel=broken(xlabel, figure.get_figwidth() - _NAMES) if is_ours(figure) else xlabel, ylabel="")
    _legend_below(figure, ax)
    said = f"The {len(rows)} heads with the largest gains in {name} over its baseline; lines are 95% intervals"
    caption(figure, f"{said}, coloured where they lie above 0.")
    return figure


def _baseline(rows: pd.DataFrame) -> str:
    """The baseline by name, with its value where all heads have the same."""
    names = ", ".join(measure_name(str(each)) for each in rows["baseline_name"].dropna().unique()[:3])
    values = rows["baseline"].dropna().round(3).unique()
    return f"baseline: {names}" + (f" ({values[0]:.3f})" if len(values) == 1 else "")


@styled
def distance_by_layer(heads: pd.DataFrame, *, sink: Sink = "kept", **page: Unpack[Page]) -> Figure:
    """Mean attention distance of every head by layer, the mean of each layer, and uniform attention's.

    Args:
        heads: rows of `tables/heads`, of which the measure `distance` is drawn.
        sink: whether the first position counts.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: as `gain_intervals`.
    """
    rows = select_rows(heads, HEAD, single=_ONE_KIND, measure="distance", sink=sink).dropna(subset=["value"])
    figure, ax = single("Do later layers look farther away?", 3.2, options=page)
    layers = rows["layer"].to_numpy(dtype=int)
    dots: dict[str, Any] = {"s": 5, "color": GREY, "alpha": 0.7, "linewidth": 0, "jitter": False, "label": "a head"}
    sns.stripplot(x=layers, y=rows["value"], ax=ax, legend=False, **dots)
    mean = rows.groupby("layer")["value"].mean()
    sns.lineplot(x=mean.index, y=mean.to_numpy(), ax=ax, color=INK, marker="D", label="mean of the layer")
    if rows["baseline"].notna().any():
        ax.axhline(rows["baseline"].mean(), color=GREY, ls="--", lw=1, label="uniform attention")
    ax.set_ylim(bottom=0)
    ax.set(xlabel="layer", ylabel="mean distance, in tokens")
    _legend_below(figure, ax)
    said = "Mean attention distance by layer: a dot a head, the line their mean"
    caption(figure, said + (", dashed what uniform attention has." if rows["baseline"].notna().any() else "."))
    return figure


def _legend_below(figure: Figure, ax: Axes) -> None:
    """One legend under the axes instead of those inside."""
    if inside := ax.get_legend():
        inside.remove()
    legend(figure, [ax], columns=3)
