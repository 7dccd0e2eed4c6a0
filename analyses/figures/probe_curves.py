"""How deep in the model is each kind of knowledge read? Probes by layer, and where along the layers they gain."""

from typing import Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.figures.kinds import draw
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import WIDTH, Page, drawn_axes, styled
from analyses.wording.formats import number
from interp.errors import InputError

_ABSENT = {"expected layer": "nothing surely gained after the embedding", "centre of gravity": "not measured"}
_WHERE, _HIGHER = "where it is read", "how much higher the first is read"
_WIDEST = 7.4  # inches: a wider figure has two panels side by side


@styled
def probes_by_layer(layers: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """A panel a task: what probes of each layer's stream read, with the interval of what they have over their control.

    Args:
        layers: rows of `tables/layers`; heads are left out.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no row of a stream; several models, runs or stacks.
    """
    rows = select_rows(layers, ["task", "depth", "head"], single=(*SOURCES, "stack"), task=None, head=None)
    rows = rows.loc[rows["head"].isna()]
    if rows.empty:
        raise InputError("expected rows of the stream, which have no head: got none")
    counts = rows.groupby("task")["n"].first()
    rows = rows.assign(panel=[f"{task}, n {number(counts[task])}" for task in rows["task"]])
    shares = rows[[column for column in rows if column.endswith(("accuracy", "baseline"))]].to_numpy(dtype=float)
    tasks = len(counts)
    height = min(2.8, 0.6 + page.get("width", WIDTH) / tasks)
    figure = draw("probes_by_layer", rows, page, width=WIDTH if tasks > 1 else 6.5, height=height)
    for ax in drawn_axes(figure, page.get("ax")):
        ax.set_ylim(np.floor(10 * np.nanmin(shares) - 0.2) / 10, 1.01)
    return figure


@styled
def probe_depths(depths: pd.DataFrame, deepest: int, **page: Unpack[Page]) -> Figure:
    """How deep each task is read, by both measures with intervals; beside it, by how much one task lies above another.

    Args:
        depths: rows of `tables/depths`.
        deepest: how many blocks the model has.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no row; several models, runs or stacks.
    """
    rows = select_rows(depths, ["task", "measure"], single=(*SOURCES, "stack"), task=None, measure=None)
    columns = 2 if page.get("width", WIDTH) > _WIDEST else 1
    absent = {measure: text if columns > 1 else text.replace(" after", "\nafter") for measure, text in _ABSENT.items()}
    panel = np.where(rows["task"].str.contains(" - "), _HIGHER, _WHERE)
    notes = rows["measure"].map(absent).where(rows["value"].isna(), "")
    rows = rows.assign(note=notes, title=rows["task"].str.replace(" - ", " – "), panel=panel)
    rows = rows.sort_values("panel", ascending=False, kind="stable")  # where first
    room = {"width": WIDTH if _HIGHER in panel else 6.5, "columns": columns, "row": 0.42 if columns > 1 else 0.6}
    figure = draw("probe_depths", rows, page, **room)
    where = drawn_axes(figure, page.get("ax"))[0]
    low, high = where.get_xlim()
    where.set_xlim(min(low, -0.1), max(high, deepest + 0.1))
    where.set_xlabel("blocks passed")
    return figure
