"""How deep in the model is each kind of knowledge read? Probes by layer, and where along the layers they gain."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analyses.figures.style import BLUE, GREY, ORANGE, WIDTH, begin, styled

_PURPLE = "#aa4499"
_LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "accuracy": ("probe", {"color": BLUE, "marker": "o", "lw": 2}),
    "control_accuracy": ("same probe, random labels (control)", {"color": GREY, "marker": "s", "ls": "--"}),
    "untrained_accuracy": ("same probe, untrained model", {"color": "0.3", "marker": "^", "ls": ":"}),
    "ambiguous_accuracy": ("probe, words seen as noun and verb", {"color": _PURPLE, "marker": "D", "ls": "-."}),
    "baseline": ("rule that reads no sentence", {"color": ORANGE}),
}
_MEASURES = {"expected layer": BLUE, "centre of gravity": ORANGE}


@styled
def probes_by_layer(layers: pd.DataFrame, depths: pd.DataFrame, *, title: str | None = None) -> Figure:
    """A panel a task: what probes of each layer's stream read, with the interval of the selectivity; below, how deep.

    Args:
        layers: rows of `tables/layers`; heads are left out.
        depths: expected layer and centre of gravity of each task, with intervals; differences of tasks are left out.
        title: the question.
    """
    rows = layers.loc[layers["head"].isna()]
    tasks = list(dict.fromkeys(rows["task"]))
    question = title or "How deep in the model are tags, relations and referents read?"
    figure = begin(question, 5.1, max(6.5, min(WIDTH, 1.5 + 2.6 * len(tasks))))
    grid = figure.add_gridspec(2, len(tasks), height_ratios=[3, 1.2])
    deepest = int(rows["depth"].max())
    handles: dict[str, Any] = {}
    first: Axes | None = None
    for column, task in enumerate(tasks):
        ax = figure.add_subplot(grid[0, column], sharey=first)
        first = first or ax
        handles |= _panel(ax, rows.loc[rows["task"] == task])
        ax.set_title(f"{task}, n {rows.loc[rows['task'] == task, 'n'].iloc[0]:,}")
    assert first is not None
    first.set(ylabel="accuracy", ylim=(0, 1.02))
    _depths(figure.add_subplot(grid[1, :]), depths.loc[depths["task"].isin(tasks)], tasks, deepest)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False, fontsize=8, ncols=3)
    return figure


def _panel(ax: Axes, rows: pd.DataFrame) -> dict[str, Any]:
    """One task's lines; the band under the probe's spans the interval of what it has over its control."""
    rows = rows.sort_values("depth")
    control = rows["control_accuracy"].to_numpy(dtype=float)
    low, high = (control + rows[name].to_numpy(dtype=float) for name in ("ci_low", "ci_high"))
    band = ax.fill_between(rows["depth"], low, high, color=BLUE, alpha=0.2, lw=0)
    drawn: dict[str, Any] = {}
    for name, (label, style) in _LINES.items():
        if not rows[name].isna().to_numpy().all():
            (drawn[label],) = ax.plot(rows["depth"], rows[name], ms=4, **{"lw": 1.2, **style})
    drawn["control + selectivity, 95% interval"] = band
    ax.set_xlabel("blocks passed")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return drawn


def _depths(ax: Axes, depths: pd.DataFrame, tasks: list[str], deepest: int) -> None:
    """Expected layer and centre of gravity: one line a task, what is missing is said."""
    for shift, (measure, colour) in zip((-0.15, 0.15), _MEASURES.items(), strict=True):
        rows = depths.loc[depths["measure"] == measure].set_index("task").reindex(tasks)
        y = [at + shift for at in range(len(tasks))]
        known = rows["value"].notna().to_numpy()
        ax.hlines(y, rows["ci_low"], rows["ci_high"], colors=colour, lw=2)
        ax.plot(rows["value"], y, "o", color=colour, ms=5, label=measure)
        for at in [y[index] for index in range(len(tasks)) if not known[index]]:
            ax.text(
                0, at, f"no {measure}: nothing surely gained after the embedding", color=colour, fontsize=7, va="center"
            )
    ax.set_yticks(range(len(tasks)), tasks)
    ax.set(xlim=(-0.1, deepest + 0.1), ylim=(len(tasks) - 0.5, -0.5), xlabel="blocks passed")
    ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
