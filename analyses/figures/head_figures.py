"""What do all heads of one or several models do: which matter, how surely, how is each explained?"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from analyses.figures import style
from analyses.figures.kinds import MARKS, draw
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import GREY, SIGNED, Page, literal, measure_name, sized, styled
from analyses.measures.definitions import Quantity
from analyses.measures.findings import DISCOVERY, NOTABLE, carriers, shows
from analyses.wording.formats import number
from analyses.wording.head_names import HEAD, head_name, kinds
from interp.errors import InputError, one_of

_ONE_KIND = (*SOURCES, "stack", "attention")  # heads of several kinds share names
_LABELS = {"gain": "gain over the baseline", "value": "value", "lift": "lift (1: no preference)"}
_LIFTS = [2.0**power for power in range(-4, 5)]  # labelled ticks of the colours of lifts
_DOTS = f" A dot marks {{}} of at least {NOTABLE} whose 95% interval excludes 0, with q below {DISCOVERY}{{}}."
_DOCUMENTS = ", in at least five documents (eight where items are right or wrong)"
_WAYS = {"denoise": "denoise: is the head enough?", "noise": "noise: is the head needed?"}
# sinks, position, token and class, nearest of a class, relation and reference, uniform
_GROUPS = (style.SOFT, style.POSITION, style.SYNTAX, "#7fbfa8", style.COREFERENCE, style.PALE)
_FAINTEST = 0.05  # of the largest gain: a panel with less would look empty
_MARGIN, _TICK = 0.4, 0.22  # inches beside a panel's bars, and for a head's name
_MARKERS = "oDs^vPX"  # of models, because colour stands for behaviours
_LINES = ("-", "--", ":", "-.", "-", "--", ":")
_GAP, _ROW = 0.14, 0.16  # inches: between measures, and for each model


@styled
def head_grid(
    heads: pd.DataFrame,
    measures: str | Sequence[str] | None = None,
    *,
    quantity: Quantity = "gain",
    by: str | None = None,
    **page: Unpack[Page],
) -> Figure:
    """One heat map, all on one scale, for each measure in which some head gains.

    A dot marks a finding (`analyses.measures.findings.notable`).

    Args:
        heads: rows of `tables/heads`.
        measures: which to draw, in order; by default all in the table. They should share a unit.
        quantity: what colours show: the gain, the raw value, or the value as a ratio (half as much is as far from 1 as
            twice as much).
        by: a column of a joined table (`model`, `run`), each value of which gets its own panels.
    """
    one_of("quantity", quantity, Quantity)
    groups = [] if by is None else [by]
    names = [measures] if isinstance(measures, str) else [*([] if measures is None else measures)]
    columns = {"measure": names or None, "sink": "kept", **dict.fromkeys(groups)}
    rows = select_rows(heads, ["measure", *groups, *HEAD], single=() if groups else SOURCES, **columns)
    names = names or [*rows["measure"].unique()]
    largest = rows.groupby("measure")["gain"].max() if quantity == "gain" else pd.Series()
    empty = [name for name in names if largest.max() > 0 and largest.get(name, 1) < _FAINTEST * largest.max()]
    names = [name for name in names if name not in empty]
    rows = rows.loc[~rows["measure"].isin(empty)]
    rows = rows.assign(dot=shows(heads, rows, groups) if quantity != "value" else False)  # a value alone is no finding
    rows = rows.assign(value=rows["gain" if quantity == "gain" else "value"], bar=_LABELS[quantity])
    rows = _by_kind(rows, [measure_name(measure) for measure in rows["measure"]], groups)
    words = {
        "asked": " or ".join(names[:3]) + " or others" * (len(names) > 3),
        "quantity": _LABELS[quantity].capitalize(),
        "undefined": " Hatched: undefined." * bool(rows["value"].isna().to_numpy().any()),
        "empty": f" Not drawn, since no head gains much: {', '.join(map(measure_name, empty))}." * bool(empty),
        "dots": _DOTS.format("a gain", _DOCUMENTS) * bool(rows["dot"].any()),
    }
    colours = SIGNED if quantity == "lift" else style.shades(style.colour_of(rows))
    scale: Any = {"scale": _scale(rows.loc[:, "value"], quantity), "ticks": _LIFTS if quantity == "lift" else None}
    rows = pd.concat([rows.loc[rows["measure"] == measure] for measure in names])
    return draw("head_grid", rows, page, words, colours=colours, **scale, columns=_columns(rows, groups))


def _by_kind(rows: pd.DataFrame, titles: Sequence[str], groups: Sequence[str] = ()) -> pd.DataFrame:
    """Rows with their panel's title, which names the kind of heads if there are several."""
    kind = rows[HEAD[:2] if kinds(rows) > 1 else []].astype(str).to_numpy().tolist()
    panels = [f"{title} ({' '.join(names)})" if names else title for title, names in zip(titles, kind, strict=True)]
    for group in groups:  # on a line of its own
        panels = [f"{panel} / {_short(str(name), 36)}" for panel, name in zip(panels, rows[group], strict=True)]
    return rows.assign(panel=panels)


def _columns(rows: pd.DataFrame, groups: Sequence[str] = ()) -> int:
    """How many panels fit side by side; if possible, all `groups` of a measure."""
    heads, together = max(rows["head"]) + 1, len({*rows[groups[0]]}) if groups else 1
    return max(1, (4 if heads <= 8 else 3 if heads <= 16 else 2) // together) * together


def _scale(values: pd.Series, quantity: Quantity) -> Normalize:
    if quantity == "value":
        return Normalize(min(0.0, float(values.min())), max(1.0, float(values.max())))
    if quantity == "lift":
        reach = np.abs(np.log2(values[values > 0])).max()
        reach = float(np.clip(np.nan_to_num(reach, nan=1.0), 1, 4))  # a lift of 0 takes the last colour
        return LogNorm(2**-reach, 2**reach)
    return Normalize(0, max(0.1, float(np.nan_to_num(values.max()))))  # values below the baseline look like 0


@styled
def effect_grid(effects: pd.DataFrame, task: str, *, by: str | None = None, **page: Unpack[Page]) -> Figure:
    """Denoising and noising of every head side by side, on one scale. A dot marks a head that carries part of the
    answer or of the other one (`analyses.measures.findings.carriers`). `effects` are rows of `tables/effects`. `by` is
    a column of a joined table (`model`, `run`), each value of which gets its own panels.
    """
    groups = [] if by is None else [by]
    options: Any = {"single": () if groups else SOURCES, **dict.fromkeys(groups)}
    rows = select_rows(effects, ["intervention", *groups, *HEAD], task=task, **options)
    rows = rows.sort_values(["intervention", *HEAD[:2]], kind="stable")
    rows = _by_kind(rows, [_WAYS.get(str(way), str(way)) for way in rows["intervention"]], groups)
    rows = rows.assign(dot=rows.index.isin(carriers(rows).index))
    dots = _DOTS.format("a share, above 0 or below,", ", on the pairs that did not choose the head")
    words = {"task": task, "dots": dots * bool(rows["dot"].any())}
    scale = style.signed_scale(float(rows["effect"].abs().to_numpy().max()))
    return draw("effect_grid", rows, page, words, scale=scale, columns=_columns(rows, groups))


@styled
def suite_map(heads: pd.DataFrame, *, top: int = 48, **page: Unpack[Page]) -> Figure:
    """Paradigms by heads, in the order of `tables/suite_heads`: the share of the answer lost when a head is noised.

    A dot marks a head that carries part of it, in either direction. Only the `top` heads are drawn.
    """
    rows = select_rows(heads, ["paradigm", *HEAD], intervention="noise")
    found = carriers(heads.loc[heads["intervention"] != "hide"]).loc[lambda rows: rows["effect"] > 0]
    named = {*found[["paradigm", *HEAD]].itertuples(index=False, name=None)}
    size = rows["effect"].abs().groupby([rows["layer"], rows["head"]]).max().nlargest(top)
    columns = {place: column for column, place in enumerate(sorted(size.index))}
    places = [*zip(rows["layer"], rows["head"], strict=True)]
    rows = rows.assign(
        name=[head_name(*place) for place in places], column=[columns.get(place, -1) for place in places]
    )
    rows = rows.assign(
        line=pd.factorize(rows["paradigm"])[0],
        dot=[row in named for row in rows[["paradigm", *HEAD]].itertuples(index=False, name=None)],
    )
    few = f" Of {len({*places})} heads the {top} with the largest shares." * (len(columns) < len({*places}))
    dots = _DOTS.format("a share", ", on the items that did not choose the head") * bool(rows["dot"].any())
    options: Any = {"scale": style.signed_scale(float(rows["effect"].abs().to_numpy().max())), "columns": 1}
    options["width"] = min(style.WIDTH, 4 + 0.2 * len(columns))
    return draw("suite_map", rows.loc[rows["column"] >= 0], page, {"heads": few, "dots": dots}, **options)


@styled
def gain_intervals(heads: pd.DataFrame, measure: str, *, top: int = 12, **page: Unpack[Page]) -> Figure:
    """The `top` heads with the largest gains in one measure, with their 95% intervals; the line at 0 is the baseline.

    `heads` are rows of `tables/heads`; only those that keep the first position count.
    """
    rows = select_rows(heads, HEAD, single=_ONE_KIND, measure=measure, sink="kept").dropna(subset=["gain"])
    rows = rows.nlargest(top, "gain")
    rows = rows.assign(sure=np.where(rows["ci_low"] > 0, "above", "not above"))
    colours = {"above": style.colour_of(rows), "not above": GREY}
    styles = {f"interval {sure} 0": {"color": colour, "marker": "o"} for sure, colour in colours.items()}
    names = ", ".join(measure_name(str(name)) for name in rows["baseline_name"].dropna().unique()[:3])
    values = rows["baseline"].dropna().round(3).unique()
    baseline = f"baseline: {names}" + (f" ({values[0]:.3f})" if len(values) == 1 else "")
    words = {"name": measure_name(measure), "count": len(rows)}
    return draw("gain_intervals", rows, page, words, looks=styles, rules=[{"x": 0, "ls": "--", "label": baseline}])


@styled
def explained_bars(parts: Mapping[str, pd.DataFrame], **page: Unpack[Page]) -> Figure:
    """A panel per layer and a bar per head: its attention, divided among groups of rules.

    `parts` maps up to six groups to the share of each head's attention, layer x head; NaN if undefined.
    """
    if not 0 < len(parts) <= len(_GROUPS):
        raise InputError(f"expected one to {len(_GROUPS)} groups of rules, got {len(parts)}")
    parts = {name: shares.sort_index().sort_index(axis=1) for name, shares in parts.items()}
    shape = next(iter(parts.values())).shape
    if wrong := [name for name, shares in parts.items() if shares.shape != shape or not shares.size]:
        raise InputError(f"expected shares of {shape} layers and heads, got {parts[wrong[0]].shape} of {wrong[0]}")
    layers, heads = shape
    room: Any = {"height": 0.8, "columns": 1 if heads > 16 else 2 if heads > 8 or layers < 6 else 3, "key": 0.9}
    question = "Of which simple rules is the attention of each head made?"
    figure, axes = style.panels(question, layers, **room, width=style.WIDTH, options=page)
    side = style.panel_width(figure, axes) - _MARGIN
    ticks = range(0, heads, 1 + int(sized(_TICK) * heads / side))
    shares = np.stack([shares.fillna(0.0).to_numpy() for shares in parts.values()])  # group layer head
    below = np.cumsum(shares, 0) - shares
    for layer, ax in zip(reversed(range(layers)), axes, strict=True):  # layer 0 comes last
        for group, share, bottom, colour in zip(parts, shares[:, layer], below[:, layer], _GROUPS, strict=False):
            ax.bar(range(heads), share, bottom=bottom, color=colour, width=0.85, label=group, linewidth=0)
        ax.set(ylim=(0, 1), yticks=[0, 1], xlim=(-0.6, heads - 0.4), ylabel=f"layer {layer}")
        ax.set_xticks(ticks, [f"H{head}" for head in ticks], fontsize=sized(8))
        ax.tick_params(axis="x", length=0)
    style.legend(figure, axes, columns=3)
    text = "The share of each head’s attention that each group of rules explains; light grey is uniform attention."
    style.caption(figure, f"{text} A head without a bar is too near uniform attention to tell.")
    means = [f"{name} {number(float(np.nanmean(part)))}" for name, part in parts.items() if part.notna().any(axis=None)]
    setattr(figure, "alt", f"Mean over all heads: {', '.join(means) or 'undefined'}.")  # noqa: B010
    return figure


@styled
def compared_gains(table: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """A dot with an interval per model and measure: the best head's gain, and its difference from the reference.

    `table` has rows of `tables/compare`; measures and models are drawn in its order.
    """
    rows = select_rows(table, ["model", "behaviour", "measure"], single=("run", "seed", "reference"))
    reference = str(rows["reference"].iloc[0])
    labels = {model: _short(model, 36) for model in rows["model"].unique()}
    if len({*labels.values()}) < len(labels):  # their cut parts differ
        labels = {model: f"{number}. {label}" for number, (model, label) in enumerate(labels.items(), 1)}
    looks = zip(cycle(MARKS), cycle(zip(_MARKERS, _LINES, strict=True)))
    styles = {
        label: {"color": look["color"], "marker": marker, "ls": line}
        for label, (look, (marker, line)) in zip(labels.values(), looks, strict=False)
    }
    rows = rows.assign(
        unit=np.where(rows["measure"].str.startswith("tag:"), "lift", "share"),  # lifts have a scale of their own
        title=[measure_name(measure) for measure in rows["measure"]],
        model=rows["model"].map(labels),
        note=[head_name(row["layer"], row["head"]) for row in rows.to_dict("records")],
    )
    bounds = {"gain": ("ci_low", "ci_high"), "difference": ("difference_low", "difference_high")}
    gains, differences = (
        rows.assign(value=rows[side], low=rows[low], high=rows[high]) for side, (low, high) in bounds.items()
    )
    gains["side"] = "gain over the baseline"
    differences = differences.assign(side=f"gain minus {_short(reference, 16)}’s", note="")
    rows = pd.concat([gains, differences]).sort_values("unit", ascending=False, kind="stable")  # shares first
    row = _GAP + len(styles) * _ROW
    options: Any = {"looks": styles, "row": row, "step": _ROW / row, "highest": np.inf}
    if "width" in page:  # in a paper, many models leave no room for the names of heads
        options["highest"], height = style.HIGHEST, 1 + row * len({*rows["title"]})
        if 72 * _ROW * style.HIGHEST / height < 0.75 * sized(8):
            rows["note"] = ""
    figure = draw("compared_gains", rows, page, {"reference": reference}, **options)
    axes = style.drawn_axes(figure, page.get("ax"))
    for left, right in zip(axes[::2], axes[1::2], strict=True):  # one scale per unit
        low, high = zip(left.get_xlim(), right.get_xlim(), strict=True)
        right.sharex(left)
        left.set_xlim(min(low), max(high))
    return figure


def _short(name: str, longest: int) -> str:
    """A model's name, cut in the middle, because checkpoints differ at the end."""
    half = longest // 2
    return literal(name if len(name) <= longest else f"{name[:half]}…{name[-half:]}", longest + 1)
