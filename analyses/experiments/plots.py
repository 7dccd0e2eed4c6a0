"""The three kinds of plot of an experiment: maps, lines and ranges, each drawn and described from the same marks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analyses.figures.attention_lines import literal
from analyses.figures.style import GREY, INK, SIGNED, SOFT, colour_bar, draw_map, legend, panels, signed_scale, styled

_SOURCES = {"articles": "the articles’ prompts", "stories": "prompts in the stories’ words"}
_TEXTS = "panel", "label", "name", "tick"
_LAYER_TICKS = 12  # at most
_FEW = 4  # names up to which values are written beside their marks


@dataclass(frozen=True)
class Series:
    """Which rows of a table are marks, and which of their columns say what.

    Args:
        value: a column, or an expression of columns.
        label: what the legend or the colour bar calls it; like `panel`, `name` and `tick` a template that a row's
            columns fill, with `source` written out.
        panel: the title of the panel that a mark stands in.
        x: a column: the place along the x axis.
        low: the column of the lower end of the value's 95% interval.
        high: and of its upper end.
        name: what a cell or a range is called.
        tick: what a map's x axis calls the place.
        where: a query that rows meet; all by default.
        style: how a line looks: points joined, points alone, or a level without points.
    """

    value: str
    label: str
    panel: str = ""
    x: str = "layer"
    low: str = ""
    high: str = ""
    name: str = ""
    tick: str = ""
    where: str = "index >= 0"
    style: Literal["line", "points", "level"] = "line"

    def marks(self, table: pd.DataFrame) -> pd.DataFrame:
        """A row a mark: panel, label, name, tick, layer, x, value, low, high, style."""
        rows = table.query(self.where)
        records = [row | {"source": _SOURCES.get(row.get("source", ""))} for row in rows.to_dict("records")]
        texts = {column: [getattr(self, column).format_map(row) for row in records] for column in _TEXTS}
        texts["label"] = [label.replace("nan ± nan", "undefined") for label in texts["label"]]
        columns = {"layer": "layer", "x": self.x, "low": self.low, "high": self.high}
        numbers = {column: rows.get(source, np.nan) for column, source in columns.items()}
        return pd.DataFrame({**texts, **numbers, "value": rows.eval(self.value), "style": self.style}, index=rows.index)


@dataclass(frozen=True)
class Plot(ABC):
    """A kind of plot: what it shows, and in words what is to be seen in it.

    Args:
        series: what makes the marks.
        xlabel: of all panels.
        ylabel: of the first panel in each row.
        columns: of panels, at most.
    """

    series: Sequence[Series]
    xlabel: str = ""
    ylabel: str = ""
    columns: int = 2

    @styled
    def draw(self, table: pd.DataFrame, title: str) -> Figure:
        """The table's figure."""
        marks = self._marks(table)
        groups = [(str(panel), rows) for panel, rows in marks.groupby("panel", sort=False)]
        figure, axes = panels(title, len(groups), height=self._height(marks), columns=self.columns, key=0.7)
        for ax, (panel, rows) in zip(axes, groups, strict=True):
            self._draw_panel(ax, rows, marks)
            place = ax.get_subplotspec()
            ylabel = self.ylabel if place is None or place.is_first_col() else ""
            ax.set(title=literal(panel, 200).replace(" / ", "\n"), xlabel=self.xlabel, ylabel=ylabel)
        self._draw_key(figure, axes, marks)
        return figure

    def describe(self, table: pd.DataFrame) -> str:
        """What each panel shows, in words."""
        texts = []
        for panel, rows in self._marks(table).groupby("panel", sort=False):
            labels = [f"{label} {self._describe_marks(group)}" for label, group in rows.groupby("label", sort=False)]
            title = str(panel).replace("\n", ", ")
            texts.append(f"{title}: {'; '.join(labels)}.".removeprefix(": ").replace("\n", " "))
        return " ".join(texts)

    def _marks(self, table: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([series.marks(table.reset_index(drop=True)) for series in self.series], ignore_index=True)

    def _draw_key(self, figure: Figure, axes: Sequence[Axes], marks: pd.DataFrame) -> None:
        legend(figure, axes)

    def _describe_marks(self, rows: pd.DataFrame) -> str:
        """The largest values of one label in one panel, and the smallest if it is below zero by a tenth or more."""
        defined = rows.dropna(subset=["value"])
        if defined.empty:
            return "undefined"
        texts = [f"{row['name']} {rounded(row['value'])}" for row in defined.nlargest(3, "value").to_dict("records")]
        low = defined.nsmallest(1, "value").to_dict("records")[0]
        return f"largest {', '.join(texts)}" + f", lowest {low['name']} {rounded(low['value'])}" * (
            low["value"] <= -0.1
        )

    @abstractmethod
    def _height(self, marks: pd.DataFrame) -> float:
        """Of a panel, in inches."""

    @abstractmethod
    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        """Draw the marks of one panel; `marks` are those of all."""


@dataclass(frozen=True)
class Map(Plot):
    """Layers up, heads or positions across; panels with one label share a scale and a colour bar."""

    def _height(self, marks: pd.DataFrame) -> float:
        return 0.9 + 0.24 * marks["layer"].nunique() + 0.06 * marks["tick"].str.len().max()

    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        ticks = rows.drop_duplicates("x").set_index("x")["tick"].sort_index().map(literal)
        grid = rows.pivot(index="layer", columns="x", values="value")
        scale = _scale(marks, rows["label"].iloc[0])
        names = [str(layer) for layer in grid.index], ticks.tolist()
        draw_map(ax, grid, scale, names=names, most=(_LAYER_TICKS, len(ticks)))
        ax.invert_yaxis()

    def _draw_key(self, figure: Figure, axes: Sequence[Axes], marks: pd.DataFrame) -> None:
        labels = marks.drop_duplicates("panel")["label"].tolist()
        for label in dict.fromkeys(labels):
            own_axes = [ax for ax, name in zip(axes, labels, strict=True) if name == label]
            colour_bar(figure, own_axes, ScalarMappable(_scale(marks, label), SIGNED), label)


def _scale(marks: pd.DataFrame, label: str) -> Normalize:
    values = marks.loc[marks["label"] == label, "value"].abs()
    return signed_scale(float(np.nanmax(values, initial=0.0)), at_least=0.02)


@dataclass(frozen=True)
class Lines(Plot):
    """Values by layer or length, with the bands of their intervals.

    Args:
        logarithmic: whether both axes are; if not, both are linear and 0 is in sight.
    """

    logarithmic: bool = False

    def _height(self, marks: pd.DataFrame) -> float:
        return 2.4

    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        looks = zip((INK, GREY, SOFT), "osD", strict=True)
        for (label, group), (colour, marker) in zip(rows.groupby("label", sort=False), looks, strict=False):
            line = group.sort_values("x")
            shape: Any = {
                "line": {"marker": marker},
                "points": {"marker": ".", "ls": "", "alpha": 0.7},
                "level": {"ls": "--", "lw": 1},
            }[line["style"].iloc[0]]
            ax.plot(line["x"], line["value"], color=colour, label=label, ms=4, **shape)
            ax.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.2, lw=0)
        if self.logarithmic:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        else:
            ax.axhline(0, color="black", lw=0.6)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))

    def _describe_marks(self, rows: pd.DataFrame) -> str:
        line = rows.dropna(subset=["value"]).sort_values("x")
        if line.empty:
            return "undefined"
        style, low, high = line["style"].iloc[0], *np.quantile(line["value"].to_numpy(), (0, 1))
        if style != "line":
            return rounded(low) if style == "level" else f"between {rounded(low)} and {rounded(high)}"
        (first, last), top = line.iloc[[0, -1]].to_dict("records"), largest(line, "value")
        place = "{x} tokens" if self.xlabel == "tokens" else "layer {x}"
        text = " to ".join(f"{rounded(end['value'])} at {place.format_map(end)}" for end in (first, last))
        highest = f", highest {rounded(top['value'])} at {top['x']}" * (top["x"] not in (first["x"], last["x"]))
        return f"from {text}{highest}"


@dataclass(frozen=True)
class Ranges(Plot):
    """Named values with their intervals, the largest on top.

    Args:
        rule: where a line is drawn.
        most: how many names a panel has at most, those with the largest values of the first label.
    """

    rule: float = 0.0
    most: int = 10

    def _height(self, marks: pd.DataFrame) -> float:
        return 0.8 + 0.26 * max(6, min(self.most, len({*marks["name"]})))

    def _draw_panel(self, ax: Axes, rows: pd.DataFrame, marks: pd.DataFrame) -> None:
        groups = [(label, group.set_index("name")) for label, group in rows.groupby("label", sort=False)]
        first: Any = groups[0][1]
        names = first.loc[first["value"].abs().nlargest(self.most).index].sort_values("value").index
        shifts = 0.24 * (np.arange(len(groups))[::-1] - (len(groups) - 1) / 2)
        looks = zip((INK, SOFT, GREY), "oDs", shifts, strict=False)
        for (label, group), (colour, marker, shift) in zip(groups, looks, strict=False):
            bars, y = group.loc[names], np.arange(len(names)) + shift
            ax.hlines(y, bars["low"], bars["high"], colors=colour, lw=1.5)
            ax.scatter(bars["value"], y, color=colour, marker=marker, s=24, label=label)
            for value, place in zip(bars["value"], y, strict=True) if len(names) <= _FEW else ():
                ax.annotate(rounded(value), (value, place), (6, 0), textcoords="offset points", va="center", fontsize=8)
        ax.set_yticks(np.arange(len(names)), names)
        ax.axvline(self.rule, color=GREY, lw=1, zorder=0)


_KINDS: dict[str, type[Plot]] = {"map": Map, "lines": Lines, "ranges": Ranges}


def plot_from(
    *, kind: str, series: Sequence[Mapping[str, Any]], shared: Mapping[str, Any] | None = None, **options: Any
) -> Plot:
    """The plot that data describe; `shared` is what all series have."""
    return _KINDS[kind]([Series(**{**(shared or {}), **fields}) for fields in series], **options)


def largest(table: pd.DataFrame, column: str) -> dict[str, Any]:
    """The row that has the largest value in a column."""
    return table.loc[[table[column].idxmax()]].to_dict("records")[0]


def rounded(value: float) -> str:
    """A number to two digits; nothing has no sign."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
