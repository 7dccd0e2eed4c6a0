"""What did the small experiments of the source articles find? One figure each, drawn from the experiment's table."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analyses.figures.attention_lines import literal
from analyses.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    SIGNED,
    begin,
    colour_bar,
    head_name,
    panels,
    signed_scale,
    styled,
)

_SOURCES = {"articles": "the articles' prompts", "stories": "prompts in the stories' words"}
_SITES = {"resid_pre": "stream into the layer", "z": "heads of the layer"}
_GREEN = "#009e73"  # Okabe & Ito 2008
_TOP = 10  # heads with a line of their own


@styled
def profession(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Share of the difference by layer and position: of the stream, and of the heads that write there."""
    groups = [
        (source, site, table.loc[(table["source"] == source) & (table["site"] == site)])
        for source in table["source"].unique()
        for site in _SITES
    ]
    layers = len(set(table["layer"]))
    figure, axes = panels(
        title or "Which positions carry the subject to the last token?",
        len(groups),
        height=1.5 + 0.24 * layers,
        columns=2,
    )
    scale = signed_scale(_largest(table["share"].to_numpy(dtype=float)))
    for ax, (source, site, group) in zip(axes, groups, strict=True):
        grid = group.pivot(index="layer", columns="place", values="share")
        tokens = group.drop_duplicates("place").set_index("place")["token"]
        labels = [literal(tokens[place]) for place in grid.columns]
        _map(ax, grid, scale, labels)
        ax.tick_params("x", rotation=90)
        several = len(set(table["source"])) > 1
        ax.set_title(_SITES[site] + (f"\n{_SOURCES[source]}" if several else ""))
        ax.set(xlabel="", ylabel="layer" if ax in axes[::2] else "")
    colour_bar(figure, axes, ScalarMappable(scale, SIGNED), "share of the\nlogit difference")
    return figure


@styled
def knight(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """The heads with the largest shares when patched, and what each writes directly, with 95% intervals."""
    found = [group for _, group in table.groupby("source", sort=True)]
    most = min(_TOP, max(map(len, found)))
    figure, axes = panels(
        title or "Which head brings the knight to the last token?", len(found), height=0.8 + 0.26 * most, columns=2
    )
    for ax, group in zip(axes, found, strict=True):
        strongest = np.argsort(-np.abs(group["share"].to_numpy(dtype=float)))[:_TOP]
        rows = group.iloc[strongest].sort_values("share")
        y = np.arange(len(rows))
        _ranges(ax, rows, ("share", "ci_low", "ci_high"), y + 0.12, BLUE, "o", "patched")
        _ranges(ax, rows, ("direct", "direct_low", "direct_high"), y - 0.12, ORANGE, "D", "written directly")
        ax.set_yticks(y, [head_name(layer, head) for layer, head in zip(rows["layer"], rows["head"], strict=True)])
        ax.axvline(0, color=GREY, lw=1)
        ax.set(
            title=literal(group["example"].iloc[0], 200).replace(" / ", "\n"),
            xlabel="share of the logit difference",
        )
    _legend(figure, axes)
    return figure


def _ranges(
    ax: Axes, rows: pd.DataFrame, columns: tuple[str, str, str], y: np.ndarray, colour: str, marker: str, label: str
) -> None:
    value, low, high = columns
    ax.hlines(y, rows[low], rows[high], colors=colour, lw=1.5)
    ax.scatter(rows[value], y, color=colour, marker=marker, s=24, label=label)


@styled
def adjectives(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Layer x head: attention from a noun to its adjectives beyond uniform, and the share of their change it writes."""
    quantities = {"gain": "looks at its adjectives", "carried": "writes what they change"}
    groups = [(str(source), group, column) for source, group in table.groupby("source") for column in quantities]
    layers = len(set(table["layer"]))
    figure, axes = panels(
        title or "Which heads carry the adjectives to their noun?", len(groups), height=0.9 + 0.24 * layers, columns=2
    )
    for at, (ax, (source, group, column)) in enumerate(zip(axes, groups, strict=True)):
        scale = signed_scale(_largest(table[column].to_numpy(dtype=float)), at_least=0.02)
        grid = group.pivot(index="layer", columns="head", values=column)
        _map(ax, grid, scale, [str(head) for head in grid.columns])
        ax.tick_params("x", rotation=0)
        several = len(set(table["source"])) > 1
        ax.set_title(quantities[column] + (f"\n{_SOURCES[source]}" if several else ""))
        ax.set(xlabel="head", ylabel="layer" if at % 2 == 0 else "")
        label = "attention beyond\nuniform" if column == "gain" else "share of the change\nin the noun's stream"
        colour_bar(figure, [ax], ScalarMappable(scale, SIGNED), label)
    return figure


def _largest(values: np.ndarray) -> float:
    """How far the values reach from 0."""
    return float(np.nanmax(np.abs(values), initial=0.0))


def _map(ax: Axes, grid: pd.DataFrame, scale: Normalize, labels: Sequence[str]) -> None:
    """A heat map with layer 0 at the bottom; what is undefined is grey."""
    ax.set_facecolor("0.85")
    every = -(-len(grid) // 12)
    ticks: dict[str, Any] = {"xticklabels": labels, "yticklabels": every}
    sns.heatmap(grid, ax=ax, cmap=SIGNED, norm=scale, vmin=scale.vmin, cbar=False, rasterized=True, **ticks)
    ax.invert_yaxis()
    ax.tick_params("y", rotation=0)


@styled
def word_sense(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """By layer: how much farther apart a word is between senses than within one, beside unambiguous words."""
    drawn = {"ambiguous": (BLUE, "the word"), "control": (GREY, "unambiguous words in the same frames")}
    rows = table.loc[table["role"].isin(list(drawn))]
    found = [(str(word), group) for word, group in rows.groupby("word", sort=False)]
    columns = 3 if len(found) > 4 else 2
    figure, axes = panels(
        title or "How far apart are the senses of one word, layer by layer?",
        len(found),
        height=2.3,
        columns=columns,
        key=0.7,
    )
    for ax, (word, group) in zip(axes, found, strict=True):
        for role, (colour, label) in drawn.items():
            _line(ax, group.loc[group["role"] == role], ("gap", "ci_low", "ci_high"), colour, label)
        ax.axhline(0, color="black", lw=0.6)
        ax.set(title=f"{literal(word)} ({group['n'].iloc[0]} frames)")
    _layers(figure, axes, "distance between\nsenses, beyond\nthat within one", columns)
    return figure


@styled
def companions(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """By layer: the cosine of a word with one of its kind and with one of another, over the same frames."""
    found = [group for _, group in table.groupby(["word", "near", "far"], sort=False)]
    figure, axes = panels(
        title or "Is a girl more like a boy than like a car?", len(found), height=2.3, columns=2, key=0.7
    )
    for ax, group in zip(axes, found, strict=True):
        word, near, far = (literal(str(group[role].iloc[0])) for role in ("word", "near", "far"))
        _line(ax, group, ("near_cosine", "near_low", "near_high"), BLUE, "with one of its kind")
        _line(ax, group, ("far_cosine", "far_low", "far_high"), ORANGE, "with one of another kind")
        ax.set(title=f"{word}: {near} against {far}")
        ax.set_ylim(min(0.0, float(np.nanmin(table["far_low"].to_numpy()))), 1.02)
    _layers(figure, axes, "cosine", 2)
    return figure


def _line(ax: Axes, rows: pd.DataFrame, columns: tuple[str, str, str], colour: str, label: str) -> None:
    value, low, high = columns
    rows = rows.sort_values("layer")
    ax.plot(rows["layer"], rows[value], color=colour, marker="o", ms=4, label=label)
    ax.fill_between(rows["layer"], rows[low], rows[high], color=colour, alpha=0.2, lw=0)


def _layers(figure: Figure, axes: Sequence[Axes], label: str, columns: int) -> None:
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel="after layer (0: as embedded)")
    for ax in axes[::columns]:
        ax.set_ylabel(label)
    _legend(figure, axes)


@styled
def distance(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Mean attention distance of every head, each layer's mean with its 95% interval, and uniform attention's."""
    figure = begin(title or "Do later layers look farther away?", 3.2)
    ax = figure.subplots()
    heads, layers = (
        rows.sort_values("layer") for rows in (table.loc[table["head"] >= 0], table.loc[table["head"] < 0])
    )
    ax.scatter(heads["layer"], heads["distance"], s=12, color=BLUE, alpha=0.7, linewidths=0, label="a head")
    ax.plot(
        layers["layer"], layers["distance"], color=ORANGE, marker="D", ms=5, label="mean of the layer, 95% interval"
    )
    ax.vlines(layers["layer"], layers["ci_low"], layers["ci_high"], color=ORANGE, lw=2)
    ax.axhline(table["uniform"].iloc[0], color=GREY, ls="--", lw=1, label="uniform attention")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.margins(x=0.1)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="layer", ylabel="mean distance, in tokens")
    _legend(figure, [ax])
    return figure


@styled
def cost(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Seconds and operations of one block's parts against the length of the text, both axes logarithmic."""
    figure, axes = panels(
        title or "How does attention's cost grow with the length of the text?", 2, height=3.0, columns=2
    )
    colours = dict(zip(table["part"].unique(), (ORANGE, BLUE, _GREEN), strict=False))
    for part, colour in colours.items():
        rows = table.loc[table["part"] == part].sort_values("tokens")
        slope, error = (float(rows[name].iloc[0]) for name in ("exponent", "exponent_error"))
        power = "too few lengths" if np.isnan(slope) else f"power {slope:.2f} ± {error:.2f}"
        axes[0].plot(rows["tokens"], 1000 * rows["seconds"], color=colour, marker="o", ms=4, label=power)
        axes[1].plot(rows["tokens"], rows["flops"] / 1e6, color=colour, marker="o", ms=4, label=part)
    for ax, label in zip(axes, ("milliseconds, measured here", "millions of operations, counted"), strict=True):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens:g}"))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set(xlabel="tokens", title=label)
    axes[0].legend(loc="upper left", frameon=False, fontsize=8)
    _legend(figure, axes[1:])
    return figure


@styled
def shares(table: pd.DataFrame, *, title: str | None = None) -> Figure:
    """One bar a quantity, divided among embedding, attention and feed-forward; shares from 0.04 on are written in."""
    figure = begin(title or "How much of the model is attention?", 2.6)
    ax = figure.subplots()
    quantities = list(table["quantity"].unique())
    colours = dict(zip(table["part"].unique(), (GREY, ORANGE, BLUE), strict=False))
    start = np.zeros(len(quantities))
    for part, colour in colours.items():
        share = (
            table.loc[table["part"] == part].set_index("quantity")["share"].reindex(quantities).to_numpy(dtype=float)
        )
        ax.barh(range(len(quantities)), share, left=start, color=colour, label=part, height=0.62)
        for y, (begins, wide) in enumerate(zip(start, share, strict=True)):
            if wide >= 0.04:
                ax.text(begins + wide / 2, y, f"{wide:.2f}", ha="center", va="center", color="white", fontsize=9)
        start = start + share
    ax.axvline(1 / 3, color="black", lw=1, ls=":", zorder=0, label="a third")
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    tokens = int(table["tokens"].iloc[0])
    ax.set_yticks(range(len(quantities)), [_with_length(quantity, tokens) for quantity in quantities])
    ax.set(xlabel="share")
    _legend(figure, [ax])
    return figure


def _with_length(quantity: str, tokens: int) -> str:
    """A quantity as its axis names it, in two lines where it is long."""
    if quantity == "multiply-adds":
        return f"{quantity}\nat {tokens} tokens"
    return quantity.replace(" the ", "\nthe ")


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend under all panels, each entry once."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", frameon=False, fontsize=8, ncols=4)


DRAW: dict[str, Callable[..., Figure]] = {
    "profession": profession,
    "knight": knight,
    "adjectives": adjectives,
    "word-sense": word_sense,
    "companions": companions,
    "distance": distance,
    "cost": cost,
    "shares": shares,
}
"""The figure of each experiment, by its `NAME`."""
