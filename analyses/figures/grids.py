"""Where in the model are the heads that matter? Layer x head heat maps, layer 0 at the bottom."""

from collections.abc import Sequence
from typing import Literal, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import (
    SIGNED,
    Page,
    along,
    broken,
    caption,
    colour_bar,
    colour_of,
    draw_map,
    is_ours,
    measure_name,
    panels,
    shades,
    signed_scale,
    sized,
    styled,
)
from analyses.findings import DISCOVERY, NOTABLE, carriers, shows

_BESIDE = 1.0  # inches that the colour bar and the names of axes take
_APART = 0.25  # and between the titles of panels that stand side by side
_TICKS = 8  # labels along an axis at most
_LABELS = {"gain": "gain over the baseline", "value": "value", "lift": "lift (1: no preference)"}
_LIFTS = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]  # where the colours of lifts are named
_DOTS = f"A dot marks {{}} of at least {NOTABLE} whose 95% interval excludes 0, with q below {DISCOVERY}{{}}."
_UNDEFINED = "Hatched: undefined."
Quantity = Literal["gain", "value", "lift"]


@styled
def head_grid(
    heads: pd.DataFrame,
    measures: str | Sequence[str] | None = None,
    *,
    quantity: Quantity = "gain",
    sink: Literal["kept", "removed"] = "kept",
    by: str | None = None,
    **page: Unpack[Page],
) -> Figure:
    """One heat map a measure, on one scale; a dot marks a finding (`analyses.findings.notable`).

    Args:
        heads: rows of `tables/heads`.
        measures: which to draw, in order; all of the table by default. They should share a unit.
        quantity: what gives the colour: the gain, the value as it is, or the value as a ratio (half as much is as far
            from 1 as twice as much).
        sink: whether the first position counts.
        by: a column of a joined table (`model`, `run`), each value of which has panels of its own.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no such row, measure, quantity, reading or column; several models or runs, and no `by`.
    """
    apart = [] if by is None else [by]
    kinds = ["measure", *apart, "stack", "attention"]
    wanted = [measures] if isinstance(measures, str) else [*([] if measures is None else measures)]
    columns = {"measure": wanted or None, "sink": sink, **dict.fromkeys(apart)}
    rows = select_rows(heads, [*kinds, "layer", "head"], single=() if apart else SOURCES, **columns)
    wanted = wanted or [*rows["measure"].unique()]
    groups = [
        (_panel_title(rows, key, apart), group)
        for measure in wanted
        for key, group in rows.loc[rows["measure"] == measure].groupby(kinds, sort=False)
    ]
    question = f"Which heads show {' or '.join(wanted[:3])}{' or others' * (len(wanted) > 3)}?"
    column = "gain" if quantity == "gain" else "value"
    marked = (
        rows.index[shows(heads, rows, apart)] if quantity != "value" else rows.index[:0]
    )  # a value alone is no finding
    scale = _scale(rows[column], quantity)
    colours = SIGNED if quantity == "lift" else shades(colour_of(rows))
    drawn = {"column": column, "label": _LABELS[quantity], "drawn": (scale, colours), "marked": marked}
    figure = _grid(question, groups, page, **drawn)
    said = f"The {_LABELS[quantity]} of every head in {' and '.join(map(measure_name, wanted))}, layer 0 at the bottom."
    caption(
        figure,
        said,
        _UNDEFINED * bool(rows[column].isna().to_numpy().any()),
        _DOTS.format("a gain", ", in five documents at least, eight where items are right or wrong")
        * bool(len(marked)),
    )
    return figure


@styled
def effect_grid(effects: pd.DataFrame, task: str, **page: Unpack[Page]) -> Figure:
    """Denoising and noising of every head side by side, on one scale; a dot marks a head that carries part of the
    answer, or of the other (`analyses.findings.carriers`).

    Args:
        effects: rows of `tables/effects`; 1 is the whole effect.
        task: which task to draw.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no such row or task; several models or runs.
    """
    rows = select_rows(effects, ["intervention", "stack", "attention", "layer", "head"], task=task)
    says = {"denoise": "denoise: is the head enough?", "noise": "noise: is the head needed?"}
    keys = ["intervention", "stack", "attention"]
    groups = [(says.get(str(key[0]), str(key[0])), group) for key, group in rows.groupby(keys, sort=True)]
    marked = carriers(rows).index
    question, drawn = (
        f"Which heads cause the right answer in {task}?",
        (signed_scale(float(rows["effect"].abs().max())), SIGNED),
    )
    label = "share of the\nlogit difference"
    figure = _grid(question, groups, page, column="effect", label=label, drawn=drawn, marked=marked)
    said = f"The share of the logit difference that each head carries in {task}, layer 0 at the bottom."
    chosen = ", on the pairs that did not choose the head"
    caption(figure, said, _DOTS.format("a share, above 0 or below,", chosen) * bool(len(marked)))
    return figure


def _panel_title(rows: pd.DataFrame, key: tuple[str, ...], apart: Sequence[str]) -> str:
    measure, *where = map(str, key)
    if len(rows[["stack", "attention"]].drop_duplicates()) == 1:
        where = where[: len(apart)]
    return f"{measure_name(measure)} ({' '.join(where)})" if where else measure_name(measure)


def _scale(values: pd.Series, quantity: Quantity) -> Normalize:
    if quantity == "value":
        return Normalize(min(0.0, float(values.min())), max(1.0, float(values.max())))
    if quantity == "lift":
        reach = np.abs(np.log2(values[values > 0])).max()
        reach = float(np.clip(np.nan_to_num(reach, nan=1.0), 1, 4))  # a lift of 0 takes the last colour
        return LogNorm(2**-reach, 2**reach)
    return Normalize(0, max(0.1, float(np.nan_to_num(values.max()))))  # below the baseline is as nothing


def _grid(
    question: str,
    groups: Sequence[tuple[str, pd.DataFrame]],
    page: Page,
    *,
    column: str,
    label: str,
    drawn: tuple[Normalize, str | Colormap],
    marked: pd.Index,
) -> Figure:
    layers, heads = (max(size(group, axis) for _, group in groups) for axis in ("layer", "head"))
    columns = 4 if heads <= 8 else 3 if heads <= 16 else 2
    height = min(5, 0.7 + max(0.22 * layers, 0.9))
    figure, axes = panels(question, len(groups), height=height, columns=columns, options=page)
    scale, colours = drawn
    place = axes[0].get_subplotspec() if is_ours(figure) else None
    side = (figure.get_figwidth() - _BESIDE) / (place.get_gridspec().ncols if place else len(axes))
    for ax, (name, group) in zip(axes, groups, strict=False):
        _heat_map(ax, group, column, colours, scale)
        ax.set_title(broken(name, side - _APART))
        dots = group.loc[group.index.intersection(marked)]
        mark(ax, dots["head"].to_numpy(dtype=float), dots["layer"].to_numpy(dtype=float))
    along(figure, axes, "head", "layer")
    bar = colour_bar(figure, axes, ScalarMappable(scale, colours), label)
    if isinstance(scale, LogNorm) and scale.vmax:
        bar.locator, bar.minorlocator = FixedLocator(_LIFTS), NullLocator()
        bar.formatter = FuncFormatter(lambda value, _: f"{value:.2g}")
    return figure


def mark(ax: Axes, across: np.ndarray, up: np.ndarray) -> None:
    """A dot in the middle of some cells, as large as the text wants it."""
    ax.scatter(across + 0.5, up + 0.5, s=sized(3.7) ** 2, c="black", edgecolors="white", linewidths=0.8)


def size(group: pd.DataFrame, axis: str) -> int:
    """How many layers, heads or positions there are."""
    return max(group[axis].tolist()) + 1


def _heat_map(ax: Axes, group: pd.DataFrame, column: str, colours: str | Colormap, scale: Normalize) -> None:
    """One cell a head."""
    table = group.pivot_table(index="layer", columns="head", values=column, aggfunc="first", dropna=False)
    table = table.reindex(index=range(size(group, "layer")), columns=range(size(group, "head")))
    names = [str(layer) for layer in table.index], [str(head) for head in table.columns]
    draw_map(ax, table.astype(float), scale, colours, names=names, most=(_TICKS, _TICKS))
    ax.invert_yaxis()  # layer 0 at the bottom, where the text enters
