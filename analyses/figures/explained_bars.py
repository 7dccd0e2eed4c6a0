"""Of what is each head's attention made?"""

from collections.abc import Mapping
from typing import Unpack

import pandas as pd
from matplotlib.figure import Figure

from analyses.figures.style import (
    COREFERENCE,
    PALE,
    POSITION,
    SOFT,
    SYNTAX,
    WIDTH,
    Page,
    caption,
    is_ours,
    legend,
    panels,
    sized,
    styled,
)
from interp.errors import InputError

# sinks, position, token and class, nearest of a class, relation and reference, uniform
_COLOURS = (SOFT, POSITION, SYNTAX, "#7fbfa8", COREFERENCE, PALE)

_BESIDE, _TICK = 0.4, 0.22  # inches beside a panel's bars, and of the name of a head


@styled
def explained_bars(parts: Mapping[str, pd.DataFrame], **page: Unpack[Page]) -> Figure:
    """A bar a head and a panel a layer: its attention, group by group of rules.

    Args:
        parts: by group, at most six, the share of each head's attention, layer x head; NaN where nothing is said.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no group, too many, or groups of other layers and heads.
    """
    if not 0 < len(parts) <= len(_COLOURS):
        raise InputError(f"expected one to {len(_COLOURS)} groups of rules, got {len(parts)}")
    parts = {name: shares.sort_index().sort_index(axis=1) for name, shares in parts.items()}
    shape = next(iter(parts.values())).shape
    if wrong := [name for name, shares in parts.items() if shares.shape != shape or not shares.size]:
        raise InputError(f"expected shares of {shape} layers and heads, got {parts[wrong[0]].shape} of {wrong[0]}")
    columns = 1 if shape[1] > 16 else 2 if shape[1] > 8 or shape[0] < 6 else 3
    question, options = "Of which simple rules is the attention of each head made?", page
    if page.get("ax") is None:
        options: Page = {"width": WIDTH, **page}
    figure, axes = panels(question, shape[0], height=0.8, columns=columns, key=0.9, options=options)
    place = axes[0].get_subplotspec() if is_ours(figure) else None
    side = figure.get_figwidth() / (place.get_gridspec().ncols if place else len(axes)) - _BESIDE
    every = 1 + int(sized(_TICK) * shape[1] / side)
    for layer, ax in zip(reversed(range(shape[0])), axes, strict=True):  # layer 0 comes last
        below = pd.Series(0.0, index=range(shape[1]))
        for (group, shares), colour in zip(parts.items(), _COLOURS, strict=False):
            own = shares.iloc[layer].fillna(0.0)
            ax.bar(own.index, own, bottom=below, color=colour, width=0.85, label=group, linewidth=0)
            below = below + own
        ax.set(ylim=(0, 1), yticks=[0, 1], xlim=(-0.6, shape[1] - 0.4), ylabel=f"layer {layer}")
        shown = range(0, shape[1], every)
        ax.set_xticks(shown, [f"H{head}" for head in shown], fontsize=sized(8))
        ax.tick_params(axis="x", length=0)
    legend(figure, axes, columns=3)
    caption(figure, "The share of each head's attention that each group of rules explains, a panel a layer.")
    return figure
