"""What is seen where no script runs? One head's strongest links, or a sweep's cells, as a plain SVG picture."""

from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment

from analyses.page.page_safety import environment
from analyses.viewer.passages import Viewer
from interp import InputError, Sweep
from interp.display import signed

_MOST = 40  # tokens of each side that are drawn
_FAINTEST = 0.05  # of a head's attention that is drawn, and of the largest effect that has an edge
_LETTERS, _SHORT = 18, 6  # of a token beside the lines, and below a column


@cache
def _templates() -> Environment:
    return environment({"analyses.viewer": "."}, {"signed": signed})


def static(viewer: Viewer) -> str:
    """An SVG picture: on the left the tokens that look, on the right those that they look at, wider lines for more.

    It is of the first passage and head, and of no more than its first tokens.
    """
    stack, kind, layer, head = viewer.start
    attentions = viewer.passages[0].attentions
    same = [each for each in attentions if (each.heads.stack, each.heads.attention) == (stack, kind)]
    attention = (same or attentions)[0]
    shares = attention.weights[layer, head, :_MOST, :_MOST] / 255
    links = [(query, key, shares[query, key]) for query, key in np.argwhere(shares >= _FAINTEST).tolist()]
    longest = max(len(attention.queries), len(attention.keys))
    title = (
        f"{'cross-attention ' if kind == 'cross' else ''}L{layer}.H{head} looks from the tokens on the left to those"
    )
    title += " on the right" + f" (the first {_MOST} of {longest})" * (longest > _MOST)
    sides = [[_printable(token, _LETTERS) for token in side[:_MOST]] for side in (attention.queries, attention.keys)]
    return _templates().get_template("links.svg.jinja").render(title=title, sides=sides, links=links)


def cell_picture(sweep: Sweep) -> str:
    """Layers upwards and heads or positions to the right: the darker a cell, the larger its mean effect over prompts.

    What moves the metric the other way, and not by little, has a dashed edge. It is of the sweep's first metric.

    Raises:
        InputError: its cells do not lie on a layer and one other axis.
    """
    if len(sweep.axes) != 2 or sweep.axes[0] != "layer":
        raise InputError(
            f"a map has a layer and a head or position; this sweep lies on {', '.join(sweep.axes)}: .figure()"
        )
    metric = next(iter(sweep.values))
    effect = sweep.effect(metric).double().nanmean(-1).cpu().numpy()
    largest = float(np.nanmax(np.abs(effect), initial=0.0)) or 1.0
    words: dict[str, Any] = {
        "title": f"{metric}, {sweep.direction}: the darkest cell has {signed(largest)} either way",
        "columns": [_column(sweep, column) for column in range(effect.shape[1])],
        "rows": effect.tolist(),
        "largest": largest,
        "least": -_FAINTEST * largest,
        "metric": metric,
    }
    return _templates().get_template("cells.svg.jinja").render(**words)


def _column(sweep: Sweep, index: int) -> str:
    """A head's number, or a position's name or token."""
    if sweep.axes[1] == "head":
        return f"H{index}"
    tokens = sweep.labels.get("token", ())
    names = sweep.positions[index:] or tokens[index:]
    return str(index) if not names or names[0] is None else names[0].strip()[:_SHORT]


def _printable(token: str, longest: int) -> str:
    """A token of so many letters, without signs that no XML may hold."""
    shown = token.strip() or "␣"
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    return "".join(sign if sign.isprintable() else "�" for sign in shown)
