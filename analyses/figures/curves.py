"""How does something change: from layer to layer, from token to token, and while a model is trained?"""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analyses.figures import style
from analyses.figures.kinds import described, draw
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.wording.formats import number
from analyses.wording.head_names import HEAD, Place, kinds
from interp.errors import InputError, one_of

_COLUMNS = 14  # columns of a lens at most; more have no room for a word
_WORD = 9  # characters of a token
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_BEST = _STYLES[:3]  # of the heads with the highest values in the end
_CLEAR = 0.05  # the least gain over the baseline for which a head is named
_HELD_OUT = "held_out/"
_PANELS: Mapping[str, Any] = described("forming")["panels"]
_PANEL, _KEY, _NARROW, _LETTER = 1.2, 1.0, 7.0, 0.066  # inches; a letter is one of a name at the right
_BEST_HEADS = "heads with most in the end"
_LINES: Mapping[str, Any] = {
    _BEST_HEADS: {"color": style.INK, "lw": 1.6},
    "other heads": {"color": "0.7", "lw": 0.6, "alpha": 0.7, "zorder": 1.5},
    "strictest baseline": {"color": style.GREY, "lw": 2.5, "alpha": 0.5, "zorder": 2},
    "phase change": {"color": style.PALE, "alpha": 0.55, "lw": 0, "zorder": 0},
    "next phase of training": {"color": "0.6", "lw": 0.9, "ls": ":", "zorder": 1},
}
Ends = list[tuple[float, str, str]]  # text at the ends of lines: its height, words and colour


@style.styled
def lens_map(tokens: pd.DataFrame, *, prompt: int | None = None, **page: Unpack[style.Page]) -> Figure:
    """Layers up, positions (or prompts) across; each cell shows the likeliest token, coloured by its probability.

    Args:
        tokens: rows of a lens's table; of each layer and place only the top one is drawn.
        prompt: the prompt whose positions are drawn; by default the first, or all prompts if each has one position.
    """
    rows = select_rows(tokens, ["layer", "prompt", "position"], rank=1, prompt=prompt)
    by_prompt = prompt is None and rows.groupby("prompt")["position"].nunique().max() == 1
    across = "prompt" if by_prompt else "position"
    if not by_prompt:
        rows = rows.loc[rows["prompt"] == (rows["prompt"].min() if prompt is None else prompt)]
    layers, columns = sorted(set(rows["layer"])), sorted(set(rows[across]))[:_COLUMNS]
    rows = rows.loc[rows[across].isin(columns)]
    inputs = rows.drop_duplicates(across).set_index(across)["read"]
    labels = [_token(None if by_prompt else inputs[column], column) for column in columns]
    texts = [_token(row["token"], row["id"]) for row in rows.to_dict("records")]
    rows = rows.assign(row=rows["layer"].map(layers.index), column=rows[across].map(columns.index), text=texts)
    names = [str(layer - 1) if layer else "embed" for layer in layers], labels
    options: Any = {"scale": Normalize(0, 1), "colours": style.shades(), "names": names}
    width = max(4.5, min(style.WIDTH, 1.6 + 0.62 * len(columns)))
    words = {"across": across if by_prompt else "token read"}
    return draw("lens_map", rows, page, words, width=width, **options)


@style.styled
def lens_line(difference: pd.DataFrame, **page: Unpack[style.Page]) -> Figure:
    """The logit of one answer less another's after each layer, one line per position, with 95% intervals as bands.

    `difference` has rows of a lens's table of two answers.
    """
    rows = select_rows(difference, ["layer", "at"])
    positions, n = sorted(set(rows["at"])), max(rows["n"])
    rows = rows.assign(place=[f"position {position}" * (len(positions) > 1) for position in rows["at"]])
    colours = {f"position {position}": {"color": f"C{i}", "marker": "o"} for i, position in enumerate(positions)}
    words = {"n": n, "band": ", the band its 95% interval" * bool(n > 2)}
    return draw("lens_line", rows, page, words, looks=colours)


@style.styled
def circuit_curve(curve: pd.DataFrame, unit: str = "edges", **page: Unpack[style.Page]) -> Figure:
    """Faithfulness against size from `tables/circuit_curve`: both rankings of a `unit`, and random circuits."""
    rows = select_rows(curve, ["ranking", "share"], single=(*SOURCES, "task"))
    rows = rows.loc[rows["size"] > 0]  # a logarithmic axis has no zero
    return draw("circuit_curve", rows, page, {"kind": unit})


@style.styled
def token_bars(tokens: pd.DataFrame, **page: Unpack[style.Page]) -> Figure:
    """How surprising each token of one prompt is to the model, given those before it, from a run's table."""
    tokens = select_rows(tokens, ["position"], single=(*SOURCES, "prompt")).sort_values("position")
    names = [_token(row["token"], row["id"]) for row in tokens.to_dict("records")]
    width = min(style.WIDTH, max(3.3, 1.0 + 0.25 * len(names)))
    figure, (ax,) = style.panels("Which tokens surprise the model?", height=2.4, key=0.0, width=width, options=page)
    ax.bar(range(len(names)), -tokens["log_probability"].to_numpy(dtype=float), color=style.INK, width=0.8)
    room = (figure.get_figwidth() if style.is_ours(figure) else 3.3) - 0.8
    ticks = range(0, len(names), max(1, math.ceil(len(names) * 1.25 * style.sized(8) / 72 / room)))
    ax.set_xticks(ticks, [names[tick] for tick in ticks], rotation=90)
    ax.tick_params("x", length=0)
    ax.set(xlabel="", ylabel="surprise, in nats")
    style.caption(figure, "Minus the log-probability (nats) of each token given those before it; the first has none.")
    return figure


def _token(token: Any, number: Any) -> str:
    """A token made visible and safe from formulas; its number if it has no name."""
    return style.literal(style.visible(token, _WORD)) if isinstance(token, str) else str(number)


@style.styled
def probes_by_layer(layers: pd.DataFrame, **page: Unpack[style.Page]) -> Figure:
    """One panel per task: what probes of each layer's stream read, with the interval of their gain over the control.

    `layers` are rows of `tables/layers`; heads are left out.
    """
    rows = select_rows(layers, ["task", "depth", "head"], single=(*SOURCES, "stack"), task=None, head=None)
    rows = rows.loc[rows["head"].isna()]
    if rows.empty:
        raise InputError("expected rows of the stream, which have no head: got none")
    counts = rows.groupby("task")["n"].first()
    rows = rows.assign(panel=[f"{task}\nn {number(counts[task])}" for task in rows["task"]])
    shares, tasks = rows.filter(regex="(accuracy|baseline)$").to_numpy(dtype=float), len(counts)
    height = min(2.8, 0.6 + page.get("width", style.WIDTH) / tasks)
    figure = draw("probes_by_layer", rows, page, width=style.WIDTH if tasks > 1 else 6.5, height=height)
    for ax in style.drawn_axes(figure, page.get("ax")):
        ax.set_ylim(np.floor(10 * np.nanmin(shares) - 0.2) / 10, 1.01)
    return figure


@style.styled
def forming(
    table: pd.DataFrame,
    changes: Mapping[str, tuple[int, int] | None],
    boundaries: Mapping[str, Sequence[int]] | None = None,
    **page: Unpack[style.Page],
) -> Figure:
    """A column per run: losses, then for each measure a line per head; the heads with the highest end are named.

    Args:
        table: rows of `tables/forming`.
        changes: by run, the steps where its phase change starts and ends.
        boundaries: by run, the steps at which a phase of its training ended.
    """
    table = select_rows(table, ["run", "step", "measure", *HEAD], single=("model", "seed"), run=None, measure=None)
    for run in {**changes, **(boundaries or {})}:
        one_of("run", run, table["run"].unique())
    runs, panel_names = list(dict.fromkeys(table["run"])), table["measure"]
    panel_names = panel_names.mask(panel_names.str.startswith(_HELD_OUT), "loss")  # losses share a panel
    measures = [name for name in _PANELS if name in set(panel_names)] + sorted({*panel_names} - {*_PANELS})
    width = page.get("width", style.WIDTH if len(runs) > 1 else _NARROW)
    texts, room = described("forming"), 0.8 + 2.0 * len(runs)
    figure = style.begin(texts["question"], _PANEL * len(measures) + _KEY, width, page, least=room)
    axes = figure.subplots(len(measures), len(runs), squeeze=False, sharex=True, sharey="row")
    last = float(table["step"].to_numpy().max())
    ends: dict[Axes, Ends] = {}
    for run, column in zip(runs, axes.T, strict=True):
        for ax, measure in zip(column, measures, strict=True):
            rows = table.loc[(table["run"] == run) & (panel_names == measure)]
            panel = {"label": measure, **_PANELS.get(measure, {})}
            colour = style.BEHAVIOURS.get(panel.get("of", ""), style.INK)
            ends[ax] = _losses(ax, rows) if measure == "loss" else _heads(ax, rows, colour)
            if change := changes.get(run):
                ax.axvspan(*change, label="phase change", **_LINES["phase change"])
            for step in (boundaries or {}).get(run, ()):
                ax.axvline(step, label="next phase of training", **_LINES["next phase of training"])
            ylim = (-0.02, 1.03) if panel.get("share") else None
            ax.set(ylabel=panel["label"] if run == runs[0] else "", ylim=ylim)
        column[0].set_title(style.literal(run, 40), fontweight="bold")
        column[-1].set_xlabel("step")
    longest = max((len(text.replace("\\$", "$")) for names in ends.values() for _, text, _ in names), default=0)
    _set_steps(axes[-1, 0], last, (width - 0.8) / len(runs) - 0.25, longest)
    figure.align_ylabels(axes[:, 0])
    for ax, names in ends.items():
        ax.spines["bottom"].set_bounds(0, last)
        _write_ends(ax, names, last)
    labels = {label for ax in figure.axes for label in ax.get_legend_handles_labels()[1]}
    key = {label: Line2D([], [], **line_style) for label, line_style in _LINES.items() if label in labels}
    key |= {label: Patch(**_LINES[label]) for label in labels & {"phase change"}}
    style.legend(figure, figure.axes, key, columns=len(key) or 1)
    style.caption(figure, texts["caption"])
    return figure


def _losses(ax: Axes, rows: pd.DataFrame) -> Ends:
    """Training loss, and held-out loss as a thick line, since it says more."""
    ends, styles = [], cycle(_STYLES)
    for measure, line in rows.groupby("measure", sort=True):
        text, line_style, looks_back = "training", {"color": style.GREY, "lw": 0.6}, 20
        if measure != "loss":
            text, looks_back = style.literal(str(measure).removeprefix(_HELD_OUT), 14), 1
            line_style = {"color": style.INK, "ls": next(styles), "lw": 1.6, "zorder": 3}
        ax.plot(line["step"], line["value"], **line_style)
        ends.append((float(line["value"].iloc[-looks_back:].median()), text, line_style["color"]))
    return ends


def _heads(ax: Axes, rows: pd.DataFrame, colour: str) -> Ends:
    """One line per head, the best in their behaviour's colour; or one line for a measure of the whole model."""
    whole, heads = (rows.loc[rows["layer"].isna() == is_whole] for is_whole in (True, False))
    if len(whole):
        ax.plot(whole["step"], whole["value"], color="0.2", lw=1.6)
        if (whole["value"].to_numpy() < 0).any():
            ax.plot(whole["step"], 0 * whole["step"], color=style.GREY, lw=0.8, ls="--", zorder=1)
    heads, has_kinds = heads.sort_values("step"), kinds(heads) > 1
    for _, kind in heads.dropna(subset=["baseline"]).groupby(HEAD[:2], dropna=False):
        level = kind.drop_duplicates("step")
        ax.plot(level["step"], level["baseline"], label="strictest baseline", **_LINES["strictest baseline"])
    lines = sorted((line for _, line in heads.groupby(HEAD, dropna=False)), key=lambda line: -line["value"].iloc[-1])
    ends = []
    for rank, line in enumerate(lines):
        end: dict[str, Any] = line.iloc[-1].to_dict()
        label, line_style = "other heads", {}
        if rank < len(_BEST) and end["value"] - np.nan_to_num(end["baseline"]) >= _CLEAR:
            label, line_style = _BEST_HEADS, {"color": colour, "ls": _BEST[rank], "zorder": 4 - 0.1 * rank}
            ends.append((float(end["value"]), Place.from_row(end).named(prefix=has_kinds), colour))
        ax.plot(line["step"], line["value"], label=label, **{**_LINES[label], **line_style})
    return ends


def _set_steps(ax: Axes, last: float, width: float, longest: int) -> None:
    """Show steps from 0 to `last` in `width` inches, with room for names of `longest` letters; ticks end at `last`."""
    share = min(0.5, (0.1 + _LETTER * longest) / width)
    ax.set_xlim(0, last / (1 - share))
    n_ticks = max(2, min(6, round(1.35 * width)))
    ticks = MaxNLocator(n_ticks, steps=[1, 2, 2.5, 5, 10], integer=True).tick_values(0, last)
    ax.set_xticks([tick for tick in ticks if 0 <= tick <= last])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda step, _: number(round(step))))


def _write_ends(ax: Axes, ends: Ends, last: float) -> None:
    """Write each name at the end of its line, moving apart names that would overlap."""
    low, high = ax.get_ylim()
    ranked = sorted(ends)
    values = [min(max(value, low), high) for value, *_ in ranked]
    heights = style.spread(values, (high - low) * 9.6 / 72 / (_PANEL * 0.8))
    above = max(heights[-1] - high, 0.0) if heights else 0.0  # move a crowd at the top down into view
    for (_, name, colour), height in zip(ranked, heights, strict=True):
        options: Any = {"textcoords": "offset points", "annotation_clip": False, "va": "center"}
        style.with_halo(ax.annotate(name, (last, height - above), (4, 0), color=colour, size=style.sized(8), **options))
