"""Which head is called what, and do heads that attend also matter?"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from analyses.figures import style
from analyses.figures.kinds import draw
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.wording.head_names import HEAD, head_name
from analyses.wording.plain_words import Label
from interp.errors import InputError, one_of

_STRENGTH = {"both": 0.55, "effect": 0.28, "attention": 0.13}
_EVIDENCE = {"both": "attention and effect", "effect": "effect only", "attention": "attention only"}
_LINES = 5  # of text that fit into a cell
_CELL, _HIGH = 0.7, 0.76  # inches: a cell is not made narrower, where the text has 9 points, and is so high
_ROWS = 3  # of panels that set attention against effect
_SIDE = 0.5  # inches beside the cells


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
    question = "What may each head be called?"
    least = [style.sized(_SIDE + _CELL * count) for count in (n_heads, n_layers)]
    turned = n_layers < n_heads and "width" in page and page["width"] < least[0]
    columns, rows = (n_layers, n_heads) if turned else (n_heads, n_layers)
    high = style.sized(_HIGH) if turned else _HIGH
    room: Any = {"height": 1.1 + high * rows, "key": 0.0, "tallest": inf}
    width = max(style.WIDTH, _SIDE + 1.05 * columns)
    figure, (ax,) = style.panels(question, **room, width=width, least=min(least), options=page)
    width = figure.get_figwidth()
    across = width - _SIDE if style.is_ours(figure) else ax.get_position().width * width
    across = across / columns - style.sized(6) / 72  # inches: of the text in a cell
    cells: Any = _in_order(labels).groupby(["layer", "head"], sort=False)
    for (layer, head), cell in cells:
        face = to_rgba(family[cell["behaviour"].iloc[0]], _STRENGTH[cell["evidence"].iloc[0]])
        x, y = (layer, head) if turned else (head, layer)
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="none"))
        ax.text(x, y, _cell(cell["label"], across), ha="center", va="center", fontsize=style.sized(8))
    _lines(ax, columns, rows, "LH" if turned else "HL")
    if turned:
        ax.invert_yaxis()  # head 0 first; of layers, where they are rows, it is at the bottom
    entries = {name: Patch(color=to_rgba(colour, _STRENGTH["both"])) for name, colour in family.items()}
    entries |= {_EVIDENCE[name]: Patch(color=(0.3, 0.3, 0.3, _STRENGTH[name])) for name in _STRENGTH}
    style.legend(figure, [ax], entries, columns=6)
    also = "" if "gain" in labels else " Beside labels: answers to minimal pairs that the head carries."
    text = "What each head may be called, the surest first; colours are behaviours, strength evidence."
    style.caption(figure, f"Layers (L) by heads (H). {text}{also}")
    return figure


def _lines(ax: Axes, columns: int, rows: int, kinds: str) -> None:
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
    """Of labels the strongest evidence first, then those that few heads have, then the largest gain; facts as they
    come."""
    if "gain" not in labels:
        return labels
    keys = {
        "evidence": lambda column: column.map([*_STRENGTH].index),
        "label": lambda column: column.map(column.value_counts()),
        "gain": lambda column: -column,
    }
    return labels.sort_values([*keys], key=lambda column: keys[str(column.name)](column), kind="stable")


def _cell(names: Iterable[str], room: float) -> str:
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
    named. There are `most` panels at most, and no more than fill three rows: first the measures whose label most heads
    carry by both kinds of evidence. `colours` are as in `label_map`.
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
