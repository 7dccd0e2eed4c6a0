"""How did the heads form while the model was trained? Losses on top, and below them a line a head for each measure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.optimize import isotonic_regression

from analyses.figures.attention_lines import literal
from analyses.figures.row_selection import select_rows
from analyses.figures.style import (
    COREFERENCE,
    GREY,
    INK,
    PALE,
    POSITION,
    SYNTAX,
    WIDTH,
    Page,
    begin,
    caption,
    keys,
    sized,
    styled,
)
from analyses.head_names import HEAD, Place
from analyses.numerals import number
from interp.errors import one_of

_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_BEST = _STYLES[:3]  # of the heads with most of a measure in the end
_CLEAR = 0.05  # the least gain over the baseline that a head is named for
_HELD_OUT = "held_out/"
_PANELS = ("loss", "in-context", "copying", "previous-token", "induction", "antecedent", "tag", "monotonicity")
_AXES = {
    "loss": "loss (nats)",
    "in-context": "in-context\nscore (nats)",
    "copying": "copying",
    "previous-token": "previous\ntoken",
    "antecedent": "antecedent",
    "tag": "tag lift,\nnoun → adjective",
}
_COLOURS: dict[str, str] = dict.fromkeys(("previous-token", "induction", "monotonicity"), POSITION)
_COLOURS |= {"antecedent": COREFERENCE, "tag": SYNTAX}
_SHARES = ("copying", "previous-token", "induction", "antecedent")
_PANEL, _KEY, _NARROW = 1.2, 1.0, 7.0  # inches
_TEXT = 8  # points
_LETTER = 0.066  # inches: of a name at the right, which does not count as data


class _Name(NamedTuple):
    """What is written at the end of a line."""

    value: float
    text: str
    colour: str


@styled
def forming(
    table: pd.DataFrame,
    changes: Mapping[str, tuple[int, int] | None],
    boundaries: Mapping[str, Sequence[int]] | None = None,
    **page: Unpack[Page],
) -> Figure:
    """A column a run: losses, then for each measure a line a head, those with most of it in the end named.

    Args:
        table: rows of `tables/forming`.
        changes: by run, the steps between which its phase change lies.
        boundaries: by run, the steps after which a phase of its training ended.
        page: how it stands on a page: `title`, `width`, `font_size` (`style.Page`).

    Raises:
        InputError: no row; a run of `changes` or `boundaries` that the table lacks; several rows of a run's step.
    """
    table = select_rows(table, ["run", "step", "measure", *HEAD], single=("model", "seed"), run=None, measure=None)
    for run in {**changes, **(boundaries or {})}:
        one_of("run", run, table["run"].unique())
    runs, measured = list(dict.fromkeys(table["run"])), table["measure"]
    known = measured.mask(measured.str.startswith(_HELD_OUT), "loss")  # losses share a panel
    measures = [name for name in _PANELS if name in set(known)] + sorted({*known} - {*_PANELS})
    width = page.get("width", WIDTH if len(runs) > 1 else _NARROW)
    figure = begin("When did the heads form?", _PANEL * len(measures) + _KEY, width, page, least=0.8 + 2.0 * len(runs))
    axes = figure.subplots(len(measures), len(runs), squeeze=False, sharex=True, sharey="row")
    last = float(table["step"].to_numpy().max())
    names: dict[Axes, list[_Name]] = {}
    for column, run in enumerate(runs):
        for ax, measure in zip(axes[:, column], measures, strict=True):
            own = table.loc[(table["run"] == run) & (known == measure)]
            names[ax] = _losses(ax, own) if measure == "loss" else _measure(ax, own, _COLOURS.get(measure, INK))
            _mark(ax, changes.get(run), (boundaries or {}).get(run, ()))
        axes[0, column].set_title(literal(run, 40), fontweight="bold")
        axes[-1, column].set_xlabel("step")
    for measure, row in zip(measures, axes, strict=True):
        row[0].set_ylabel(_AXES.get(measure, measure))
        if measure in _SHARES:
            row[0].set_ylim(-0.02, 1.03)
    longest = max((len(each.text.replace("\\$", "$")) for written in names.values() for each in written), default=0)
    _steps(axes[-1, 0], last, (width - 0.8) / len(runs) - 0.25, longest)
    figure.align_ylabels(axes[:, 0])
    for ax, written in names.items():
        ax.spines["bottom"].set_bounds(0, last)
        _write(ax, written, last)
    _legend(figure, table, changes, boundaries or {})
    caption(
        figure, "Losses and measures while the model was trained, a line a head; those with most in the end are named."
    )
    return figure


def _losses(ax: Axes, rows: pd.DataFrame) -> list[_Name]:
    """What is learnt from, and what is held out: thick, since it says more."""
    names = []
    styles = iter(_STYLES * len(rows))
    for measure, own in rows.groupby("measure", sort=True):
        training = measure == "loss"
        colour, style = (GREY, "-") if training else (INK, next(styles))
        ax.plot(
            own["step"], own["value"], color=colour, ls=style, lw=0.6 if training else 1.6, zorder=2 if training else 3
        )
        text = "training" if training else literal(str(measure).removeprefix(_HELD_OUT), 14)
        names.append(_Name(float(np.median(own["value"].to_numpy()[-20 if training else -1 :])), text, colour))
    return names


def _measure(ax: Axes, rows: pd.DataFrame, colour: str) -> list[_Name]:
    """A line a head, the best in the colour of what they do; or one line, of what was measured of the whole model."""
    whole = rows.loc[rows["layer"].isna()]
    if len(whole):
        ax.plot(whole["step"], whole["value"], color="0.2", lw=1.6)
        if (whole["value"].to_numpy() < 0).any():
            ax.plot(whole["step"], 0 * whole["step"], color=GREY, lw=0.8, ls="--", zorder=1)
    heads = rows.loc[rows["layer"].notna()]
    lines = [own.sort_values("step") for _, own in heads.groupby(["stack", "attention", "layer", "head"], dropna=False)]
    if not lines:
        return []
    lines.sort(key=lambda own: -own["value"].iloc[-1])
    several = len(heads[["stack", "attention"]].drop_duplicates()) > 1
    for _, own in heads.groupby(["stack", "attention"], dropna=False):
        level = own.sort_values("step").drop_duplicates("step")
        ax.plot(level["step"], level["baseline"], color=GREY, lw=2.5, alpha=0.5, zorder=2)
    names = []
    for at, own in enumerate(lines):
        end: dict[str, Any] = own.iloc[-1].to_dict()
        gained = end["value"] - np.nan_to_num(end["baseline"]) >= _CLEAR
        if at < len(_BEST) and gained:
            ax.plot(own["step"], own["value"], color=colour, ls=_BEST[at], lw=1.6, zorder=4 - 0.1 * at)
            names.append(_Name(float(end["value"]), _called(end, several=several), colour))
        else:
            ax.plot(own["step"], own["value"], color="0.7", lw=0.6, alpha=0.7, zorder=1.5)
    return names


def _called(row: Mapping[str, Any], *, several: bool) -> str:
    return Place.of(row).named(several=several)


def _mark(ax: Axes, change: tuple[int, int] | None, boundaries: Sequence[int]) -> None:
    """The phase change as a band, ends of phases as light lines."""
    if change is not None:
        ax.axvspan(*change, color=PALE, alpha=0.55, lw=0, zorder=0)
    for step in boundaries:
        ax.axvline(step, color="0.6", lw=0.9, ls=":", zorder=1)


def _steps(ax: Axes, last: float, width: float, longest: int) -> None:
    """Steps from 0 to the last in so many inches, with room for names of some length; ticks only where steps are."""
    share = min(0.5, (0.1 + _LETTER * longest) / width)
    ax.set_xlim(0, last / (1 - share))
    most = max(2, min(6, round(1.35 * width)))
    ticks = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    ax.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: number(round(step))))


def _write(ax: Axes, names: Sequence[_Name], last: float) -> None:
    """Each name at the end of its line, moved apart where they would stand on each other."""
    low, high = ax.get_ylim()
    least = (high - low) * _TEXT * 1.2 / 72 / (_PANEL * 0.8)
    ranked = sorted(names)
    places = _apart([min(max(each.value, low), high) for each in ranked], least)
    above = max(places[-1] - high, 0.0) if places else 0.0  # a crowd at the top stands below it, all of it in sight
    for name, place in zip(ranked, (each - above for each in places), strict=True):
        offset: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "annotation_clip": False}
        text = ax.annotate(name.text, (last, place), **offset, va="center", fontsize=sized(_TEXT), color=name.colour)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])


def _apart(wished: Sequence[float], least: float) -> list[float]:
    """Rising places at least so far apart, each group of crowded ones around the mean of what they wished."""
    if not wished:
        return []
    steps = least * np.arange(len(wished))
    return (isotonic_regression(np.asarray(wished) - steps).x + steps).tolist()


def _legend(figure: Figure, table: pd.DataFrame, changes: Mapping[str, Any], boundaries: Mapping[str, Any]) -> None:
    entries: dict[str, Any] = {}
    if table["layer"].notna().to_numpy().any():
        entries["heads with most in the end"] = Line2D([], [], color=INK, lw=1.6)
        entries["other heads"] = Line2D([], [], color="0.7", lw=0.8)
    if table["baseline"].notna().to_numpy().any():
        entries["strictest baseline"] = Line2D([], [], color=GREY, lw=2.5, alpha=0.5)
    if any(changes.values()):
        entries["phase change"] = Patch(color=PALE, alpha=0.55, lw=0)
    if any(map(len, boundaries.values())):
        entries["next phase of training"] = Line2D([], [], color="0.6", lw=0.9, ls=":")
    keys(figure, figure.axes, entries, columns=len(entries) or 1)
