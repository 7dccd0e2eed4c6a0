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
from analyses.viewer.pictures import SIDE, averaged
from interp.errors import InputError

Span = tuple[int, int]  # from the first to after the last
Pattern = Float[NDArray[np.floating], "query key"]
_NAMES, _NUMBERS = 24, 10  # names, and numbers of positions, along an axis at most
_FAINTEST, _WORD = 0.05, 16  # of a head's attention that is a line, and letters of a word


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
    words = {"outlined": ", and outlined is what is known to belong together" * bool(aligned)}
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


@style.styled
def word_lines(
    patterns: Mapping[str, Pattern],
    *,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    **page: Unpack[style.Page],
) -> Figure:
    """Lines from each word on the left to those on the right that a head looks at, wider and darker for more.

    Args:
        patterns: `query key` by the name of the head, a panel each.
        queries, keys: names of the rows and of the columns; `keys` are the `queries` by default.
    """
    keys = queries if keys is None else keys
    check_patterns(patterns, queries, keys)
    size, longest = style.sized(8), max(len(queries), len(keys))
    options: Any = {"height": 0.4 + 1.3 * size / 72 * longest, "columns": 2, "key": 0.1}
    question = f"Which words do{'es the head' if len(patterns) == 1 else ' the heads'} look at?"
    figure, axes = style.panels(question, len(patterns), **options, options=page)
    strongest = []
    for ax, (name, pattern) in zip(axes, patterns.items(), strict=True):
        links = np.argwhere(np.asarray(pattern) >= _FAINTEST)
        shares = np.asarray(pattern)[tuple(links.T)]
        ends = [((0.03, query), (0.97, key)) for query, key in links.tolist()]
        ax.add_collection(LineCollection(ends, colors=style.INK, alpha=0.15 + 0.85 * shares, lw=0.3 + 2.2 * shares))
        for place, side, words in ((0.0, "right", queries), (1.0, "left", keys)):
            for height, word in enumerate(words):
                text = style.literal(style.visible(word, _WORD))
                ax.text(place, height, text, ha=side, va="center", fontsize=size)
        ax.set(xlim=(0, 1), ylim=(longest - 0.4, -0.6), title=style.measure_name(name))
        ax.set_axis_off()
        words = [f"{queries[query].strip()} to {keys[key].strip()}" for query, key in links[np.argsort(-shares)[:3]]]
        strongest.append(f"{name}: strongest from {', '.join(words)}." if words else f"{name}: nothing.")
    heads = ", ".join(map(style.measure_name, patterns))
    style.caption(
        figure, f"Attention of {heads}: from the words on the left to those on the right, {_FAINTEST:.0%} or more."
    )
    setattr(figure, "alt", " ".join(strongest))  # noqa: B010 (as in `style.caption`)
    return figure


@style.styled
def pattern_atlas(
    patterns: Mapping[tuple[int, int], Pattern], behaviours: Mapping[tuple[int, int], str], **page: Unpack[style.Page]
) -> Figure:
    """A small picture of the attention of every head, in the colour of what it is known for; grey where nothing is.

    Args:
        patterns: `query key` by layer and head.
        behaviours: by layer and head, where one is known.
    """
    if not patterns:
        raise InputError("expected a pattern at least, got none")
    n_layers, n_heads = (max(cell[axis] for cell in patterns) + 1 for axis in (0, 1))
    width = page.get("width", style.WIDTH)
    is_high = n_layers * (width - 0.6) / n_heads + 0.8 > style.HIGHEST
    is_wide = page.get("horizontal", is_high)
    tiles = np.full((n_layers, n_heads, SIDE + 2, SIDE + 2, 4), 0.0)
    for cell, pattern in patterns.items():
        colour = style.BEHAVIOURS.get(behaviours.get(cell, ""), style.CUSTOM if behaviours.get(cell) else style.GREY)
        rows = averaged(np.asarray(pattern))
        stretched = rows[np.arange(SIDE) * len(rows) // SIDE][:, np.arange(SIDE) * rows.shape[1] // SIDE]
        tiles[*cell, 1:-1, 1:-1] = [*to_rgb(colour), 0.0]
        tiles[*cell, 1:-1, 1:-1, 3] = 0.06 + 0.94 * np.sqrt(stretched.clip(0, 1))
    down, across = (n_heads, n_layers) if is_wide else (n_layers, n_heads)
    tiles = tiles.swapaxes(0, 1) if is_wide else tiles[::-1]
    side = min(1.2, (width - 0.6) / across)
    options: Any = {"height": 0.4 + side * down, "key": 0.5, "width": min(width, 0.9 + side * across)}
    figure, (ax,) = style.panels("Where does every head look?", **options, options=page)
    picture = tiles.transpose(0, 2, 1, 3, 4).reshape(down * (SIDE + 2), across * (SIDE + 2), 4)
    ax.imshow(picture, extent=(-0.5, across - 0.5, down - 0.5, -0.5), interpolation="nearest", aspect="equal")
    layers, heads = ([str(number) for number in range(count)] for count in (n_layers, n_heads))
    texts = (heads, "head", layers, "layer") if is_wide else (layers[::-1], "layer", heads, "head")
    ax.set_yticks(range(down), texts[0])
    ax.set_xticks(range(across), texts[2])
    ax.set(ylabel=texts[1], xlabel=texts[3])
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)
    names = [*dict.fromkeys(behaviours[cell] for cell in sorted(behaviours) if cell in patterns)]
    key = {name: Patch(color=style.BEHAVIOURS.get(name, style.CUSTOM)) for name in names}
    style.legend(
        figure, [ax], key | ({"nothing found": Patch(color=style.GREY)} if len(behaviours) < len(patterns) else {})
    )
    layer_0 = "left" if is_wide else "bottom"
    style.caption(
        figure, f"The attention of every head, layer 0 at the {layer_0}; in each picture queries run downwards."
    )
    setattr(figure, "alt", f"{len(patterns)} heads, {len(behaviours)} of them known for something.")  # noqa: B010
    return figure
