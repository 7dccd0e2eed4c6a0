"""What do single heads look at? Attention patterns as heat maps."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from analyses.figures import style
from analyses.figures.kinds import draw
from interp.errors import InputError

Span = tuple[int, int]  # first index, and the one after the last
Pattern = Float[NDArray[np.floating], "query key"]
_NAMES, _NUMBERS = 24, 10  # names, and numbers of positions, along an axis at most
_FAINTEST, _WORD = 0.05, 16  # the smallest attention drawn as a line, and letters of a word
_SIDE, _TICK = 24, 0.2  # cells of a small picture each way, and inches for a number along an axis


@style.styled
def best_heads(
    patterns: Mapping[str, Pattern],
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    axes_labels: tuple[str, str] = ("from position", "to position"),
    label: str = "mean attention",
    **page: Unpack[style.Page],
) -> Figure:
    """Mean attention patterns as heat maps, one per head, on one scale; queries run downwards, like text.

    Args:
        patterns: `query key`, by the name of the head.
        queries, keys: names of the rows and columns; positions by default.
        axes_labels: what rows and columns are.
        label: what the colour means.
    """
    check_patterns(patterns, queries, keys)
    tables = [_cells(name, pattern) for name, pattern in patterns.items()]
    largest = max(float(np.nanmax(pattern, initial=0.1)) for pattern in patterns.values())
    names = tuple([*map(style.literal, side)] if side else None for side in (queries, keys))
    words = {"heads": "es the head" if len(patterns) == 1 else " the heads", "said": f"{label[0].upper()}{label[1:]}"}
    words |= {"names": ", ".join(map(style.measure_name, patterns)), "down": axes_labels[0], "across": axes_labels[1]}
    limits = _NAMES if queries else _NUMBERS, _NAMES if keys else _NUMBERS
    options: Any = {"scale": Normalize(0, largest), "colours": style.shades(), "names": names, "most": limits}
    return draw("best_heads", pd.concat(tables).assign(bar=label), page, words, **options)


def _cells(name: str, pattern: Pattern) -> pd.DataFrame:
    query, key = np.indices(np.shape(pattern))
    columns = {"query": query.ravel(), "key": key.ravel(), "value": np.ravel(pattern)}
    return pd.DataFrame({"panel": style.measure_name(name), **columns})


def check_patterns(patterns: Mapping[str, Pattern], queries: Sequence[str] | None, keys: Sequence[str] | None) -> None:
    """Refuse an empty mapping, and patterns whose shape does not fit the names."""
    if not patterns:
        raise InputError("expected at least one pattern, got none")
    for name, pattern in patterns.items():
        shape = np.shape(pattern)
        sizes = [size if names is None else len(names) for names, size in zip((queries, keys), shape, strict=False)]
        if len(shape) != 2 or 0 in shape or [*shape] != sizes:
            raise InputError(f"expected a row per query, a column per key, {sizes}; got a pattern {shape} of {name!r}")


@style.styled
def three_attentions(
    patterns: Mapping[str, Pattern],
    *,
    source: Sequence[str],
    read: Sequence[str],
    written: Sequence[str],
    aligned: Sequence[tuple[str, Span, Span]] = (),
    **page: Unpack[style.Page],
) -> Figure:
    """Heat maps on one scale: the encoder's attention, cross-attention and the decoder's; queries run downwards.

    Args:
        patterns: `query key` by the head's name: one of the encoder, one of the decoder, and one of cross-attention.
        source: the encoder's tokens.
        read: for each row, the last token that the decoder has read.
        written: for each row, the token that it should write next.
        aligned: name, rows and columns of stretches of cross-attention that are known to correspond; they are outlined,
            and named if their name is unique.
    """
    if len(patterns) != 3:
        raise InputError(f"expected the encoder's pattern, the decoder's and cross-attention's; got {len(patterns)}")
    encoder, decoder, cross = patterns
    sides = {encoder: (source, source), cross: (written, source), decoder: (read, read)}
    tables = []
    for name, (queries, keys) in sides.items():
        check_patterns({name: patterns[name]}, queries, keys)
        cells = _cells(name, patterns[name])
        down, across = ([style.literal(token.replace(" ", "␣")) for token in tokens] for tokens in (queries, keys))
        rows, ticks = [down[row] for row in cells["query"]], [across[key] for key in cells["key"]]
        tables.append(cells.assign(row=rows, tick=ticks, bar="attention"))
    words = {"outlined": "; outlined cells are known to belong together" * bool(aligned)}
    options: Any = {"scale": Normalize(0, 1), "colours": style.shades(), "most": (len(written) + len(source),) * 2}
    note = "outlined: what is known to belong together" if aligned else None
    figure = draw("three_attentions", pd.concat(tables), page, words, note=note, **options)
    axes = style.drawn_axes(figure, page.get("ax"))
    labels = ("source", "source, looked at"), ("written next", "source, looked at"), ("read last", "read, looked at")
    for ax, (up, across) in zip(axes, labels, strict=True):
        ax.set(ylabel=up, xlabel=across)
    _outline(axes[1], aligned)
    return figure


def _outline(ax: Axes, aligned: Sequence[tuple[str, Span, Span]]) -> None:
    names = [name for name, _, _ in aligned]
    for name, (top, bottom), (left, right) in aligned:
        box = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=style.INK, linewidth=1.4)
        box.set_clip_on(False)
        ax.add_patch(box)
        if names.count(name) > 1:
            continue  # the parts are all of one kind
        to_the_left = left > ax.get_xlim()[1] / 2  # on the side with room for the name
        place, side = (left - 0.3, "right") if to_the_left else (right + 0.3, "left")
        ax.text(place, (top + bottom) / 2, name, color=style.INK, ha=side, va="center", fontsize=style.sized(8))


@style.styled
def word_lines(
    patterns: Mapping[str, Pattern], queries: Sequence[str], keys: Sequence[str], **page: Unpack[style.Page]
) -> Figure:
    """Lines from the `queries` on the left to the `keys` that a head looks at, wider and darker for more attention.

    `patterns` are `query key` by the name of the head; each gets a panel.
    """
    check_patterns(patterns, queries, keys)
    size, longest = style.sized(8), max(len(queries), len(keys))
    options: Any = {"height": 0.4 + 1.3 * size / 72 * longest, "columns": 2, "key": 0.1}
    figure, axes = style.panels("Which words does a head look at?", len(patterns), **options, options=page)
    for ax, (name, pattern) in zip(axes, patterns.items(), strict=True):
        shares = np.asarray(pattern, float)
        links = np.argwhere(shares >= _FAINTEST)
        ends, shares = [((0.03, query), (0.97, key)) for query, key in links.tolist()], shares[tuple(links.T)]
        ax.add_collection(LineCollection(ends, colors=style.INK, alpha=0.15 + 0.85 * shares, lw=0.3 + 2.2 * shares))
        for place, side, words in ((0.0, "right", queries), (1.0, "left", keys)):
            for height, word in enumerate(words):
                text = style.literal(style.visible(word, _WORD))
                ax.text(place, height, text, ha=side, va="center", fontsize=size)
        ax.set(xlim=(0, 1), ylim=(longest - 0.4, -0.6), title=style.measure_name(name))
        ax.set_axis_off()
    heads = ", ".join(map(style.measure_name, patterns))
    style.caption(figure, f"Where {heads} looks, left to right: wider for more, nothing below {_FAINTEST:.0%}.")
    return figure


@style.styled
def pattern_atlas(
    patterns: Mapping[tuple[int, int], Pattern], behaviours: Mapping[tuple[int, int], str], **page: Unpack[style.Page]
) -> Figure:
    """A small picture of every head's attention: its `query key` pattern by layer and head.

    Each has the colour of the head's behaviour, or grey if it is not in `behaviours`.
    """
    check_patterns({str(cell): pattern for cell, pattern in patterns.items()}, None, None)
    down, across = (max(cell[axis] for cell in patterns) + 1 for axis in (0, 1))
    tiles, width = np.zeros((down, across, _SIDE + 2, _SIDE + 2, 4)), page.get("width", style.WIDTH)
    key = {}
    for cell, pattern in patterns.items():
        name = behaviours.get(cell, "nothing found")
        colour = style.BEHAVIOURS.get(name, style.CUSTOM if cell in behaviours else style.GREY)
        small = np.asarray(pattern)[np.ix_(*(np.arange(_SIDE) * size // _SIDE for size in np.shape(pattern)))]
        tiles[*cell, 1:-1, 1:-1, :3] = to_rgb(colour)
        tiles[*cell, 1:-1, 1:-1, 3] = 0.06 + 0.94 * np.sqrt(small.clip(0, 1))
        key[name] = Patch(color=colour)
    names, bottom = ("layer", "head"), "bottom"
    if page.get("horizontal", down * (width - 0.6) / across > style.HIGHEST - 0.9):
        tiles, down, across, names, bottom = tiles.swapaxes(0, 1), across, down, names[::-1], "left"
    side = min(1.2, (width - 0.6) / across)
    options: Any = {"height": 0.4 + side * down, "key": 0.5, "width": min(width, 0.9 + side * across)}
    figure, (ax,) = style.panels("Where does every head look?", **options, options=page)
    rows = tiles.swapaxes(1, 2).reshape(down, _SIDE + 2, -1, 4)
    rows, ends = (rows, (down - 0.5, -0.5)) if bottom == "left" else (rows[::-1], (-0.5, down - 0.5))
    ax.imshow(rows.reshape(-1, *rows.shape[2:]), extent=(-0.5, across - 0.5, *ends), interpolation="nearest")
    step = 1 + int(style.sized(_TICK) / side)
    ax.set(xticks=range(0, across, step), yticks=range(0, down, step), ylabel=names[0], xlabel=names[1])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    style.legend(figure, [ax], key)
    style.caption(figure, f"The attention of every head, layer 0 at the {bottom}; in each, queries run downwards.")
    return figure
