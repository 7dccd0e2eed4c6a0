"""What do the three attentions of an encoder-decoder look at in one pair of texts?"""

from collections.abc import Mapping, Sequence
from typing import Unpack

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analyses.figures.attention_lines import Pattern, check_patterns
from analyses.figures.style import INK, WIDTH, Page, begin, caption, literal, measure_name, shades, sized, styled
from interp.errors import InputError

Span = tuple[int, int]  # from the first to after the last
_COLOURS = shades()  # so that most of a page stays white, and an outline can be seen
_LARGEST = 0.22  # inches: a cell's side at most; less where the texts are long
_LEFT, _BETWEEN, _RIGHT = 0.6, 0.85, 0.15  # inches beside the maps
_ABOVE, _MIDDLE, _BELOW = 0.75, 1.05, 0.6  # inches over them, from one to the next, and under them
_KEY = 1.05  # inches under the encoder's map for the bar and what is said of outlines
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
    cell = min(_LARGEST, (page.get("width", WIDTH) - _LEFT - _BETWEEN - _RIGHT) / (2 * len(source)))
    wide, high = len(source) * cell, len(read) * cell
    width = page.get("width", max(_LEFT + 2 * wide + _BETWEEN + _RIGHT, _NARROWEST))
    height = _ABOVE + max(wide + _KEY, 2 * high + _MIDDLE) + _BELOW
    figure = begin("What do the three attentions look at while a text is translated?", height, width, page)
    over = _ABOVE + figure.get_figheight() - height  # a title of several lines takes more
    height = figure.get_figheight()
    figure.set_layout_engine("none")  # every map's place is worked out below, so that all cells are of one size

    def axes(left: float, top: float, columns: Sequence[str], rows: Sequence[str]) -> Axes:
        size = len(columns) * cell, len(rows) * cell
        return figure.add_axes((left / width, 1 - (top + size[1]) / height, size[0] / width, size[1] / height))

    second = _LEFT + wide + _BETWEEN
    upper = axes(second, over, source, written)
    lower = axes(second, over + high + _MIDDLE, read, read)
    _map(axes(_LEFT, over, source, source), *encoder, source, source, ("source, looked at", "source"))
    _map(upper, *cross, written, source, ("source, looked at", "written next"))
    _map(lower, *decoder, read, read, ("read, looked at", "read last"))
    _outline(upper, aligned)
    _key(figure, bool(aligned))
    said = "Attention of the encoder, of cross-attention and of the decoder; queries run downwards"
    caption(figure, said + (", and outlined is what is known to belong together." if aligned else "."))
    return figure


def _map(
    ax: Axes, name: str, pattern: Pattern, rows: Sequence[str], columns: Sequence[str], called: tuple[str, str]
) -> None:
    ax.imshow(pattern, cmap=_COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_title(measure_name(name), loc="left")
    ax.set_xticks(range(len(columns)), map(_shown, columns))
    ax.set_yticks(range(len(rows)), map(_shown, rows))
    ax.tick_params(length=0, pad=2)
    for label in ax.get_xticklabels():
        label.set_rotation(90 if len(label.get_text()) > 1 else 0)
    ax.set_xlabel(called[0])
    ax.set_ylabel(called[1])
    for spine in ax.spines.values():
        spine.set(visible=True, color="0.7", linewidth=0.6)


def _key(figure: Figure, outlined: bool) -> None:
    """The bar under the encoder's map, and over it what an outline means."""
    width, height = figure.get_size_inches()
    bar = figure.add_axes((_LEFT / width, 0.4 / height, 1.3 / width, 0.1 / height))
    figure.colorbar(ScalarMappable(Normalize(0, 1), _COLOURS), cax=bar, orientation="horizontal", label="attention")
    if outlined:
        said = "outlined: what is\nknown to belong\ntogether"
        figure.text(_LEFT / width, 0.55 / height, said, color=INK, va="bottom")


def _shown(token: str) -> str:
    """A token with its spaces visible."""
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
