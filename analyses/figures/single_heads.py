"""What do single heads look at? Attention patterns as heat maps."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from analyses.figures import style
from analyses.figures.kinds import draw
from interp.errors import InputError

Span = tuple[int, int]  # from the first to after the last
Pattern = Float[NDArray[np.floating], "query key"]
_NAMES, _NUMBERS = 24, 10  # names, and numbers of positions, along an axis at most


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
    """Mean attention patterns as heat maps on one scale, one a head; queries run downwards, as text does.

    Args:
        patterns: `query key` by the name of the head.
        queries, keys: names of the rows and of the columns; positions by default.
        axes_labels: what rows and columns are.
        label: what the colour is.
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
    """Refuse no patterns, and one that has not as many rows and columns as these have names."""
    if not patterns:
        raise InputError("expected a pattern at least, got none")
    for name, pattern in patterns.items():
        shape = np.shape(pattern)
        sizes = [size if names is None else len(names) for names, size in zip((queries, keys), shape, strict=False)]
        if len(shape) != 2 or 0 in shape or [*shape] != sizes:
            raise InputError(f"expected a row a query and a column a key, {sizes}; got a pattern {shape} of {name!r}")


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
        patterns: `query key` by the head's name: of the encoder, of the decoder, and of cross-attention.
        source: the encoder's tokens.
        read: the token that the decoder has read last in each row.
        written: the token that it is to write in each row.
        aligned: name, rows and columns of each stretch of cross-attention that is known to belong together; it is
            outlined, and named where there is one of its name.
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
        to_the_left = left > ax.get_xlim()[1] / 2  # where there is room for its name
        place, side = (left - 0.3, "right") if to_the_left else (right + 0.3, "left")
        ax.text(place, (top + bottom) / 2, name, color=style.INK, ha=side, va="center", fontsize=style.sized(8))
