"""How well do gradients foretell what patching measures? Estimates against exact effects, one panel a method."""

from itertools import product
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from analyses.figures.row_selection import select_rows
from analyses.figures.style import GREY, INK, WIDTH, Page, begin, caption, keys, sized, styled
from analyses.figures.sweep_maps import PLACE, cell_name, metric_unit
from analyses.numerals import number

MAGNITUDES = "magnitudes"
_MARKERS = {"denoise": "o", "noise": "D"}
_MISSED = 3  # cells named in a panel
_MANY = 2000  # points that make a drawing of lines too large a file
_PANEL = 2.6  # inches
_LETTER, _HEIGHT = 0.062, 0.15  # inches: how wide a letter of a name is, and how high
_CLEAR = 0.03  # of a panel: a point nearer than this to the line is not missed
_NEAR = 0.06  # of a panel: a name nearer than this to its point needs no line to it
Box = tuple[float, float, float, float]  # left, bottom, right, top


@styled
def estimate_panels(estimates: pd.DataFrame, correlations: pd.DataFrame, metric: str, **page: Unpack[Page]) -> Figure:
    """Estimate (across) against exact effect (up): a column a method, a row a direction; the line is perfect agreement.

    Panels of one kind (cells, edges, magnitudes) have one scale, the same on both axes. The worst missed are named.

    Args:
        estimates: rows of `tables/estimates`.
        correlations: rows of `tables/correlations`; each panel's title gives its own.
        metric: which to draw.
        page: how it stands on a page: `title`, `width`, `font_size` (`style.Page`).
    """
    rows = select_rows(estimates, ["method", *PLACE], metric=metric)
    rows = rows.loc[rows["exact"].notna() & ~rows["idle"]]
    agreement = select_rows(correlations, ["method", "direction"], metric=metric).set_index(["method", "direction"])
    methods, directions = (list(dict.fromkeys(agreement.index.get_level_values(level))) for level in (0, 1))
    question = "How well do gradients foretell what patching measures?"
    width = page.get("width", min(WIDTH, 0.4 + _PANEL * max(len(methods), 3)))
    side = min(_PANEL, (width - 0.4) / len(methods) - 0.4)
    figure = begin(question, 0.9 + (side + 0.62) * len(directions), width, page, least=0.4 + 1.3 * len(methods))
    axes = figure.subplots(len(directions), len(methods), squeeze=False)
    kinds = {method: _kind(method, rows) for method in methods}
    limits = {kind: _limits(rows.loc[rows["method"].map(kinds) == kind]) for kind in set(kinds.values())}
    for line, direction in zip(axes, directions, strict=True):
        for ax, method in zip(line, methods, strict=True):
            group = rows.loc[(rows["method"] == method) & (rows["direction"] == direction)]
            _panel(ax, group, limits[kinds[method]], _MARKERS[direction], side)
            ax.set_title(f"{method}, {direction}\n{_agreement(agreement.loc[(method, direction)].to_dict())}")
            if kinds[method] == MAGNITUDES:
                ax.set_ylabel("mean |exact|")
    for ax, method in zip(axes[-1], methods, strict=True):
        ax.set_xlabel("mean |estimate|" if kinds[method] == MAGNITUDES else "estimate")
    quantity, unit = metric_unit(metric)
    for ax in axes[:, 0]:
        ax.set_ylabel(f"exact effect on the\n{quantity}, {unit}")
    _legend(figure, rows)
    said = f"Estimates (across) against exact effects on the {quantity} ({unit}); the line is perfect agreement"
    caption(figure, f"{said}, ρ rank and r linear correlation over n cells or edges.")
    return figure


def _kind(method: str, rows: pd.DataFrame) -> str:
    """Which scale a method's panels share."""
    if method == "AtP*":
        return MAGNITUDES
    senders = rows.loc[rows["method"] == method, "sender"].tolist()
    return "edges" if any(isinstance(sender, str) for sender in senders) else "cells"


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """From the least to the largest of estimates and exact effects, with a margin."""
    values = rows[["exact", "estimate"]].to_numpy(dtype=float)
    low, high = (min(0.0, values.min()), max(0.0, values.max())) if values.size else (0.0, 0.0)
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin


def _panel(ax: Axes, group: pd.DataFrame, limits: tuple[float, float], marker: str, side: float) -> None:
    low, high = limits
    ax.axline((0, 0), slope=1, color=GREY, lw=1, zorder=0)
    for edge in (ax.axhline, ax.axvline):
        edge(0, color="0.85", lw=0.8, zorder=0)
    by_estimate = (group["chosen"] == "strongest").to_numpy(dtype=bool)
    dots: dict[str, Any] = {"s": 16, "marker": marker, "alpha": 0.75, "rasterized": len(group) > _MANY}
    for some, face in ((~by_estimate, INK), (by_estimate, "none")):
        x, y = (group.loc[some, name].to_numpy(dtype=float) for name in ("estimate", "exact"))
        ax.scatter(x, y, facecolors=face, edgecolors=INK, linewidths=0.8 if face == "none" else 0, **dots)
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(4))
    _name_missed(ax, group, low, high - low, side)


def _name_missed(ax: Axes, group: pd.DataFrame, low: float, reach: float, side: float) -> None:
    """Name the points farthest from the line, each where its name hides least."""
    rows = group.to_dict("records")
    points = (group[["estimate", "exact"]].to_numpy(dtype=float) - low) / reach  # fractions of the panel
    missed = np.abs(points[:, 1] - points[:, 0])
    taken: list[Box] = []
    worst = np.argsort(-missed, kind="stable")[:_MISSED]
    worst = worst[missed[worst] > _CLEAR]
    for at in worst[np.argsort(-points[worst, 1], kind="stable")]:  # from the top down
        name = cell_name(rows[at])
        box = _place(points[at], (_LETTER * len(name) / side, _HEIGHT / side), points, taken)
        taken.append(box)
        x, y = points[at]
        end = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
        if np.hypot(end[0] - x, end[1] - y) > _NEAR:
            ax.plot((x, end[0]), (y, end[1]), transform=ax.transAxes, color="0.5", lw=0.6, zorder=1)
        align = "left" if box[0] >= x else "right" if box[2] <= x else "center"
        anchor = {"left": box[0], "right": box[2], "center": (box[0] + box[2]) / 2}[align]
        text = ax.text(
            anchor, (box[1] + box[3]) / 2, name, transform=ax.transAxes, ha=align, va="center", fontsize=sized(8)
        )
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])


def _place(point: np.ndarray, size: tuple[float, float], points: np.ndarray, taken: list[Box]) -> Box:
    """Where around a point a name of some size hides the fewest points and no other name; nearer is better."""
    (x, y), (width, height) = point, size
    boxes: list[tuple[float, Box]] = []
    for away, up in product((0.04, 0.08, 0.12, 0.18, 0.25, 0.35), (0, 1, -1)):
        lefts = x - width - away, x + away, *((x - width, x - width / 2, x) if up else ())
        bottom = y + (away + 0.04) * up - height / 2
        for left in lefts:
            box = left, bottom, left + width, bottom + height
            hidden = ((points > box[:2]) & (points < box[2:])).all(1).sum()
            on_line = box[0] < box[3] and box[1] < box[2]
            leader = np.hypot(max(box[0] - x, x - box[2], 0), max(box[1] - y, y - box[3], 0))
            outside = min(box) < 0 or max(box) > 1
            on_names = sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
            boxes.append(
                (min(hidden, 5) + 0.2 * on_line + 10 * outside + 10 * on_names + 8 * leader + 0.1 * abs(up), box)
            )
    return min(boxes)[1]


def _agreement(found: dict[Any, Any]) -> str:
    """A panel's correlations: rank (ρ) and linear (r), and over how many."""
    rank, line = (f"{found[name]:.2f}".replace("nan", "–") for name in ("spearman", "pearson"))
    return f"ρ {rank}, r {line}, n {number(found['n'])}".replace("-", "−")


def _legend(figure: Figure, rows: pd.DataFrame) -> None:
    entries = {"estimate = exact": Line2D([], [], color=GREY, lw=1)}
    if "strongest" in set(rows["chosen"]):
        dot: dict[str, Any] = {"marker": "o", "ls": "", "ms": 4.5, "color": "0.3"}
        entries["chosen by chance (in ρ and r)"] = Line2D([], [], **dot)
        entries["chosen by estimate (not in ρ and r)"] = Line2D([], [], **dot, mfc="none")
    keys(figure, figure.axes, entries, columns=3)
