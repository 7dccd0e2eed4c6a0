"""What do the three attentions of an encoder-decoder look at in one pair of texts?"""

from collections.abc import Mapping, Sequence
from typing import Unpack

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analyses.figures.attention_lines import Pattern, check_patterns
from analyses.figures.style import (
    INK,
    WIDTH,
    Page,
    begin,
    caption,
    colour_bar,
    literal,
    measure_name,
    shades,
    sized,
    styled,
)
from interp.errors import InputError

Span = tuple[int, int]  # from the first to after the last
_COLOURS = shades()  # so that most of a page stays white, and an outline can be seen
_LARGEST = 0.22  # inches: a cell's side at most; less where the texts are long
_BESIDE, _BETWEEN, _ABOVE = 2.2, 1.0, 1.4  # inches beside the maps, from one to the next, and over and under them
_NARROWEST = 5.0  # inches


@styled
def three_attentions(
    patterns: Mapping[str, Pattern],
    *,
    source: Sequence[str],
    read: Sequence[str],
    written: Sequence[str],
    aligned: Sequence[tuple[str, Span, Span]] = (),
    **page: Unpack[Page],
) -> Figure:
    """Heat maps with cells of one size on one scale: the encoder's, and beside it cross-attention over the decoder's.

    Queries run downwards, as text does.

    Args:
        patterns: `query key` by the head's name: of the encoder, of the decoder, and of cross-attention.
        source: the encoder's tokens.
        read: the token that the decoder has read last in each row.
        written: the token that it is to write in each row.
        aligned: name, rows and columns of each stretch of cross-attention that is known to belong together; it is
            outlined, and named where there is one of its name.
        page: how it stands on a page: `title`, `width`, `font_size` (`style.Page`).

    Raises:
        InputError: not three patterns, or not a token for each row and column.
    """
    if len(patterns) != 3:
        raise InputError(f"expected the encoder's pattern, the decoder's and cross-attention's; got {len(patterns)}")
    encoder, decoder, cross = patterns.items()
    for (name, pattern), queries, keys in ((encoder, source, source), (decoder, read, read), (cross, written, source)):
        check_patterns({name: pattern}, queries, keys)
    cell = min(_LARGEST, (page.get("width", WIDTH) - _BESIDE) / (2 * len(source)))
    width = page.get("width", max(2 * len(source) * cell + _BESIDE, _NARROWEST))
    height = max(len(source), len(written) + len(read) + _BETWEEN / cell) * cell + _ABOVE
    question = "What do the three attentions look at while a text is translated?"
    figure = begin(question, height, width, page)
    axes = figure.subplot_mosaic(
        [["encoder", "cross"], ["encoder", "decoder"]], height_ratios=(len(written), len(read))
    )
    called = "source, looked at", "read, looked at"
    _map(axes["encoder"], *encoder, source, source, (called[0], "source"))
    _map(axes["cross"], *cross, written, source, (called[0], "written next"))
    _map(axes["decoder"], *decoder, read, read, (called[1], "read last"))
    axes["encoder"].set_anchor("N")
    for name in ("cross", "decoder"):
        axes[name].set_anchor("NW")
    _outline(axes["cross"], aligned)
    colour_bar(figure, [*axes.values()], ScalarMappable(Normalize(0, 1), _COLOURS), "attention")
    outlined = "outlined: what is known to belong together" if aligned else None
    said = "Attention of the encoder, of cross-attention and of the decoder; queries run downwards"
    caption(figure, said + (", and outlined is what is known to belong together." if aligned else "."), note=outlined)
    return figure


def _map(
    ax: Axes, name: str, pattern: Pattern, rows: Sequence[str], columns: Sequence[str], labels: tuple[str, str]
) -> None:
    ax.imshow(pattern, cmap=_COLOURS, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    ax.set_title(measure_name(name), loc="left")
    ax.set_xticks(range(len(columns)), map(_shown, columns), rotation=90 if max(map(len, columns)) > 1 else 0)
    ax.set_yticks(range(len(rows)), map(_shown, rows))
    ax.tick_params(length=0, pad=2)
    ax.set(xlabel=labels[0], ylabel=labels[1])
    ax.spines[:].set(visible=True, color="0.7", linewidth=0.6)


def _shown(token: str) -> str:
    """A token with its spaces in sight."""
    return literal(token.replace(" ", "␣"))


def _outline(ax: Axes, aligned: Sequence[tuple[str, Span, Span]]) -> None:
    names = [name for name, _, _ in aligned]
    for name, (top, bottom), (left, right) in aligned:
        corner = left - 0.5, top - 0.5
        sides = right - left, bottom - top
        ax.add_patch(Rectangle(corner, *sides, fill=False, edgecolor=INK, linewidth=1.4, clip_on=False))
        if names.count(name) > 1:
            continue  # the parts are all of one kind
        to_the_left = left > ax.get_xlim()[1] / 2  # where there is room for its name
        place, side = (left - 0.8, "right") if to_the_left else (right - 0.2, "left")
        ax.text(place, (top + bottom - 1) / 2, name, color=INK, ha=side, va="center", fontsize=sized(8))
