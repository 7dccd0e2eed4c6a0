"""How do all figures look? Sizes in inches and points, the colours, and the two ways in which every figure begins."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import isnan
from textwrap import fill
from typing import Any

import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure

WIDTH = 9.0  # inches: the column of the report
BLUE, ORANGE, GREEN, GREY = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#8a8a8a",
)  # Okabe & Ito 2008: told apart by colour-blind readers
PURPLE = "#cc79a7"
FAMILIES = {"blue": BLUE, "green": GREEN, "orange": ORANGE, "purple": PURPLE}
SIGNED, POSITIVE = "RdBu_r", "viridis"
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
}

styled = rc_context(_STYLE)
"""Decorates a function that draws: our style inside it, the caller's after it."""


def begin(title: str, height: float, width: float = WIDTH) -> Figure:
    """An empty figure whose title asks a question."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(fill(title, int(width * 11)), x=0.01, ha="left")
    return figure


def panels(title: str, count: int, *, height: float, columns: int, key: float = 0.5) -> tuple[Figure, list[Axes]]:
    """A figure of `count` equal panels of `height` inches, in rows of at most `columns`; `key` inches for the rest."""
    rows, columns = -(-count // columns), min(count, columns)
    figure = begin(title, rows * height + key, min(WIDTH, 1.5 + 3.75 * columns))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def signed_scale(largest: float, *, at_least: float = 0.1) -> Normalize:
    """Colours centred on 0 that reach as far below it as above."""
    reach = at_least if isnan(largest) else max(largest, at_least)
    return TwoSlopeNorm(0, -reach, reach)


def heat_map(ax: Axes, grid: Any, scale: Normalize, colours: str = SIGNED, **ticks: Any) -> None:
    """One cell a value, undefined ones grey; rasterised, so that a large model stays a small file."""
    ax.set_facecolor("0.85")
    bounds = {"vmin": scale.vmin, "vmax": scale.vmax}  # else seaborn looks for them, and warns where all is undefined
    sns.heatmap(grid, ax=ax, cmap=colours, norm=scale, cbar=False, rasterized=True, **bounds, **ticks)


def colour_bar(figure: Figure, axes: Sequence[Axes], colours: ScalarMappable, label: str) -> Colorbar:
    """One bar at the right for all panels."""
    bar = figure.colorbar(colours, ax=axes, label=label, fraction=0.05, aspect=18, pad=0.01)
    bar.outline.set_visible(False)
    return bar


def legend(figure: Figure, axes: Iterable[Axes], *, columns: int = 4) -> None:
    """One legend under all panels, each entry once."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", frameon=False, fontsize=8, ncols=columns
    )


def families(behaviours: Iterable[str], colours: Mapping[str, str] | None = None) -> dict[str, str]:
    """The colour of each behaviour that is there: as told, else one family after the other."""
    present = dict.fromkeys(behaviours)
    if colours is None:
        return dict(zip(present, cycle(FAMILIES.values()), strict=False))
    return {name: FAMILIES[colour] for name, colour in colours.items() if name in present}


def measure_name(measure: str) -> str:
    """A measure's name as a reader sees it: with an arrow instead of its ASCII."""
    return measure.replace("->", "→")


def head_name(layer: int, head: int) -> str:
    """How a head is called everywhere: layer and head, both from 0."""
    return f"L{layer}.H{head}"
