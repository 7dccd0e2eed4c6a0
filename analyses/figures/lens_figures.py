"""What does a model say on its way, layer by layer and token by token?"""

import math
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analyses.figures.attention_lines import literal
from analyses.figures.row_selection import SOURCES, select_rows
from analyses.figures.style import (
    GREY,
    INK,
    WIDTH,
    Page,
    caption,
    colour_bar,
    draw_map,
    is_ours,
    legend,
    shades,
    single,
    sized,
    styled,
)

_SHOWN = 14  # columns of a lens at most: more have no room for a word
_WORD = 9  # characters of a token


@styled
def lens_map(said: pd.DataFrame, *, prompt: int | None = None, **page: Unpack[Page]) -> Figure:
    """Layers up, positions (or prompts) across: in each cell the most probable token, coloured by its probability.

    Args:
        said: rows of a lens's table; of each layer and place the first is drawn.
        prompt: which prompt's positions; by default the first's, or all prompts where one position of each was read.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no such row or prompt; several models or runs.
    """
    rows = select_rows(said, ["layer", "prompt", "position"], rank=1, prompt=prompt)
    by_prompt = prompt is None and rows.groupby("prompt")["position"].nunique().max() == 1
    across = "prompt" if by_prompt else "position"
    if not by_prompt:
        rows = rows.loc[rows["prompt"] == (rows["prompt"].min() if prompt is None else prompt)]
    places = sorted(set(rows[across]))[:_SHOWN]
    rows = rows.loc[rows[across].isin(places)]
    layers = sorted(set(rows["layer"]))
    width = min(WIDTH, 1.6 + 0.62 * len(places))
    question = "What would the model say after each layer?"
    figure, ax = single(question, 1.3 + 0.26 * len(layers), max(width, 4.5), page)
    chances = rows.pivot(index="layer", columns=across, values="probability").reindex(columns=places)
    names = [str(layer - 1) if layer else "embed" for layer in layers]
    read = rows.drop_duplicates(across).set_index(across)["read"]
    labels = [str(place) if by_prompt or not isinstance(read[place], str) else _cut(read[place]) for place in places]
    draw_map(ax, chances, Normalize(0, 1), shades(), names=(names, labels), most=(len(names), _SHOWN))
    tokens = rows.assign(shown=[_shown(row) for row in rows.to_dict("records")])
    tokens = tokens.pivot(index="layer", columns=across, values="shown").reindex(columns=places).to_numpy()
    room = (figure.get_figwidth() - 1.5) / len(places) * 72  # points
    longest = max((len(token) for token in tokens.ravel()), default=1)
    size = max(min(sized(8), room / (0.62 * longest)), sized(4.5))
    for (row, column), token in np.ndenumerate(tokens):
        colour = "white" if chances.to_numpy()[row, column] > 0.5 else "black"
        ax.text(column + 0.5, row + 0.5, token, ha="center", va="center", fontsize=size, color=colour)
    ax.invert_yaxis()
    ax.set(xlabel=across if by_prompt else "token read", ylabel="after layer")
    colour_bar(figure, [ax], ScalarMappable(Normalize(0, 1), shades()), "probability")
    caption(
        figure, "The token that the output layer finds most probable after each layer, coloured by its probability."
    )
    return figure


@styled
def lens_line(difference: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """The logit of one answer less another's after each layer, a line a position, with the bands of 95% intervals.

    Args:
        difference: rows of a lens's table of two answers.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no row; several models or runs.
    """
    difference = select_rows(difference, ["layer", "at"])
    figure, ax = single("From which layer on does the model prefer its answer?", 2.8, 5.5, page)
    places = sorted(set(difference["at"]))
    for at, place in enumerate(places):
        rows = difference.loc[difference["at"] == place].sort_values("layer")
        line: dict[str, Any] = {"label": f"position {place}"} if len(places) > 1 else {}
        colour = INK if len(places) == 1 else f"C{at}"
        x, low, high = (rows[name].to_numpy(dtype=float) for name in ("layer", "ci_low", "ci_high"))
        ax.plot(x, rows["effect"], color=colour, marker="o", ms=4, **line)
        ax.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
    ax.axhline(0, color=GREY, lw=0.8)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="layers passed", ylabel="logit difference")
    if len(places) > 1:
        legend(figure, [ax])
    n = max(difference["n"].tolist())
    band = ", the band its 95% interval" * bool(n > 2)
    caption(
        figure, f"The logit of the right answer less the wrong one's after each layer, mean over {n} prompts{band}."
    )
    return figure


@styled
def token_bars(tokens: pd.DataFrame, **page: Unpack[Page]) -> Figure:
    """How surprising each token of one prompt is to the model that read those before it.

    Args:
        tokens: rows of a run's table, of one prompt.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no row; several prompts, models or runs.
    """
    tokens = select_rows(tokens, ["position"], single=(*SOURCES, "prompt")).sort_values("position")
    names = [
        _cut(token) if isinstance(token, str) else str(id)
        for token, id in zip(tokens["token"], tokens["id"], strict=True)
    ]
    width = min(WIDTH, max(3.3, 1.0 + 0.25 * len(names)))
    figure, ax = single("Which tokens surprise the model?", 2.4, width, page)
    ax.bar(range(len(names)), -tokens["log_probability"].to_numpy(dtype=float), color=INK, width=0.8)
    room = (figure.get_figwidth() if is_ours(figure) else 3.3) - 0.8
    shown = range(0, len(names), max(1, math.ceil(len(names) * 1.25 * sized(8) / 72 / room)))
    ax.set_xticks(shown, [names[at] for at in shown], rotation=90)
    ax.tick_params("x", length=0)
    ax.set(xlabel="", ylabel="surprise, in nats")
    caption(figure, "Minus the log-probability (nats) of each token given those before it; the first has none.")
    return figure


def _shown(row: dict[Any, Any]) -> str:
    return _cut(row["token"]) if isinstance(row["token"], str) else str(row["id"])


def _cut(token: str) -> str:
    """A token that can be seen, and is no formula."""
    return literal(token.strip() or token.replace(" ", "␣").replace("\n", "\\n"), _WORD)
