"""The three kinds of figure: maps, intervals and lines.

A description says which rows of a table are marks, what their columns mean, and how panels look. Public figures are
described in `figures.toml`, experiments' figures beside their prompts.
"""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analyses.figures import style

Style = Mapping[str, Any]  # Matplotlib's options of a line and its marker
_INKS = {"ink": style.INK, "soft": style.SOFT, "grey": style.GREY, "pale": style.PALE}
MARKS: tuple[Style, ...] = tuple(
    {"color": ink, "marker": mark} for ink, mark in zip((style.INK, style.SOFT, style.GREY), "oDs", strict=True)
)
_SOURCES = {"articles": "the articles’ prompts", "stories": "prompts in the stories’ words"}
_TEXTS = "panel", "label", "name", "tick", "row", "note"
_NUMBERS = "y", "x", "low", "high"
_UPRIGHT = 20  # upright names across a map, at most
_AXES, _GAP = 1.0, 0.25  # inches for axes and a colour bar, and between two titles


def rounded(value: float) -> str:
    """A number to two decimals; zero has no sign."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")


def _count(rows: pd.DataFrame, axis: str) -> int:
    """How many places an axis of a map has."""
    return int(rows[axis].to_numpy().max()) + 1


@dataclass(frozen=True)
class Series:
    """Which rows of a table are marks, and what their columns mean."""

    value: str = "value"  # a column, or an expression of columns
    # the name in the legend or colour bar; like `panel`, `name`, `tick`, `row`, `note`, a template for columns
    label: str = ""
    panel: str = ""  # the title of the mark's panel
    x: str = "layer"  # a column: the place along the x axis
    y: str = "layer"  # a column: the row of a map
    low: str = ""  # a column or expression: the lower end of the value's 95% interval
    high: str = ""  # the upper end
    name: str = ""  # of a cell or an interval
    tick: str = ""  # the label on a map's x axis
    row: str = ""  # the label on its y axis
    note: str = ""  # text beside a mark
    where: str = "index >= 0"  # a query that selects rows; all by default
    look: Style = field(default_factory=dict)  # options of the line and the marker; by default the next of three

    def marks(self, table: pd.DataFrame) -> pd.DataFrame:
        """One row per mark: its texts, numbers and look; for a map's cells also the table's `dot` and `text`."""
        rows = table.query(self.where)
        records = [row | {"source": _SOURCES.get(row.get("source", ""))} for row in rows.to_dict("records")]
        texts = {column: [getattr(self, column).format_map(row) for row in records] for column in _TEXTS}
        texts["label"] = [label.replace("nan ± nan", "undefined") for label in texts["label"]]
        numbers = {
            column: rows.eval(source) if (source := getattr(self, column)) in rows or " " in source else np.nan
            for column in _NUMBERS
        }
        options = {key: _INKS.get(value, value) for key, value in self.look.items()}
        cells = {column: rows[column] for column in ("dot", "text") if column in rows}
        columns = {**texts, **numbers, **cells, "value": rows.eval(self.value), "look": [options] * len(rows)}
        return pd.DataFrame(columns, index=rows.index)


@dataclass(frozen=True)
class Plot(ABC):
    """A kind of figure and its content; sizes are inches."""

    series: Sequence[Series]  # what makes the marks
    question: str = ""  # the title
    caption: str = ""  # what the figure shows and what its marks mean
    xlabel: str = ""  # along all panels
    ylabel: str = ""  # up all panels
    columns: int = 2  # of panels, at most
    height: float = 2.4  # of a panel, without its rows
    row: float = 0.0  # of each row in a panel: a map's row, or a name with intervals
    key: float = 0.5  # for what panels share
    width: float | None = None  # if the page asks for none
    least: float = 0.0  # width that the panels need
    highest: float = style.HIGHEST  # of the figure: higher panels shrink
    square: bool = False  # whether panels are as high as wide
    rules: Sequence[Mapping[str, Any]] = ()  # lines at `x` or `y`, with options of Matplotlib
    entries: int = 4  # side by side in the legend, at most
    looks: Mapping[str, Style] = field(default_factory=dict)  # by label, if its series has no look

    @style.styled
    def draw(self, table: pd.DataFrame, title: str = "") -> Figure:
        """The table's figure."""
        return self.figure(table, {"title": title or self.question})

    def figure(self, table: pd.DataFrame, page: style.Page, note: str | None = None) -> Figure:
        """The table's figure, for use in a `styled` function; `note` explains the marks below the panels."""
        marks = self._marks(table)
        groups = [(str(panel), rows) for panel, rows in marks.groupby("panel", sort=False)]
        heights = [self.height + self.row * self._rows(rows) for _, rows in groups]
        names = "columns", "key", "square", "width", "least", "highest"
        room: Any = {name: getattr(self, name) for name in names}
        figure, axes = style.panels(self.question, len(groups), height=heights, options=page, **room)
        for ax, (panel, rows) in zip(axes, groups, strict=True):
            self._draw_panel(ax, rows, marks)
            for rule in self.rules:
                options = {"color": style.GREY, "lw": 1, "zorder": 0, **rule}
                if "x" in options:
                    ax.axvline(options.pop("x"), **options)
                else:
                    ax.axhline(options.pop("y"), **options)
            ax.set_title(self._title(figure, axes, style.literal(panel, 200).replace(" / ", "\n")))
        names = [[tick.get_text() for tick in ax.get_yticklabels()] * isinstance(self, Map | Intervals) for ax in axes]
        for ax, previous, current in zip(axes[1:], names, names[1:], strict=False):
            if current and previous == current and not style.leftmost(figure, ax):
                ax.set_yticklabels([])
        self._draw_key(figure, axes, marks)
        xlabel = self._title(figure, axes, self.xlabel) if len(axes) == 1 else self.xlabel
        style.label_axes(figure, axes, xlabel, self.ylabel)
        style.caption(figure, self.caption, note=note)
        setattr(figure, "alt", self._describe(marks))  # noqa: B010 (as in `style.caption`)
        return figure

    def _describe(self, marks: pd.DataFrame) -> str:
        """A description of each panel for a reader who cannot see it."""
        texts = []
        for panel, rows in marks.astype({"value": float}).groupby("panel", sort=False):
            drawn = [
                (label, group)
                for label, group in rows.groupby("label", sort=False)
                if group["value"].notna().to_numpy().any() and not group["look"].iloc[0].get("band")
            ]
            labels = [f"{label}: {self._describe_marks(group)}".removeprefix(": ") for label, group in drawn]
            title = str(panel).replace("\n", ", ")
            texts.append(f"{title}: {'; '.join(labels) or 'undefined'}.".removeprefix(": ").replace("\n", " "))
        return " ".join(texts)

    def _marks(self, table: pd.DataFrame) -> pd.DataFrame:
        tables = [series.marks(table.reset_index(drop=True)) for series in self.series]
        return pd.concat([marks for marks in tables if len(marks)] or tables, ignore_index=True)

    def _styles(self, marks: pd.DataFrame) -> dict[str, dict[str, Any]]:
        """The look of each label in all panels: the series' own, else the plot's, else the next of three."""
        rows = marks.drop_duplicates("label")
        labels = enumerate(zip(rows["label"], rows["look"], strict=True))
        return {label: {**MARKS[at % len(MARKS)], **self.looks.get(label, {}), **look} for at, (label, look) in labels}

    def _rows(self, rows: pd.DataFrame) -> float:
        return 0

    def _title(self, figure: Figure, axes: Sequence[Axes], title: str) -> str:
        side = style.panel_width(figure, axes) * (1 - _AXES / figure.get_figwidth()) - _GAP
        return "\n".join(style.broken(line, side) for line in title.split("\n"))

    def _draw_key(self, figure: Figure, axes: Sequence[Axes], marks: pd.DataFrame) -> None:
        style.legend(figure, axes, columns=self.entries)

    def _describe_marks(self, rows: pd.DataFrame) -> str:
        """The largest values of one label in one panel, and the lowest if it is -0.1 or less."""
        defined = rows.dropna(subset=["value"]).sort_values("value", ascending=False, kind="stable").to_dict("records")
        if len({row["value"] for row in defined}) < 2:
            return rounded(defined[0]["value"]) if defined else "undefined"
        texts = [f"{rounded(row['value'])} at {row['name'] or row['x']}" for row in defined]
        lowest = f", lowest {texts[-1]}" if defined[-1]["value"] <= -0.1 else ""
        marked = f" ({[*rows['dot']].count(True) or 'none'} of {len(rows)} marked)" if "dot" in rows else ""
        return f"largest {', '.join(texts[:3])}{lowest}{marked}"

    @abstractmethod
    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        """Draw one panel's marks; `marks` are those of all panels."""


@dataclass(frozen=True)
class Map(Plot):
    """One cell per mark; panels with the same label share a scale and a colour bar."""

    scale: Normalize | None = None  # from values to colours; by default centred on 0, one per label
    colours: Colormap = field(default_factory=lambda: style.SIGNED)  # of the cells
    # of rows and columns; by default their ticks, or numbers
    names: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)
    most: Sequence[int] = (12, 30)  # names down and across, at most
    upwards: bool = True  # whether the first row is at the bottom
    ticks: Sequence[float] | None = None  # numbers on the colour bar

    def figure(self, table: pd.DataFrame, page: style.Page, note: str | None = None) -> Figure:
        """As in `Plot`, but with layers from left to right if the page asks for it or they do not fit its height."""
        if any(each.y != "layer" for each in self.series) or table.empty:
            return super().figure(table, page, note)
        is_high = self.height + self.row * _count(table, "layer") > style.HIGHEST - self.key
        if not page.get("horizontal", is_high):
            return super().figure(table, page, note)
        series = [replace(each, x=each.y, y=each.x, row=each.tick, tick=each.row) for each in self.series]
        texts = {"xlabel": self.ylabel, "ylabel": self.xlabel, "caption": self.caption.replace("bottom", "left")}
        turned = replace(self, series=series, names=self.names[::-1], upwards=False, most=self.most[::-1], **texts)
        return super(Map, turned).figure(table, page, note)

    def _rows(self, rows: pd.DataFrame) -> float:
        return max(4, _count(rows, "y"))

    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        first = rows.drop_duplicates("x").sort_values("x")
        ticks = dict(zip(first["x"], first["tick"], strict=True))
        columns = [*ticks] if any(ticks.values()) else range(len(self.names[1] or ()) or _count(rows, "x"))
        row_names = dict(zip(rows["y"], rows["row"], strict=True))
        down = self.names[0] or [row_names.get(row) or str(row) for row in range(_count(rows, "y"))]
        across = self.names[1] or [style.literal(str(ticks.get(column, ""))) or str(column) for column in columns]
        cells = {
            column: rows.pivot(index="y", columns="x", values=column).reindex(index=range(len(down)), columns=columns)
            for column in {"value", "dot", "text"} & {*rows}
        }
        scale = self._scale(marks, rows["label"].iloc[0])
        ax.patch.set(facecolor="white", edgecolor="0.75", hatch="//////", linewidth=0)  # undefined cells are hatched
        options: Any = {"vmin": scale.vmin, "vmax": scale.vmax, "cmap": self.colours, "norm": scale, "cbar": False}
        options |= {"xticklabels": False, "yticklabels": False, "rasterized": True}  # keeps a large model's file small
        if "text" in cells:  # long texts are smaller
            figure, texts = ax.get_figure(root=True), cells["text"].fillna("")
            room = ((figure.get_figwidth() if figure else 0) - 1.5) / texts.shape[1] * 72  # points
            longest = max(1, *map(len, texts.to_numpy().ravel()))
            points = max(min(style.sized(8), room / (0.62 * longest)), style.sized(4.5))
            options |= {"annot": texts, "fmt": "", "annot_kws": {"fontsize": points}}
        sns.heatmap(cells["value"].astype(float), ax=ax, **options)
        visible = range(0)
        for axis, labels, limit in ((ax.yaxis, down, self.most[0]), (ax.xaxis, across, self.most[1])):
            visible = range(0, len(labels), max(1, -(-len(labels) // limit)))
            axis.set_ticks([place + 0.5 for place in visible], [labels[place] for place in visible])
        is_long = len(visible) > _UPRIGHT or any(len(across[place]) > 2 for place in visible)
        ax.tick_params("x", rotation=90 if is_long else 0, length=2)
        ax.tick_params("y", rotation=0, length=2)
        ax.set(xlabel="", ylabel="")
        ax.spines[["left", "bottom"]].set_visible(False)
        if self.upwards:
            ax.invert_yaxis()
        if "dot" in cells:
            up, right = np.nonzero(cells["dot"].eq(True).to_numpy())
            ax.scatter(right + 0.5, up + 0.5, s=style.sized(3.7) ** 2, c="black", edgecolors="white", linewidths=0.8)

    def _scale(self, marks: pd.DataFrame, label: str) -> Normalize:
        values = marks.loc[marks["label"] == label, "value"].abs()
        return self.scale or style.signed_scale(float(np.nanmax(values, initial=0.0)), at_least=0.02)

    def _draw_key(self, figure: Figure, axes: Sequence[Axes], marks: pd.DataFrame) -> None:
        labels = marks.drop_duplicates("panel")["label"].tolist()
        for label in dict.fromkeys(labels):
            group = [ax for ax, name in zip(axes, labels, strict=True) if name == label]
            style.colour_bar(figure, group, ScalarMappable(self._scale(marks, label), self.colours), label, self.ticks)


@dataclass(frozen=True)
class Intervals(Plot):
    """Named values with their intervals, the first name on top."""

    # names in a panel, at most: those with the largest values of the first label; 0 for all, in table order
    most: int = 0
    step: float = 0.26  # the distance between two labels of a name, where 1 is the next name
    names: Sequence[str] = ()  # of all panels, if one may lack some

    def _rows(self, rows: pd.DataFrame) -> float:
        return max(3, min(self.most or 1000, len({*rows["name"]}))) * max(1.0, style.sized(1))

    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        names = [*(self.names or dict.fromkeys(rows["name"]))]
        if self.most:
            first: Any = rows.loc[rows["label"] == rows["label"].iloc[0]].set_index("name")["value"]
            names = first[first.abs().nlargest(self.most).index].sort_values(ascending=False).index.tolist()
        styles = self._styles(marks)
        for index in range(0, len(names), 2) if len(styles) > 2 else ():  # stripes
            ax.axhspan(index - 0.5, index + 0.5, color="0.96", lw=0, zorder=0)
        for place, (label, mark) in enumerate(styles.items()):
            group = rows.loc[rows["label"] == label].drop_duplicates("name").set_index("name").reindex(names)
            y = np.arange(len(names)) + self.step * (place - (len(styles) - 1) / 2)
            ax.hlines(y, group["low"], group["high"], colors=mark["color"], linestyles=mark.get("ls", "-"), lw=1.5)
            visible = group["value"].notna().to_numpy()
            if visible.any():
                ax.plot(group["value"][visible], y[visible], label=label, **{"ms": 5, **mark, "ls": ""})
            ends = group[["value", "high"]].max(axis=1)
            options: Any = {"textcoords": "offset points", "va": "center", "color": "0.35", "fontsize": style.sized(8)}
            for height, note, end in zip(y, group["note"], ends, strict=True):
                if note and not np.isnan(end):
                    style.with_halo(ax.annotate(note, (end, height), (5, 0), **options))
        figure, longest = ax.get_figure(root=True), max(map(len, rows.loc[rows["value"].notna(), "note"]), default=0)
        if longest and figure:  # room for notes, which do not count as data
            start, end = ax.get_xlim()
            share = style.small_width(longest) / (0.8 * ax.get_position().width * figure.get_figwidth())
            ax.set_xlim(start, start + (end - start) / (1 - min(share, 0.6)))
        ax.set_yticks(range(len(names)), names)
        ax.set_ylim(len(names) - 0.4, -0.6)


@dataclass(frozen=True)
class Lines(Plot):
    """Values by layer or length, with their intervals as bands; the look `band` draws a band alone."""

    logarithmic: bool = False  # whether both axes are
    log_sizes: bool = False  # whether the x axis is, for sizes

    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        for label, options in self._styles(marks).items():
            line = rows.loc[rows["label"] == label].dropna(subset=["value"]).sort_values("x")
            is_band = options.pop("band", False)
            if len(line) and not is_band:
                ax.plot(line["x"], line["value"], label=label, **{"ms": 4, **options})
            band: Any = {"color": options["color"], "alpha": 0.2, "lw": 0, "label": label if is_band else None}
            ax.fill_between(line["x"], line["low"], line["high"], **band)
        if self.logarithmic:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        elif self.log_sizes:
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        else:
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))


_KINDS: dict[str, type[Plot]] = {"map": Map, "intervals": Intervals, "lines": Lines}


def plot_from(
    *, kind: str, series: Sequence[Mapping[str, Any]] = ({},), shared: Mapping[str, Any] | None = None, **options: Any
) -> Plot:
    """The plot that a description stands for; `shared` fields belong to all series."""
    return _KINDS[kind]([Series(**{**(shared or {}), **fields}) for fields in series], **options)


@cache
def described(name: str) -> dict[str, Any]:
    """The entry of this name in `figures.toml`."""
    return tomllib.loads(files("analyses.figures").joinpath("figures.toml").read_text(encoding="utf-8"))[name]


def draw(
    name: str,
    table: pd.DataFrame,
    page: style.Page,
    words: Mapping[str, Any] | None = None,
    *,
    note: str | None = None,
    **options: Any,
) -> Figure:
    """Draw the figure of this name in `figures.toml`, with words filled in and `options` overriding its own."""
    facts = described(name)
    texts = {key: text.format_map(words or {}) for key, text in facts.items() if isinstance(text, str)}
    return plot_from(**{**facts, **texts, **options}).figure(table, page, note)
