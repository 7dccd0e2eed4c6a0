"""What is seen where no script runs? One head's strongest links, as a plain SVG picture."""

import numpy as np

from analyses.viewer.page_safety import environment
from analyses.viewer.passages import Viewer

_MOST = 40  # tokens of each side that are drawn
_FAINTEST = 0.05  # of a head's attention that is drawn
_LETTERS = 18  # of a token beside the lines


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
    sides = [[_printable(token) for token in side[:_MOST]] for side in (attention.queries, attention.keys)]
    template = environment({"analyses.viewer": "."}, {}).get_template("links.svg.jinja")
    return template.render(title=title, sides=sides, links=links)


def _printable(token: str) -> str:
    """A token of so many letters, without signs that no XML may hold."""
    shown = token.strip() or "␣"
    shown = shown if len(shown) <= _LETTERS else f"{shown[: _LETTERS - 1]}…"
    return "".join(sign if sign.isprintable() else "�" for sign in shown)
