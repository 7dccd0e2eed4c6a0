"""How deep in the model is each kind of knowledge read? Probes by layer, and where along the layers they gain."""

from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import GREY, INK, SOFT, WIDTH, Page, begin, caption, legend, sized, styled
from analyses.numerals import number
from interp.errors import InputError

_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("probe", {"color": INK, "marker": "o", "lw": 2}),
    "control_accuracy": ("same probe, random labels (control)", {"color": GREY, "marker": "s", "ls": "--"}),
    "untrained_accuracy": ("same probe, untrained model", {"color": SOFT, "marker": "^", "ls": ":"}),
    "ambiguous_accuracy": (
        "probe, words seen as noun and verb",
        {"color": INK, "marker": "D", "mfc": "white", "ls": "-."},
    ),
    "baseline": ("rule that reads no sentence", {"color": GREY}),
    "ambiguous_baseline": ("the same rule, words seen as noun and verb", {"color": GREY, "ls": ":"}),
}
_MEASURES = {"expected layer": (INK, "o"), "centre of gravity": (SOFT, "s")}
_ABSENT = {"expected layer": "nothing surely gained after the embedding", "centre of gravity": "not measured"}
_LINE = 0.42  # inches: a task
_WIDE, _WIDEST = 1.6, 7.4  # inches: of a panel whose title is one line, and of a figure with two side by side


@styled
def probes_by_layer(layers: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """A panel a task: what probes of each layer's stream read, with the interval of what they have over their control.

    Args:
        layers: rows of `tables/layers`; heads are left out.
        page: how it stands on a page: `title`, `width`, `font_size` (`style.Page`).

    Raises:
        InputError: no row of a stream; several models, runs or stacks.
    """
    rows = select_rows(layers, ["task", "depth", "head"], single=(*SOURCES, "stack"), task=None, head=None)
    rows = rows.loc[rows["head"].isna()]
    if rows.empty:
        raise InputError("expected rows of the stream, which have no head: got none")
    tasks = list(dict.fromkeys(rows["task"]))
    question = "How well does a probe of each layer read it, and what is that worth?"
    usual = WIDTH if len(tasks) > 1 else 6.5
    across = page.get("width", usual) / len(tasks)
    figure = begin(question, min(4.2, 2.0 + across), usual, page, least=sized(0.5 + 0.95 * len(tasks)))
    drawn = [name for name in _LINES if rows[name].notna().any()]
    lowest = float(np.nanmin(rows[drawn].to_numpy(dtype=float)))
    axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for ax, task in zip(axes, tasks, strict=True):
        group = rows.loc[rows["task"] == task]
        _panel(ax, group)
        ax.set_title(f"{task},{' ' if across > sized(_WIDE) else chr(10)}n {number(group['n'].iloc[0])}")
    axes[0].set(ylabel="accuracy", ylim=(np.floor(10 * lowest - 0.2) / 10, 1.01))
    legend(figure, axes, columns=3)
    caption(figure, "What linear probes read from each layer's stream, beside controls; the band is a 95% interval.")
    return figure


def _panel(ax: Axes, rows: pd.DataFrame) -> None:
    """One task's lines; the band under the probe's spans the interval of what it has over its control."""
    rows = rows.sort_values("depth")
    control = rows["control_accuracy"].to_numpy(dtype=float)
    low, high = (control + rows[name].to_numpy(dtype=float) for name in ("ci_low", "ci_high"))
    for name, (label, style) in _LINES.items():
        if rows[name].notna().to_numpy().any():
            ax.plot(rows["depth"], rows[name], ms=4, label=label, **{"lw": 1.2, **style})
    over = "95% interval of what the probe has over its control"
    ax.fill_between(rows["depth"], low, high, color=INK, alpha=0.2, lw=0, label=over)
    ax.set_xlabel("blocks passed")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


@styled
def probe_depths(depths: pd.DataFrame, deepest: int, **page: Unpack[Page]) -> Figure:
    """How deep each task is read, by both measures with intervals; beside it, by how much one task lies above another.

    Args:
        depths: rows of `tables/depths`.
        deepest: how many blocks the model has.
        page: how it stands on a page: `title`, `width`, `font_size` (`style.Page`).

    Raises:
        InputError: no row; several models, runs or stacks.
    """
    depths = select_rows(depths, ["task", "measure"], single=(*SOURCES, "stack"), task=None, measure=None)
    names = list(dict.fromkeys(depths["task"]))
    tasks, pairs = ([name for name in names if (" - " in name) == pair] for pair in (False, True))
    question = "Is syntax read low in the model, and reference high?"
    usual = WIDTH if pairs else 6.5
    stacked = bool(pairs) and page.get("width", usual) < sized(_WIDEST)
    heights = [1.35 + _LINE * max(len(each), 2) for each in ((tasks, pairs) if stacked else (tasks,))]
    figure = begin(question, sum(heights) - 0.4 * stacked, usual, page, least=sized(3.0))
    shape = (2, 1) if stacked else (1, 2 if pairs else 1)
    left, *right = figure.subplots(*shape, squeeze=False).flat
    _intervals(left, depths, tasks, stacked)
    low, high = left.get_xlim()
    left.set(xlim=(min(low, -0.1), max(high, deepest + 0.1)), xlabel="blocks passed", title="where it is read")
    for ax in right:
        _intervals(ax, depths, pairs, stacked)
        ax.axvline(0, color=GREY, lw=1, zorder=0)
        ax.set(xlabel="blocks", title="how much higher the first is read")
    for ax in (left, *right):
        ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    legend(figure, [left], columns=2)
    caption(figure, "How deep in the model each task is read; lines are 95% intervals.")
    return figure


def _intervals(ax: Axes, depths: pd.DataFrame, tasks: list[str], narrow: bool) -> None:
    """Two values with their intervals a task, one a measure; what is missing is said, where it is narrow in two lines
    that stand on the middle of the row."""
    for shift, (measure, (colour, marker)) in zip((-0.15, 0.15), _MEASURES.items(), strict=True):
        rows = depths.loc[depths["measure"] == measure].set_index("task").reindex(tasks)
        y = np.arange(len(tasks)) + shift
        ax.hlines(y, rows["ci_low"], rows["ci_high"], colors=colour, lw=2)
        ax.plot(rows["value"], y, marker, color=colour, ms=5, label=f"{measure}, 95% interval")
        for at in y[rows["value"].isna().to_numpy()]:
            said = _ABSENT[measure].replace(" after", "\nafter") if narrow else _ABSENT[measure]
            place: Any = {"y": at, "va": "center"} if "\n" not in said else {"y": at - shift, "va": "bottom"}
            how: Any = {"color": colour, "fontsize": sized(8), "linespacing": 1}
            ax.text(0.02, s=said, transform=ax.get_yaxis_transform(), **place, **how)
    ax.set_yticks(range(len(tasks)), [name.replace(" - ", " – ") for name in tasks])
    ax.set_ylim(len(tasks) - 0.5, -0.5)
