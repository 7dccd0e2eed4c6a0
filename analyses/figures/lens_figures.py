"""What does a model say on its way, layer by layer and token by token?"""

import math
from typing import Any, Unpack

import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analyses.figures import style
from analyses.figures.kinds import draw
from analyses.figures.row_selection import SOURCES, select_rows

_SHOWN = 14  # columns of a lens at most: more have no room for a word
_WORD = 9  # characters of a token


@style.styled
def lens_map(said: pd.DataFrame, *, prompt: int | None = None, **page: Unpack[style.Page]) -> Figure:
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
    layers, places = sorted(set(rows["layer"])), sorted(set(rows[across]))[:_SHOWN]
    rows = rows.loc[rows[across].isin(places)]
    read = rows.drop_duplicates(across).set_index(across)["read"]
    labels = [str(place) if by_prompt or not isinstance(read[place], str) else _cut(read[place]) for place in places]
    shown = [_cut(row["token"]) if isinstance(row["token"], str) else str(row["id"]) for row in rows.to_dict("records")]
    rows = rows.assign(row=rows["layer"].map(layers.index), column=rows[across].map(places.index), text=shown)
    names = [str(layer - 1) if layer else "embed" for layer in layers], labels
    look: Any = {"scale": Normalize(0, 1), "colours": style.shades(), "names": names}
    width = max(4.5, min(style.WIDTH, 1.6 + 0.62 * len(places)))
    words = {"across": across if by_prompt else "token read"}
    return draw("lens_map", rows, page, words, width=width, **look)


@style.styled
def lens_line(difference: pd.DataFrame, **page: Unpack[style.Page]) -> Figure:
    """The logit of one answer less another's after each layer, a line a position, with the bands of 95% intervals.

    Args:
        difference: rows of a lens's table of two answers.
        page: how it stands on a page: `title`, `width`, `font_size`, `ax` (`style.Page`).

    Raises:
        InputError: no row; several models or runs.
    """
    rows = select_rows(difference, ["layer", "at"])
    places, n = sorted(set(rows["at"])), max(rows["n"].tolist())
    several = len(places) > 1
    rows = rows.assign(place=[f"position {place}" * several for place in rows["at"]])
    looks = {f"position {place}": {"color": f"C{index}", "marker": "o"} for index, place in enumerate(places)}
    words = {"n": n, "band": ", the band its 95% interval" * bool(n > 2)}
    return draw("lens_line", rows, page, words, looks=looks)


@style.styled
def token_bars(tokens: pd.DataFrame, **page: Unpack[style.Page]) -> Figure:
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
    width = min(style.WIDTH, max(3.3, 1.0 + 0.25 * len(names)))
    figure, (ax,) = style.panels("Which tokens surprise the model?", height=2.4, key=0.0, width=width, options=page)
    ax.bar(range(len(names)), -tokens["log_probability"].to_numpy(dtype=float), color=style.INK, width=0.8)
    room = (figure.get_figwidth() if style.is_ours(figure) else 3.3) - 0.8
    shown = range(0, len(names), max(1, math.ceil(len(names) * 1.25 * style.sized(8) / 72 / room)))
    ax.set_xticks(shown, [names[at] for at in shown], rotation=90)
    ax.tick_params("x", length=0)
    ax.set(xlabel="", ylabel="surprise, in nats")
    style.caption(figure, "Minus the log-probability (nats) of each token given those before it; the first has none.")
    return figure


def _cut(token: str) -> str:
    """A token that can be seen, and is no formula."""
    return style.literal(style.visible(token, _WORD))
