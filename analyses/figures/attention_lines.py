"""What do single heads look at? Mean patterns, and attention drawn over the words of a sentence."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analyses.figures.style import (
    COREFERENCE,
    GREY,
    INK,
    Page,
    caption,
    colour_bar,
    draw_map,
    leftmost,
    measure_name,
    panels,
    shades,
    sized,
    styled,
)
from interp.errors import InputError

Pattern = Float[NDArray[np.floating], "query key"]
FAINTEST = 0.05  # a smaller share of a word's attention is not drawn
_ACROSS = 3  # panels side by side
_NAMES, _NUMBERS = 24, 10  # names, and numbers of positions, along an axis at most


@styled
def best_heads(
    patterns: Mapping[str, Pattern],
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    axes_labels: tuple[str, str] = ("from position", "to position"),
    label: str = "mean attention",
    **page: Unpack[Page],
) -> Figure:
    """Mean attention patterns as heat maps on one scale, one a head; queries run downwards, as text does.

    Args:
        patterns: `query key` by the name of the head.
        queries: names of the rows; positions by default.
        keys: names of the columns; positions by default.
        axes_labels: what rows and columns are.
        label: what the colour is.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no pattern, or not as many names as rows and columns.
    """
    check_patterns(patterns, queries, keys)
    question = f"Where do{'es the head' if len(patterns) == 1 else ' the heads'} look?"
    figure, axes = panels(question, len(patterns), height=3.1, columns=_ACROSS, square=True, options=page)
    scale = Normalize(0, max(float(np.nanmax(pattern, initial=0.1)) for pattern in patterns.values()))
    for ax, (name, pattern) in zip(axes, patterns.items(), strict=True):
        sides = zip((queries, keys), np.shape(pattern), strict=True)
        names = [[literal(name) for name in side or map(str, range(length))] for side, length in sides]
        most = (_NAMES if queries else _NUMBERS, _NAMES if keys else _NUMBERS)
        draw_map(ax, pattern, scale, shades(), names=(names[0], names[1]), most=most)
        ax.set(title=measure_name(name), xlabel=axes_labels[1])
    for ax in axes:
        if leftmost(figure, ax):
            ax.set_ylabel(axes_labels[0])
        else:  # the rows of all panels are the same
            ax.set_yticklabels([])
    colour_bar(figure, axes, ScalarMappable(scale, shades()), label)
    caption(
        figure, f"{label[0].upper()}{label[1:]} of {', '.join(map(measure_name, patterns))}; queries run downwards."
    )
    return figure


def check_patterns(patterns: Mapping[str, Pattern], queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    """Whether there are patterns, each with as many rows and columns as these have names.

    Raises:
        InputError: it is not so.
    """
    if not patterns:
        raise InputError("expected a pattern at least, got none")
    for name, pattern in patterns.items():
        shape = np.shape(pattern)
        wanted = [size if names is None else len(names) for names, size in zip((queries, keys), shape, strict=False)]
        if len(shape) != 2 or 0 in shape or [*shape] != wanted:
            raise InputError(f"expected a row a query and a column a key, {wanted}; got a pattern {shape} of {name!r}")


@styled
def attention_over_words(
    words: Sequence[str],
    patterns: Mapping[str, Pattern] | Pattern,
    *,
    emphasised: Collection[int] = (),
    sought: Collection[int] = (),
    **page: Unpack[Page],
) -> Figure:
    """Lines from each word (left) to the words that it attends to (right), one panel a head.

    A line's weight is the share of attention, and what goes to special tokens is not drawn.

    Args:
        words: of one sentence, in order.
        patterns: word by word attention, or several by the name of the head.
        emphasised: indices of words whose lines are drawn in another colour; the rest turn grey.
        sought: indices of words that those words should look at, written in that colour on the right.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no pattern, one that is not word by word, or an index of no word.
    """
    named = patterns if isinstance(patterns, Mapping) else {"": patterns}
    check_patterns(named, words, words)
    if strange := [at for at in (*emphasised, *sought) if not 0 <= at < len(words)]:
        raise InputError(f"no word {strange[0]}: expected indices of {len(words)} words, from 0")
    height = 0.5 + 0.19 * max(len(words), 6)
    question = "Which words look at which?"
    figure, axes = panels(question, len(named), height=height, columns=_ACROSS, key=0.4, options=page)
    for ax, (name, pattern) in zip(axes, named.items(), strict=True):
        ax.set_title(measure_name(name))
        _lines(ax, np.nan_to_num(pattern), emphasised)
        _words(ax, words, emphasised, sought)
    said = f"Attention from each word (left) to the words it looks at (right), shares of {FAINTEST} and more"
    caption(figure, said + (", coloured that of the words asked about." if emphasised else "."))
    return figure


def _lines(ax: Axes, pattern: Pattern, emphasised: Collection[int]) -> None:
    queries, keys = np.nonzero(pattern >= FAINTEST)
    last = np.argsort(np.isin(queries, list(emphasised)), kind="stable")  # the emphasised are drawn over the rest
    queries, keys = queries[last], keys[last]
    weights = pattern[queries, keys]
    rest, faint, strength = (GREY, 0.05, 0.25) if emphasised else (INK, 0.15, 0.85)
    colours = [
        to_rgba(COREFERENCE, min(1, 0.4 + weight))
        if query in emphasised
        else to_rgba(rest, faint + strength * min(1, weight))
        for query, weight in zip(queries, weights, strict=True)
    ]
    ends = np.stack([np.stack([np.zeros(len(queries)), queries], 1), np.stack([np.ones(len(keys)), keys], 1)], 1)
    ax.add_collection(LineCollection(list(ends), colors=colours, linewidths=0.4 + 2.6 * weights))


def _words(ax: Axes, words: Sequence[str], emphasised: Collection[int], sought: Collection[int]) -> None:
    for at, word in enumerate(words):
        asks: dict[str, Any] = {"fontweight": "bold", "color": COREFERENCE} if at in emphasised else {}
        answers: dict[str, Any] = {"fontweight": "bold", "color": COREFERENCE} if at in sought else {}
        ax.text(-0.04, at, literal(word), ha="right", va="center", fontsize=sized(8), **asks)
        ax.text(1.04, at, literal(word), ha="left", va="center", fontsize=sized(8), **answers)
    ax.set_xlim(-0.9, 1.9)
    ax.set_ylim(len(words) - 0.4, -0.6)
    ax.set_axis_off()


def literal(word: str, longest: int = 16) -> str:
    """A word as it is: a dollar sign starts no formula, and a very long word is cut."""
    shown = word if len(word) <= longest else word[: longest - 1] + "…"
    return shown.replace("$", r"\$")
