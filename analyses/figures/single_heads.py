"""What do single heads look at, what may each be called, and does it matter to what the model says?"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any, Unpack

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from analyses.figures import style
from analyses.figures.kinds import draw
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.wording.head_names import HEAD, head_name
from analyses.wording.plain_words import Label
from interp.errors import InputError, one_of

Span = tuple[int, int]  # from the first to after the last
Pattern = Float[NDArray[np.floating], "query key"]
FAINTEST = 0.05  # a smaller share of a word's attention is not drawn
_NAMES, _NUMBERS = 24, 10  # names, and numbers of positions, along an axis at most
_STRENGTH = {"both": 0.55, "effect": 0.28, "attention": 0.13}
_EVIDENCE = {"both": "attention and effect", "effect": "effect only", "attention": "attention only"}
_LINES = 5  # of text that fit into a cell
_CELL, _HIGH = 0.7, 0.76  # inches: a cell is not made narrower, where the text has 9 points, and is so high
_ROWS = 3  # of panels that set attention against effect
_SIDE = 0.5  # inches beside the cells


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
def attention_over_words(
    words: Sequence[str],
    patterns: Mapping[str, Pattern] | Pattern,
    *,
    emphasised: Collection[int] = (),
    sought: Collection[int] = (),
    **page: Unpack[style.Page],
) -> Figure:
    """Lines from each word (left) to the words that it attends to (right), one panel a head.

    A line's weight is the share of attention, and what goes to special tokens is not drawn.

    Args:
        words: of one sentence, in order.
        patterns: word by word attention, or several by the name of the head.
        emphasised: indices of words whose lines are drawn in another colour; the rest turn grey.
        sought: indices of words that those words should look at, written in that colour on the right.
    """
    named = patterns if isinstance(patterns, Mapping) else {"": patterns}
    check_patterns(named, words, words)
    if strange := [at for at in (*emphasised, *sought) if not 0 <= at < len(words)]:
        raise InputError(f"no word {strange[0]}: expected indices of {len(words)} words, from 0")
    height = 0.5 + 0.19 * max(len(words), 6)
    question = "Which words look at which?"
    figure, axes = style.panels(question, len(named), height=height, columns=3, key=0.4, options=page)
    for ax, (name, pattern) in zip(axes, named.items(), strict=True):
        ax.set_title(style.measure_name(name))
        _attention(ax, np.nan_to_num(pattern), emphasised)
        _words(ax, words, emphasised, sought)
    text = f"Attention from each word (left) to the words it looks at (right), shares of {FAINTEST} and more"
    style.caption(figure, text + (", coloured that of the words asked about." if emphasised else "."))
    return figure


def _attention(ax: Axes, pattern: Pattern, emphasised: Collection[int]) -> None:
    queries, keys = np.nonzero(pattern >= FAINTEST)
    last = np.argsort(np.isin(queries, list(emphasised)), kind="stable")  # the emphasised are drawn over the rest
    queries, keys = queries[last], keys[last]
    weights = pattern[queries, keys]
    rest, faint, strength = (style.GREY, 0.05, 0.25) if emphasised else (style.INK, 0.15, 0.85)
    colours = [
        to_rgba(style.COREFERENCE, min(1, 0.4 + share))
        if query in emphasised
        else to_rgba(rest, faint + strength * share)
        for query, share in zip(queries, weights.clip(max=1), strict=True)
    ]
    ends = [((0, query), (1, key)) for query, key in zip(queries, keys, strict=True)]
    ax.add_collection(LineCollection(ends, colors=colours, linewidths=0.4 + 2.6 * weights))


def _words(ax: Axes, words: Sequence[str], emphasised: Collection[int], sought: Collection[int]) -> None:
    for x, align, coloured in ((-0.04, "right", emphasised), (1.04, "left", sought)):
        for place, word in enumerate(words):
            options: Any = {"fontweight": "bold", "color": style.COREFERENCE} if place in coloured else {}
            ax.text(x, place, style.literal(word), ha=align, va="center", fontsize=style.sized(8), **options)
    ax.set(xlim=(-0.9, 1.9), ylim=(len(words) - 0.4, -0.6))
    ax.set_axis_off()


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
def label_map(
    labels: pd.DataFrame,
    n_layers: int,
    n_heads: int,
    *,
    colours: Mapping[str, str] | None = None,
    **page: Unpack[style.Page],
) -> Figure:
    """Layers by heads: each cell says its head's labels, the surest first, coloured by the first one's behaviour.

    Heads stand side by side, layers above each other; on a page that is too narrow for it the other way round.

    Args:
        labels: of one kind of attention in one stack, rows of `tables/labels`, which are put in order here; or what
            `analyses.headlines.facts.in_order` makes of all facts, in its order, which is the atlas's.
        n_layers, n_heads: of the stack.
        colours: by behaviour, a key of `style.FAMILIES` (`Behaviour.colour`); one after the other by default.
    """
    marks, kind = dict.fromkeys(("behaviour", "label", "evidence")), (*SOURCES, "stack", "attention")
    place = [*HEAD, "behaviour", "label"] if "gain" in labels else []  # several facts may have one name
    labels = select_rows(labels, place, single=kind, may_be_empty=True, **marks)
    for row in labels.to_dict("records"):
        one_of("evidence", row["evidence"], _STRENGTH)
        if not (0 <= row["layer"] < n_layers and 0 <= row["head"] < n_heads):
            name = head_name(row["layer"], row["head"])
            raise InputError(f"{name} is none of {n_layers} layers of {n_heads} heads: give those of its stack")
    family = style.families(labels["behaviour"], colours)
    least = [style.sized(_SIDE + _CELL * count) for count in (n_heads, n_layers)]
    turned = n_layers < n_heads and "width" in page and page["width"] < least[0]
    columns, rows = (n_layers, n_heads) if turned else (n_heads, n_layers)
    high = style.sized(_HIGH) if turned else _HIGH
    room: Any = {"height": 1.1 + high * rows, "key": 0.0, "tallest": inf}
    width = max(style.WIDTH, _SIDE + 1.05 * columns)
    question = "What may each head be called?"
    figure, (ax,) = style.panels(question, **room, width=width, least=min(least), options=page)
    width = figure.get_figwidth()
    across = width - _SIDE if style.is_ours(figure) else ax.get_position().width * width
    across = across / columns - style.sized(6) / 72  # inches: of the text in a cell
    cells: Any = _in_order(labels).groupby(["layer", "head"], sort=False)
    for (layer, head), cell in cells:
        face = to_rgba(family[cell["behaviour"].iloc[0]], _STRENGTH[cell["evidence"].iloc[0]])
        x, y = (layer, head) if turned else (head, layer)
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="none"))
        ax.text(x, y, _label_lines(cell["label"], across), ha="center", va="center", fontsize=style.sized(8))
    _grid(ax, columns, rows, "LH" if turned else "HL")
    if turned:
        ax.invert_yaxis()  # head 0 first; of layers, where they are rows, it is at the bottom
    entries = {name: Patch(color=to_rgba(colour, _STRENGTH["both"])) for name, colour in family.items()}
    entries |= {_EVIDENCE[name]: Patch(color=(0.3, 0.3, 0.3, _STRENGTH[name])) for name in _STRENGTH}
    style.legend(figure, [ax], entries, columns=6)
    also = "" if "gain" in labels else " Beside labels: answers to minimal pairs that the head carries."
    text = "What each head may be called, the surest first; colours are behaviours, strength evidence."
    style.caption(figure, f"Layers (L) by heads (H). {text}{also}")
    return figure


def _grid(ax: Axes, columns: int, rows: int, kinds: str) -> None:
    """Lines around all cells, and the letters of what counts across and up with their numbers."""
    across, up = kinds
    ax.set_xticks(range(columns), [f"{across}{at}" for at in range(columns)])
    ax.set_yticks(range(rows), [f"{up}{at}" for at in range(rows)])
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=style.GREY, lw=0.4)
    ax.tick_params(which="both", length=0)
    ax.set(xlim=(-0.51, columns - 0.49), ylim=(-0.51, rows - 0.49))  # the outer lines are whole too
    ax.spines[:].set_visible(False)


def _in_order(labels: pd.DataFrame) -> pd.DataFrame:
    """Labels with the strongest evidence first, then those that few heads have; facts as they come."""
    if "gain" not in labels:
        return labels
    strength = labels["evidence"].map([*_STRENGTH].index)
    keys = pd.DataFrame({0: strength, 1: labels.groupby("label")["label"].transform("size"), 2: -labels["gain"]})
    return labels.loc[keys.sort_values([0, 1, 2], kind="stable").index]


def _label_lines(names: Iterable[str], room: float) -> str:
    """As many labels as there are lines for, of so many inches, at least the first, and how many more there are."""
    labels = [style.broken(_short(name), room, 8).split("\n") for name in names]
    count = max(1, sum(total <= _LINES for total in accumulate(map(len, labels))))
    if 1 < count < len(labels) and sum(map(len, labels[:count])) == _LINES:
        count -= 1  # the last line says that there are more
    lines = [line for label in labels[:count] for line in label]
    return "\n".join(lines + ([f"and {len(labels) - count} more"] if count < len(labels) else []))


def _short(name: str) -> str:
    """A label without what every reader knows: `relation:obj:dependent->head` is obj, dep→head."""
    label = Label.parse(name)
    if label.kind == "relation":
        return f"{label.name} {label.source.replace('dependent', 'dep')}→{label.target.replace('dependent', 'dep')}"
    if label.kind == "rule":
        return label.words().short
    return style.measure_name(f"{label.source}->{label.target}" if label.kind == "tag" else name)


@style.styled
def attention_against_effect(
    evidence: pd.DataFrame,
    labels: pd.DataFrame,
    *,
    most: int = 9,
    colours: Mapping[str, str] | None = None,
    **page: Unpack[style.Page],
) -> Figure:
    """One panel a measure, one dot a head: its gain over the baseline, and the effect of its claimed keys.

    Tables are `tables/evidence` and `tables/labels`; labelled heads are coloured and the two with the largest effects
    named. There are at most `most` panels in three rows: first the measures whose label most heads carry by both kinds
    of evidence. `colours` are as in `label_map`.
    """
    evidence = select_rows(evidence, [*HEAD, "behaviour", "measure", "label"], gain=None, effect=None, label=None)
    labels = select_rows(labels, [*HEAD, "behaviour", "label", "measure"], may_be_empty=True, evidence=None, label=None)
    rows = evidence.dropna(subset=["gain", "effect", "label"])
    if rows.empty:
        raise InputError("expected rows that have a gain, an effect and a label: got none")
    family = style.families(rows["behaviour"], colours)
    n_both, n_labels = Counter(labels.loc[labels["evidence"] == "both", "label"]), Counter(labels["label"])
    largest = {name: group["effect"].max() for name, group in rows.groupby("label")}
    width = page.get("width", style.WIDTH)
    across = style.fitting(3, width) if "width" in page else 3
    order = sorted(largest, key=lambda name: (-n_both[name], -n_labels[name], -largest[name]))
    order = order[: min(most, across * _ROWS)]
    measures = f"the {len(order)} measures of {len(largest)} that label the most heads"
    rows = rows.merge(labels[[*HEAD, "label", "evidence"]], on=[*HEAD, "label"], how="left")
    tables = [_against_effect(rows.loc[rows["label"] == measure]) for measure in order]
    dots: dict[str, Any] = {f"_{name}": {"color": colour, "marker": "o"} for name, colour in family.items()}
    dots |= {"_": {"color": style.GREY, "marker": "o", "s": 9, "alpha": 0.6}}
    words = {"which": f"in {measures if len(order) < len(largest) else 'a measure'}"}
    height = min(2.4, 0.85 * width / across)
    return draw("attention_against_effect", pd.concat(tables), page, words, looks=dots, height=height)


def _against_effect(rows: pd.DataFrame) -> pd.DataFrame:
    """One measure's heads: those with its label have the colour of its behaviour, and two of them names."""
    rho, labelled = rows["agreement"].iloc[0], rows["evidence"].notna()
    agree = "" if np.isnan(rho) else f"ρ = {rho:.2f}, ".replace("-", "−")
    leading = {*rows.loc[labelled].nlargest(2, "effect").index}
    heads = zip(rows.index, rows["layer"], rows["head"], strict=True)
    names = [head_name(layer, head) if index in leading else "" for index, layer, head in heads]
    title = f"{style.measure_name(rows['label'].iloc[0])}\n{agree}{len(rows)} heads"
    return rows.assign(panel=title, colour=rows["behaviour"].where(labelled, ""), note=names)
