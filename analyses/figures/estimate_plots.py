"""How well do gradients foretell what patching measures? Estimates against exact effects, one panel a method."""

from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.figures.kinds import draw
from analyses.figures.row_selection import select_rows
from analyses.figures.style import Page, styled
from analyses.figures.sweep_maps import PLACE, cell_name, metric_unit
from analyses.wording.formats import number

_MAGNITUDES = "AtP*"  # the method that estimates them
_MISSED = 3  # cells named in a panel
_CLEAR = 0.03  # of a panel: a point nearer than this to the line is not missed


@styled
def estimate_panels(estimates: pd.DataFrame, correlations: pd.DataFrame, metric: str, **page: Unpack[Page]) -> Figure:
    """Estimate (across) against exact effect (up): a column a method, a row a direction; the line is perfect agreement.

    Panels of one kind (cells, edges, magnitudes) have one scale, the same on both axes. The worst missed are named.

    Args:
        estimates: rows of `tables/estimates`.
        correlations: rows of `tables/correlations`; each panel's title gives its own.
        metric: which to draw.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    rows = select_rows(estimates, ["method", *PLACE], metric=metric)
    rows = rows.loc[rows["exact"].notna() & ~rows["idle"]]
    by_estimate, by_chance = rows["chosen"] == "strongest", "chosen by chance (in ρ and r)"
    dots = np.where(by_estimate, "chosen by estimate (not in ρ and r)", by_chance if by_estimate.any() else "")
    rows = rows.assign(dots=dots)
    agreement = select_rows(correlations, ["method", "direction"], metric=metric)
    kinds = {method: _kind(method, group) for method, group in rows.groupby("method")}
    spans = {kind: _limits(rows.loc[rows["method"].map(kinds) == kind]) for kind in kinds.values()}
    tables, limits = [], {}
    order = [row for _, ways in agreement.groupby("direction", sort=False) for row in ways.to_dict("records")]
    for panel in order:
        method, way = panel["method"], panel["direction"]
        title = f"{method}, {way}{', means of magnitudes' * (method == _MAGNITUDES)}\n{_correlations(panel)}"
        group = rows.loc[(rows["method"] == method) & (rows["direction"] == way)]
        group = group if len(group) else group.reindex([0]).assign(dots="")  # an empty panel
        limits[title] = spans.get(str(kinds.get(method)), (-1, 1))
        tables.append(group.assign(panel=title, note=_missed(group, limits[title])))
    quantity, unit = metric_unit(metric)
    words = {"quantity": quantity, "unit": unit}
    return draw("estimate_panels", pd.concat(tables), page, words, limits=limits, columns=agreement["method"].nunique())


def _kind(method: str, rows: pd.DataFrame) -> str:
    """Which scale a method's panels share."""
    if method == _MAGNITUDES:
        return method
    return "edges" if any(isinstance(sender, str) for sender in rows["sender"].tolist()) else "cells"


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """From the least to the largest of estimates and exact effects, with a margin."""
    values = np.append(rows[["exact", "estimate"]].to_numpy(dtype=float), 0.0)
    margin = 0.08 * np.ptp(values) or 1.0
    return values.min() - margin, values.max() + margin


def _missed(rows: pd.DataFrame, limits: tuple[float, float]) -> list[str]:
    """The names of the points farthest from the line, nothing for the others."""
    away = (rows["exact"] - rows["estimate"]).abs().to_numpy(dtype=float) / (limits[1] - limits[0])
    worst = {*np.argsort(-away, kind="stable")[:_MISSED]} & {*np.flatnonzero(away > _CLEAR)}
    return [cell_name(row) if place in worst else "" for place, row in enumerate(rows.to_dict("records"))]


def _correlations(row: dict[Any, Any]) -> str:
    """A panel's correlations: rank (ρ) and linear (r), and over how many."""
    rank, line = (f"{row[name]:.2f}".replace("nan", "–") for name in ("spearman", "pearson"))
    return f"ρ {rank}, r {line}, n {number(row['n'])}".replace("-", "−")
