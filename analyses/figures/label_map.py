"""Which head is called what, and do heads that attend also matter?"""

from collections import Counter
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from analyses.figures.style import (
    GREY,
    WIDTH,
    Page,
    along,
    caption,
    families,
    keys,
    measure_name,
    panels,
    single,
    sized,
    styled,
)
from analyses.head_names import head_name

_STRENGTH = {"both": 0.55, "effect": 0.28, "attention": 0.13}
_SAYS = {"both": "attention and effect", "effect": "effect only", "attention": "attention only"}
_SHOWN = 3  # labels that fit into a cell
_CELL = 0.7  # inches: a cell is not made narrower, where the text has 9 points
_HEAD = ["stack", "attention", "layer", "head"]


@styled
def label_map(
    labels: pd.DataFrame,
    n_layers: int,
    n_heads: int,
    *,
    colours: Mapping[str, str] | None = None,
    **page: Unpack[Page],
) -> Figure:
    """Layers by heads: each cell says its head's labels, the surest first, coloured by the first one's behaviour.

    Args:
        labels: rows of `tables/labels` of one kind of attention in one stack.
        n_layers: rows of the map.
        n_heads: columns of the map.
        colours: by behaviour, a key of `style.FAMILIES` (`Behaviour.colour`); one after the other by default.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    family = families(labels["behaviour"], colours)
    question = "What may each head be called?"
    least = sized(0.5 + _CELL * n_heads)
    figure, ax = single(question, 1.1 + 0.62 * n_layers, max(WIDTH, 0.5 + 1.05 * n_heads), page, least=least)
    for (layer, head), rows in _by_head(labels).items():
        face: Any = (*_rgb(family[rows[0]["behaviour"]]), _STRENGTH[rows[0]["evidence"]])
        ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, facecolor=face, edgecolor="none"))
        ax.text(head, layer, _cell([row["label"] for row in rows]), ha="center", va="center", fontsize=sized(6))
    ax.set_xticks(range(n_heads), [f"H{head}" for head in range(n_heads)])
    ax.set_yticks(range(n_layers), [f"L{layer}" for layer in range(n_layers)])
    ax.set_xticks(np.arange(n_heads + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(n_layers + 1) - 0.5, minor=True)
    ax.grid(which="minor", color=GREY, lw=0.4)
    ax.tick_params(which="both", length=0)
    ax.set(xlim=(-0.51, n_heads - 0.49), ylim=(-0.51, n_layers - 0.49))  # the outer lines are whole too
    ax.spines[:].set_visible(False)
    entries = {name: Patch(color=(*_rgb(colour), _STRENGTH["both"])) for name, colour in family.items()}
    entries |= {_SAYS[name]: Patch(color=(0.3, 0.3, 0.3, _STRENGTH[name])) for name in _STRENGTH}
    keys(figure, [ax], entries, columns=6)
    caption(figure, "What each head may be called, the surest label first; colours are behaviours, strength evidence.")
    return figure


def _by_head(labels: pd.DataFrame) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Each head's rows, the strongest evidence first, then labels that few heads have, then the largest gain."""
    order, common = [*_STRENGTH], labels["label"].value_counts()
    rows: list[dict[str, Any]] = [{str(key): value for key, value in row.items()} for row in labels.to_dict("records")]
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (order.index(row["evidence"]), common[row["label"]], -row["gain"])):
        found.setdefault((row["layer"], row["head"]), []).append(row)
    return found


def _cell(names: Sequence[str]) -> str:
    shown = [fill(_short(name), 18) for name in names[:_SHOWN]]
    return "\n".join(shown + ([f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []))


def _short(name: str) -> str:
    """A label without what every reader knows: `relation:obj:dependent->head` is obj, dep→head."""
    kind, _, rest = name.partition(":")
    if kind == "relation":
        relation, _, way = rest.rpartition(":")
        return f"{relation} {way.replace('dependent', 'dep').replace('->', '→')}"
    return measure_name(rest if kind == "tag" else name)


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


@styled
def attention_against_effect(
    evidence: pd.DataFrame,
    labels: pd.DataFrame,
    *,
    most: int = 9,
    colours: Mapping[str, str] | None = None,
    **page: Unpack[Page],
) -> Figure:
    """One panel a measure, one dot a head: its gain over the baseline, and what hiding the claimed keys costs.

    Args:
        evidence: a row a head and measure, as `analyses.labels.label` returns them.
        labels: rows of `tables/labels`; labelled heads are coloured and the two with the largest effects named.
        colours: as in `label_map`.
        most: panels at most, those measures first whose label most heads carry by both kinds of evidence.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).
    """
    known = evidence.dropna(subset=["gain", "effect"])
    known = known.dropna(subset=["label"]).assign(measure=known["label"])  # the measure that each label rests on
    family = families(known["behaviour"], colours)
    both, carried = Counter(labels.loc[labels["evidence"] == "both", "label"]), Counter(labels["label"])
    largest = {name: known.loc[known["measure"] == name, "effect"].max() for name in set(known["measure"])}
    order = sorted(largest, key=lambda name: (-both[name], -carried[name], -largest[name]))[:most]
    question = "Do the heads that attend also matter to what the model says?"
    figure, axes = panels(question, len(order), height=2.4, columns=3, key=0.8, options=page)
    for ax, measure in zip(axes, order, strict=True):
        rows = known.loc[known["measure"] == measure]
        colour = family[rows["behaviour"].iloc[0]]
        _agreement(ax, rows, labels.loc[labels["label"] == measure], colour)
    up = "effect of hiding the claimed keys, in nats a row"
    along(figure, axes, "attention: gain over the strictest baseline", up)
    caption(figure, f"Every head's gain in a measure and the {up}; coloured are the heads with its label.")
    return figure


def _agreement(ax: Axes, rows: pd.DataFrame, labels: pd.DataFrame, colour: str) -> None:
    """All heads in grey, those labelled with this measure in the colour of its behaviour."""
    chosen = rows.merge(labels[[*_HEAD, "evidence"]], on=_HEAD, how="left")
    plain = chosen.loc[chosen["evidence"].isna()]
    ax.scatter(plain["gain"], plain["effect"], s=9, color=GREY, alpha=0.6, linewidth=0)
    named = chosen.dropna(subset=["evidence"])
    ax.scatter(named["gain"], named["effect"], s=20, color=colour, linewidth=0)
    for row in named.nlargest(2, "effect").to_dict("records"):
        ax.annotate(
            head_name(row["layer"], row["head"]),
            (row["gain"], row["effect"]),
            textcoords="offset points",
            xytext=(-4, 3),
            ha="right",
            fontsize=sized(7),
        )
    ax.axhline(0, color=GREY, lw=0.6)
    ax.axvline(0, color=GREY, lw=0.6)
    rho = rows["agreement"].iloc[0]
    agree = "" if np.isnan(rho) else f"ρ = {rho:.2f}, ".replace("-", "−")
    ax.set_title(f"{measure_name(rows['measure'].iloc[0])}\n{agree}{len(rows)} heads", loc="left", fontsize=sized(8))
    ax.margins(0.12)
