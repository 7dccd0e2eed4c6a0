"""How do all figures look? Sizes in inches and points, the colours, and how every figure begins."""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from io import BytesIO
from math import isnan
from textwrap import fill, wrap
from typing import Any, ParamSpec, TypedDict

import numpy as np
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from scipy.optimize import isotonic_regression

from interp.errors import InputError

WIDTH = 9.0  # inches: the column of the report
# Colour means behaviour and nothing else, as in the pages' style.css. Other things differ by mark, line and shade, in
# ink; baselines are grey.
POSITION, SYNTAX, COREFERENCE, CUSTOM = "#0067a3", "#00543a", "#b34700", "#5b2a73"
BEHAVIOURS = {"position": POSITION, "part-of-speech": SYNTAX, "coreference": COREFERENCE}
INK, SOFT, GREY, PALE = "#1b1f24", "#5b6470", "#8a8a8a", "#c3c9d0"
# only if values below 0 matter: these are grey
SIGNED = LinearSegmentedColormap.from_list("signed", [SOFT, "#f7f8fa", CUSTOM])
FONT = 9.0  # points
_SIZES = {  # in points, for text of 9
    **{"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "figure.labelsize": 9},
    **{"xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8, "figure.titlesize": 11},
}
_STYLE: Any = {"figure.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False}
# TrueType: searchable text, which journals accept; in svg it stays text
_SAVED: Any = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
_SCREEN, _PRINTED = 144, 300  # dots an inch
_LETTER, _BOLD = 0.55, 0.6  # width of a letter, relative to its size
HIGHEST = 9.0  # inches: no page of a paper holds a higher figure
_LEAST, _LOWEST = 1.6, 1.2  # inches: panels get no narrower than this, and no lower to fit a page
_LARGEST = 100  # inches or points: anything larger is a slip
_QUESTION = "?"
P = ParamSpec("P")


class RoomError(ValueError):
    """The requested width is too small for a figure; the message says how much it needs."""


class Page(TypedDict, total=False):
    """How a figure fits on a page; every drawing function takes these options.

    title: by default ("?") the figure's own question; another text; or None for no title, with the meaning of marks in
        the caption. With several panels, each keeps the few words that distinguish it.
    width: in inches: 3.3 is a column of a paper, 6.9 its page; by default the report's.
    font_size: in points, 9 by default; all other text sizes scale with it.
    font: the name of a font on this machine.
    horizontal: whether a map has its layers from left to right; by default if too many to fit upwards.
    ax: your own figure's axes to draw into, one for each panel; nothing else of that figure is changed.
    """

    title: str | None
    width: float
    font_size: float
    font: str
    horizontal: bool
    ax: Axes | Sequence[Axes] | np.ndarray


class Drawn(Figure):
    """A figure that displays itself in notebooks, saves text as TrueType, and brings its caption."""

    caption: str = ""  # what the figure shows and what its marks mean, for the text below it
    alt: str = ""  # the result, for a reader who cannot see it
    under_way = False

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save it like `Figure.savefig`, at its exact size, by default with 300 dots an inch."""
        with rc_context(_SAVED):
            super().savefig(fname, **{"dpi": _PRINTED, **options})

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        picture = BytesIO()
        super().savefig(picture, format="png", dpi=_SCREEN)
        width, height = (int(96 * inches) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}


def page(width: int | float = 6.9, height: int | float = 2.5) -> Drawn:
    """An empty figure, in whose axes (`page.subplots(1, 2)`) several figures can be drawn side by side."""
    return Drawn(figsize=(width, height), layout="constrained")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a drawing function: apply our style and the requested text size inside it, then restore the caller's.

    Keyword arguments besides the function's own form a `Page`.
    """
    arguments = {each.name for each in signature(draw).parameters.values() if each.kind is not each.VAR_KEYWORD}

    @wraps(draw)
    def draw_styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        _check({name: value for name, value in kwargs.items() if name not in arguments})
        scale = float(kwargs.get("font_size", FONT)) / FONT  # pyright: ignore[reportArgumentType]
        font = {"font.family": [kwargs["font"], "DejaVu Sans"]} if kwargs.get("font") else {}
        with rc_context(_STYLE | font | {name: points * scale for name, points in _SIZES.items()}):
            figure = draw(*args, **kwargs)
            if kwargs.get("title", _QUESTION) is None:
                _move_title(figure, kwargs.get("ax"))
            if isinstance(figure, Drawn) and figure.under_way:
                figure.under_way = False
                for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
                    axis.get_major_ticks(1)  # made now: later they would have the caller's size
        return figure

    return draw_styled


def check_font(name: str | None) -> None:
    """Refuse a font that this machine lacks, naming some that it has."""
    fonts = sorted(fontManager.get_font_names())
    if name is not None and name not in fonts:
        near = get_close_matches(str(name), fonts, 3, 0.5)
        some = ", ".join([*near, *(font for font in fonts if font not in near)][:6])
        raise InputError(f"font: expected one that this machine has, such as {some}; got {name!r}")


def _move_title(figure: Figure, axes: Any) -> None:
    """Remove a single panel's title, and append it to the caption if it is not there. Several panels keep theirs."""
    axes = drawn_axes(figure, axes)
    for side in ("left", "center", "right") if len(axes) == 1 else ():
        title = " ".join(axes[0].get_title(side).split())
        axes[0].set_title("", loc=side)
        if title and title.split()[0].rstrip(",:") not in (text := getattr(figure, "caption", "")):
            setattr(figure, "caption", f"{text} Shown: {title}.".strip())  # noqa: B010 (as in `caption`)


def drawn_axes(figure: Figure, axes: Any = None) -> list[Any]:
    """The axes of a figure's panels: the given ones, or all without colour bars."""
    if axes is not None:
        return list(np.ravel(np.asarray(axes, dtype=object)))
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


def sized(size: int | float) -> float:
    """Scale a text size, given for text of 9 points, to the requested size."""
    return size * rcParams["font.size"] / FONT


def begin(
    question: str, height: float, width: float = WIDTH, options: Page | None = None, *, least: float = 0.0
) -> Figure:
    """An empty figure; `height` includes a one-line title, `least` is the width in inches that its panels need."""
    options = options or {}
    if options.get("ax") is not None:
        raise ValueError("this figure lays out its own panels: leave out ax=, and give it a width=")
    width, title = options.get("width", width), options.get("title", _QUESTION)
    if "width" in options and width < least:
        raise RoomError(f"the panels of this figure need {least:.1f} inches side by side: got width={width}")
    size = FontProperties(size=rcParams["figure.titlesize"]).get_size_in_points()  # `large` without our style
    letters = int(width * 72 / (_BOLD * size))
    lines = [] if title is None else wrap(question if title == _QUESTION else title, letters)
    line = 1.25 * size / 72
    figure = Drawn(figsize=(width, height + line * (len(lines) - 1)), layout="constrained")
    if lines:
        figure.suptitle("\n".join(lines), x=0.01, ha="left")
    figure.under_way = True
    return figure


def panels(
    question: str,
    count: int = 1,
    *,
    height: float | Sequence[float],
    columns: int = 1,
    key: float = 0.5,
    square: bool = False,
    width: float | None = None,
    least: float = 0.0,
    highest: float = HIGHEST,
    options: Page | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels of `height` inches, in rows of at most `columns`; `key` inches for the rest.

    A narrow page has fewer columns, and `square` panels are then lower. If all rows together are higher than `highest`,
    all shrink alike. `width` applies if the page asks for none; `least` is the width that the figure needs.
    """
    options = options or {}
    if borrowed := _borrowed(options, count):
        return borrowed
    width = options.get("width", width or min(WIDTH, 1.5 + 3.75 * min(count, columns)))
    columns = max(1, min(count, columns, int(width / sized(_LEAST))))
    rows = -(-count // columns)
    columns = -(-count // rows)  # 4 panels as 2 + 2, not as 3 + 1
    heights = np.broadcast_to(np.asarray(height, dtype=float), count)
    if square:
        heights = heights.clip(max=(width - 1.2) / columns + 0.9 * rcParams["font.size"] / FONT)
    high = np.array([max(heights[row * columns : (row + 1) * columns]) for row in range(rows)])
    high = np.maximum(high * min(1.0, (highest - key) / high.sum()), high.clip(max=_LOWEST))
    figure = begin(question, float(high.sum()) + key, width, options, least=least)
    axes = list(figure.subplots(rows, columns, squeeze=False, height_ratios=high.tolist()).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def _check(options: Mapping[str, Any]) -> None:
    """Refuse unknown options and impossible sizes."""
    if unknown := options.keys() - Page.__annotations__.keys():
        raise TypeError(f"no option {', '.join(sorted(unknown))} here: expected {', '.join(Page.__annotations__)}")
    check_font(options.get("font"))
    for name, unit in (("width", "inches (3.3, 6.9)"), ("font_size", "points")):
        size = options.get(name, 1)
        if not isinstance(size, int | float | np.number) or not 0 < size < _LARGEST:
            raise ValueError(f"{name} is in {unit}: expected a number more than 0 and below {_LARGEST}, got {size!r}")


def _borrowed(options: Page, count: int) -> tuple[Figure, list[Axes]] | None:
    """The axes given to draw into and their figure; None if none are given."""
    if options.get("ax") is None:
        return None
    axes = drawn_axes(Figure(), options.get("ax"))
    if any(not isinstance(ax, Axes) for ax in axes):
        raise TypeError(f"ax= takes axes of Matplotlib, one for each panel: got {options.get('ax')!r:.80}")
    if len(axes) != count:
        raise ValueError(f"this figure has {count} panels: expected as many axes in ax=, got {len(axes)}")
    if "width" in options:
        raise ValueError("width= is for a new figure, and ax= has its own: give one of the two")
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    for ax in axes:
        ax.tick_params(labelsize=sized(8))
        ax.spines[["top", "right"]].set_visible(False)
        for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
            text.set_fontsize(sized(9))
    title = options.get("title", _QUESTION)
    if title not in {_QUESTION, None}:
        axes[0].set_title(str(title), loc="left")
    return figure, axes


def is_ours(figure: Figure) -> bool:
    """Whether the figure being drawn is all ours, with none of the caller's axes."""
    return isinstance(figure, Drawn) and figure.under_way


def label_axes(figure: Figure, axes: Sequence[Axes], across: str, up: str) -> None:
    """Label the axes of all panels once; or each panel, if there is only one, a legend, or no room."""
    if is_ours(figure) and len(axes) > 1 and not figure.legends:
        figure.supxlabel(across, fontsize=sized(9))
        figure.supylabel(up, fontsize=sized(9))
        return
    for ax in axes:
        ax.set(xlabel=across, ylabel=up if leftmost(figure, ax) else "")


def panel_width(figure: Figure, axes: Sequence[Axes]) -> float:
    """The width of a figure's panel in inches."""
    place = axes[0].get_subplotspec() if is_ours(figure) else None
    return figure.get_figwidth() / (place.get_gridspec().ncols if place else len(axes))


def leftmost(figure: Figure, ax: Axes) -> bool:
    """Whether a panel labels its y axis: the first in a row, and every panel in the caller's figure."""
    place = ax.get_subplotspec()
    return not is_ours(figure) or place is None or place.is_first_col()


def caption(figure: Figure, *sentences: str, note: str | None = None) -> None:
    """Set the caption; a figure with a title may stand alone, so it also has the `note` on marks below its panels."""
    earlier = "" if is_ours(figure) else getattr(figure, "caption", "")
    text = " ".join(filter(None, [earlier, *sentences]))
    setattr(figure, "caption", text)  # noqa: B010 (the caller's figure has no such attribute)
    if note and is_ours(figure) and figure.get_suptitle():
        letters = int(figure.get_figwidth() * 72 / (_LETTER * sized(8)))
        lines = [*filter(None, [figure.get_supxlabel()]), fill(note, letters)]
        figure.supxlabel("\n".join(lines), fontsize=sized(8))


def signed_scale(largest: float, *, at_least: float = 0.1) -> Normalize:
    """Colours centred on 0 that reach as far below it as above."""
    reach = at_least if isnan(largest) else max(largest, at_least)
    return TwoSlopeNorm(0, -reach, reach)


def shades(colour: str = INK) -> Colormap:
    """Colours from almost nothing to the given one, for amounts."""
    return LinearSegmentedColormap.from_list(f"shades of {colour}", ["#f7f8fa", colour])


def colour_bar(
    figure: Figure, axes: Sequence[Axes], colours: ScalarMappable, label: str, ticks: Sequence[float] | None = None
) -> None:
    """Draw one colour bar at the right for all panels, optionally with given numbers."""
    options: Any = {} if ticks is None else {"ticks": list(ticks), "format": "{x:.2g}"}
    bar = figure.colorbar(colours, ax=axes, label=label, fraction=0.05, aspect=18, pad=0.01, **options)
    bar.outline.set_visible(False)
    if ticks is not None:
        bar.minorticks_off()


def legend(figure: Figure, axes: Sequence[Axes], entries: Mapping[str, Any] | None = None, *, columns: int = 4) -> None:
    """Draw one legend below all panels, in as many columns as fit; in the caller's figure it is in the first panel.

    `entries` are handles by label; by default those of the axes, each once.
    """
    if entries is None:
        pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
        entries = {label: handle for handle, label in pairs}
    if not entries:
        return
    options: dict[str, Any] = {"frameon": False, "fontsize": sized(8)}
    if not is_ours(figure):
        axes[0].legend(entries.values(), entries.keys(), **options)
        return
    room = figure.get_figwidth() * 72 / (_LETTER * sized(8))  # letters
    if len(entries) > columns or sum(len(label) + 9 for label in entries) > room:  # else one row fits
        columns = max(1, min(columns, int(room / (max(map(len, entries)) + 9))))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, **options)


def colour_of(rows: Any) -> str:
    """The colour of a table's only behaviour; ink if there are several or none of ours."""
    names = rows["behaviour"].unique() if "behaviour" in rows else []
    return BEHAVIOURS.get(str(names[0]), CUSTOM) if len(names) == 1 else INK


def small_width(count: int) -> float:
    """The width in inches of `count` letters of small text."""
    return count * _LETTER * sized(8) / 72


def broken(text: str, width: int | float) -> str:
    """A text in lines of `width` inches, broken at spaces and hyphens; long ones also after colons, slashes, arrows."""
    letters = max(1, int(72 * width / (_LETTER * sized(FONT))))
    return text if len(text) <= letters else fill(re.sub(r"(?<=[:/→])(?=\S)", " ", text), letters)


def measure_name(measure: str) -> str:
    """A measure's or baseline's name for readers: with an arrow and a minus sign instead of ASCII."""
    return re.sub(r"(?<=[ :])-(?=\d)", "−", measure.replace("->", "→"))


def literal(word: str, longest: int = 16) -> str:
    """A word as it is: dollar signs start no formula, and a very long word is cut."""
    return _cut(word, longest).replace("$", r"\$")


def visible(token: str, longest: int) -> str:
    """A token made visible: without the space before a word, and with signs for whitespace."""
    return _cut(token.strip() or token.replace(" ", "␣").replace("\n", "\\n").replace("\t", "\\t"), longest)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def spread(heights: Sequence[float], least: float) -> list[float]:
    """Move rising heights at least `least` apart, each crowded group around its mean."""
    steps = least * np.arange(len(heights))
    return (isotonic_regression(np.asarray(heights) - steps).x + steps).tolist() if len(heights) else []


def with_halo(text: Text) -> None:
    """Add a white rim, so that a name can be read over lines."""
    text.set_path_effects([withStroke(linewidth=2, foreground="white")])
